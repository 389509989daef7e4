// Puts one recording into one element, in a shadow of its own: several on a page stay apart.

import { createArcs } from "./arcs.js";
import { createControls, keyboard } from "./controls.js";
import { html } from "./dom.js";
import { savePng, saveSvg } from "./exports.js";
import { createHeads } from "./heads.js";
import { createHeatmap } from "./heatmap.js";
import { Numbers } from "./numbers.js";
import { createSentence } from "./sentence.js";
import { createSteps } from "./steps.js";
import { createStore } from "./store.js";
import { derive } from "./view.js";

const STRUCTURAL = ["layer", "head", "sinks", "log", "words", "scheme", "systemDark"];

/**
 * Show the document inside `host`, dressed by the style sheet `css`.
 * Letter keys work while the focus is inside; on a page of its own, `keys` can be the whole page.
 */
export async function mount(host, document_, css, keys = host) {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(css);
  root.adoptedStyleSheets = [sheet];
  const numbers = await Numbers.read(document_);
  const { spec } = numbers;
  const store = createStore(opening(spec));
  const panels = createPanels(store, numbers);
  const controls = createControls(store, spec);
  const page = html("article", { class: "limelight" },
    header(spec, controls), panels.sentence.element, grid(panels, store, spec), footer(spec));
  root.replaceChildren(page);
  keys.addEventListener("keydown", keyboard(store, spec));

  let view = null;
  const update = (state, before) => {
    const redraw = !before || STRUCTURAL.some((key) => state[key] !== before[key]);
    if (redraw) {
      view = { ...derive(numbers, state), palette: spec.colours[scheme(state)], spec };
      page.dataset.scheme = scheme(state);
      dress(page, view.palette);
      controls.show(state);
    }
    view = { ...view, state };
    for (const panel of Object.values(panels)) (redraw ? panel.draw : panel.focus)(view);
  };
  store.watch(update);
  followSystem(store);
  update(store.get(), null);
  for (const panel of [panels.sentence, panels.arcs]) panel.reveal(spec.choice.query);
  host.dataset.ready = "";
}

function opening(spec) {
  const { layer, head, query } = spec.choice;
  return {
    layer, head, locked: query, query: null, key: null,
    sinks: false, log: false, words: false, scheme: "auto", systemDark: false,
  };
}

function createPanels(store, numbers) {
  return {
    sentence: createSentence(store),
    heatmap: createHeatmap(store),
    arcs: createArcs(store),
    heads: createHeads(store, numbers),
    steps: createSteps(numbers),
  };
}

/** The system's choice, and the notebook's where there is one. */
function followSystem(store) {
  const query = matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    const notebook = document.body.dataset.jpThemeLight;
    store.set({ systemDark: notebook ? notebook === "false" : query.matches });
  };
  query.addEventListener("change", read);
  read();
}

/** Light or dark: as chosen, or as the system has it. */
function scheme(state) {
  if (state.scheme !== "auto") return state.scheme;
  return state.systemDark ? "dark" : "light";
}

function dress(page, palette) {
  for (const name of ["paper", "raised", "ink", "muted", "line", "ask", "answer"]) {
    page.style.setProperty(`--${name}`, palette[name]);
  }
}

function header(spec, controls) {
  return html("header", { class: "top" },
    html("div", { class: "brand" }, html("span", { class: "lamp", "aria-hidden": "true" }), "Limelight",
      spec.model ? html("span", { class: "model" }, spec.model) : ""),
    controls.element);
}

function grid(panels, store, spec) {
  const card = (title, hint, panel, name) => html("section", { class: `card ${name}` },
    html("div", { class: "card-head" }, html("h3", {}, title), html("p", {}, hint),
      panel.picture ? savers(panel.picture, store, spec, title, name) : ""),
    panel.element);
  return html("main", { class: "grid" },
    card("Heat map", "rows ask, columns answer", panels.heatmap, "heatmap"),
    card("Links", "left asks, right answers", panels.arcs, "arcs"),
    card("All heads", "layers down, heads across", panels.heads, "heads"),
    card("Step by step", "what this head computes for one token", panels.steps, "steps-card"));
}

function savers(picture, store, spec, what, name) {
  const button = (label, save) => html("button", {
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

function footer(spec) {
  const keys = [["L", "layer"], ["H", "head"], ["S", "sinks"], ["G", "log scale"], ["W", "words"], ["Esc", "let go"]];
  return html("footer", { class: "foot" },
    html("p", {}, spec.made),
    html("p", { class: "keys" }, ...keys.flatMap(([key, what]) => [html("kbd", {}, key), ` ${what}  `])));
}
