// The row of tabs, one for each panel, and the two sentences about the open one.

import { html } from "../../views/page/assets/dom.js";
import { PANELS } from "./about.js";

/** @param {import("./main.js").App} app */
export function createTabs(app) {
  const names = Object.keys(PANELS);
  const about = html("p", { class: "about", hidden: true, id: "about" });
  const help = html("button", {
    type: "button", class: "quiet help", "aria-expanded": "false", "aria-controls": "about",
    click: () => { about.hidden = !about.hidden; help.setAttribute("aria-expanded", String(!about.hidden)); },
  }, "What is this?");
  const tabs = names.map((name) => html("button", {
    type: "button", role: "tab", id: `tab-${name}`, class: "tab", "aria-controls": "stage",
    click: () => app.store.set({ panel: name }),
    keydown: (/** @type {KeyboardEvent} */ event) => move(event, name),
  }, PANELS[name].title));
  const list = html("div", { class: "tabs", role: "tablist" }, ...tabs);
  let open = "";

  /** @param {KeyboardEvent} event @param {string} name */
  function move(event, name) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = (names.indexOf(name) + by + names.length) % names.length;
    app.store.set({ panel: names[next] });
    tabs[next].focus();
  }

  /** @param {import("./state.js").PageState} state */
  function show(state) {
    names.forEach((name, k) => {
      tabs[k].setAttribute("aria-selected", String(name === state.panel));
      tabs[k].tabIndex = name === state.panel ? 0 : -1;
    });
    about.textContent = PANELS[state.panel].about;
    if (state.panel === open) return;
    open = state.panel;
    reveal();
  }

  // On a narrow screen the row scrolls sideways: the open tab stays in view, also when the window narrows.
  function reveal() {
    const tab = tabs[names.indexOf(open)];
    if (tab && list.scrollWidth > list.clientWidth) list.scrollLeft = tab.offsetLeft - (list.clientWidth - tab.offsetWidth) / 2;
  }
  new ResizeObserver(reveal).observe(list);

  return { element: html("nav", { class: "tabs-row", "aria-label": "Panels" }, list, help, about), show };
}
