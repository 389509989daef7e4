// The attention of one head or several: the text, the heat map, the links, and all heads.

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

// a change of these draws the pictures anew; any other only moves the focus
const REDRAWING = /** @type {const} */ (["layer", "head", "others", "blend", "valued", "background", "log", "words", "scheme", "systemDark", "read"]);

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const grid = createGrid(app);
  const body = html("div", { class: "attention" });
  /** @type {any} */
  let panels = null;
  /** @type {any} */
  let view = null;
  let newest = 0; // id of the newest redraw
  /** @type {import("./text.js").ReadText | null} */
  let current = null;
  let read = -1; // id of the current text
  let drawn = -1; // id of the text drawn above the fold
  let drawnBelow = -1; // id of the text drawn below the fold
  const warning = html("p", { class: "notice", role: "alert" });
  const worth = html("div", {});
  const picture = html("div", { class: "picture-place" });
  /** @type {HTMLElement | null} */
  let page = null;

  /** The panels are made once and redrawn for each text: making them takes longer than drawing. */
  function build() {
    panels = {
      sentence: createSentence(/** @type {any} */ (store)), heatmap: createHeatmap(/** @type {any} */ (store)),
      arcs: createArcs(/** @type {any} */ (store)), overlay: createOverlay(app),
    };
    page = html("div", {}, warning, panels.sentence.element,
      html("div", { class: "grid" }, picture,
        card(app, "Heat map", "rows are queries, columns are keys", panels.heatmap, "heatmap"),
        card(app, "Links", "queries on the left, keys on the right", panels.arcs, "arcs"),
        card(app, "Links of several heads", "one colour for each head; queries on the left, keys on the right", panels.overlay, "overlay"),
        card(app, "All heads", "click a head to show it; Shift-click or Ctrl-click to overlay several", grid, "heads-grid"),
        card(app, "Worth a look", "strong links that neither their key nor their offset explains", { element: worth }, "worth-card")));
  }

  /** @type {{ element: HTMLElement, draw: (view: any) => void } | null} */
  let links = null;

  /** What is below the fold waits until the pictures above it are painted. @param {boolean} first @param {boolean} redraw */
  function scheduleBelow(first, redraw) {
    if (drawnBelow === read) drawBelow(redraw);
    if (!first) return;
    const id = read;
    requestAnimationFrame(() => setTimeout(() => { if (id === read && app.text === current) drawBelow(true); }));
  }

  function drawBelow(/** @type {boolean} */ redraw) {
    if (drawnBelow !== read) {
      links = createWorth(/** @type {any} */ (store), /** @type {import("./text.js").ReadText} */ (current).spec);
      worth.replaceChildren(links.element);
    }
    drawnBelow = read;
    links?.draw(view);
    grid.update(store.get(), redraw);
    body.dataset.below = `${store.get().read}`; // everything is drawn
  }

  /** @param {import("./state.js").PageState} state @param {import("./state.js").PageState | null} before */
  async function update(state, before) {
    const { text } = app;
    if (!text) return;
    if (!text.whole) {
      const openLong = html("button", { type: "button", class: "chip", click: () => store.set({ panel: "long" }) }, "Open it as a long text");
      body.replaceChildren(html("p", { class: "notice" }, `This text has ${text.rows.toLocaleString("en")} tokens. `, openLong));
      return;
    }
    const isNew = read !== state.read;
    if (isNew) {
      [read, current] = [state.read, text];
      if (!page) build();
      warning.textContent = text.spec.warning;
      warning.hidden = !text.spec.warning;
      delete panels.picture;
      if (text.spec.picture) panels.picture = createPicture(/** @type {any} */ (store), text.spec);
      picture.replaceChildren(...(panels.picture ? [card(app, "Picture", "bright where the chosen patch looks", panels.picture, "picture-card")] : []));
      body.classList.toggle("pictured", Boolean(text.spec.picture));
      if (body.firstChild !== page) body.replaceChildren(/** @type {HTMLElement} */ (page));
    }
    const newExcerpt = view?.excerpt && state.locked !== before?.locked;
    const redraw = isNew || !view || !before || newExcerpt || REDRAWING.some((key) => state[key] !== before[key]);
    if (!redraw && drawn !== read) return; // its weights have not arrived yet
    if (redraw) {
      newest += 1;
      const id = newest;
      const coloured = state.others.length > 0 && state.blend === "colours";
      const heads = /** @type {[number, number][]} */ ([[state.layer, state.head], ...(coloured ? [] : state.others)]);
      let head;
      try {
        head = await text.head(heads, state);
        if (coloured) await panels.overlay.load(text, [[state.layer, state.head], ...state.others], state);
      } catch (error) {
        app.fail(error);
        return;
      }
      if (id !== newest || text !== app.text) return; // superseded
      state = store.get();
      view = derive(text.spec, head, /** @type {any} */ (state), app.palette());
      body.classList.toggle("coloured", coloured);
    }
    view = { ...view, state };
    for (const panel of Object.values(panels)) (redraw ? panel.draw : panel.focus)(view);
    const first = drawn !== read;
    drawn = read;
    if (first && state.locked !== null) panels.sentence.reveal(state.locked);
    scheduleBelow(first, redraw);
    body.dataset.drawn = `${state.read}`;
  }

  return { element: body, update };
}
