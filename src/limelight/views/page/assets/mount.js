// Shows one recording in one element, in a shadow root: several on a page do not interfere.

import { createArcs } from "./arcs.js";
import { createControls, keyboard } from "./controls.js";
import { html } from "./dom.js";
import { savePng, saveSvg } from "./exports.js";
import { createHeads } from "./heads.js";
import { createHeatmap } from "./heatmap.js";
import { readHead, readHeader } from "./numbers.js";
import { createOverview } from "./overview.js";
import { createPicture } from "./picture.js";
import { createSentence } from "./sentence.js";
import { createSteps } from "./steps.js";
import { createStore } from "./store.js";
import { derive } from "./view.js";
import { createWorth } from "./worth.js";

/** @typedef {import("./numbers.js").Spec} Spec */
/** @typedef {import("./numbers.js").Head} Head */
/** @typedef {import("./view.js").State} State */

const STRUCTURAL = /** @type {const} */ (["layer", "head", "tile", "background", "log", "words", "scheme", "systemDark"]);
const MOST_HEADS = 24; // that stay unpacked

/**
 * Show a recording inside `host` with the style sheet `css`.
 *
 * Letter keys work while the focus is inside; on a page of its own, `keys` can be the whole page.
 * @param {HTMLElement} host
 * @param {any} document_ the header, as `document.header` makes it
 * @param {string} css
 * @param {EventTarget} keys
 * @param {(layer: number, head: number) => Promise<any>} parts returns the part of a head, by its numbers in the model
 */
export async function mount(host, document_, css, keys, parts) {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  root.adoptedStyleSheets = [sheet];
  const spec = await readHeader(document_);
  const head = cachedHeads(spec, parts);
  const store = createStore(opening(spec));
  const panels = createPanels(store, spec);
  const controls = createControls(store, spec);
  const page = html("article", { class: spec.picture ? "limelight pictured" : "limelight" },
    header(spec, controls), spec.warning ? html("p", { class: "warning", role: "alert" }, spec.warning) : "",
    panels.sentence.element, grid(panels, store, spec), footer(spec));
  root.replaceChildren(page);
  keys.addEventListener("keydown", keyboard(store, spec));

  /** @type {import("./view.js").View | null} */
  let view = null;
  let updates = 0;

  /** @param {State} state @param {State | null} before */
  async function update(state, before) {
    const excerpts = view?.excerpt && state.locked !== before?.locked;
    const redraw = !view || !before || excerpts || STRUCTURAL.some((key) => state[key] !== before[key]);
    if (redraw) {
      updates += 1;
      const current = updates;
      controls.show(state);
      page.setAttribute("aria-busy", "true");
      const unpacked = await head(state.layer, state.head);
      if (current !== updates) return; // another head was chosen meanwhile
      page.removeAttribute("aria-busy");
      state = store.get();
      const palette = spec.colours[scheme(state)];
      view = derive(spec, unpacked, state, palette);
      page.dataset.scheme = scheme(state);
      setPalette(page, palette);
    }
    if (!view) return;
    view = { ...view, state };
    for (const panel of Object.values(panels)) (redraw ? panel.draw : panel.focus)(view);
  }

  store.watch((state, before) => {
    // a tile belongs to one head
    const moved = state.layer !== before.layer || state.head !== before.head;
    if (moved && state.tile !== null) store.set({ tile: null });
    else update(state, before);
  });
  followSystem(store);
  await update(store.get(), null);
  for (const panel of [panels.sentence, panels.arcs]) panel.reveal(spec.choice.query);
  host.dataset.ready = "";
}

/**
 * The most recently shown heads stay unpacked.
 * @param {Spec} spec
 * @param {(layer: number, head: number) => Promise<any>} parts
 * @returns {(layer: number, head: number) => Promise<Head>} by positions
 */
function cachedHeads(spec, parts) {
  /** @type {Map<number, Promise<Head>>} */
  const cache = new Map();
  return (layer, head) => {
    const index = layer * spec.heads.length + head;
    const unpacked = cache.get(index) ?? parts(spec.layers[layer], spec.heads[head]).then((part) => readHead(spec, part));
    cache.delete(index);
    cache.set(index, unpacked);
    for (const oldest of cache.keys()) if (cache.size > MOST_HEADS) cache.delete(oldest);
    return unpacked;
  };
}

function opening(/** @type {import("./numbers.js").Spec} */ spec) {
  const { layer, head, query } = spec.choice;
  return {
    layer, head, locked: query, query: null, key: null, tile: null,
    background: false, log: false, words: false, scheme: "auto", systemDark: false,
  };
}

function createPanels(/** @type {import("./store.js").Store} */ store, /** @type {import("./numbers.js").Spec} */ spec) {
  return {
    ...(spec.picture ? { picture: createPicture(store, spec) } : {}),
    sentence: createSentence(store),
    heatmap: createHeatmap(store),
    arcs: createArcs(store),
    worth: createWorth(store, spec),
    ...(spec.overview ? { overview: createOverview(store, spec, spec.overview) } : {}),
    heads: createHeads(store, spec),
    steps: createSteps(spec),
  };
}

/** Follows the colour scheme of the notebook, or of the system outside one. */
function followSystem(/** @type {import("./store.js").Store} */ store) {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    const notebook = document.body.dataset.jpThemeLight;
    store.set({ systemDark: notebook ? notebook === "false" : query.matches });
  };
  query.addEventListener("change", read);
  read();
}

/** Light or dark: as chosen, or as the system is set. @param {State} state @returns {"light" | "dark"} */
function scheme(state) {
  if (state.scheme !== "auto") return state.scheme === "dark" ? "dark" : "light";
  return state.systemDark ? "dark" : "light";
}

function setPalette(/** @type {HTMLElement} */ page, /** @type {import("./numbers.js").Palette} */ palette) {
  for (const name of /** @type {const} */ (["paper", "raised", "ink", "muted", "line", "query", "key"])) {
    page.style.setProperty(`--${name}`, palette[name]);
  }
}

function header(/** @type {import("./numbers.js").Spec} */ spec, /** @type {any} */ controls) {
  return html("header", { class: "top" },
    html("div", { class: "brand" }, html("span", { class: "lamp", "aria-hidden": "true" }), "Limelight",
      spec.model ? html("span", { class: "model" }, spec.model) : ""),
    controls.element);
}

function grid(/** @type {any} */ panels, /** @type {import("./store.js").Store} */ store, /** @type {import("./numbers.js").Spec} */ spec) {
  const card = (/** @type {string} */ title, /** @type {string} */ hint, /** @type {any} */ panel, /** @type {string} */ name) => html("section", { class: `card ${name}` },
    html("div", { class: "card-head" }, html("h3", {}, title), html("p", {}, hint),
      panel.picture ? saveButtons(panel.picture, store, spec, title, name) : ""),
    panel.element);
  return html("main", { class: "grid" },
    panels.picture ? card("Picture", "lit where the chosen patch looks", panels.picture, "picture-card") : "",
    card("Heat map", "rows are queries, columns are keys", panels.heatmap, "heatmap"),
    card("Links", "queries on the left, keys on the right", panels.arcs, "arcs"),
    card("Worth a look", "strong links that neither their key nor their offset explains", panels.worth, "worth-card"),
    panels.overview ? card("The whole text", "all layers and heads together", panels.overview, "overview-card") : "",
    card("All heads", "layers down, heads across", panels.heads, "heads"),
    card("Step by step", "what this head computes for one token", panels.steps, "steps-card"));
}

function saveButtons(/** @type {SVGElement} */ picture, /** @type {import("./store.js").Store} */ store, /** @type {import("./numbers.js").Spec} */ spec, /** @type {string} */ what, /** @type {string} */ name) {
  const button = (/** @type {string} */ label, /** @type {any} */ save) => html("button", {
    type: "button", class: "quiet", title: `Save this picture as ${label}`,
    click: () => {
      const state = store.get();
      const [layer, head] = [spec.layers[state.layer], spec.heads[state.head]];
      const title = [spec.model, what, `layer ${layer}, head ${head}`].filter(Boolean).join(" · ");
      save(picture, spec.colours[scheme(state)], title, `${name}-layer${layer}-head${head}`);
    },
  }, label);
  return html("div", { class: "savers" }, button("SVG", saveSvg), button("PNG", savePng));
}

function footer(/** @type {import("./numbers.js").Spec} */ spec) {
  const keys = [["L", "layer"], ["H", "head"], ["B", "background"], ["G", "log scale"], ["W", "words"], ["Esc", "clear"]];
  return html("footer", { class: "foot" },
    html("p", {}, spec.made),
    html("p", { class: "keys" }, ...keys.flatMap(([key, what]) => [html("kbd", {}, key), ` ${what}  `])));
}
