// The bar of choices above a panel: layer, head and how weights are shown; and their keys.

import { createControls, keyboard } from "../../views/page/assets/controls.js";
import { html } from "../../views/page/assets/dom.js";

/** @param {import("./main.js").App} app */
export function createBar(app) {
  const { store } = app;
  const element = html("div", { class: "bar" });
  const toggleValued = () => store.set({ valued: !store.get().valued });
  const valued = html("button", {
    type: "button", class: "toggle", "data-toggle": "valued",
    title: "Each weight times the length of its value vector, rather than the weight alone (V)", click: toggleValued,
  }, "Value-weighted");
  /** @type {ReturnType<typeof createControls> | null} */
  let controls = null;
  let handleKey = (/** @type {KeyboardEvent} */ _) => {};
  let shape = "";

  /** Rebuilds the choices where a text has other layers or heads, or words to join. @param {import("./text.js").ReadText} text */
  function update({ spec }) {
    const newShape = [spec.layers.length, spec.heads.length, Boolean(spec.queries.merged)].join();
    if (newShape === shape) return;
    shape = newShape;
    controls = createControls(/** @type {any} */ (store), spec);
    controls.element.querySelector(".toggles")?.append(valued);
    element.replaceChildren(controls.element);
    handleKey = keyboard(/** @type {any} */ (store), spec);
  }

  /** @param {import("./state.js").PageState} state */
  function show(state) {
    controls?.show(state);
    valued.setAttribute("aria-pressed", String(state.valued));
  }

  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest("textarea, input, select, [contenteditable], [role=tablist], dialog")) return;
    if (event.key === "v" && !event.ctrlKey && !event.metaKey && !event.altKey) toggleValued();
    else handleKey(event);
  });

  return { element, update, show };
}
