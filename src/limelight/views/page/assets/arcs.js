// Two columns of tokens and a line for each link: the stronger the link, the thicker the line.

import { FONT, fitted, number, reveal, scrolling, svg, widthOf } from "./dom.js";
import { height } from "./scale.js";
import { activeQueries, rankedKeys, strongest, weightAt } from "./view.js";

/** @typedef {import("./view.js").View} View */

const WIDTH = 440;
const LABEL = 104; // width of a label, at most

/**
 * All tokens of a short text; of a long one those around the query and its keys.
 * @param {import("./store.js").Store} store
 */
export function createArcs(store) {
  const root = svg("svg", { class: "picture arcs", role: "img", "font-family": FONT });
  /** @type {any} */
  let links = null;
  /** @type {any} */
  let names = null;
  /** @type {any} */
  let layout = null;

  function draw(/** @type {import("./view.js").View} */ view) {
    layout = measure(view);
    root.setAttribute("viewBox", `0 0 ${WIDTH} ${layout.total}`);
    root.setAttribute("width", String(WIDTH));
    root.setAttribute("height", layout.total);
    root.setAttribute("aria-label", "Links between queries, left, and keys, right.");
    links = svg("g", { fill: "none", "stroke-linecap": "round" });
    names = svg("g", { "font-size": layout.size });
    root.replaceChildren(links, names);
    focus(view);
  }

  function locate(/** @type {any} */ event) {
    const box = root.getBoundingClientRect();
    const zoom = WIDTH / box.width;
    const x = (event.clientX - box.left) * zoom;
    const place = Math.floor(((event.clientY - box.top) * zoom - 8) / layout.step);
    const right = x > WIDTH / 2;
    const tokens = right ? layout.columns : layout.rows;
    return place < 0 || place >= tokens.length ? null : { right, token: tokens[place] };
  }

  root.addEventListener("pointermove", (/** @type {any} */ event) => {
    const target = locate(event);
    store.set({
      query: target && !target.right ? target.token : null,
      key: target?.right ? target.token : null,
    });
  });
  root.addEventListener("pointerleave", () => store.set({ query: null, key: null }));
  root.addEventListener("click", (/** @type {any} */ event) => {
    const target = locate(event);
    if (target && !target.right) store.set({ locked: store.get().locked === target.token ? null : target.token });
  });

  function focus(/** @type {import("./view.js").View} */ view) {
    const { state, palette } = view;
    const queries = activeQueries(state);
    const chosen = choose(view, queries, state.key);
    const y = (/** @type {number} */ place) => 8 + (place + 0.5) * layout.step;
    const rowPlace = new Map(layout.rows.map((/** @type {number} */ token, /** @type {number} */ place) => [token, place]));
    const columnPlace = new Map(layout.columns.map((/** @type {number} */ token, /** @type {number} */ place) => [token, place]));
    const drawn = chosen.filter((/** @type {any} */ link) => rowPlace.has(link.row) && columnPlace.has(link.column));
    links.replaceChildren(...drawn.reverse().map((/** @type {any} */ link) => {
      const part = height(link.weight, layout.peak, state.log);
      const [from, to] = [y(rowPlace.get(link.row)), y(columnPlace.get(link.column))];
      const bend = (layout.end - layout.start) * 0.45;
      return svg("path", {
        d: `M${layout.start} ${from}C${layout.start + bend} ${from} ${layout.end - bend} ${to} ${layout.end} ${to}`,
        stroke: palette.key,
        "stroke-opacity": (0.08 + 0.85 * part).toFixed(3),
        "stroke-width": (0.75 + Math.min(layout.step * 0.4, 7) * part).toFixed(2),
      });
    }));
    names.replaceChildren(
      ...side(view, layout.rows, false, queries, y),
      ...side(view, layout.columns, true, state.key === null ? [] : [state.key], y, queries),
    );
  }

  const element = scrolling({ class: "frame" }, root);
  return { element, picture: root, draw, focus, reveal: (/** @type {number} */ row) => reveal(element, names.children[layout.rows.indexOf(row)] ?? names) };

  /** @param {View} view @param {number[]} tokens @param {boolean} right @param {number[]} marked @param {(place: number) => number} y @param {number[]} queries */
  function side(view, tokens, right, marked, y, queries = []) {
    const active = queries.length > 0;
    const { palette } = view;
    const labels = (right ? view.columns : view.rows).labels;
    return tokens.map((token, place) => {
      const faint = right && view.background.has(token);
      const weight = right && view.shown(token) ? queries.reduce((total, row) => total + weightAt(view, row, token), 0) : 0;
      const strong = marked.includes(token) || (active && right && weight >= 0.04);
      const fill = marked.includes(token) ? (right ? palette.key : palette.query) : faint ? palette.muted : palette.ink;
      const gap = place > 0 && tokens[place - 1] !== token - 1;
      const text = svg("text", {
        x: right ? layout.end + 9 : layout.start - 9, y: y(place),
        "text-anchor": right ? "start" : "end", "dominant-baseline": "central",
        fill, "font-weight": strong ? 650 : 400, "fill-opacity": right && active && !strong ? 0.55 : 1,
      }, fitted(gap ? `… ${labels[token]}` : labels[token], layout.size, LABEL));
      if (!strong || !right || !active) return text;
      return svg("g", {}, text, svg("text", {
        x: layout.numbers, y: y(place), "text-anchor": "end", "dominant-baseline": "central",
        fill: palette.muted, "font-size": layout.size * 0.92,
      }, number(queries.reduce((total, row) => total + weightAt(view, row, token), 0))));
    });
  }
}

/** @param {View} view */
function measure(view) {
  const all = (/** @type {string[]} */ labels) => labels.map((_, token) => token);
  const rows = view.excerpt?.rows ?? all(view.rows.labels);
  const columns = view.excerpt?.columns ?? all(view.columns.labels);
  const most = Math.max(rows.length, columns.length);
  const step = Math.min(34, Math.max(12, Math.floor(600 / most)));
  const size = Math.min(14, step * 0.78);
  const longest = Math.max(...columns.map((token) => widthOf(fitted(view.columns.labels[token], size, LABEL), size)));
  const numbers = 279 + longest + 52;
  const peak = view.grid.kind === "whole" ? view.grid.peak : 1;
  return { rows, columns, step, size, numbers, peak, start: 128, end: 270, total: most * step + 16 };
}

/** The links to draw: of the active queries, of one key, or the strongest; none that prints as 0.000. */
function choose(/** @type {import("./view.js").View} */ view, /** @type {number[]} */ queries, /** @type {number | null} */ key) {
  if (queries.length) {
    const links = queries.flatMap((/** @type {number} */ row) => rankedKeys(view, row).slice(0, 24).map((link) => ({ row, ...link })));
    return links.filter((/** @type {any} */ link) => link.weight >= 0.0005).sort((/** @type {any} */ a, /** @type {any} */ b) => b.weight - a.weight);
  }
  if (view.grid.kind !== "whole") return linksInSight(view, key);
  if (key === null) return strongest(view, view.excerpt ? 4000 : 4 * view.grid.matrix.rows);
  const links = [];
  for (let i = 0; i < view.grid.matrix.rows; i += 1) {
    links.push({ row: i, column: key, weight: view.grid.matrix.at(i, key) });
  }
  return links.filter((link) => link.weight >= 0.0005).sort((a, b) => b.weight - a.weight).slice(0, 48);
}

/** The links of the tokens of a long text that are in sight. @param {View} view @param {number | null} key */
function linksInSight(view, key) {
  const rows = view.excerpt?.rows ?? [...view.rows.labels.keys()];
  return rows.flatMap((row) => rankedKeys(view, row).map((link) => ({ row, ...link })))
    .filter((link) => link.weight >= 0.0005 && (key === null || link.column === key))
    .sort((a, b) => b.weight - a.weight).slice(0, 200);
}
