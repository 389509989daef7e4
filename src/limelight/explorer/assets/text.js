// A text as a model read it: its tokens, and the weights of its heads as they are needed.

import { Matrix } from "../../views/page/assets/numbers.js";
import { requestFrame } from "./api.js";

/** @typedef {import("../../views/page/assets/numbers.js").Head} Head */
/** @typedef {import("../../views/page/assets/numbers.js").Spec} Spec */
/** @typedef {import("./api.js").Frame} Frame */
/** @typedef {{ tokens: Matrix, merged: Matrix | null }} Weights */

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
    /** @type {Map<string, Promise<Weights>>} */
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
  async matrix(layer, head) {
    return this.arrays.weights ? this.slice(this.place(layer, head)) : (await this.requested(layer, head, false)).tokens;
  }

  /**
   * The weights of a head from the server, which merges words and multiplies by the lengths of values.
   * @param {number} layer position
   * @param {number} head position
   * @param {boolean} valued
   */
  requested(layer, head, valued) {
    const key = `${layer}.${head} ${valued}`;
    let weights = this.kept.get(key);
    if (!weights) {
      const numbers = { layer: this.spec.layers[layer], head: this.spec.heads[head] };
      weights = requestFrame("/api/head", { ...this.request, ...numbers, valued }).then(({ arrays }) => (
        { tokens: matrixOf(arrays.weights), merged: arrays.merged ? matrixOf(arrays.merged) : null }));
      weights.catch(() => this.kept.delete(key)); // another try may succeed
    }
    this.kept.delete(key);
    this.kept.set(key, weights);
    if (this.kept.size > KEPT) this.kept.delete(/** @type {string} */ (this.kept.keys().next().value));
    return weights;
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
   * @param {{ valued: boolean, words: boolean }} state valued: weights times the length of their value; words: also by words
   * @returns {Promise<Head>}
   */
  async head(places, { valued, words }) {
    const requests = places.map(async ([layer, head]) => (
      valued || words ? this.requested(layer, head, valued) : { tokens: await this.matrix(layer, head), merged: null }));
    const heads = await Promise.all(requests);
    const tokens = mean(heads.map((head) => head.tokens));
    const merged = heads.flatMap((head) => head.merged ?? []);
    return {
      tokens, merged: merged.length ? mean(merged) : null, sums: sums(tokens, this.spec.keys.background),
      lse: null, channels: null, links: null, map: null, tiles: [],
    };
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

/** @param {import("./api.js").NumberArray} array */
function matrixOf({ shape: [rows, columns], values }) {
  return new Matrix(rows, columns, /** @type {Float32Array} */ (values));
}

/** @param {Matrix[]} matrices */
function mean(matrices) {
  if (matrices.length === 1) return matrices[0];
  const values = new Float32Array(matrices[0].values.length);
  for (const matrix of matrices) matrix.values.forEach((value, k) => { values[k] += value / matrices.length; });
  return new Matrix(matrices[0].rows, matrices[0].columns, values);
}

/** What each row gives in all, and what of it to background tokens. @param {Matrix} matrix @param {number[]} background */
function sums(matrix, background) {
  const totals = new Float32Array(2 * matrix.rows);
  for (let i = 0; i < matrix.rows; i += 1) {
    totals[2 * i] = matrix.row(i).reduce((total, weight) => total + weight, 0);
    totals[2 * i + 1] = background.reduce((total, column) => total + matrix.at(i, column), 0);
  }
  return totals;
}
