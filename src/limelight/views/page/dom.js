// Elements. Strings only ever become text nodes, so nothing in a token can become markup.

const SVG = "http://www.w3.org/2000/svg";

// Named on the pictures themselves, so that an exported one keeps it.
export const FONT =
  'Inter, ui-sans-serif, system-ui, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans", Arial, sans-serif';

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children);
  return element;
}

/** An HTML element; functions among the attributes become listeners. */
export function html(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element, made the same way. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

/** At most `limit` characters as people count them, so that no letter is parted from its marks. */
export function shorten(text, limit) {
  const letters = "Segmenter" in Intl
    ? [...new Intl.Segmenter().segment(text.slice(0, 8 * limit))].map((part) => part.segment)
    : Array.from(text.slice(0, 8 * limit));
  const whole = letters.length <= limit && text.length <= 8 * limit;
  return whole ? text : `${letters.slice(0, limit - 1).join("")}…`;
}

/** A weight as every view prints it. */
export function number(value, digits = 3) {
  const printed = value.toFixed(digits);
  return Number(printed) === 0 ? printed.replace("-", "") : printed.replace("-", "−");
}
