// The page: a text to type, a bar of choices, and the panels that look at it.

import { createControls, keyboard } from "../../views/page/assets/controls.js";
import { html } from "../../views/page/assets/dom.js";
import { createStore } from "../../views/page/assets/store.js";
import { PANELS } from "./about.js";
import { ApiError, requestEvents, requestFrame, requestJson } from "./api.js";
import { createShare } from "./share.js";
import { opening, parseHash, formatHash } from "./state.js";
import { ReadText } from "./text.js";
import { offerTour } from "./tour.js";
import { createTyping } from "./typing.js";

/**
 * What every panel is handed.
 * @typedef {object} App
 * @property {{ get: () => import("./state.js").Chosen, set: (change: Partial<import("./state.js").Chosen>) => void, watch: (watcher: (state: import("./state.js").Chosen, before: import("./state.js").Chosen) => void) => void }} store
 * @property {any} config models, examples, limits and colours
 * @property {ReadText | null} text
 * @property {Map<string, Record<string, string[]>>} roles of the heads of a model, where they were measured here
 * @property {() => import("../../views/page/assets/numbers.js").Palette} palette
 * @property {() => string} scheme
 * @property {(message: string, kind?: string) => void} say
 * @property {(error: unknown) => void} fail
 * @property {() => boolean} reading whether an answer is awaited
 * @property {(change: Partial<import("./state.js").Chosen>, picture?: import("./typing.js").Pixels) => void} type reads a text, as if it were typed, or a picture
 *
 * @typedef {object} Panel
 * @property {HTMLElement} element
 * @property {(state: import("./state.js").Chosen, before: import("./state.js").Chosen | null) => void} update
 * @property {() => void} [leave]
 */

const SHORT = 4000; // letters that are read at once

const root = /** @type {HTMLElement} */ (document.getElementById("app"));
boot().catch((error) => {
  root.replaceChildren(html("p", { class: "notice bad", role: "alert" }, error.message));
});

async function boot() {
  const config = await requestJson("/api/config");
  const store = /** @type {any} */ (createStore(/** @type {any} */ (opening())));
  const message = html("p", { class: "message", role: "status", "aria-live": "polite" });
  const notice = html("p", { class: "notice", role: "alert", hidden: true });
  const progress = html("progress", { max: 1, "aria-label": "How much of the text is read" });
  const reader = html("div", { class: "reading", hidden: true }, progress, html("button", { type: "button", class: "chip", click: () => cancel() }, "Cancel"));
  /** @type {App} */
  const app = {
    store, config, text: null, roles: new Map(), palette, scheme,
    say: (words, kind = "") => { message.textContent = words; message.dataset.kind = kind; },
    fail, type, reading: () => root.hasAttribute("aria-busy"),
  };

  const typing = createTyping(app);
  const bar = html("div", { class: "bar" });
  const stage = html("main", { class: "stage", id: "stage" });
  const tabs = createTabs(app);
  const share = createShare(app);
  root.replaceChildren(
    html("a", { class: "skip", href: "#stage", click: (/** @type {Event} */ event) => { event.preventDefault(); stage.querySelector("button")?.focus(); } }, "Skip to the pictures"),
    html("header", { class: "top" },
      html("h1", { class: "brand" }, html("span", { class: "lamp", "aria-hidden": "true" }), "Limelight"),
      typing.model, html("div", { class: "tools" }, ...share.buttons)),
    typing.element, notice, html("div", { class: "status" }, message, reader), tabs.element, bar, stage, share.element);

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

  // reading: the newest text wins, an answer that comes late is dropped
  let running = new AbortController();
  let turn = 0;
  let settling = false; // what changes now was chosen by the text, not by a person

  /** @type {Set<string>} models that have answered */
  const loaded = new Set();

  /** @param {Partial<import("./state.js").Chosen>} change @param {import("./typing.js").Pixels | null} picture to read instead of a text */
  async function type(change, picture = null) {
    const state = { ...store.get(), ...change };
    turn += 1;
    const mine = turn;
    running.abort();
    running = new AbortController();
    if (!picture && !state.text.trim()) { rest(); return; }
    root.setAttribute("aria-busy", "true");
    const began = performance.now();
    const body = { model: state.model, text: state.text };
    try {
      if (!picture && body.text.length > SHORT) await readLong(body, running.signal);
      if (mine !== turn) return;
      if (!loaded.has(body.model)) app.say(`Loading ${body.model} …`);
      const frame = picture ? await requestFrame("/api/picture", { model: body.model, ...picture }, running.signal) : await requestFrame("/api/look", body, running.signal);
      loaded.add(body.model);
      if (picture) change.text = body.text = frame.header.text; // what names it from now on
      if (mine !== turn) return; // stale: never drawn
      const text = new ReadText(frame, body, config.colours);
      const sameModel = app.text?.spec.model === text.spec.model && app.text?.spec.heads.length === text.spec.heads.length;
      notice.hidden = true;
      const { choice } = text.spec;
      const inside = state.layer < text.spec.layers.length && state.head < text.spec.heads.length;
      const pinned = typing.pinned && sameModel && inside;
      /** @type {Partial<import("./state.js").Chosen>} */
      const place = pinned || (change.layer !== undefined && inside) ? {} : { layer: choice.layer, head: choice.head };
      const asked = change.locked !== undefined && change.locked !== null && change.locked < text.rows;
      const same = pinned && state.locked !== null && app.text?.spec.queries.labels[state.locked] === text.spec.queries.labels[state.locked];
      const locked = asked || same ? {} : { locked: choice.query, held: [] };
      const target = change.target === undefined ? { target: null } : {};
      const panel = !text.whole && state.panel === "attention" ? { panel: "long" } : {};
      app.text = text;
      updateBar();
      settling = true;
      store.set({ ...change, query: null, key: null, ...(sameModel ? {} : { others: [] }), ...place, ...locked, ...target, ...panel, read: turn });
      settling = false;
      const took = Math.round(performance.now() - began);
      const part = /the first [\d,]+ of [\d,]+ tokens/.exec(text.spec.made)?.[0]; // a model takes so many at once
      app.say(`${part ? `${part}, as many as this model takes` : `${text.rows.toLocaleString("en")} ${text.spec.picture ? "patches" : "tokens"}`} · ${text.spec.layers.length} layers × ${text.spec.heads.length} heads · ${took} ms`);
      root.dataset.ready = String(turn);
    } catch (error) {
      if (mine === turn) fail(error);
    } finally {
      if (mine === turn) rest();
    }
  }

  /** Nothing is being read. */
  function rest() {
    root.removeAttribute("aria-busy");
    reader.hidden = true;
  }

  /** A long text is read layer by layer: how far, and a way to end it. @param {{ model: string, text: string }} body @param {AbortSignal} signal */
  async function readLong(body, signal) {
    progress.removeAttribute("value");
    reader.hidden = false;
    const began = performance.now();
    app.say("Reading …");
    for await (const { layer, layers } of requestEvents("/api/read", body, signal)) {
      if (layers === undefined) break; // read
      progress.setAttribute("value", String(layer / layers));
      const left = (performance.now() - began) * (layers / layer - 1) / 1000;
      app.say(`Reading: layer ${layer + 1} of ${layers}${layer > 1 ? ` · about ${Math.ceil(left)} s more` : ""}`);
    }
    progress.removeAttribute("value");
    app.say("Reading: what is worth a look");
  }

  function cancel() {
    running.abort();
    app.say("Cancelled: the pictures below are of the text before.");
  }

  let keys = (/** @type {KeyboardEvent} */ _) => {};
  /** @type {{ element: HTMLElement, show: (state: any) => void } | null} */
  let controls = null;
  let shape = "";

  /** The bar is made anew where there are other layers, heads or words to choose. */
  function updateBar() {
    const { spec } = /** @type {ReadText} */ (app.text);
    const now = [spec.layers.length, spec.heads.length, Boolean(spec.queries.merged)].join();
    if (now === shape) return;
    shape = now;
    controls = createControls(store, spec);
    const valued = html("button", {
      type: "button", class: "toggle", "data-toggle": "valued",
      title: "Weight times the length of the value it carries, rather than the weight alone (V)",
      click: () => store.set({ valued: !store.get().valued }),
    }, "Value-weighted");
    controls.element.querySelector(".toggles")?.append(valued);
    const show = controls.show;
    controls.show = (state) => { show(state); valued.setAttribute("aria-pressed", String(state.valued)); };
    bar.replaceChildren(controls.element);
    keys = keyboard(store, spec);
  }

  document.addEventListener("keydown", (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest("textarea, input, select, [contenteditable], [role=tablist], dialog")) return;
    if (event.key === "v" && !event.ctrlKey && !event.metaKey && !event.altKey) store.set({ valued: !store.get().valued });
    else keys(event);
  });

  /** @type {Map<string, Panel>} */
  const panels = new Map();
  /** @type {Panel | null} */
  let open = null;

  async function show() {
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
      bar.hidden = !PANELS[panel].bar;
      if (app.text && notice.dataset.panel !== panel) notice.hidden = true; // it spoke of another panel
    }
    next.update(store.get(), null);
    root.dataset.panel = panel;
  }

  store.watch((/** @type {import("./state.js").Chosen} */ state, /** @type {import("./state.js").Chosen} */ before) => {
    if (state.scheme !== before.scheme || state.systemDark !== before.systemDark) applyColours();
    if (!settling && (state.layer !== before.layer || state.head !== before.head)) typing.pin();
    controls?.show(state);
    tabs.show(state);
    if (state.panel !== before.panel || open === null) show().catch(fail);
    else open.update(state, before);
    remember(state);
  });

  let later = 0;
  function remember(/** @type {import("./state.js").Chosen} */ state) {
    clearTimeout(later);
    later = setTimeout(() => history.replaceState(null, "", formatHash(state)), 200);
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
  const unknown = fromHash.model && !config.models.includes(fromHash.model) ? fromHash.model : null;
  if (unknown) delete fromHash.model;
  if (fromHash.panel && !(fromHash.panel in PANELS)) delete fromHash.panel;
  const first = { model: config.models[0], text: config.examples[0].text, ...(config.recording ?? {}), ...fromHash };
  typing.write(first.text, first.model);
  tabs.show({ ...store.get(), ...first });
  await type(first);
  if (unknown && app.text) fail(new ApiError(422, `The link names the model ${unknown}, which is not here: shown with ${first.model}.`));
  window.addEventListener("hashchange", () => {
    const other = parseHash(location.hash);
    if (other.text && other.text !== store.get().text) { typing.write(other.text, other.model ?? store.get().model); type(other); }
  });
  offerTour(app);
}

/** @param {App} app */
function createTabs(app) {
  const names = Object.keys(PANELS);
  const about = html("p", { class: "about", hidden: true, id: "about" });
  const why = html("button", {
    type: "button", class: "quiet why", "aria-expanded": "false", "aria-controls": "about",
    click: () => { about.hidden = !about.hidden; why.setAttribute("aria-expanded", String(!about.hidden)); },
  }, "What is this?");
  const tabs = names.map((name) => html("button", {
    type: "button", role: "tab", id: `tab-${name}`, class: "tab", "aria-controls": "stage",
    click: () => app.store.set({ panel: name }),
    keydown: (/** @type {KeyboardEvent} */ event) => move(event, name),
  }, PANELS[name].title));

  /** @param {KeyboardEvent} event @param {string} name */
  function move(event, name) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = (names.indexOf(name) + by + names.length) % names.length;
    app.store.set({ panel: names[next] });
    tabs[next].focus();
  }

  /** @param {import("./state.js").Chosen} state */
  function show(state) {
    names.forEach((name, k) => {
      tabs[k].setAttribute("aria-selected", String(name === state.panel));
      tabs[k].tabIndex = name === state.panel ? 0 : -1;
    });
    about.textContent = PANELS[state.panel].about;
    if (state.panel === shown) return;
    shown = state.panel;
    follow();
  }

  // On a narrow screen the row of tabs is swiped: the chosen one stays in view, also when the window is narrowed.
  function follow() {
    const chosen = tabs[names.indexOf(shown)];
    if (chosen && list.scrollWidth > list.clientWidth) list.scrollLeft = chosen.offsetLeft - (list.clientWidth - chosen.offsetWidth) / 2;
  }
  const list = html("div", { class: "tabs", role: "tablist" }, ...tabs);
  let shown = "";
  new ResizeObserver(follow).observe(list);
  return { element: html("nav", { class: "tabs-row", "aria-label": "Panels" }, list, why, about), show };
}
