// Two columns of tokens, and a line for each link: the stronger, the thicker.

import { FONT, fitted, number, reveal, scrolling, svg, widthOf } from "./dom.js";
import { height } from "./scale.js";
import { answers, asking, strongest } from "./view.js";

const WIDTH = 440;
const LABEL = 104; // room for a label

export function createArcs(store) {
  const root = svg("svg", { class: "picture arcs", role: "img", "font-family": FONT });
  let links = null;
  let names = null;
  let layout = null;

  function draw(view) {
    layout = measure(view);
    root.setAttribute("viewBox", `0 0 ${WIDTH} ${layout.total}`);
    root.setAttribute("width", WIDTH);
    root.setAttribute("height", layout.total);
    root.setAttribute("aria-label", "Links between the tokens that ask, left, and those that answer, right.");
    links = svg("g", { fill: "none", "stroke-linecap": "round" });
    names = svg("g", { "font-size": layout.size });
    root.replaceChildren(links, names);
    focus(view);
  }

  function locate(event) {
    const box = root.getBoundingClientRect();
    const zoom = WIDTH / box.width;
    const x = (event.clientX - box.left) * zoom;
    const place = Math.floor(((event.clientY - box.top) * zoom - 8) / layout.step);
    const right = x > WIDTH / 2;
    if (place < 0 || place >= (right ? layout.columns : layout.rows)) return null;
    return { right, place };
  }

  root.addEventListener("pointermove", (event) => {
    const found = locate(event);
    store.set({
      query: found && !found.right ? found.place : null,
      key: found?.right ? found.place : null,
    });
  });
  root.addEventListener("pointerleave", () => store.set({ query: null, key: null }));
  root.addEventListener("click", (event) => {
    const found = locate(event);
    if (found && !found.right) store.set({ locked: store.get().locked === found.place ? null : found.place });
  });

  function focus(view) {
    const { state, palette } = view;
    const row = asking(state);
    const chosen = choose(view, row, state.key);
    const y = (place) => 8 + (place + 0.5) * layout.step;
    links.replaceChildren(...chosen.slice().reverse().map((link) => {
      const part = height(link.weight, view.peak, state.log);
      const bend = (layout.end - layout.start) * 0.45;
      return svg("path", {
        d: `M${layout.start} ${y(link.row)}C${layout.start + bend} ${y(link.row)} ${layout.end - bend} ${y(link.column)} ${layout.end} ${y(link.column)}`,
        stroke: palette.answer,
        "stroke-opacity": (0.08 + 0.85 * part).toFixed(3),
        "stroke-width": (0.75 + Math.min(layout.step * 0.4, 7) * part).toFixed(2),
      });
    }));
    names.replaceChildren(
      ...side(view, view.rows.labels, false, row, y),
      ...side(view, view.columns.labels, true, state.key, y, row),
    );
  }

  const element = scrolling({ class: "frame" }, root);
  return { element, picture: root, draw, focus, reveal: (row) => reveal(element, names.children[row]) };

  function side(view, labels, right, marked, y, row = null) {
    const { palette } = view;
    return labels.map((label, place) => {
      const apart = right && view.apart.has(place);
      const weight = right && row !== null && view.shown(place) ? view.matrix.at(row, place) : 0;
      const strong = place === marked || (row !== null && right && weight >= 0.04);
      const fill = place === marked ? (right ? palette.answer : palette.ask) : apart ? palette.muted : palette.ink;
      const text = svg("text", {
        x: right ? layout.end + 9 : layout.start - 9, y: y(place),
        "text-anchor": right ? "start" : "end", "dominant-baseline": "central",
        fill, "font-weight": strong ? 650 : 400, "fill-opacity": right && row !== null && !strong ? 0.55 : 1,
      }, fitted(label, layout.size, LABEL));
      if (!strong || !right || row === null) return text;
      return svg("g", {}, text, svg("text", {
        x: layout.numbers, y: y(place), "text-anchor": "end", "dominant-baseline": "central",
        fill: palette.muted, "font-size": layout.size * 0.92,
      }, number(view.matrix.at(row, place))));
    });
  }
}

function measure(view) {
  const rows = view.matrix.rows;
  const columns = view.matrix.columns;
  const most = Math.max(rows, columns);
  const step = Math.min(34, Math.max(12, Math.floor(600 / most)));
  const size = Math.min(14, step * 0.78);
  const longest = Math.max(...view.columns.labels.map((label) => widthOf(fitted(label, size, LABEL), size)));
  const numbers = 279 + longest + 52;
  return { rows, columns, step, size, numbers, start: 128, end: 270, total: most * step + 16 };
}

function choose(view, row, key) {
  if (row !== null) return answers(view, row).slice(0, 24).map((link) => ({ row, ...link }));
  if (key === null) return strongest(view, 4 * view.matrix.rows);
  const links = [];
  for (let i = 0; i < view.matrix.rows; i += 1) {
    links.push({ row: i, column: key, weight: view.matrix.at(i, key) });
  }
  return links.sort((a, b) => b.weight - a.weight).slice(0, 48);
}
