// Elements. Strings only ever become text nodes, so nothing in a token can become markup.

const SVG = "http://www.w3.org/2000/svg";

// Set on the pictures themselves, so that an exported one keeps it.
export const FONT =
  'Inter, ui-sans-serif, system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", Arial, sans-serif';

/** @typedef {Node | string} Child */

/**
 * @template {Element} T
 * @param {T} element
 * @param {Record<string, any>} attributes
 * @param {Child[]} children
 * @returns {T}
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children);
  return element;
}

/**
 * An HTML element; functions among the attributes become listeners.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [attributes]
 * @param {Child[]} children
 */
export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * An SVG element, made the same way.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [attributes]
 * @param {Child[]} children
 */
export function svg(tag, attributes = {}, ...children) {
  return fill(/** @type {SVGElementTagNameMap[K]} */ (document.createElementNS(SVG, tag)), attributes, children);
}

/** A bar that is full at 1. */
export function bar(/** @type {number} */ share) {
  const inner = html("span", { class: "bar" });
  inner.style.width = `${Math.min(100, 100 * share)}%`; // the page's policy forbids a style attribute
  return html("span", { class: "track" }, inner);
}

/** A frame that scrolls sideways, and fades at its end while there is more to see. */
export function scrolling(/** @type {Record<string, any>} */ attributes, /** @type {Element[]} */ ...children) {
  const frame = html("div", { ...attributes, class: `${attributes.class ?? ""} scrolls`, scroll: show }, ...children);
  function show() {
    const left = Math.abs(frame.scrollLeft); // counts down from zero where text runs to the left
    frame.toggleAttribute("data-more", frame.scrollWidth - frame.clientWidth - left > 2);
  }
  const watcher = new ResizeObserver(show);
  for (const each of [frame, ...children]) watcher.observe(each);
  return frame;
}

/** Scrolls a frame, and nothing around it, until an element inside it can be seen. */
export function reveal(/** @type {Element} */ frame, /** @type {Element} */ element) {
  const [outer, inner] = [frame.getBoundingClientRect(), element.getBoundingClientRect()];
  if (inner.top < outer.top || inner.bottom > outer.bottom) {
    frame.scrollTop += (inner.top + inner.bottom - outer.top - outer.bottom) / 2;
  }
}

const PLAIN = /^[\x20-\x7e]*$/;
const segmenter = "Segmenter" in Intl ? new Intl.Segmenter() : null;

/** At most `limit` graphemes, so that no letter is separated from its combining marks. */
export function shorten(/** @type {string} */ text, /** @type {number} */ limit) {
  // in ASCII, as most labels are, each letter is one grapheme; segmenting is slower than drawing
  if (PLAIN.test(text)) return text.length <= limit ? text : `${text.slice(0, limit - 1)}…`;
  const letters = segmenter
    ? [...segmenter.segment(text.slice(0, 8 * limit))].map((part) => part.segment)
    : Array.from(text.slice(0, 8 * limit));
  const whole = letters.length <= limit && text.length <= 8 * limit;
  return whole ? text : `${letters.slice(0, limit - 1).join("")}…`;
}

/** @type {CanvasRenderingContext2D | null} */
let pen = null;
let penSize = 0;
/** @type {Map<string, number>} widths at `penSize` */
const widths = new Map();

/** How wide the text is drawn, in pixels. */
export function widthOf(/** @type {string} */ text, /** @type {number} */ size) {
  pen ??= /** @type {CanvasRenderingContext2D} */ (document.createElement("canvas").getContext("2d"));
  if (size !== penSize || widths.size > 4096) {
    pen.font = `650 ${size}px ${FONT}`;
    penSize = size;
    widths.clear();
  }
  const known = widths.get(text);
  if (known !== undefined) return known;
  const { width } = pen.measureText(text);
  widths.set(text, width);
  return width;
}

/** The text, shortened to `width` pixels and `most` characters. */
export function fitted(/** @type {string} */ text, /** @type {number} */ size, /** @type {number} */ width, most = 24) {
  let limit = most;
  let label = shorten(text, limit);
  while (limit > 2 && widthOf(label, size) > width) {
    limit -= 1;
    label = shorten(text, limit);
  }
  return label;
}

/** A weight as every view prints it. */
export function number(/** @type {number} */ value, digits = 3) {
  const printed = value.toFixed(digits);
  return Number(printed) === 0 ? printed.replace("-", "") : printed.replace("-", "−");
}
