// The links most worth a look, each quoted with the tokens around it.

import { html, number, shorten } from "./dom.js";

/** @typedef {import("./numbers.js").Spec} Spec */
/** @typedef {import("./numbers.js").Side} Side */
/** @typedef {import("./view.js").View} View */

const AROUND = 5; // tokens quoted on either side

/**
 * @param {import("./store.js").Store} store
 * @param {Spec} spec
 */
export function createWorth(store, spec) {
  return createLinks(store, spec, spec.links);
}

/**
 * Links as buttons; clicking one shows its head and query.
 * @param {import("./store.js").Store} store
 * @param {Spec} spec
 * @param {import("./numbers.js").Link[]} links
 */
export function createLinks(store, spec, links) {
  const items = links.map((link) => {
    const [layer, head] = [spec.layers.indexOf(link.layer), spec.heads.indexOf(link.head)];
    const choose = () => store.set({ layer, head, words: false, locked: link.query, query: null, key: null, tile: null });
    const button = html("button", { type: "button", class: "worth-link", click: choose },
      html("span", { class: "worth-head" },
        html("span", { class: "number strong" }, number(link.weight)), ` layer ${link.layer} head ${link.head}`),
      html("span", { class: "quotes" },
        html("bdi", { class: "quote" }, ...quote(spec.queries, link.query, "query-name")), " → ",
        html("bdi", { class: "quote" }, ...quote(spec.keys, link.key, "key-name"))));
    return { button, link, layer, head };
  });

  /** @param {View} view */
  function draw(view) {
    for (const { button, link, layer, head } of items) {
      const chosen = view.state.layer === layer && view.state.head === head && view.state.locked === link.query && !view.state.words;
      button.setAttribute("aria-pressed", String(chosen));
    }
  }

  const empty = html("p", { class: "hint" }, "No link goes beyond neighbouring words and background tokens.");
  return { element: html("div", { class: "worth" }, ...(items.length ? items.map(({ button }) => button) : [empty])), draw, focus: draw };
}

/**
 * A token among its neighbours.
 * @param {Side} side
 * @param {number} token
 * @param {string} kind
 * @param {number} [around] how many of them on either side
 */
export function quote(side, token, kind, around = AROUND) {
  const first = Math.max(0, token - around);
  const last = Math.min(side.labels.length, token + around + 1);
  /** @type {(Node | string)[]} */
  const parts = [first > 0 ? "… " : ""];
  for (let k = first; k < last; k += 1) {
    if (side.special.includes(k) && k !== token) continue;
    const label = shorten(side.labels[k], 24);
    if (k > first && !side.tight[k]) parts.push(" ");
    parts.push(k === token ? html("span", { class: kind }, label) : label);
  }
  parts.push(last < side.labels.length ? " …" : "");
  if (side.labels.length > 40) parts.push(html("sub", { class: "place" }, String(token)));
  return parts;
}
