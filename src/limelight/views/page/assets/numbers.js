// The document's packed numbers: base64 of deflated little-endian arrays.

async function inflate(base64) {
  const letters = atob(base64);
  const packed = new Uint8Array(letters.length);
  for (let k = 0; k < packed.length; k += 1) packed[k] = letters.charCodeAt(k);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// Weights are kept as the square root in 16 bits, so that small ones keep their digits too.
const WEIGHTS = Float32Array.from({ length: 65536 }, (_, code) => (code / 65535) ** 2);

/** A matrix of weights, rows ask and columns answer. */
export class Matrix {
  constructor(rows, columns, values) {
    this.rows = rows;
    this.columns = columns;
    this.values = values;
  }

  at(row, column) {
    return this.values[row * this.columns + column];
  }

  row(row) {
    return this.values.subarray(row * this.columns, (row + 1) * this.columns);
  }

  /** Words for tokens: what a word receives is summed over its tokens, what it gives is averaged. */
  merged(rowWords, columnWords) {
    const rows = 1 + Math.max(...rowWords);
    const columns = 1 + Math.max(...columnWords);
    const sizes = new Float64Array(rows);
    for (const word of rowWords) sizes[word] += 1;
    const values = new Float32Array(rows * columns);
    for (let i = 0; i < this.rows; i += 1) {
      for (let j = 0; j < this.columns; j += 1) {
        values[rowWords[i] * columns + columnWords[j]] += this.at(i, j) / sizes[rowWords[i]];
      }
    }
    return new Matrix(rows, columns, values);
  }
}

/** A byte each names the level of a weight; 255 says that its code stands alone, after the others. */
function unpack(levels, bytes, count) {
  const codes = new Uint16Array(count);
  const alone = (bytes.length - count) / 2;
  let next = count;
  for (let k = 0; k < count; k += 1) {
    if (bytes[k] < 255) codes[k] = levels[bytes[k]];
    else {
      codes[k] = bytes[next] + 256 * bytes[next + alone];
      next += 1;
    }
  }
  return codes;
}

/** The weights, log-sum-exps and channels of a document, a head at a time. */
export class Numbers {
  constructor(spec, codes, sums, lse, channels) {
    this.spec = spec;
    this.codes = codes;
    this.sumValues = sums;
    this.lseValues = lse;
    this.channelCodes = channels;
  }

  /** Where tokens ask one another, the document names them once. */
  static async read(document) {
    const spec = { ...document, keys: document.keys ?? document.queries };
    const count = spec.layers.length * spec.heads.length * spec.queries.labels.length * spec.keys.labels.length;
    const codes = unpack(spec.weights.levels, new Uint8Array(await inflate(spec.weights.data)), count);
    const sums = new Float32Array(await inflate(spec.sums));
    const lse = spec.lse ? new Float32Array(await inflate(spec.lse)) : null;
    const channels = spec.channels ? new Int16Array(await inflate(spec.channels.data)) : null;
    return new Numbers(spec, codes, sums, lse, channels);
  }

  place(layer, head) {
    return layer * this.spec.heads.length + head;
  }

  matrix(layer, head) {
    const rows = this.spec.queries.labels.length;
    const columns = this.spec.keys.labels.length;
    const start = this.place(layer, head) * rows * columns;
    const values = new Float32Array(rows * columns);
    for (let k = 0; k < values.length; k += 1) values[k] = WEIGHTS[this.codes[start + k]];
    return new Matrix(rows, columns, values);
  }

  /** What a row gives in all, and what of it to the tokens set apart. */
  sums(layer, head, row) {
    const place = 2 * (this.place(layer, head) * this.spec.queries.labels.length + row);
    return { all: this.sumValues[place], apart: this.sumValues[place + 1] };
  }

  lse(layer, head) {
    if (!this.lseValues) return null;
    const rows = this.spec.queries.labels.length;
    const start = this.place(layer, head) * rows;
    return this.lseValues.subarray(start, start + rows);
  }

  /** The query, key and value vectors of a head, where the document carries them. */
  channels(layer, head) {
    const kept = this.spec.channels;
    const place = kept ? kept.places.indexOf(this.place(layer, head)) : -1;
    if (place < 0) return null;
    const rows = this.spec.queries.labels.length;
    const columns = this.spec.keys.labels.length;
    let start = place * (rows * kept.size + columns * (kept.size + kept.valueSize));
    const take = (count, size, peak) => {
      const vectors = [];
      for (let k = 0; k < count; k += 1, start += size) {
        const codes = this.channelCodes.subarray(start, start + size);
        vectors.push(Float32Array.from(codes, (code) => (code / 32767) * peak));
      }
      return vectors;
    };
    const [queryPeak, keyPeak, valuePeak] = kept.peaks[place];
    return {
      scale: kept.scale,
      plain: kept.plain,
      query: take(rows, kept.size, queryPeak),
      key: take(columns, kept.size, keyPeak),
      value: take(columns, kept.valueSize, valuePeak),
    };
  }
}
