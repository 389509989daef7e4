// The controls: layer, head, and how they are shown.

import { html } from "./dom.js";

const SCHEMES = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" };

/**
 * @param {import("./store.js").Store} store
 * @param {import("./numbers.js").Spec} spec
 */
export function createControls(store, spec) {
  const layer = choice("Layer", spec.layers.map(String), (/** @type {number} */ value) => store.set({ layer: value }));
  const head = choice("Head", spec.heads.map(String), (/** @type {number} */ value) => store.set({ head: value }));
  const toggles = [
    toggle("background", "Background", "Show background tokens too: special tokens, punctuation, a first token that draws far more than its share (B)"),
    toggle("log", "Log scale", "Colour by the logarithm of the weight (G)"),
    ...(spec.queries.merged ? [toggle("words", "Words", "Join the pieces of a word (W)")] : []),
  ];
  const scheme = html("button", {
    type: "button", class: "quiet", title: "Colours: as the system, light, dark",
    click: () => {
      const order = Object.keys(SCHEMES);
      const next = order[(order.indexOf(store.get().scheme) + 1) % order.length];
      store.set({ scheme: next });
    },
  });

  function toggle(/** @type {string} */ name, /** @type {string} */ label, /** @type {string} */ title) {
    const button = html("button", {
      type: "button", class: "toggle", title, "data-toggle": name,
      click: () => store.set({ [name]: !(/** @type {any} */ (store.get())[name]), locked: name === "words" ? null : store.get().locked, query: null, key: null }),
    }, label);
    return { button, show: (/** @type {import("./view.js").State} */ state) => button.setAttribute("aria-pressed", String(/** @type {any} */ (state)[name])) };
  }

  function show(/** @type {import("./view.js").State} */ state) {
    layer.show(state.layer);
    head.show(state.head);
    for (const each of toggles) each.show(state);
    scheme.textContent = /** @type {Record<string, string>} */ (SCHEMES)[state.scheme];
  }

  return {
    element: html("div", { class: "controls" }, layer.element, head.element,
      html("div", { class: "toggles", role: "group", "aria-label": "How it is shown" }, ...toggles.map(({ button }) => button)), scheme),
    show,
  };
}

function choice(/** @type {string} */ name, /** @type {any} */ options, /** @type {any} */ choose) {
  const select = html("select", { "aria-label": name, change: () => choose(select.selectedIndex) },
    ...options.map((/** @type {string} */ label) => html("option", {}, label)));
  const by = (/** @type {number} */ amount) => () => choose(Math.min(Math.max(select.selectedIndex + amount, 0), options.length - 1));
  const stepper = (/** @type {string} */ sign, /** @type {string} */ word, /** @type {number} */ amount) => html("button", {
    type: "button", class: "stepper", "aria-label": `${word} ${name.toLowerCase()}`, click: by(amount),
  }, sign);
  const element = html("div", { class: "choice" }, html("span", { class: "name" }, name),
    stepper("‹", "Previous", -1), select, stepper("›", "Next", 1));
  return { element, show: (/** @type {number} */ value) => { select.selectedIndex = value; } };
}

/**
 * The handler of letter keys, which work while the focus is anywhere inside the view.
 * @param {import("./store.js").Store} store
 * @param {import("./numbers.js").Spec} spec
 */
export function keyboard(store, spec) {
  const wrap = (/** @type {number} */ value, /** @type {number} */ count, /** @type {number} */ amount) => (value + amount + count) % count;
  return (/** @type {any} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const state = store.get();
    const step = event.shiftKey ? -1 : 1;
    const actions = {
      l: () => ({ layer: wrap(state.layer, spec.layers.length, step) }),
      h: () => ({ head: wrap(state.head, spec.heads.length, step) }),
      b: () => ({ background: !state.background }),
      g: () => ({ log: !state.log }),
      w: () => (spec.queries.merged ? { words: !state.words, locked: null, query: null, key: null } : {}),
      escape: () => ({ locked: null, query: null, key: null }),
    };
    const action = /** @type {Record<string, () => any>} */ (actions)[event.key.toLowerCase()];
    if (!action || event.composedPath()[0].tagName === "SELECT") return;
    event.preventDefault();
    store.set(action());
  };
}
