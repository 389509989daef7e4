// The attention of one head, or of several: the text, the heat map, the links, and all heads.

import { createArcs } from "../../views/page/assets/arcs.js";
import { html } from "../../views/page/assets/dom.js";
import { createHeatmap } from "../../views/page/assets/heatmap.js";
import { createPicture } from "../../views/page/assets/picture.js";
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
  /** @type {import("./text.js").ReadText | null} */
  let current = null;
  let read = -1; // its number
  let drawn = -1; // number of the text that is drawn
  let below = -1; // the same of what stands below the fold
  const warning = html("p", { class: "notice", role: "alert" });
  const worth = html("div", {});
  const picture = html("div", { class: "picture-place" });
  /** @type {HTMLElement | null} */
  let page = null;

  /** The panels are made once and drawn anew for each text: making them takes longer than drawing. */
  function build() {
    panels = {
      sentence: createSentence(/** @type {any} */ (store)), heatmap: createHeatmap(/** @type {any} */ (store)),
      arcs: createArcs(/** @type {any} */ (store)), overlay: createOverlay(app),
    };
    page = html("div", {}, warning, panels.sentence.element,
      html("div", { class: "grid" }, picture,
        card(app, "Heat map", "rows are queries, columns are keys", panels.heatmap, "heatmap"),
        card(app, "Links", "queries on the left, keys on the right", panels.arcs, "arcs"),
        card(app, "Links of several heads", "a colour each; queries on the left, keys on the right", panels.overlay, "overlay"),
        card(app, "All heads", "click one; click with Shift or Ctrl to lay several over one another", grid, "heads-grid"),
        card(app, "Worth a look", "strong links that neither their key nor their offset explains", { element: worth }, "worth-card")));
  }

  /** @type {{ element: HTMLElement, draw: (view: any) => void } | null} */
  let links = null;

  /** What stands below the fold is drawn once the picture above has been painted. @param {boolean} first @param {boolean} redraw */
  function drawRest(first, redraw) {
    if (below === read) drawBelow(redraw);
    if (!first) return;
    const mine = read;
    requestAnimationFrame(() => setTimeout(() => { if (mine === read && app.text === current) drawBelow(true); }));
  }

  function drawBelow(/** @type {boolean} */ redraw) {
    if (below !== read) {
      links = createWorth(/** @type {any} */ (store), /** @type {import("./text.js").ReadText} */ (current).spec);
      worth.replaceChildren(links.element);
    }
    below = read;
    links?.draw(view);
    grid.update(store.get(), redraw);
    body.dataset.below = `${store.get().read}`; // everything is drawn
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
    if (fresh) {
      [read, current] = [state.read, text];
      if (!page) build();
      warning.textContent = text.spec.warning;
      warning.hidden = !text.spec.warning;
      delete panels.picture;
      if (text.spec.picture) panels.picture = createPicture(/** @type {any} */ (store), text.spec);
      picture.replaceChildren(...(panels.picture ? [card(app, "Picture", "lit where the chosen patch looks", panels.picture, "picture-card")] : []));
      body.classList.toggle("pictured", Boolean(text.spec.picture));
      if (body.firstChild !== page) body.replaceChildren(/** @type {HTMLElement} */ (page));
    }
    const excerpts = view?.excerpt && state.locked !== before?.locked;
    const redraw = fresh || !view || !before || excerpts || STRUCTURAL.some((key) => state[key] !== before[key]);
    if (!redraw && drawn !== read) return; // its weights have not come yet
    if (redraw) {
      turn += 1;
      const mine = turn;
      const coloured = state.others.length > 0 && state.blend === "colours";
      const places = /** @type {[number, number][]} */ ([[state.layer, state.head], ...(coloured ? [] : state.others)]);
      let head;
      try {
        head = await text.head(places, state);
        if (coloured) await panels.overlay.load(text, [[state.layer, state.head], ...state.others], state);
      } catch (error) {
        app.fail(error);
        return;
      }
      if (mine !== turn || text !== app.text) return; // another was chosen meanwhile
      state = store.get();
      view = derive(text.spec, head, /** @type {any} */ (state), app.palette());
      body.classList.toggle("coloured", coloured);
    }
    view = { ...view, state };
    for (const panel of Object.values(panels)) (redraw ? panel.draw : panel.focus)(view);
    const first = drawn !== read;
    drawn = read;
    if (first && state.locked !== null) panels.sentence.reveal(state.locked);
    drawRest(first, redraw);
    body.dataset.drawn = `${state.read}`;
  }

  return { element: body, update };
}
