// A text as a model read it: its tokens, and the weights of its heads, requested as needed.

import { Matrix } from "../../views/page/assets/numbers.js";
import { requestFrame } from "./api.js";

/** @typedef {import("../../views/page/assets/numbers.js").Head} Head */
/** @typedef {import("../../views/page/assets/numbers.js").Spec} Spec */
/** @typedef {import("./api.js").Frame} Frame */
/** @typedef {{ tokens: Matrix, merged: Matrix | null }} Weights */

const MAX_CACHED = 64; // heads, each with its own request

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
    this.cached = new Map();
  }

  /** Whether a head can be requested whole, rather than in tiles. */
  get whole() {
    return Math.max(this.rows, this.columns) <= 1024;
  }

  /** The number of a head among those of all layers. @param {number} layer position @param {number} head position */
  headIndex(layer, head) {
    return layer * this.spec.heads.length + head;
  }

  /** The weights of a head. @param {number} layer position @param {number} head position @returns {Promise<Matrix>} */
  async matrix(layer, head) {
    return this.arrays.weights ? this.slice(this.headIndex(layer, head)) : (await this.requestHead(layer, head, false)).tokens;
  }

  /**
   * The weights of a head from the server, which merges words and multiplies by the lengths of values.
   * @param {number} layer position
   * @param {number} head position
   * @param {boolean} valued
   */
  requestHead(layer, head, valued) {
    const key = `${layer}.${head} ${valued}`;
    let weights = this.cached.get(key);
    if (!weights) {
      const numbers = { layer: this.spec.layers[layer], head: this.spec.heads[head] };
      weights = requestFrame("/api/head", { ...this.request, ...numbers, valued }).then(({ arrays }) => (
        { tokens: matrixOf(arrays.weights), merged: arrays.merged ? matrixOf(arrays.merged) : null }));
      weights.catch(() => this.cached.delete(key)); // another try may succeed
    }
    this.cached.delete(key);
    this.cached.set(key, weights);
    if (this.cached.size > MAX_CACHED) this.cached.delete(/** @type {string} */ (this.cached.keys().next().value));
    return weights;
  }

  /** The weights of a head, if those of all heads were sent. @param {number} index */
  slice(index) {
    const size = this.rows * this.columns;
    const values = /** @type {Float32Array} */ (this.arrays.weights.values);
    return new Matrix(this.rows, this.columns, values.subarray(index * size, (index + 1) * size));
  }

  /**
   * One head, or the mean of several, in the form that the shared panels take.
   * @param {[number, number][]} heads positions of layer and head
   * @param {{ valued: boolean, words: boolean }} state valued: weights times the length of their value; words: also by words
   * @returns {Promise<Head>}
   */
  async head(heads, { valued, words }) {
    const weights = await Promise.all(heads.map(async ([layer, head]) => (
      valued || words ? this.requestHead(layer, head, valued) : { tokens: await this.matrix(layer, head), merged: null })));
    const tokens = mean(weights.map((each) => each.tokens));
    const merged = weights.flatMap((each) => each.merged ?? []);
    return {
      tokens, merged: merged.length ? mean(merged) : null, sums: sums(tokens, this.spec.keys.background),
      lse: null, channels: null, links: null, map: null, tiles: [],
    };
  }

  /**
   * How much some tokens attend to some others in every head: summed over the keys, averaged over the queries.
   * @param {number[]} queries
   * @param {number[]} keys
   */
  async links(queries, keys) {
    if (!this.arrays.weights) return /** @type {Float32Array} */ ((await requestFrame("/api/link", { ...this.request, queries, keys })).arrays.weights.values);
    return Float32Array.from({ length: this.spec.layers.length * this.spec.heads.length }, (_, index) => {
      const matrix = this.slice(index);
      return queries.reduce((total, i) => total + keys.reduce((sum, j) => sum + matrix.at(i, j), 0), 0) / queries.length;
    });
  }

  /** A head as a small matrix: its weights, or its map. @param {number} index */
  thumb(index) {
    const { thumbs } = this.arrays;
    if (!thumbs) return this.slice(index);
    const [, , rows, columns] = thumbs.shape;
    const values = /** @type {Float32Array} */ (thumbs.values).subarray(index * rows * columns, (index + 1) * rows * columns);
    return new Matrix(rows, columns, values);
  }

  /** The share of a head's weight that follows a pattern. @param {number} index @param {number} pattern */
  pattern(index, pattern) {
    return this.arrays.patterns.values[index * this.spec.patterns.length + pattern];
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

/** The sum of each row, and the part of it on background tokens. @param {Matrix} matrix @param {number[]} background */
function sums(matrix, background) {
  const totals = new Float32Array(2 * matrix.rows);
  for (let i = 0; i < matrix.rows; i += 1) {
    totals[2 * i] = matrix.row(i).reduce((total, weight) => total + weight, 0);
    totals[2 * i + 1] = background.reduce((total, column) => total + matrix.at(i, column), 0);
  }
  return totals;
}
