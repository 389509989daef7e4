// Links of several heads in one picture, a colour each.

import { FONT, fitted, html, number, svg } from "../../views/page/assets/dom.js";
import { height } from "../../views/page/assets/scale.js";
import { activeQuery, derive, strongest } from "../../views/page/assets/view.js";

// Okabe and Ito: distinguishable to the colour-blind, too
const COLOURS = {
  light: ["#0072b2", "#d55e00", "#007a5a", "#b0487f", "#8a6d00", "#2f7fb5", "#5b5b5b", "#a33"],
  dark: ["#56b4e9", "#f0a05a", "#3fc79a", "#e69fc4", "#f0e442", "#8ec9f0", "#c0c0c0", "#ff8a8a"],
};

/** @param {number} place @param {string} scheme */
export const headColour = (place, scheme) => COLOURS[scheme === "dark" ? "dark" : "light"][place % 8];

const [WIDTH, START, END, LABEL] = [440, 128, 300, 110];

/** @param {import("./main.js").App} app */
export function createOverlay(app) {
  const root = svg("svg", { class: "picture arcs", role: "img", "font-family": FONT, "aria-label": "Links of several heads, a colour each" });
  const legend = html("p", { class: "legend heads-legend" });
  /** @type {{ name: string, view: any }[]} */
  let layers = [];

  /** @param {import("./text.js").ReadText} text @param {[number, number][]} places @param {any} state */
  async function load(text, places, state) {
    layers = await Promise.all(places.map(async ([layer, head]) => ({
      name: `${text.spec.layers[layer]}.${text.spec.heads[head]}`,
      view: derive(text.spec, await text.head([[layer, head]], state), state, app.palette()),
    })));
  }

  /** @param {any} view */
  function draw(view) {
    if (!view.state.others.length || view.state.blend !== "colours" || !layers.length) return;
    const { rows, columns, palette } = view;
    const shown = rows.labels.length <= 200;
    const most = Math.max(rows.labels.length, columns.labels.length);
    const step = Math.min(34, Math.max(12, Math.floor(600 / most)));
    const size = Math.min(14, step * 0.78);
    root.setAttribute("viewBox", `0 0 ${WIDTH} ${most * step + 16}`);
    root.setAttribute("width", String(WIDTH));
    root.setAttribute("height", String(most * step + 16));
    const y = (/** @type {number} */ place) => 8 + (place + 0.5) * step;
    const row = activeQuery(view.state);
    const paths = layers.flatMap(({ view: each }, k) => {
      const links = (row === null ? strongest(each, 2 * most) : rowLinks(each, row)).filter((link) => link.weight >= 0.02 * each.grid.peak);
      return links.map((link) => {
        const part = height(link.weight, each.grid.peak, view.state.log);
        const bend = (END - START) * 0.45;
        const shift = (k - (layers.length - 1) / 2) * 1.5;
        return svg("path", {
          d: `M${START} ${y(link.row) + shift}C${START + bend} ${y(link.row) + shift} ${END - bend} ${y(link.column) + shift} ${END} ${y(link.column) + shift}`,
          fill: "none", stroke: headColour(k, app.scheme()), "stroke-opacity": (0.15 + 0.8 * part).toFixed(3), "stroke-width": (0.75 + 5 * part).toFixed(2),
        });
      });
    });
    const name = (/** @type {string} */ label, /** @type {number} */ place, /** @type {boolean} */ right) => svg("text", {
      x: right ? END + 9 : START - 9, y: y(place), "text-anchor": right ? "start" : "end", "dominant-baseline": "central", "font-size": size,
      fill: !right && place === row ? palette.query : palette.ink, "font-weight": !right && place === row ? 650 : 400,
    }, fitted(label, size, LABEL));
    root.replaceChildren(...(shown ? paths : []), ...(shown ? rows.labels.map((/** @type {string} */ label, /** @type {number} */ k) => name(label, k, false)) : []),
      ...(shown ? columns.labels.map((/** @type {string} */ label, /** @type {number} */ k) => name(label, k, true)) : []));
    legend.replaceChildren(...layers.map(({ name: head, view: each }, k) => {
      const [best] = row === null ? strongest(each, 1) : rowLinks(each, row);
      const swatch = html("span", { class: "swatch" });
      swatch.style.background = headColour(k, app.scheme());
      return html("span", { class: "legend-head" }, swatch, ` layer ${head.replace(".", " head ")} `,
        best ? html("span", { class: "number" }, `${each.rows.labels[best.row]} → ${each.columns.labels[best.column]} ${number(best.weight)}`) : "");
    }));
  }

  return { element: html("div", {}, root, legend), picture: root, load, draw, focus: draw };
}

/** @param {any} view @param {number} row */
function rowLinks(view, row) {
  return Array.from(view.grid.matrix.row(row), (weight, column) => ({ row, column, weight }))
    .filter(({ column }) => view.shown(column)).sort((a, b) => b.weight - a.weight).slice(0, 12);
}
