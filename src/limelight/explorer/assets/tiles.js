// Tiles of the exact weights, fetched when they come into view; the ones used last are kept.

import { requestFrame } from "./api.js";

const SIDE = 128; // cells of a tile
const KEPT = 160; // tiles: about 10 MB
const AT_ONCE = 4;

/**
 * @typedef {object} Tile
 * @property {number} left
 * @property {number} top
 * @property {number} run
 * @property {{ rows: number, columns: number, values: Float32Array } | null} picture
 * @property {HTMLCanvasElement | null} painted
 */

export class Tiles {
  /** @param {import("./main.js").App} app @param {() => void} arrived */
  constructor(app, arrived) {
    this.app = app;
    this.arrived = arrived;
    /** @type {Map<string, Tile>} */
    this.kept = new Map();
    /** @type {Tile[]} */
    this.wanted = [];
    this.busy = 0;
    this.request = {};
    this.epoch = 0;
  }

  /** Of another head or text. @param {object} request */
  open(request) {
    this.request = request;
    this.epoch += 1;
    this.kept.clear();
    this.wanted = [];
  }

  repaint() {
    for (const tile of this.kept.values()) tile.painted = null;
  }

  /** The tiles of a square of the map; those not here yet are on their way. */
  within(/** @type {number} */ left, /** @type {number} */ top, /** @type {number} */ extent, /** @type {number} */ run, /** @type {number} */ count) {
    const step = SIDE * run;
    const found = [];
    this.wanted = [];
    const last = (/** @type {number} */ first) => Math.min(first + extent, count - 1e-9);
    for (let y = Math.floor(top / step); y * step < last(top); y += 1) {
      for (let x = Math.floor(left / step); x * step < last(left); x += 1) {
        const name = `${run} ${y} ${x}`;
        /** @type {Tile} */
        const tile = this.kept.get(name) ?? { left: x * step, top: y * step, run, picture: null, painted: null };
        this.kept.delete(name);
        this.kept.set(name, tile);
        if (!tile.picture) this.wanted.push(tile);
        found.push(tile);
      }
    }
    for (const name of this.kept.keys()) {
      if (this.kept.size <= KEPT) break;
      this.kept.delete(name);
    }
    this.fetch();
    return found;
  }

  fetch() {
    while (this.busy < AT_ONCE && this.wanted.length) {
      const tile = /** @type {Tile} */ (this.wanted.shift());
      this.busy += 1;
      const { epoch } = this;
      requestFrame("/api/tile", { ...this.request, left: tile.left, top: tile.top, run: tile.run, size: SIDE }).then(({ arrays }) => {
        if (epoch !== this.epoch) return; // of another head
        const { shape, values } = arrays.weights;
        tile.picture = { rows: shape[0], columns: shape[1], values: /** @type {Float32Array} */ (values) };
        this.arrived();
      }, (error) => this.app.fail(error)).finally(() => { this.busy -= 1; this.fetch(); });
    }
  }

  /** An exact weight, where its tile is here. @param {number} row @param {number} column */
  weight(row, column) {
    const tile = this.kept.get(`1 ${Math.floor(row / SIDE)} ${Math.floor(column / SIDE)}`);
    return tile?.picture ? tile.picture.values[(row - tile.top) * tile.picture.columns + column - tile.left] : null;
  }
}
