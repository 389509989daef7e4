// Requests to the server: frames of arrays, JSON, files, and events of long work.

/** An error whose message the page shows. */
export class ApiError extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @param {string} path @param {object | null} body @param {AbortSignal} [signal] */
async function send(path, body, signal) {
  let response;
  try {
    response = await fetch(path, {
      method: body === null ? "GET" : "POST",
      headers: body === null ? {} : { "content-type": "application/json" },
      body: body === null ? null : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "The server does not respond: is `limelight explore` still running?");
  }
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  throw new ApiError(response.status, problem.error ?? `The server responded with status ${response.status}.`);
}

/** @param {string} path @param {object | null} [body] @param {AbortSignal} [signal] */
export async function requestJson(path, body = null, signal = undefined) {
  return (await send(path, body, signal)).json();
}

/** @param {string} path @param {object} body @param {AbortSignal} [signal] */
export async function requestBlob(path, body, signal = undefined) {
  return (await send(path, body, signal)).blob();
}

/**
 * A header and its arrays: see `frames.py`.
 * @typedef {{ shape: number[], values: Float32Array | Int32Array | Uint8Array }} NumberArray
 * @typedef {{ header: any, arrays: Record<string, NumberArray> }} Frame
 */

/**
 * @param {string} path
 * @param {object} body
 * @param {AbortSignal} [signal]
 * @returns {Promise<Frame>}
 */
export async function requestFrame(path, body, signal = undefined) {
  return parseFrame(await (await send(path, body, signal)).arrayBuffer());
}

/** @param {ArrayBuffer} data @returns {Frame} */
function parseFrame(data) {
  const size = new DataView(data).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, size)));
  /** @type {Record<string, NumberArray>} */
  const arrays = {};
  for (const { name, dtype, shape, start } of header.arrays) {
    const count = shape.reduce((/** @type {number} */ product, /** @type {number} */ extent) => product * extent, 1);
    arrays[name] = { shape, values: typed(dtype, data, 4 + size + start, count) };
  }
  return { header, arrays };
}

/** @param {string} dtype @param {ArrayBuffer} data @param {number} start @param {number} count */
function typed(dtype, data, start, count) {
  if (dtype === "float32") return new Float32Array(data, start, count);
  if (dtype === "int32") return new Int32Array(data, start, count);
  if (dtype === "uint8") return new Uint8Array(data, start, count);
  return Float32Array.from(new Uint16Array(data, start, count), half);
}

/** A float16 from its bits. @param {number} code */
function half(code) {
  const sign = code & 0x8000 ? -1 : 1;
  const [exponent, fraction] = [(code >> 10) & 31, code & 1023];
  if (exponent === 31) return fraction ? Number.NaN : sign * Number.POSITIVE_INFINITY;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -14 * (fraction / 1024);
}

/**
 * The server-sent events of long work; aborting the signal ends the work.
 * @param {string} path
 * @param {object} body
 * @param {AbortSignal} signal
 */
export async function* requestEvents(path, body, signal) {
  const response = await send(path, body, signal);
  const reader = /** @type {any} */ (response.body).pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = /** @type {string} */ (parts.pop());
    for (const part of parts) {
      const event = JSON.parse(part.replace(/^data: /, ""));
      if (event.error) throw new ApiError(200, event.error);
      yield event;
    }
  }
}
