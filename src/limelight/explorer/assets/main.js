// The page: a text to type, a bar of choices, and the panels that show what a model attends to.

import { html } from "../../views/page/assets/dom.js";
import { createStore } from "../../views/page/assets/store.js";
import { PANELS } from "./about.js";
import { ApiError, requestJson } from "./api.js";
import { createBar } from "./bar.js";
import { createReader } from "./reader.js";
import { createShare } from "./share.js";
import { formatHash, initialState, parseHash } from "./state.js";
import { createTabs } from "./tabs.js";
import { offerTour } from "./tour.js";
import { createTyping } from "./typing.js";

/**
 * What every panel is given.
 * @typedef {object} App
 * @property {{ get: () => import("./state.js").PageState, set: (change: Partial<import("./state.js").PageState>) => void, watch: (watcher: (state: import("./state.js").PageState, before: import("./state.js").PageState) => void) => void }} store
 * @property {any} config models, examples, limits and colours
 * @property {import("./text.js").ReadText | null} text
 * @property {Map<string, Record<string, string[]>>} roles the roles of each model's heads, once they are measured here
 * @property {() => import("../../views/page/assets/numbers.js").Palette} palette
 * @property {() => string} scheme
 * @property {(message: string) => void} say
 * @property {(error: unknown) => void} fail
 * @property {() => boolean} reading whether a text is being read
 * @property {(change: Partial<import("./state.js").PageState>, picture?: import("./typing.js").Pixels) => void} read reads what the input fields hold
 * @property {(change: Partial<import("./state.js").PageState>) => Promise<void>} open writes a text or a model into the input fields, and reads it
 *
 * @typedef {object} Panel
 * @property {HTMLElement} element
 * @property {(state: import("./state.js").PageState, before: import("./state.js").PageState | null) => void} update
 * @property {() => void} [leave]
 */

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
boot().catch((error) => {
  root.replaceChildren(html("p", { class: "notice", role: "alert" }, error.message));
});

async function boot() {
  const config = await requestJson("/api/config");
  const store = /** @type {any} */ (createStore(/** @type {any} */ (initialState())));
  const message = html("p", { class: "message", role: "status", "aria-live": "polite" });
  const notice = html("p", { class: "notice", role: "alert", hidden: true });
  /** @type {App} */
  const app = {
    store, config, text: null, roles: new Map(), palette, scheme,
    say: (words) => { message.textContent = words; },
    fail, reading: () => root.hasAttribute("aria-busy"), read: (change, picture) => reader.read(change, picture), open: openText,
  };
  const typing = createTyping(app);
  const tabs = createTabs(app);
  const bar = createBar(app);
  const stage = html("main", { class: "stage", id: "stage" });
  const share = createShare(app);
  const reader = createReader(app, root, { isPinned: () => typing.pinned, show: showText });
  root.replaceChildren(
    html("a", { class: "skip", href: "#stage", click: (/** @type {Event} */ event) => { event.preventDefault(); stage.querySelector("button")?.focus(); } }, "Skip to the pictures"),
    html("header", { class: "top" },
      html("h1", { class: "brand" }, html("span", { class: "lamp", "aria-hidden": "true" }), "Limelight"),
      typing.model, html("div", { class: "tools" }, ...share.buttons)),
    typing.element, notice, html("div", { class: "status" }, message, reader.element), tabs.element, bar.element, stage, share.element);

  function palette() { return config.colours[scheme()]; }

  function scheme() {
    const state = store.get();
    if (state.scheme !== "auto") return state.scheme;
    return state.systemDark ? "dark" : "light";
  }

  /** @param {unknown} error */
  function fail(error) {
    if (error instanceof DOMException && error.name === "AbortError") return;
    notice.hidden = false;
    notice.dataset.panel = store.get().panel;
    notice.textContent = error instanceof ApiError ? error.message : `Something went wrong on the page: ${error}`;
    if (!(error instanceof ApiError)) console.error(error);
  }

  /** @param {Partial<import("./state.js").PageState>} change */
  function openText(change) {
    typing.write(change.text ?? typing.text, change.model ?? store.get().model);
    return reader.read(change);
  }

  let userChange = true; // whether the user, rather than a new text, changes the selection

  /** @param {import("./text.js").ReadText} text @param {Partial<import("./state.js").PageState>} selection */
  function showText(text, selection) {
    notice.hidden = true;
    app.text = text;
    bar.update(text);
    userChange = false;
    store.set(selection);
    userChange = true;
  }

  /** @type {Map<string, Panel>} */
  const panels = new Map();
  /** @type {Panel | null} */
  let open = null;

  async function showPanel() {
    const { panel } = store.get();
    if (!panels.has(panel)) {
      const module = await PANELS[panel].load();
      if (!panels.has(panel)) panels.set(panel, module.create(app));
    }
    if (store.get().panel !== panel) return;
    const next = /** @type {Panel} */ (panels.get(panel));
    if (open !== next) {
      open?.leave?.();
      open = next;
      stage.replaceChildren(next.element);
      stage.setAttribute("aria-labelledby", `tab-${panel}`);
      bar.element.hidden = !PANELS[panel].bar;
      if (app.text && notice.dataset.panel !== panel) notice.hidden = true; // it is about another panel
    }
    next.update(store.get(), null);
    root.dataset.panel = panel;
  }

  store.watch((/** @type {import("./state.js").PageState} */ state, /** @type {import("./state.js").PageState} */ before) => {
    if (state.scheme !== before.scheme || state.systemDark !== before.systemDark) applyColours();
    if (userChange && (state.layer !== before.layer || state.head !== before.head)) typing.pin();
    bar.show(state);
    tabs.show(state);
    if (state.panel !== before.panel || open === null) showPanel().catch(fail);
    else open.update(state, before);
    saveHash(state);
  });

  let timer = 0;
  function saveHash(/** @type {import("./state.js").PageState} */ state) {
    clearTimeout(timer);
    timer = setTimeout(() => history.replaceState(null, "", formatHash(state)), 200);
  }

  function applyColours() {
    const colours = palette();
    root.dataset.scheme = scheme();
    document.documentElement.style.background = colours.paper;
    for (const name of ["paper", "raised", "ink", "muted", "line", "query", "key"]) root.style.setProperty(`--${name}`, colours[name]);
  }

  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => store.set({ systemDark: dark.matches }));
  store.set({ systemDark: dark.matches });
  applyColours();

  const fromHash = parseHash(location.hash);
  const unknownModel = fromHash.model && !config.models.includes(fromHash.model) ? fromHash.model : null;
  if (unknownModel) delete fromHash.model;
  if (fromHash.panel && !(fromHash.panel in PANELS)) delete fromHash.panel;
  const first = { model: config.models[0], text: config.examples[0].text, ...(config.recording ?? {}), ...fromHash };
  tabs.show({ ...store.get(), ...first });
  await openText(first);
  if (unknownModel && app.text) fail(new ApiError(422, `The link is for the model ${unknownModel}, which this server does not have. Shown with ${first.model} instead.`));
  window.addEventListener("hashchange", () => {
    const next = parseHash(location.hash);
    if (next.text && next.text !== store.get().text) openText(next);
  });
  offerTour(app);
}
