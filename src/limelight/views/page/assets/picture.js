// The picture whose patches the tokens are: lit where a chosen patch, or [CLS], looks.

import { FONT, html, number, svg } from "./dom.js";
import { activeQueries, keyWeights } from "./view.js";

/** @typedef {import("./view.js").View} View */

const WIDTH = 420;
const VEIL = 0.82; // opacity over a patch that is not looked at

/**
 * @param {import("./store.js").Store} store
 * @param {import("./numbers.js").Spec} spec
 */
export function createPicture(store, spec) {
  const { rows, columns, leading, width, height, pixels, rollout } = /** @type {import("./numbers.js").Picture} */ (spec.picture);
  const tall = (WIDTH * height) / width;
  const count = rows * columns;
  const image = svg("image", { width: WIDTH, height: tall, href: dataUrl(width, height, pixels), preserveAspectRatio: "none" });
  const veils = Array.from({ length: count }, (_, patch) => svg("rect", {
    class: "patch", x: ((patch % columns) * WIDTH) / columns, y: (Math.floor(patch / columns) * tall) / rows,
    width: WIDTH / columns, height: tall / rows, fill: "#000", "fill-opacity": 0,
    pointerenter: () => point(leading + patch), click: () => lock(leading + patch),
  }));
  const mark = svg("rect", { fill: "none", "stroke-width": 3, "pointer-events": "none" });
  const root = svg("svg", {
    class: "picture patches", viewBox: `0 0 ${WIDTH} ${tall}`, width: WIDTH, height: tall, role: "img", tabindex: 0, "font-family": FONT,
    pointerleave: () => store.set({ query: null, key: null }), keydown: (/** @type {KeyboardEvent} */ event) => move(event),
  }, image, ...veils, mark);
  const leadingButtons = Array.from({ length: leading }, (_, token) => html("button", {
    type: "button", class: "quiet lead", click: () => lock(token), pointerenter: () => point(token),
    pointerleave: () => store.set({ query: null, key: null }),
  }, spec.queries.labels[token]));
  const rolloutButton = html("button", {
    type: "button", class: "quiet lead", hidden: !rollout, "aria-pressed": "false",
    title: "How much of each patch is in the chosen one after all layers, if attention were all there is",
    click: () => { showsRollout = !showsRollout; rolloutButton.setAttribute("aria-pressed", String(showsRollout)); focus(drawn); },
  }, "Rollout over all layers");
  const caption = html("p", { class: "caption", "aria-live": "polite" });
  let showsRollout = false;
  /** @type {View} */
  let drawn;

  /** @param {number} token */
  function point(token) {
    store.set({ query: token, key: store.get().locked === null ? null : token });
  }

  /** @param {number} token */
  function lock(token) {
    store.set({ locked: store.get().locked === token ? null : token, held: [], key: null });
  }

  /** @param {KeyboardEvent} event */
  function move(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    const here = Math.max((store.get().locked ?? leading) - leading, 0);
    store.set({ locked: leading + Math.min(Math.max(here + by, 0), count - 1), held: [], key: null });
  }

  /** The mean weight of the queries on each token, or their rollout, background included. @param {View} view @param {number[]} queries */
  function shares(view, queries) {
    const means = new Float32Array(leading + count);
    for (const row of queries) {
      if (showsRollout && rollout) for (let j = 0; j < means.length; j += 1) means[j] += rollout[row * means.length + j] / queries.length;
      else for (const { column, weight } of keyWeights(view, row)) means[column] += weight / queries.length;
    }
    return means;
  }

  /** @param {View} view */
  function focus(view) {
    drawn = view;
    const { state, palette } = view;
    const queries = activeQueries(state);
    const means = shares(view, queries);
    const peak = Math.max(...means.subarray(leading), 1e-9);
    veils.forEach((veil, patch) => {
      veil.setAttribute("fill-opacity", queries.length ? (VEIL * (1 - Math.sqrt(means[leading + patch] / peak))).toFixed(3) : "0");
    });
    const patch = queries.length ? queries[0] - leading : -1;
    mark.setAttribute("visibility", patch >= 0 ? "visible" : "hidden");
    if (patch >= 0) for (const name of ["x", "y", "width", "height"]) mark.setAttribute(name, /** @type {string} */ (veils[patch].getAttribute(name)));
    mark.setAttribute("stroke", palette.query);
    leadingButtons.forEach((button, token) => { button.setAttribute("aria-pressed", String(queries.includes(token))); });
    caption.replaceChildren(...captionParts(view, queries, means));
    root.setAttribute("aria-label", `The picture, lit where ${queries.length ? view.rows.labels[queries[0]] : "no token"} looks. Arrow keys choose a patch.`);
  }

  /** @param {View} view @param {number[]} queries @param {Float32Array} means */
  function captionParts(view, queries, means) {
    if (!queries.length) return ["Point at a patch, or click one to hold it."];
    const { labels } = view.rows;
    const shown = view.state.key ?? leading + means.subarray(leading).indexOf(Math.max(...means.subarray(leading)));
    return [html("strong", { class: "query-name" }, queries.map((token) => labels[token]).join(" + ")), showsRollout ? " is made of " : " looks at ",
      html("strong", { class: "key-name" }, labels[shown]), " ", html("span", { class: "number" }, number(means[shown])),
      showsRollout ? " after all layers; " : "; ", html("span", { class: "number" }, number(means.subarray(leading).reduce((sum, each) => sum + each, 0))), " on all patches"];
  }

  return { element: html("div", {}, html("div", { class: "leads" }, ...leadingButtons, rolloutButton), root, caption), picture: root, draw: focus, focus };
}

/** @param {number} width @param {number} height @param {Uint8Array} pixels */
function dataUrl(width, height, pixels) {
  const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { width, height }));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(width, height);
  for (let k = 0; k < width * height; k += 1) image.data.set([pixels[3 * k], pixels[3 * k + 1], pixels[3 * k + 2], 255], 4 * k);
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}
