// A card around a picture, with buttons to save and to enlarge it.

import { html } from "../../views/page/assets/dom.js";
import { savePng, saveSvg } from "../../views/page/assets/exports.js";

/**
 * @param {import("./main.js").App} app
 * @param {string} title
 * @param {string} hint
 * @param {{ element: HTMLElement, picture?: SVGElement }} panel
 * @param {string} name
 */
export function card(app, title, hint, panel, name) {
  const tools = html("div", { class: "savers" });
  if (panel.picture) {
    const saver = (/** @type {string} */ label, /** @type {any} */ save) => html("button", {
      type: "button", class: "quiet", title: `Save this picture as ${label}`, "aria-label": `Save ${title.toLowerCase()} as ${label}`,
      click: () => {
        const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
        const state = app.store.get();
        const [layer, head] = [spec.layers[state.layer], spec.heads[state.head]];
        save(panel.picture, app.palette(), `${spec.model} · ${title} · layer ${layer}, head ${head}`, `${name}-layer${layer}-head${head}`);
      },
    }, label);
    tools.append(saver("SVG", saveSvg), saver("PNG", savePng));
  }
  const section = html("section", { class: `card ${name}`, "aria-label": title });
  const enlarge = html("button", {
    type: "button", class: "quiet", title: "Enlarge this card (Escape to shrink it again)", "aria-label": `Enlarge ${title.toLowerCase()}`, "aria-pressed": "false",
    click: () => setLarge(!section.classList.contains("large")),
  }, "⤢");
  function setLarge(/** @type {boolean} */ large) {
    section.classList.toggle("large", large);
    enlarge.setAttribute("aria-pressed", String(large));
  }
  section.addEventListener("keydown", (/** @type {any} */ event) => {
    if (/** @type {KeyboardEvent} */ (event).key === "Escape" && section.classList.contains("large")) { event.stopPropagation(); setLarge(false); }
  });
  tools.append(enlarge);
  section.append(html("div", { class: "card-head" }, html("h3", {}, title), html("p", {}, hint), tools), panel.element);
  return section;
}
