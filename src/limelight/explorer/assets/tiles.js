// Tiles of the exact weights, requested when they come into view; the most recently used are cached.

import { requestFrame } from "./api.js";

const SIDE = 128; // cells of a tile
const MAX_CACHED = 160; // tiles: about 10 MB
const MAX_REQUESTS = 4; // at a time

/**
 * @typedef {object} Tile
 * @property {number} left
 * @property {number} top
 * @property {number} run tokens along a side of a cell
 * @property {{ rows: number, columns: number, values: Float32Array } | null} picture
 * @property {HTMLCanvasElement | null} painted
 */

export class Tiles {
  /** @param {import("./main.js").App} app @param {() => void} arrived */
  constructor(app, arrived) {
    this.app = app;
    this.arrived = arrived;
    /** @type {Map<string, Tile>} */
    this.cached = new Map();
    /** @type {Tile[]} */
    this.wanted = [];
    this.requests = 0;
    this.request = {};
    this.epoch = 0;
  }

  /** Changes to another head or text. @param {object} request */
  open(request) {
    this.request = request;
    this.epoch += 1;
    this.cached.clear();
    this.wanted = [];
  }

  repaint() {
    for (const tile of this.cached.values()) tile.painted = null;
  }

  /** The tiles of a square of the map; those that are missing are requested. */
  within(/** @type {number} */ left, /** @type {number} */ top, /** @type {number} */ extent, /** @type {number} */ run, /** @type {number} */ count) {
    const step = SIDE * run;
    const tiles = [];
    this.wanted = [];
    const last = (/** @type {number} */ first) => Math.min(first + extent, count - 1e-9);
    for (let y = Math.floor(top / step); y * step < last(top); y += 1) {
      for (let x = Math.floor(left / step); x * step < last(left); x += 1) {
        const name = `${run} ${y} ${x}`;
        /** @type {Tile} */
        const tile = this.cached.get(name) ?? { left: x * step, top: y * step, run, picture: null, painted: null };
        this.cached.delete(name);
        this.cached.set(name, tile);
        if (!tile.picture) this.wanted.push(tile);
        tiles.push(tile);
      }
    }
    for (const name of this.cached.keys()) {
      if (this.cached.size <= MAX_CACHED) break;
      this.cached.delete(name);
    }
    this.fetch();
    return tiles;
  }

  fetch() {
    while (this.requests < MAX_REQUESTS && this.wanted.length) {
      const tile = /** @type {Tile} */ (this.wanted.shift());
      this.requests += 1;
      const { epoch } = this;
      requestFrame("/api/tile", { ...this.request, left: tile.left, top: tile.top, run: tile.run, size: SIDE }).then(({ arrays }) => {
        if (epoch !== this.epoch) return; // it is of another head
        const { shape, values } = arrays.weights;
        tile.picture = { rows: shape[0], columns: shape[1], values: /** @type {Float32Array} */ (values) };
        this.arrived();
      }, (error) => this.app.fail(error)).finally(() => { this.requests -= 1; this.fetch(); });
    }
  }

  /** An exact weight, or null if its tile is not cached. @param {number} row @param {number} column */
  weight(row, column) {
    const tile = this.cached.get(`1 ${Math.floor(row / SIDE)} ${Math.floor(column / SIDE)}`);
    return tile?.picture ? tile.picture.values[(row - tile.top) * tile.picture.columns + column - tile.left] : null;
  }
}
