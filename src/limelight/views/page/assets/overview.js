// A long text at a glance: what the layers do, which tokens receive most, what is copied.

import { bar, html, svg } from "./dom.js";
import { createLinks, quote } from "./worth.js";

/** @typedef {import("./numbers.js").Spec} Spec */
/** @typedef {import("./view.js").View} View */

const HEIGHT = 64; // of a chart, in its own units
const STEP = 10; // from bar to bar

/**
 * @param {import("./store.js").Store} store
 * @param {Spec} spec
 * @param {NonNullable<Spec["overview"]>} overview
 */
export function createOverview(store, spec, overview) {
  const entropy = chart(store, spec, overview.entropy, (bits) => `${bits.toFixed(2)} bits`);
  const distance = chart(store, spec, overview.distance, (tokens) => `${tokens.toLocaleString("en", { maximumFractionDigits: 1 })} tokens`);
  const copies = createLinks(store, spec, overview.copies);
  const most = overview.receivers[0]?.[1] ?? 1;
  const receivers = overview.receivers.map(([key, share]) => html("li", { class: "receiver" },
    html("bdi", { class: "quote" }, ...quote(spec.keys, key, "key-name", 2)),
    html("span", { class: "number" }, `${(100 * share).toFixed(3)}%`),
    bar(share / most)));

  /** @param {View} view */
  function draw(view) {
    for (const each of [entropy, distance, copies]) each.draw(view);
  }

  const part = (/** @type {string} */ title, /** @type {Node[]} */ ...children) => html("div", { class: "overview-part" }, html("h4", {}, title), ...children);
  const element = html("div", { class: "overview" },
    part("Layers: how spread out they look", entropy.element),
    part("Layers: how far they look", distance.element),
    part("Tokens that receive most", html("ol", { class: "receivers" }, ...receivers)),
    part("Repeats that are copied", copies.element));
  return { element, draw, focus: draw };
}

/**
 * A bar for each layer; choosing one goes to that layer.
 * @param {import("./store.js").Store} store
 * @param {Spec} spec
 * @param {number[]} values
 * @param {(value: number) => string} format
 */
function chart(store, spec, values, format) {
  const most = Math.max(...values) || 1;
  const bars = values.map((value, layer) => {
    const tall = Math.max(1, (HEIGHT * value) / most);
    const label = `layer ${spec.layers[layer]}: ${format(value)}`;
    return svg("g", {
      class: "layer-bar", role: "button", tabindex: 0, "aria-label": label,
      click: () => store.set({ layer }),
      keydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        store.set({ layer });
      },
    },
    svg("title", {}, label),
    svg("rect", { class: "hit-area", x: layer * STEP, y: 0, width: STEP, height: HEIGHT }),
    svg("rect", { class: "value", x: layer * STEP + 1, y: HEIGHT - tall, width: STEP - 2, height: tall, rx: 1.5 }));
  });
  const picture = svg("svg", { class: "chart", viewBox: `0 0 ${values.length * STEP} ${HEIGHT}`, preserveAspectRatio: "none", role: "group" }, ...bars);
  const caption = html("p", { class: "caption" });

  /** @param {View} view */
  function draw(view) {
    const { layer } = view.state;
    for (const [place, bar] of bars.entries()) bar.setAttribute("aria-pressed", String(place === layer));
    caption.replaceChildren(html("strong", {}, `Layer ${spec.layers[layer]}`), `  ${format(values[layer])}, at most ${format(most)}`);
  }

  return { element: html("div", {}, picture, caption), draw };
}
