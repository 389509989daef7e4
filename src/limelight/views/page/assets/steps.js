// One token, one head, every step with its numbers: query, scores, softmax, output.

import { bar, html, number, scrolling, shorten } from "./dom.js";
import { signed } from "./scale.js";
import { activeQuery, keyWeights } from "./view.js";

/** @typedef {import("./view.js").View} View */

const MOST_ROWS = 8;

/** @param {import("./numbers.js").Spec} spec */
export function createSteps(spec) {
  const body = html("div", { class: "steps" });
  let last = spec.choice.query;
  let shown = "";

  function draw(/** @type {import("./view.js").View} */ view) {
    shown = "";
    focus(view);
  }

  function focus(/** @type {import("./view.js").View} */ view) {
    const row = activeQuery(view.state);
    if (row !== null) last = view.rows === spec.queries ? row : spec.queries.words.indexOf(row);
    const { layer, head } = view.state;
    const key = [layer, head, last].join();
    if (key === shown) return;
    shown = key;
    body.replaceChildren(...stepSections(view, spec, last));
  }

  return { element: body, draw, focus };
}

/** @param {View} view @param {import("./numbers.js").Spec} spec @param {number} token */
function stepSections(view, spec, token) {
  const flow = /** @type {any} */ (computeFlow(view, token));
  const queryName = () => html("bdi", { class: "query-name" }, shorten(spec.queries.labels[token], 24));
  const parts = [];
  if (!flow.links.length) return [html("p", { class: "hint" }, "The weights of this head are not kept in this file; other heads have more to show.")];
  if (flow.channels) {
    parts.push(step("Query", [queryName(), " becomes a query of ", `${flow.query.length} numbers`],
      strip(view.palette, flow.query, flow.queryPeak)));
  }
  parts.push(step("Scores", flow.channels
    ? ["its product with every key, times ", formula(flow.channels.scale), ", is the score; softmax turns scores into weights that sum to one"]
    : ["the score of ", queryName(), " with every key; softmax turns scores into weights that sum to one"], table(view, spec, flow)));
  if (flow.channels) {
    parts.push(step("Output", ["the sum of the values, each times its weight: what ", queryName(), " carries on"],
      strip(view.palette, flow.output, flow.valuePeak)));
    parts.push(everyNumber(spec, flow));
  } else {
    parts.push(html("p", { class: "hint" }, flow.total === null
      ? "For a long text the strongest keys of each token are kept, and no vectors."
      : "The query, key and value vectors of this head are not kept on this page."));
  }
  return parts;
}

/** The arithmetic of one row, in order. @param {View} view @param {number} token */
function computeFlow(view, token) {
  const { channels, lse, tokens, sums } = view.head;
  const score = (/** @type {number} */ weight, /** @type {any} */ product) => {
    if (channels?.plain) return product * channels.scale;
    return lse ? Math.log(weight) + lse[token] : null;
  };
  const pairs = tokens ? Array.from(tokens.row(token), (weight, column) => ({ column, weight })) : keyWeights(view, token);
  const links = pairs.map(({ column, weight }) => {
    const product = channels ? dot(channels.query[token], channels.key[column]) : null;
    return { column, weight, score: weight > 0 ? score(weight, product) : null, product };
  }).sort((a, b) => b.weight - a.weight || (b.score ?? 0) - (a.score ?? 0));
  const flow = { channels, links, total: sums ? sums[2 * token] : null };
  if (!channels || !tokens) return flow;
  const peak = (/** @type {Float32Array[]} */ vectors) => Math.max(1e-9, ...vectors.map((/** @type {Float32Array} */ vector) => Math.max(...vector.map(Math.abs))));
  return {
    ...flow,
    query: channels.query[token],
    queryPeak: peak(channels.query),
    keyPeak: peak(channels.key),
    valuePeak: peak(channels.value),
    output: mix(channels.value, tokens.row(token)),
  };
}

function dot(/** @type {any} */ a, /** @type {any} */ b) {
  return a.reduce((/** @type {number} */ total, /** @type {number} */ value, /** @type {number} */ k) => total + value * b[k], 0);
}

function mix(/** @type {any} */ values, /** @type {any} */ weights) {
  const output = new Float32Array(values[0].length);
  for (const [token, value] of values.entries()) {
    for (const [k, number_] of value.entries()) output[k] += weights[token] * number_;
  }
  return output;
}

function formula(/** @type {number} */ scale) {
  const size = Math.round(1 / (scale * scale));
  return Math.abs(scale - 1 / Math.sqrt(size)) < 1e-6 ? `1/√${size}` : number(scale);
}

function step(/** @type {string} */ name, /** @type {(Node | string)[]} */ words, /** @type {Node} */ content) {
  return html("section", { class: "step" },
    html("h4", {}, name), html("p", {}, ...words), content);
}

function table(/** @type {import("./view.js").View} */ view, /** @type {import("./numbers.js").Spec} */ spec, /** @type {any} */ flow) {
  const { channels, links } = flow;
  const best = links.slice(0, MOST_ROWS);
  const rest = links.slice(MOST_ROWS);
  const known = links.some((/** @type {any} */ { score }) => score !== null);
  const heading = (/** @type {string} */ name, kind = "") => html("th", { scope: "col", class: kind }, name);
  const cell = (/** @type {Node | string} */ content, kind = "") => html("td", { class: kind }, content);
  const row = (/** @type {any} */ { column, weight, score, product }) => html("tr", {},
    html("th", { scope: "row" }, html("bdi", { class: spec.keys.background.includes(column) ? "background" : "" }, shorten(spec.keys.labels[column], 16)),
      spec.keys.labels.length > 40 ? html("sub", { class: "place" }, String(column)) : ""),
    ...(channels ? [cell(strip(view.palette, channels.key[column], flow.keyPeak)), cell(number(product, 2), "number")] : []),
    ...(known ? [cell(score === null ? "–" : number(score, 2), "number")] : []),
    cell(number(weight), "number strong"),
    cell(bar(weight), "bar-cell"),
    ...(channels ? [cell(strip(view.palette, channels.value[column], flow.valuePeak, weight))] : []));
  const lead = 1 + (channels ? 2 : 0) + (known ? 1 : 0);
  const closing = (/** @type {string} */ name, /** @type {number} */ amount) => html("tr", { class: "closing" },
    html("th", { scope: "row", colspan: lead }, name), cell(number(amount), "number strong"),
    cell("", "bar-cell"), ...(channels ? [cell("")] : []));
  const others = (flow.total ?? 0) - best.reduce((/** @type {number} */ sum, /** @type {any} */ link) => sum + link.weight, 0);
  return scrolling({}, html("table", {},
    html("thead", {}, html("tr", {}, heading("token"),
      ...(channels ? [heading("key"), heading("q · k")] : []), ...(known ? [heading("score")] : []),
      heading("weight"), heading("", "bar-cell"), ...(channels ? [heading("value")] : []))),
    html("tbody", {}, ...best.map(row),
      ...(rest.length && flow.total !== null ? [closing(`${rest.length} more`, others)] : []),
      ...(flow.total === null ? [] : [closing("all", flow.total)]))));
}

/** A vector as a strip of colours: one for each sign, the paper's for 0. */
function strip(/** @type {import("./numbers.js").Palette} */ palette, /** @type {Float32Array} */ vector, /** @type {number} */ peak, strength = 1) {
  const canvas = html("canvas", {
    class: "strip", width: vector.length, height: 1, role: "img",
    title: Array.from(vector.slice(0, 24), (value) => number(value, 2)).join("  ") + (vector.length > 24 ? " …" : ""),
    "aria-label": `${vector.length} numbers`,
  });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  vector.forEach((/** @type {number} */ value, /** @type {number} */ k) => {
    context.fillStyle = signed(palette, (strength * value) / peak);
    context.fillRect(k, 0, 1, 1);
  });
  return canvas;
}

function everyNumber(/** @type {import("./numbers.js").Spec} */ spec, /** @type {any} */ flow) {
  const best = flow.links[0];
  const key = flow.channels.key[best.column];
  const value = flow.channels.value[best.column];
  const line = (/** @type {string} */ name, /** @type {Float32Array} */ vector, /** @type {number | null} */ sum) => html("tr", {}, html("th", { scope: "row" }, name),
    ...Array.from(vector, (each) => html("td", { class: "number" }, number(each, 2))),
    html("td", { class: "number strong" }, sum === null ? "" : `Σ ${number(sum, 2)}`));
  return html("details", { class: "every" },
    html("summary", {}, "Every number, with ", html("bdi", {}, shorten(spec.keys.labels[best.column], 20))),
    scrolling({}, html("table", {}, html("tbody", {},
      line("query", flow.query, null), line("key", key, null),
      line("query × key", flow.query.map((/** @type {any} */ each, /** @type {number} */ k) => each * key[k]), best.product),
      line("value", value, null),
      line(`value × ${number(best.weight)}`, value.map((/** @type {any} */ each) => each * best.weight), null),
      line("output", flow.output, null)))));
}
