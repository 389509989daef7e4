// The attention of one head, or of several: the text, the heat map, the links, and all heads.

import { createArcs } from "../../views/page/assets/arcs.js";
import { html } from "../../views/page/assets/dom.js";
import { createHeatmap } from "../../views/page/assets/heatmap.js";
import { createSentence } from "../../views/page/assets/sentence.js";
import { derive } from "../../views/page/assets/view.js";
import { createWorth } from "../../views/page/assets/worth.js";
import { card } from "./cards.js";
import { createGrid } from "./grid.js";
import { createOverlay } from "./overlay.js";

const STRUCTURAL = /** @type {const} */ (["layer", "head", "others", "blend", "valued", "background", "log", "words", "scheme", "systemDark", "read"]);

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const grid = createGrid(app);
  const body = html("div", { class: "attention" });
  /** @type {any} */
  let panels = null;
  /** @type {any} */
  let view = null;
  let turn = 0;
  let read = -1;

  function build() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    panels = {
      sentence: createSentence(/** @type {any} */ (store)), heatmap: createHeatmap(/** @type {any} */ (store)),
      arcs: createArcs(/** @type {any} */ (store)), worth: createWorth(/** @type {any} */ (store), spec), overlay: createOverlay(app),
    };
    body.replaceChildren(
      spec.warning ? html("p", { class: "notice", role: "alert" }, spec.warning) : "",
      panels.sentence.element,
      html("div", { class: "grid" },
        card(app, "Heat map", "rows ask, columns answer", panels.heatmap, "heatmap"),
        card(app, "Links", "left asks, right answers", panels.arcs, "arcs"),
        card(app, "Links of several heads", "a colour each; left asks, right answers", panels.overlay, "overlay"),
        card(app, "All heads", "click one; click with Shift or Ctrl to lay several over one another", grid, "heads-grid"),
        card(app, "Worth a look", "strong links that neither their key nor their offset explains", panels.worth, "worth-card")));
  }

  /** @param {import("./state.js").Chosen} state @param {import("./state.js").Chosen | null} before */
  async function update(state, before) {
    const { text } = app;
    if (!text) return;
    if (!text.whole) {
      const go = html("button", { type: "button", class: "chip", click: () => store.set({ panel: "long" }) }, "Look at it as a long text");
      body.replaceChildren(html("p", { class: "notice" }, `This text has ${text.rows.toLocaleString("en")} tokens. `, go));
      return;
    }
    const fresh = read !== state.read;
    if (fresh) { read = state.read; build(); }
    const excerpts = view?.excerpt && state.locked !== before?.locked;
    const redraw = fresh || !view || !before || excerpts || STRUCTURAL.some((key) => state[key] !== before[key]);
    if (redraw) {
      turn += 1;
      const mine = turn;
      const coloured = state.others.length > 0 && state.blend === "colours";
      const places = /** @type {[number, number][]} */ ([[state.layer, state.head], ...(coloured ? [] : state.others)]);
      let head;
      try {
        head = await text.head(places, state.valued);
        if (coloured) await panels.overlay.load(text, [[state.layer, state.head], ...state.others], state);
      } catch (error) {
        app.fail(error);
        return;
      }
      if (mine !== turn) return; // another was chosen meanwhile
      state = store.get();
      view = derive(text.spec, head, /** @type {any} */ (state), app.palette());
      body.classList.toggle("coloured", coloured);
    }
    view = { ...view, state };
    for (const panel of Object.values(panels)) (redraw ? panel.draw : panel.focus)(view);
    grid.update(state, redraw);
    if (fresh && state.locked !== null) panels.sentence.reveal(state.locked);
    body.dataset.drawn = `${state.read}`;
  }

  return { element: body, update };
}
