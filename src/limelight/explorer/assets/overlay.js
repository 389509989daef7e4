// Links of several heads in one picture, one colour for each head.

import { FONT, fitted, html, number, svg } from "../../views/page/assets/dom.js";
import { height } from "../../views/page/assets/scale.js";
import { activeQuery, derive, strongest } from "../../views/page/assets/view.js";

// after Okabe and Ito: distinguishable with colour blindness
const COLOURS = {
  light: ["#0072b2", "#d55e00", "#007a5a", "#b0487f", "#8a6d00", "#2f7fb5", "#5b5b5b", "#a33"],
  dark: ["#56b4e9", "#f0a05a", "#3fc79a", "#e69fc4", "#f0e442", "#8ec9f0", "#c0c0c0", "#ff8a8a"],
};

/** @param {number} index among the overlaid heads @param {string} scheme */
export const headColour = (index, scheme) => COLOURS[scheme === "dark" ? "dark" : "light"][index % 8];

const [WIDTH, START, END, LABEL] = [440, 128, 300, 110];

/** @param {import("./main.js").App} app */
export function createOverlay(app) {
  const root = svg("svg", { class: "picture arcs", role: "img", "font-family": FONT, "aria-label": "Links of several heads, one colour for each head" });
  const legend = html("p", { class: "legend heads-legend" });
  /** @type {{ name: string, view: any }[]} */
  let overlaid = [];

  /** @param {import("./text.js").ReadText} text @param {[number, number][]} heads @param {any} state */
  async function load(text, heads, state) {
    overlaid = await Promise.all(heads.map(async ([layer, head]) => ({
      name: `${text.spec.layers[layer]}.${text.spec.heads[head]}`,
      view: derive(text.spec, await text.head([[layer, head]], state), state, app.palette()),
    })));
  }

  /** @param {any} view */
  function draw(view) {
    if (!view.state.others.length || view.state.blend !== "colours" || !overlaid.length) return;
    const { rows, columns, palette } = view;
    const fits = rows.labels.length <= 200;
    const count = Math.max(rows.labels.length, columns.labels.length);
    const step = Math.min(34, Math.max(12, Math.floor(600 / count)));
    const size = Math.min(14, step * 0.78);
    root.setAttribute("viewBox", `0 0 ${WIDTH} ${count * step + 16}`);
    root.setAttribute("width", String(WIDTH));
    root.setAttribute("height", String(count * step + 16));
    const y = (/** @type {number} */ token) => 8 + (token + 0.5) * step;
    const row = activeQuery(view.state);
    const paths = overlaid.flatMap(({ view: head }, k) => {
      const links = (row === null ? strongest(head, 2 * count) : rowLinks(head, row)).filter((link) => link.weight >= 0.02 * head.grid.peak);
      return links.map((link) => {
        const part = height(link.weight, head.grid.peak, view.state.log);
        const bend = (END - START) * 0.45;
        const shift = (k - (overlaid.length - 1) / 2) * 1.5;
        return svg("path", {
          d: `M${START} ${y(link.row) + shift}C${START + bend} ${y(link.row) + shift} ${END - bend} ${y(link.column) + shift} ${END} ${y(link.column) + shift}`,
          fill: "none", stroke: headColour(k, app.scheme()), "stroke-opacity": (0.15 + 0.8 * part).toFixed(3), "stroke-width": (0.75 + 5 * part).toFixed(2),
        });
      });
    });
    const name = (/** @type {string} */ label, /** @type {number} */ token, /** @type {boolean} */ right) => svg("text", {
      x: right ? END + 9 : START - 9, y: y(token), "text-anchor": right ? "start" : "end", "dominant-baseline": "central", "font-size": size,
      fill: !right && token === row ? palette.query : palette.ink, "font-weight": !right && token === row ? 650 : 400,
    }, fitted(label, size, LABEL));
    root.replaceChildren(...(fits ? paths : []), ...(fits ? rows.labels.map((/** @type {string} */ label, /** @type {number} */ k) => name(label, k, false)) : []),
      ...(fits ? columns.labels.map((/** @type {string} */ label, /** @type {number} */ k) => name(label, k, true)) : []));
    legend.replaceChildren(...overlaid.map(({ name: head, view: headView }, k) => {
      const [best] = row === null ? strongest(headView, 1) : rowLinks(headView, row);
      const swatch = html("span", { class: "swatch" });
      swatch.style.background = headColour(k, app.scheme());
      return html("span", { class: "legend-head" }, swatch, ` layer ${head.replace(".", " head ")} `,
        best ? html("span", { class: "number" }, `${headView.rows.labels[best.row]} → ${headView.columns.labels[best.column]} ${number(best.weight)}`) : "");
    }));
  }

  return { element: html("div", {}, root, legend), picture: root, load, draw, focus: draw };
}

/** @param {any} view @param {number} row */
function rowLinks(view, row) {
  return Array.from(view.grid.matrix.row(row), (weight, column) => ({ row, column, weight }))
    .filter(({ column }) => view.shown(column)).sort((a, b) => b.weight - a.weight).slice(0, 12);
}
