// The roles of heads, measured over built-in sentences or over a text of the user.

import { html, number } from "../../views/page/assets/dom.js";
import { byRole, roleTitle } from "../../views/page/assets/roles.js";
import { requestEvents } from "./api.js";

const MAX_SHOWN = 8; // heads of a role
const ABOUT = "Measuring reads many short texts with the chosen model, which takes a while.";

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const source = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Corpus" },
    html("option", { value: "" }, "built-in sentences"), html("option", { value: "text" }, "the text above")));
  const go = html("button", { type: "button", class: "chip strong-chip", click: () => measure() }, "Measure");
  const stop = html("button", { type: "button", class: "chip", hidden: true, click: () => running.abort() }, "Cancel");
  const progress = html("progress", { "aria-label": "Measuring", hidden: true });
  const note = html("span", { class: "hint", role: "status" });
  const rows = html("div", {}, html("p", { class: "hint" }, ABOUT));
  const body = html("div", { class: "roles" },
    html("div", { class: "grid-tools" }, html("label", {}, html("span", { class: "hint" }, "Texts "), source), go, stop, progress, note),
    html("section", { class: "card", "aria-label": "Roles" }, html("h3", {}, "Roles"), rows));
  let running = new AbortController();

  async function measure() {
    running.abort();
    running = new AbortController();
    const controller = running;
    const { model, text } = store.get();
    stop.hidden = progress.hidden = false;
    delete body.dataset.drawn;
    try {
      for await (const event of requestEvents("/api/roles", { model, corpus: source.value ? text : null }, controller.signal)) {
        if (event.done) show(event.done, model);
        else note.textContent = `${event.calls.toLocaleString("en")} attention calls`;
      }
    } catch (error) {
      app.fail(error);
    } finally {
      if (controller === running) stop.hidden = progress.hidden = true;
    }
  }

  /** @param {any} measured @param {string} model */
  function show(measured, model) {
    note.textContent = `${model}, ${measured.texts} texts`;
    app.roles.set(model, measured.labels); // the grid of all heads shows them too
    rows.replaceChildren(html("table", { class: "roles-table" },
      html("thead", {}, html("tr", {}, ...["role", "chance", "needed", "heads, by their score on held-out texts"].map((name) => html("th", { scope: "col" }, name)))),
      html("tbody", {}, ...measured.roles.map((/** @type {any} */ role) => {
        const heads = role.heads.map((/** @type {[number, number]} */ [layer, head]) => ({ layer, head, score: role.held_out[layer][head] })).sort((/** @type {any} */ a, /** @type {any} */ b) => b.score - a.score);
        return html("tr", { "data-role": role.name }, html("th", { scope: "row" }, role.name),
          html("td", { class: "number" }, number(role.chance)), html("td", { class: "number" }, number(role.needed)),
          html("td", {}, html("div", { class: "chips" }, ...heads.slice(0, MAX_SHOWN).map((/** @type {any} */ { layer, head, score }) => html("button", {
            type: "button", class: "chip", title: "Look at this head", click: () => store.set({ layer, head, others: [], panel: "attention" }),
          }, html("strong", {}, `${layer}.${head}`), number(score))),
          heads.length > MAX_SHOWN ? html("span", { class: "hint" }, `and ${heads.length - MAX_SHOWN} more`) : "", heads.length ? "" : html("span", { class: "hint" }, "none"))));
      }))));
    body.dataset.drawn = model;
  }

  /** The roles that come with a model, until some are measured here. */
  function showKnown() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const { model } = store.get();
    if (body.dataset.drawn === model || app.roles.has(model)) return;
    delete body.dataset.drawn;
    const heads = spec.heads.length;
    rows.replaceChildren(html("p", { class: "hint" }, spec.roles.length ? "Measured beforehand on the built-in sentences; each head is listed under its clearest role. Measure again to see the scores, or to use your own text." : ABOUT),
      ...(spec.roles.length ? [html("table", { class: "roles-table" }, html("tbody", {}, ...byRole(spec.roles).map(({ role, places }) => html("tr", { "data-known": role },
        html("th", { scope: "row" }, roleTitle(role)), html("td", {}, html("div", { class: "chips" }, ...places.slice(0, 24).map((index) => html("button", {
          type: "button", class: "chip", title: "Look at this head",
          click: () => store.set({ layer: Math.floor(index / heads), head: index % heads, others: [], panel: "attention" }),
        }, `${spec.layers[Math.floor(index / heads)]}.${spec.heads[index % heads]}`)), places.length > 24 ? html("span", { class: "hint" }, `and ${places.length - 24} more`) : ""))))))] : []));
  }

  return { element: body, update: () => { if (app.text) showKnown(); }, leave: () => running.abort() };
}
