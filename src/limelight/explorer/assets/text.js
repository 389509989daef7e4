// A text as a model read it: its tokens, and the weights of its heads as they are needed.

import { Matrix } from "../../views/page/assets/numbers.js";
import { requestFrame } from "./api.js";

/** @typedef {import("../../views/page/assets/numbers.js").Head} Head */
/** @typedef {import("../../views/page/assets/numbers.js").Spec} Spec */
/** @typedef {import("../../views/page/assets/numbers.js").TokenSide} TokenSide */
/** @typedef {import("./api.js").Frame} Frame */

const KEPT = 64; // heads that stay, of a text whose heads come singly

export class ReadText {
  /** @param {Frame} frame @param {{ model: string, text: string }} request @param {any} colours */
  constructor(frame, request, colours) {
    this.request = request;
    const { header, arrays } = frame;
    const picture = header.picture ? { ...header.picture, pixels: arrays.pixels.values, rollout: arrays.rollout?.values ?? null } : null;
    /** @type {Spec & { kind: string, text: string, patterns: string[] }} */
    this.spec = { ...header, keys: header.keys ?? header.queries, colours, picture };
    this.arrays = arrays;
    this.rows = this.spec.queries.labels.length;
    this.columns = this.spec.keys.labels.length;
    /** @type {Map<number, Promise<Matrix>>} */
    this.kept = new Map();
  }

  /** Whether a head can be had whole, rather than by tiles. */
  get whole() {
    return Math.max(this.rows, this.columns) <= 1024;
  }

  /** @param {number} layer @param {number} head positions */
  place(layer, head) {
    return layer * this.spec.heads.length + head;
  }

  /** The weights of a head, by positions. @param {number} layer @param {number} head @returns {Promise<Matrix>} */
  matrix(layer, head) {
    const place = this.place(layer, head);
    const { weights } = this.arrays;
    if (weights) return Promise.resolve(this.slice(place));
    let found = this.kept.get(place);
    if (!found) {
      const numbers = { layer: this.spec.layers[layer], head: this.spec.heads[head] };
      found = requestFrame("/api/head", { ...this.request, ...numbers }).then(({ arrays }) => (
        new Matrix(this.rows, this.columns, /** @type {Float32Array} */ (arrays.weights.values))));
      found.catch(() => this.kept.delete(place)); // another try may succeed
    }
    this.kept.delete(place);
    this.kept.set(place, found);
    if (this.kept.size > KEPT) this.kept.delete(/** @type {number} */ (this.kept.keys().next().value));
    return found;
  }

  /** @param {number} place */
  slice(place) {
    const size = this.rows * this.columns;
    const values = /** @type {Float32Array} */ (this.arrays.weights.values);
    return new Matrix(this.rows, this.columns, values.subarray(place * size, (place + 1) * size));
  }

  /**
   * One head, or the mean of several, as the shared panels take it.
   * @param {[number, number][]} places
   * @param {boolean} valued weights times the length of the value they carry
   * @returns {Promise<Head>}
   */
  async head(places, valued) {
    const matrices = await Promise.all(places.map(async ([layer, head]) => {
      const matrix = await this.matrix(layer, head);
      return valued ? this.carried(matrix, this.place(layer, head)) : matrix;
    }));
    const tokens = matrices.length === 1 ? matrices[0] : mean(matrices);
    const { queries, keys } = this.spec;
    const merged = queries.merged || keys.merged ? byWords(tokens, queries, keys) : null;
    return { tokens, merged, sums: sums(tokens, keys.background), lse: null, channels: null, links: null, map: null, tiles: [] };
  }

  /** weight · ‖value‖. @param {Matrix} matrix @param {number} place */
  carried(matrix, place) {
    const { norms } = this.arrays;
    if (!norms) return matrix;
    const lengths = norms.values.subarray(place * this.columns, (place + 1) * this.columns);
    return new Matrix(matrix.rows, matrix.columns, matrix.values.map((weight, k) => weight * lengths[k % matrix.columns]));
  }

  /**
   * What some tokens give to some others in every head: summed over the keys, averaged over the queries.
   * @param {number[]} queries
   * @param {number[]} keys
   */
  async links(queries, keys) {
    if (!this.arrays.weights) return /** @type {Float32Array} */ ((await requestFrame("/api/link", { ...this.request, queries, keys })).arrays.weights.values);
    return Float32Array.from({ length: this.spec.layers.length * this.spec.heads.length }, (_, place) => {
      const matrix = this.slice(place);
      return queries.reduce((total, i) => total + keys.reduce((sum, j) => sum + matrix.at(i, j), 0), 0) / queries.length;
    });
  }

  /** A small picture of a head: its weights, or its map. @param {number} place */
  thumb(place) {
    const { thumbs } = this.arrays;
    if (!thumbs) return this.slice(place);
    const [, , rows, columns] = thumbs.shape;
    const values = /** @type {Float32Array} */ (thumbs.values).subarray(place * rows * columns, (place + 1) * rows * columns);
    return new Matrix(rows, columns, values);
  }

  /** The share of a head's weight that goes to a kind of place. @param {number} place @param {number} pattern */
  pattern(place, pattern) {
    return this.arrays.patterns.values[place * this.spec.patterns.length + pattern];
  }
}

/** @param {Matrix[]} matrices */
function mean(matrices) {
  const values = new Float32Array(matrices[0].values.length);
  for (const matrix of matrices) matrix.values.forEach((value, k) => { values[k] += value / matrices.length; });
  return new Matrix(matrices[0].rows, matrices[0].columns, values);
}

/** What each row gives in all, and what of it to background tokens. @param {Matrix} matrix @param {number[]} background */
function sums(matrix, background) {
  const found = new Float32Array(2 * matrix.rows);
  for (let i = 0; i < matrix.rows; i += 1) {
    found[2 * i] = matrix.row(i).reduce((total, weight) => total + weight, 0);
    found[2 * i + 1] = background.reduce((total, column) => total + matrix.at(i, column), 0);
  }
  return found;
}

/**
 * What a word receives is summed over its tokens, what it gives is averaged.
 * @param {Matrix} matrix
 * @param {TokenSide} queries
 * @param {TokenSide} keys
 */
function byWords(matrix, queries, keys) {
  const rows = (queries.merged ?? queries).labels.length;
  const columns = (keys.merged ?? keys).labels.length;
  const sizes = new Float64Array(rows);
  for (const word of queries.words) sizes[word] += 1;
  const values = new Float32Array(rows * columns);
  for (let i = 0; i < matrix.rows; i += 1) {
    for (let j = 0; j < matrix.columns; j += 1) {
      values[queries.words[i] * columns + keys.words[j]] += matrix.at(i, j) / sizes[queries.words[i]];
    }
  }
  return new Matrix(rows, columns, values);
}
