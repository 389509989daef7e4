// From numbers to colours. The anchors come with the document, so that every view shares them.

const FLOOR = 1e-4; // where the logarithmic scale begins

function between(/** @type {any} */ anchors, /** @type {number} */ part) {
  const place = Math.min(Math.max(part, 0), 1) * (anchors.length - 1);
  const below = Math.min(Math.floor(place), anchors.length - 2);
  return anchors[below].map((/** @type {number} */ value, /** @type {number} */ k) =>
    Math.round(value + (anchors[below + 1][k] - value) * (place - below)));
}

const css = (/** @type {number[]} */ [red, green, blue]) => `rgb(${red},${green},${blue})`;

/** The position of a weight on the scale, from 0 to 1. */
export function height(/** @type {number} */ weight, /** @type {number} */ peak, /** @type {boolean} */ log) {
  if (weight <= 0 || peak <= 0) return 0;
  if (!log) return weight / peak;
  return Math.max(0, Math.log(weight / FLOOR) / Math.log(Math.max(peak, 2 * FLOOR) / FLOOR));
}

export const lowest = (/** @type {boolean} */ log) => (log ? FLOOR : 0);

export function rgb(/** @type {import("./numbers.js").Palette} */ palette, /** @type {number} */ part) {
  return between(palette.scale, part);
}

export function colour(/** @type {import("./numbers.js").Palette} */ palette, /** @type {number} */ part) {
  return css(between(palette.scale, part));
}

/** The colour of a number of either sign, as a share of the largest magnitude. */
export function signed(/** @type {import("./numbers.js").Palette} */ palette, /** @type {number} */ share) {
  return css(between(palette.signed, (share + 1) / 2));
}

/** Black or white, whichever has more contrast on that part of the scale: at least 4.5 to 1. */
export function textOn(/** @type {import("./numbers.js").Palette} */ palette, /** @type {number} */ part) {
  const [red, green, blue] = between(palette.scale, part).map((/** @type {number} */ value) => (value / 255) ** 2.2);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}
