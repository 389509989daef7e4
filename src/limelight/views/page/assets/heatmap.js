// The weights of one head: rows are queries, columns are keys.

import { FONT, fitted, html, number, scrolling, shorten, svg, widthOf } from "./dom.js";
import { colour, height, lowest, rgb } from "./scale.js";
import { activeQueries, firstOf } from "./view.js";

/** Positions and sizes of cells and labels. @typedef {{ left: number, top: number, cell: number, rows: number, columns: number, size: number, every: number }} Layout */
/** @typedef {import("./view.js").View} View */

const MOST_RECTANGLES = 4096; // beyond, the cells are one image
const WIDEST = 660;
const LABEL = 7.2; // width of a label, at most, in units of its size
const SMALLEST = 8.5; // font size that is readable

/**
 * All weights of a short text; the map of a long one, and exact tiles within it.
 * @param {import("./store.js").Store} store
 */
export function createHeatmap(store) {
  const root = svg("svg", { class: "picture heatmap", role: "img", "font-family": FONT });
  const tip = html("div", { class: "tip", role: "status", hidden: true });
  const frame = scrolling({ class: "frame" }, root, tip);
  const tilePicker = html("div", { class: "tiles", role: "group", "aria-label": "Exact tiles" });
  /** @type {any} */
  let layout = null;
  /** @type {any} */
  let marks = null;
  /** @type {any} */
  let drawn = null;

  function draw(/** @type {import("./view.js").View} */ view) {
    drawn = view;
    tip.hidden = true;
    layout = measure(view, frame.clientWidth || WIDEST);
    const { left, top, cell, rows, columns, bottom } = layout;
    const width = left + columns * cell + 8;
    const total = top + rows * cell + bottom;
    root.setAttribute("viewBox", `0 0 ${width} ${total}`);
    root.setAttribute("width", width);
    root.setAttribute("height", total);
    root.setAttribute("aria-label", describe(view));
    marks = svg("g", { "pointer-events": "none" });
    root.replaceChildren(cells(view, layout), ...labels(view, layout), legend(view, layout, total), marks);
    tilePicker.replaceChildren(...tileButtons(view));
    focus(view);
  }

  function locate(/** @type {any} */ event) {
    const box = root.getBoundingClientRect();
    const zoom = root.viewBox.baseVal.width / box.width;
    const column = Math.floor(((event.clientX - box.left) * zoom - layout.left) / layout.cell);
    const row = Math.floor(((event.clientY - box.top) * zoom - layout.top) / layout.cell);
    const inside = row >= 0 && row < layout.rows && column >= 0 && column < layout.columns;
    return inside ? { row, column } : null;
  }

  root.addEventListener("pointermove", (/** @type {any} */ event) => {
    const cell = locate(event);
    const { kind, firstRow, firstColumn } = drawn.grid;
    const tokens = kind === "map" ? null : cell;
    store.set({ query: tokens ? firstRow + tokens.row : null, key: tokens ? firstColumn + tokens.column : null });
    showTip(cell);
  });
  root.addEventListener("pointerleave", () => {
    store.set({ query: null, key: null });
    showTip(null);
  });
  root.addEventListener("click", (/** @type {any} */ event) => {
    const cell = locate(event);
    if (!cell) return;
    if (drawn.grid.kind === "map") {
      const tile = tileAt(drawn, cell.row, cell.column);
      if (tile >= 0) store.set({ tile });
      return;
    }
    const row = drawn.grid.firstRow + cell.row;
    store.set({ locked: store.get().locked === row ? null : row });
  });

  /** @param {View} view */
  function tileButtons(view) {
    const { tiles } = view.head;
    if (view.grid.kind === "whole" || !tiles.length) return [];
    const button = (/** @type {number | null} */ tile, /** @type {string} */ label) => html("button", {
      type: "button", class: "quiet", "aria-pressed": String(view.state.tile === tile), click: () => store.set({ tile, query: null, key: null }),
    }, label);
    return [button(null, "Whole text"), ...tiles.map(({ row, column }, tile) => button(tile, `${row} → ${column}`))];
  }

  function showTip(/** @type {any} */ cell) {
    tip.hidden = !cell;
    if (!cell) return;
    const { row, column } = cell;
    const { grid } = drawn;
    const hint = grid.kind !== "map" ? "" : ` at most${tileAt(drawn, row, column) < 0 ? "" : "; click for the exact tile"}`;
    tip.replaceChildren(
      html("bdi", { class: "query-name" }, shorten(grid.rows[row], 24)), " → ",
      html("bdi", { class: "key-name" }, shorten(grid.columns[column], 24)), " ",
      html("strong", { class: "number" }, number(grid.matrix.at(row, column))), hint,
    );
    const box = root.getBoundingClientRect();
    const zoom = box.width / root.viewBox.baseVal.width;
    const x = (layout.left + (column + 0.5) * layout.cell) * zoom;
    const y = (layout.top + row * layout.cell) * zoom;
    const half = tip.offsetWidth / 2;
    const width = Math.max(box.width, frame.clientWidth);
    tip.style.left = `${Math.min(Math.max(x, half + 4), width - half - 4)}px`;
    tip.style.top = `${y - 8}px`;
  }

  function focus(/** @type {import("./view.js").View} */ view) {
    const { left, top, cell, rows, columns } = layout;
    const { kind, firstRow, firstColumn } = view.grid;
    const within = (/** @type {number | null} */ place, /** @type {number} */ first, /** @type {number} */ count, /** @type {number} */ total) => {
      if (place === null) return null;
      const here = kind === "map" ? Math.floor((place * count) / total) : place - first;
      return here >= 0 && here < count ? here : null;
    };
    const activeRows = activeQueries(view.state).flatMap((token) => within(token, firstRow, rows, view.rows.labels.length) ?? []);
    const column = within(view.state.key, firstColumn, columns, view.columns.labels.length);
    const frameOf = (/** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ width, /** @type {number} */ tall, /** @type {string} */ stroke) => svg("rect", {
      x, y, width, height: tall, rx: Math.min(3, cell / 4), fill: "none", stroke, "stroke-width": 1.75,
    });
    hideOverlapped("query-label", activeRows);
    hideOverlapped("key-label", column === null ? [] : [column]);
    const parts = [];
    for (const row of activeRows) {
      parts.push(frameOf(left, top + row * cell, columns * cell, cell, view.palette.query),
        rowLabel(view, layout, row, { "font-weight": 650, fill: view.palette.query }));
    }
    if (column !== null) {
      parts.push(frameOf(left + column * cell, top, cell, rows * cell, view.palette.key),
        columnLabel(view, layout, column, { "font-weight": 650, fill: view.palette.key }));
    }
    if (kind === "map") parts.push(...view.head.tiles.map((/** @type {import("./numbers.js").Tile} */ tile) => tileMark(view, tile)));
    marks.replaceChildren(...parts);
  }

  /** Hides the labels that would overlap those of the marked rows or columns. @param {string} kind @param {number[]} marked */
  function hideOverlapped(kind, marked) {
    for (const label of root.querySelectorAll(`:scope > .${kind}`)) {
      const place = Number(label.getAttribute("data-place"));
      const overlaps = marked.some((other) => Math.abs(place - other) * layout.cell < 1.15 * layout.size);
      label.setAttribute("visibility", overlaps ? "hidden" : "visible");
    }
  }

  /** @param {View} view @param {import("./numbers.js").Tile} tile */
  function tileMark(view, tile) {
    const { left, top, cell, rows, columns } = layout;
    const x = (tile.column * columns) / view.columns.labels.length;
    const y = (tile.row * rows) / view.rows.labels.length;
    const wide = Math.max(1, (tile.matrix.columns * columns) / view.columns.labels.length);
    const tall = Math.max(1, (tile.matrix.rows * rows) / view.rows.labels.length);
    return svg("rect", {
      class: "tile", x: left + x * cell - 1, y: top + y * cell - 1, width: wide * cell + 2, height: tall * cell + 2,
      rx: 2, fill: "none", stroke: view.palette.key, "stroke-width": 1.5,
    });
  }

  let width = 0;
  new ResizeObserver(() => {
    const changed = Math.abs(frame.clientWidth - width) > 4;
    width = frame.clientWidth;
    if (changed && drawn) draw({ ...drawn, state: store.get() });
  }).observe(frame);

  return { element: html("div", {}, tilePicker, frame), picture: root, draw, focus };
}

/** The tile under a cell of the map, or −1. @param {View} view @param {number} row @param {number} column */
function tileAt(view, row, column) {
  const { rows, columns } = view.grid.matrix;
  const first = (/** @type {number} */ cell, /** @type {number} */ cells, /** @type {string[]} */ labels) => firstOf(cell, cells, labels.length);
  return view.head.tiles.findIndex((tile) => (
    tile.row < first(row + 1, rows, view.rows.labels) && tile.row + tile.matrix.rows > first(row, rows, view.rows.labels)
    && tile.column < first(column + 1, columns, view.columns.labels)
    && tile.column + tile.matrix.columns > first(column, columns, view.columns.labels)));
}

/** @param {View} view @param {number} available width */
function measure(view, available) {
  const { rows, columns } = view.grid.matrix;
  const margin = (/** @type {string[]} */ labels, /** @type {number} */ size) => 18 + Math.ceil(
    labels.reduce((most, label) => Math.max(most, widthOf(fitted(label, size, LABEL * size), size)), 0));
  const fitting = (/** @type {number} */ left) => Math.min(34, Math.max(0.5, (Math.min(available, WIDEST) - left - 8) / columns));
  const size = Math.min(13, Math.max(SMALLEST, fitting(margin(view.grid.rows, 11)) * 0.8));
  const left = margin(view.grid.rows, size);
  const cell = fitting(left);
  const every = Math.ceil((size * 1.1) / cell); // where they do not all fit, only every nth is labelled
  return { rows, columns, size, left, cell, every, bottom: 46, top: margin(view.grid.columns, size) + 8 };
}

/** Whether a column of the grid is shown. @param {View} view @param {number} column */
function shown(view, column) {
  return view.grid.kind === "map" || view.shown(view.grid.firstColumn + column);
}

function cells(/** @type {import("./view.js").View} */ view, /** @type {Layout} */ { left, top, cell, rows, columns }) {
  const { palette, state } = view;
  if (rows * columns > MOST_RECTANGLES) {
    const image = { x: left, y: top, width: columns * cell, height: rows * cell };
    return svg("image", { ...image, href: paint(view), preserveAspectRatio: "none", "image-rendering": "pixelated" });
  }
  const group = svg("g", { class: "cells" });
  const gap = cell > 8 ? 1 : 0;
  for (let i = 0; i < rows; i += 1) {
    for (let j = 0; j < columns; j += 1) {
      const fill = shown(view, j)
        ? colour(palette, height(view.grid.matrix.at(i, j), view.grid.peak, state.log))
        : palette.paper;
      group.append(svg("rect", {
        x: left + j * cell + gap / 2, y: top + i * cell + gap / 2,
        width: cell - gap, height: cell - gap, rx: gap ? 2.5 : 0, fill,
      }));
    }
  }
  return group;
}

/** The matrix as an image with one pixel for each cell. */
function paint(/** @type {import("./view.js").View} */ view) {
  const { rows, columns } = view.grid.matrix;
  const canvas = html("canvas", { width: columns, height: rows });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < rows; i += 1) {
    for (let j = 0; j < columns; j += 1) {
      const part = shown(view, j) ? height(view.grid.matrix.at(i, j), view.grid.peak, view.state.log) : 0;
      image.data.set([...rgb(view.palette, part), 255], 4 * (i * columns + j));
    }
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

function labels(/** @type {import("./view.js").View} */ view, /** @type {Layout} */ layout) {
  const { left, top, cell, rows, columns, every } = layout;
  const { palette } = view;
  const axis = (/** @type {string} */ text, /** @type {Record<string, any>} */ attributes) => svg("text", { fill: palette.muted, "font-size": 11, ...attributes }, text);
  const names = [
    axis("keys →", { x: left, y: 11 }),
    axis("queries →", { transform: `translate(11 ${top + rows * cell}) rotate(-90)` }),
  ];
  for (let i = 0; i < rows; i += every) names.push(rowLabel(view, layout, i, { fill: palette.ink }));
  for (let j = 0; j < columns; j += every) {
    names.push(columnLabel(view, layout, j, { fill: shown(view, j) ? palette.ink : palette.muted }));
  }
  return names;
}

function rowLabel(/** @type {import("./view.js").View} */ view, /** @type {Layout} */ { left, top, cell, size }, /** @type {number} */ row, /** @type {Record<string, any>} */ style) {
  return svg("text", {
    class: "query-label", "data-place": row, x: left - 8, y: top + (row + 0.5) * cell, "text-anchor": "end",
    "dominant-baseline": "central", "font-size": size, ...style,
  }, fitted(view.grid.rows[row], size, LABEL * size));
}

function columnLabel(/** @type {import("./view.js").View} */ view, /** @type {Layout} */ { left, top, cell, size }, /** @type {number} */ column, /** @type {Record<string, any>} */ style) {
  return svg("text", {
    class: "key-label", "data-place": column, transform: `translate(${left + (column + 0.5) * cell} ${top - 7}) rotate(-90)`,
    "dominant-baseline": "central", "font-size": size, ...style,
  }, fitted(view.grid.columns[column], size, LABEL * size));
}

function legend(/** @type {import("./view.js").View} */ view, /** @type {Layout} */ { left, columns, cell }, /** @type {number} */ total) {
  const { palette, state } = view;
  const { peak } = view.grid;
  const width = Math.min(180, Math.max(columns * cell, 120));
  const steps = 48;
  const group = svg("g", { transform: `translate(${left} ${total - 30})`, "font-size": 11, fill: palette.muted });
  for (let k = 0; k < steps; k += 1) {
    group.append(svg("rect", {
      x: (k * width) / steps, y: 0, width: width / steps + 0.5, height: 8, fill: colour(palette, k / (steps - 1)),
    }));
  }
  group.append(
    svg("rect", { width, height: 8, fill: "none", stroke: palette.line }),
    svg("text", { y: 22 }, state.log ? `≤ ${lowest(true)}` : "0"),
    svg("text", { x: width, y: 22, "text-anchor": "end" }, number(peak)),
    svg("text", { x: width / 2, y: 22, "text-anchor": "middle" }, legendText(view)),
  );
  return group;
}

/** @param {View} view */
function legendText(view) {
  const what = view.grid.kind === "map" ? "strongest weight" : "weight";
  return view.state.log ? `${what}, logarithmic` : what;
}

function describe(/** @type {import("./view.js").View} */ view) {
  const { layer, head } = view.state;
  return `Attention weights of layer ${view.spec.layers[layer]}, head ${view.spec.heads[head]}: ${view.grid.matrix.rows} queries, ${view.grid.matrix.columns} keys.`;
}
