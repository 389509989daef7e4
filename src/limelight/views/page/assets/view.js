// The view that follows from the state: every panel draws from this one value.

import { Matrix } from "./numbers.js";

/** @typedef {import("./numbers.js").Spec} Spec */
/** @typedef {import("./numbers.js").Head} Head */
/** @typedef {import("./numbers.js").Side} Side */
/** @typedef {import("./numbers.js").Palette} Palette */

/**
 * What the user has chosen. Rows and columns are tokens, or words where words are shown.
 * @typedef {object} State
 * @property {number} layer position
 * @property {number} head position
 * @property {number | null} locked
 * @property {number[]} [held] queries shown together with the locked one
 * @property {number | null} query under the pointer
 * @property {number | null} key under the pointer
 * @property {number | null} tile the open tile of a long text
 * @property {boolean} background
 * @property {boolean} log
 * @property {boolean} words
 * @property {string} scheme
 * @property {boolean} systemDark
 *
 * What the heat map draws: all weights, the map of a long text, or one of its tiles.
 * @typedef {object} Grid
 * @property {"whole" | "map" | "tile"} kind
 * @property {Matrix} matrix
 * @property {string[]} rows labels
 * @property {string[]} columns labels
 * @property {number} firstRow the row and column that its first cell stands for
 * @property {number} firstColumn
 * @property {number} peak
 *
 * @typedef {{ column: number, weight: number }} KeyWeight
 *
 * @typedef {object} View
 * @property {State} state
 * @property {Spec} spec
 * @property {Palette} palette
 * @property {Head} head
 * @property {Side} rows
 * @property {Side} columns
 * @property {Set<number>} background
 * @property {(column: number) => boolean} shown
 * @property {Grid} grid
 * @property {Excerpt | null} excerpt
 */

/** @typedef {{ rows: number[], columns: number[] }} Excerpt */

export const LONG = 64; // tokens beyond which excerpts are shown: otherwise a query or its keys may be out of sight

/**
 * The part of the view that hover does not change.
 * @param {Spec} spec
 * @param {Head} head
 * @param {State} state
 * @param {Palette} palette
 * @returns {View}
 */
export function derive(spec, head, state, palette) {
  const words = state.words && spec.queries.merged && head.merged;
  const rows = words ? spec.queries.merged ?? spec.queries : spec.queries;
  const columns = words ? spec.keys.merged ?? spec.keys : spec.keys;
  const background = new Set(columns.background);
  const shown = (/** @type {number} */ column) => state.background || !background.has(column);
  const view = { state, spec, palette, head, rows, columns, background, shown };
  const grid = gridOf(view, words ? head.merged : head.tokens);
  const whole = { ...view, grid, excerpt: null };
  return { ...whole, excerpt: excerptOf(whole) };
}

/** @param {any} view @param {Matrix | null} matrix @returns {Grid} */
function gridOf(view, matrix) {
  const { head, rows, columns, shown, state } = view;
  if (matrix) {
    const whole = { matrix, rows: rows.labels, columns: columns.labels, firstRow: 0, firstColumn: 0 };
    return { kind: "whole", ...whole, peak: peakOf(matrix, shown) };
  }
  const tile = state.tile === null ? null : head.tiles[state.tile];
  if (tile) {
    const slice = (/** @type {string[]} */ labels, /** @type {number} */ first, /** @type {number} */ count) => labels.slice(first, first + count);
    return {
      kind: "tile", matrix: tile.matrix, firstRow: tile.row, firstColumn: tile.column,
      rows: slice(rows.labels, tile.row, tile.matrix.rows),
      columns: slice(columns.labels, tile.column, tile.matrix.columns),
      peak: peakOf(tile.matrix, (column) => shown(tile.column + column)),
    };
  }
  const { map } = head;
  const codes = state.background ? map.all : map.plain;
  const values = Float32Array.from(codes, (code) => (code / 255) ** 2);
  const pooled = new Matrix(map.rows, map.columns, values);
  return {
    kind: "map", matrix: pooled, firstRow: 0, firstColumn: 0, peak: peakOf(pooled, () => true),
    rows: runs(rows.labels, map.rows), columns: runs(columns.labels, map.columns),
  };
}

/** The token at which each cell of a map begins, with its number. @param {string[]} labels @param {number} cells */
function runs(labels, cells) {
  return Array.from({ length: cells }, (_, cell) => {
    const first = firstOf(cell, cells, labels.length);
    return `${first} ${labels[first]}`;
  });
}

/** The first token of a cell. @param {number} cell @param {number} cells @param {number} count */
export function firstOf(cell, cells, count) {
  return Math.ceil((cell * count) / cells);
}

/** @param {Matrix} matrix @param {(column: number) => boolean} shown */
function peakOf(matrix, shown) {
  let peak = 0;
  for (let j = 0; j < matrix.columns; j += 1) {
    if (!shown(j)) continue;
    for (let k = j; k < matrix.values.length; k += matrix.columns) {
      if (matrix.values[k] > peak) peak = matrix.values[k];
    }
  }
  return peak;
}

/** The active query: the locked one, else the one under the pointer. @param {State} state */
export const activeQuery = (state) => state.locked ?? state.query;

/** All queries that are shown: the active one, and those held besides a locked one. @param {State} state */
export function activeQueries(state) {
  const first = activeQuery(state);
  if (first === null) return [];
  return state.locked === null ? [first] : [first, ...(state.held ?? [])];
}

/** The keys of several rows, their weights added up, strongest first. @param {View} view @param {number[]} rows @returns {KeyWeight[]} */
export function summedKeys(view, rows) {
  if (rows.length === 1) return rankedKeys(view, rows[0]);
  /** @type {Map<number, number>} */
  const sums = new Map();
  for (const row of rows) {
    for (const { column, weight } of rankedKeys(view, row)) sums.set(column, (sums.get(column) ?? 0) + weight);
  }
  return [...sums].map(([column, weight]) => ({ column, weight })).sort((a, b) => b.weight - a.weight);
}

/**
 * The shown keys of a row, strongest first: all of them, or the recorded links of a long text.
 * @param {View} view
 * @param {number} row
 * @returns {KeyWeight[]}
 */
export function rankedKeys(view, row) {
  return keyWeights(view, row).filter(({ column }) => view.shown(column)).sort((a, b) => b.weight - a.weight);
}

/** The keys of a row with background tokens, in no order. @param {View} view @param {number} row @returns {KeyWeight[]} */
export function keyWeights(view, row) {
  if (view.grid.kind === "whole") {
    return Array.from(view.grid.matrix.row(row), (weight, column) => ({ column, weight }));
  }
  const { links } = view.head;
  if (!links) return [];
  const start = row * links.size;
  return Array.from(links.keys.subarray(start, start + links.size), (column, k) => ({ column, weight: links.weights[start + k] }))
    .filter(({ column }) => column >= 0);
}

/** A weight, as far as it is known. @param {View} view @param {number} row @param {number} column */
export function weightAt(view, row, column) {
  if (view.grid.kind === "whole") return view.grid.matrix.at(row, column);
  return keyWeights(view, row).find((key) => key.column === column)?.weight ?? 0;
}

/** The weight of a row on hidden background tokens; null where it is not known. @param {View} view @param {number} row */
export function takenByBackground(view, row) {
  if (view.grid.kind !== "whole") return null;
  if (view.grid.matrix === view.head.tokens && view.head.sums) return view.head.sums[2 * row + 1];
  return [...view.background].reduce((total, column) => total + view.grid.matrix.at(row, column), 0);
}

/**
 * The tokens of a long text around the query and around the keys that it attends to.
 * @param {View} view
 * @returns {Excerpt | null}
 */
function excerptOf(view) {
  const [rows, columns] = [view.rows.labels.length, view.columns.labels.length];
  if (Math.max(rows, columns) <= LONG) return null;
  const { state, spec } = view;
  const row = Math.min(state.locked ?? spec.choice.query, rows - 1);
  const best = rankedKeys(view, row).slice(0, 4).filter(({ weight }) => weight >= 0.0005);
  const chosen = best.length ? best.map(({ column }) => column) : [Math.min(spec.choice.key, columns - 1)];
  if (view.rows !== view.columns) {
    return { rows: around([[row, 16]], rows), columns: around(chosen.map((column) => [column, 6]), columns) };
  }
  const both = around([[row, 10], ...chosen.map((column) => /** @type {[number, number]} */ ([column, 5]))], rows);
  return { rows: both, columns: both };
}

/** @param {[number, number][]} places tokens, each with a reach @param {number} count */
function around(places, count) {
  const kept = new Set();
  for (const [place, reach] of places) {
    for (let k = Math.max(0, place - reach); k <= Math.min(count - 1, place + reach); k += 1) kept.add(k);
  }
  return [...kept].sort((a, b) => a - b);
}

/**
 * The strongest links that the grid shows, at most `count`; of equal ones, those of the first rows.
 * @param {View} view
 * @param {number} count
 */
export function strongest(view, count) {
  const { rows, columns, values } = view.grid.matrix;
  const shown = Array.from({ length: columns }, (_, column) => view.shown(column));
  /** @type {number[]} */
  const candidates = [];
  let least = 0.0005; // a weight that prints as 0.000 is not a link
  for (let k = 0; k < rows * columns; k += 1) {
    if (values[k] <= least || !shown[k % columns]) continue;
    candidates.push(k);
    // pruned now and then: sorting all links of a long text is slow
    if (candidates.length >= 2 * count + 256) least = prune(candidates, values, count);
  }
  prune(candidates, values, count);
  return candidates.map((k) => ({ row: Math.floor(k / columns), column: k % columns, weight: values[k] }));
}

/**
 * Keeps the indices of the `count` largest values, largest first; returns the smallest of them.
 * @param {number[]} indices
 * @param {Float32Array} values
 * @param {number} count
 */
function prune(indices, values, count) {
  indices.sort((a, b) => values[b] - values[a] || a - b);
  indices.length = Math.min(indices.length, count);
  return indices.length < count ? 0.0005 : values[indices[count - 1]];
}
