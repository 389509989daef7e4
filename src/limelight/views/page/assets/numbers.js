// The documents of `document.py`, unpacked: base64 of deflated little-endian arrays.

/**
 * A side of the weights: the queries, or the keys.
 * @typedef {object} Side
 * @property {string[]} labels
 * @property {boolean[]} tight no space before
 * @property {number[]} background
 * @property {number[]} special
 *
 * @typedef {Side & { words: number[], merged: Side | null }} TokenSide
 *
 * @typedef {{ layer: number, head: number, query: number, key: number, weight: number }} Link
 *
 * @typedef {object} Palette
 * @property {string} paper
 * @property {string} raised
 * @property {string} ink
 * @property {string} muted
 * @property {string} line
 * @property {string} query
 * @property {string} key
 * @property {number[][]} scale
 * @property {number[][]} signed
 *
 * @typedef {{ rows: number, columns: number, plain: Uint8Array, all: Uint8Array }} Pictures
 *
 * A picture cut into patches, after `leading` other tokens; `rollout` n n: what each token is made of after all layers.
 * @typedef {{ rows: number, columns: number, leading: number, width: number, height: number, pixels: Uint8Array, rollout: Float32Array | null }} Picture
 *
 * The header, its pictures unpacked.
 * @typedef {object} Spec
 * @property {string} title
 * @property {string} model
 * @property {string} made
 * @property {string} warning
 * @property {TokenSide} queries
 * @property {TokenSide} keys
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {{ layer: number, head: number, query: number, key: number }} choice
 * @property {{ strongest: ([number, number, number] | null)[], entropy: number[], distance: number[] }} summary
 * @property {string[][]} roles of every head, the clearest first; empty where they were not measured
 * @property {Pictures} thumbs
 * @property {Link[]} links
 * @property {{ entropy: number[], distance: number[], receivers: [number, number][], copies: Link[] } | null} [overview] of a long text
 * @property {Picture | null} [picture] whose patches the tokens are
 * @property {{ light: Palette, dark: Palette }} colours
 *
 * @typedef {object} Channels
 * @property {number} scale
 * @property {boolean} plain whether scale · query · key is the score
 * @property {Float32Array[]} query
 * @property {Float32Array[]} key
 * @property {Float32Array[]} value
 *
 * @typedef {{ row: number, column: number, matrix: Matrix }} Tile
 *
 * One head, unpacked: all weights, or links, map and tiles of a long text.
 * @typedef {object} Head
 * @property {Matrix | null} tokens
 * @property {Matrix | null} merged
 * @property {Float32Array | null} sums
 * @property {Float32Array | null} lse
 * @property {Channels | null} channels
 * @property {{ size: number, keys: Int32Array, weights: Float32Array } | null} links
 * @property {Pictures | null} map
 * @property {Tile[]} tiles
 */

/**
 * @param {string} base64
 * @returns {Promise<ArrayBuffer>}
 */
async function inflate(base64) {
  const letters = atob(base64);
  const packed = new Uint8Array(letters.length);
  for (let k = 0; k < packed.length; k += 1) packed[k] = letters.charCodeAt(k);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** A matrix of weights, rows are queries and columns are keys. */
export class Matrix {
  /**
   * @param {number} rows
   * @param {number} columns
   * @param {Float32Array} values
   */
  constructor(rows, columns, values) {
    this.rows = rows;
    this.columns = columns;
    this.values = values;
  }

  /** @param {number} row @param {number} column */
  at(row, column) {
    return this.values[row * this.columns + column];
  }

  /** @param {number} row */
  row(row) {
    return this.values.subarray(row * this.columns, (row + 1) * this.columns);
  }
}

/**
 * Weights as `packing.py` packs them: 16-bit square roots, or thousandths.
 * @param {{ kind: string, data: string }} packed
 * @param {number} count
 */
async function weightsOf(packed, count) {
  const bytes = new Uint8Array(await inflate(packed.data));
  const values = new Float32Array(count);
  if (packed.kind === "fine") {
    for (let k = 0; k < count; k += 1) values[k] = ((bytes[k] + 256 * bytes[k + count]) / 65535) ** 2;
    return values;
  }
  const escaped = (bytes.length - count) / 2; // numbers of two bytes after the others
  let next = count;
  for (let k = 0; k < count; k += 1) {
    if (bytes[k] < 255) values[k] = bytes[k] / 1000;
    else {
      values[k] = (bytes[next] + 256 * bytes[next + escaped]) / 1000;
      next += 1;
    }
  }
  return values;
}

/** @param {any} packed @returns {Promise<Pictures>} */
async function pictures(packed) {
  const [plain, all] = await Promise.all([inflate(packed.plain), inflate(packed.all)]);
  return { rows: packed.rows, columns: packed.columns, plain: new Uint8Array(plain), all: new Uint8Array(all) };
}

/**
 * The header, its arrays unpacked; keys are null in the document where they are the queries.
 * @param {any} document_
 * @returns {Promise<Spec>}
 */
export async function readHeader(document_) {
  const { picture } = document_;
  return {
    ...document_, keys: document_.keys ?? document_.queries, thumbs: await pictures(document_.thumbs),
    picture: picture ? {
      ...picture,
      pixels: new Uint8Array(await inflate(picture.pixels)),
      rollout: picture.rollout ? new Float32Array(await inflate(picture.rollout)) : null,
    } : null,
  };
}

/**
 * The part of one head.
 * @param {Spec} spec
 * @param {any} part
 * @returns {Promise<Head>}
 */
export async function readHead(spec, part) {
  const rows = spec.queries.labels.length;
  const columns = spec.keys.labels.length;
  const matrix = async (/** @type {any} */ packed, /** @type {number} */ i, /** @type {number} */ j) => (
    packed ? new Matrix(i, j, await weightsOf(packed, i * j)) : null);
  const floats = async (/** @type {string | null} */ packed) => (packed ? new Float32Array(await inflate(packed)) : null);
  const words = (/** @type {TokenSide} */ side) => (side.merged ?? side).labels.length;
  const tiles = (part.tiles ?? []).map(async (/** @type {any} */ tile) => ({
    row: tile.row, column: tile.column, matrix: await matrix(tile.weights, tile.rows, tile.columns),
  }));
  return {
    tokens: await matrix(part.weights, rows, columns),
    merged: await matrix(part.merged, words(spec.queries), words(spec.keys)),
    sums: await floats(part.sums),
    lse: await floats(part.lse),
    channels: part.channels ? await channelsOf(part.channels, rows, columns) : null,
    links: part.links ? {
      size: part.links.size,
      keys: new Int32Array(await inflate(part.links.keys)),
      weights: await weightsOf(part.links.weights, rows * part.links.size),
    } : null,
    map: part.map ? await pictures(part.map) : null,
    tiles: await Promise.all(tiles),
  };
}

/**
 * @param {any} packed
 * @param {number} rows
 * @param {number} columns
 * @returns {Promise<Channels>}
 */
async function channelsOf(packed, rows, columns) {
  const codes = new Int16Array(await inflate(packed.data));
  let start = 0;
  const take = (/** @type {number} */ count, /** @type {number} */ size, /** @type {number} */ peak) => {
    const vectors = [];
    for (let k = 0; k < count; k += 1, start += size) {
      vectors.push(Float32Array.from(codes.subarray(start, start + size), (code) => (code / 32767) * peak));
    }
    return vectors;
  };
  const [queryPeak, keyPeak, valuePeak] = packed.peaks;
  return {
    scale: packed.scale,
    plain: packed.plain,
    query: take(rows, packed.size, queryPeak),
    key: take(columns, packed.size, keyPeak),
    value: take(columns, packed.valueSize, valuePeak),
  };
}
