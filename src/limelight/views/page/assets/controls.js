// Layer, head, and how they are shown.

import { html } from "./dom.js";

const SCHEMES = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" };

/**
 * @param {import("./store.js").Store} store
 * @param {import("./numbers.js").Spec} spec
 */
export function createControls(store, spec) {
  const layer = choice("Layer", spec.layers.map(String), (value) => store.set({ layer: value }));
  const head = choice("Head", spec.heads.map(String), (value) => store.set({ head: value }));
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

  function toggle(name, label, title) {
    const button = html("button", {
      type: "button", class: "toggle", title, "data-toggle": name,
      click: () => store.set({ [name]: !store.get()[name], locked: name === "words" ? null : store.get().locked, query: null, key: null }),
    }, label);
    return { button, show: (state) => button.setAttribute("aria-pressed", String(state[name])) };
  }

  function show(state) {
    layer.show(state.layer);
    head.show(state.head);
    for (const each of toggles) each.show(state);
    scheme.textContent = SCHEMES[state.scheme];
  }

  return {
    element: html("div", { class: "controls" }, layer.element, head.element,
      html("div", { class: "toggles", role: "group", "aria-label": "How it is shown" }, ...toggles.map(({ button }) => button)), scheme),
    show,
  };
}

function choice(name, options, choose) {
  const select = html("select", { "aria-label": name, change: () => choose(select.selectedIndex) },
    ...options.map((label) => html("option", {}, label)));
  const by = (amount) => () => choose(Math.min(Math.max(select.selectedIndex + amount, 0), options.length - 1));
  const stepper = (sign, word, amount) => html("button", {
    type: "button", class: "stepper", "aria-label": `${word} ${name.toLowerCase()}`, click: by(amount),
  }, sign);
  const element = html("div", { class: "choice" }, html("span", { class: "name" }, name),
    stepper("‹", "Previous", -1), select, stepper("›", "Next", 1));
  return { element, show: (value) => { select.selectedIndex = value; } };
}

/**
 * Letters that work while the focus is anywhere inside the view.
 * @param {import("./store.js").Store} store
 * @param {import("./numbers.js").Spec} spec
 */
export function keyboard(store, spec) {
  const around = (value, count, amount) => (value + amount + count) % count;
  return (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const state = store.get();
    const back = event.shiftKey ? -1 : 1;
    const actions = {
      l: () => ({ layer: around(state.layer, spec.layers.length, back) }),
      h: () => ({ head: around(state.head, spec.heads.length, back) }),
      b: () => ({ background: !state.background }),
      g: () => ({ log: !state.log }),
      w: () => (spec.queries.merged ? { words: !state.words, locked: null, query: null, key: null } : {}),
      escape: () => ({ locked: null, query: null, key: null }),
    };
    const action = actions[event.key.toLowerCase()];
    if (!action || event.composedPath()[0].tagName === "SELECT") return;
    event.preventDefault();
    store.set(action());
  };
}
