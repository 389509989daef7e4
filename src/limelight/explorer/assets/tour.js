// A short tour, offered on the first visit.

import { html } from "../../views/page/assets/dom.js";

const STOPS = [
  [".type", "Type here, or drop a file: the tokens and their strongest links appear while you type."],
  [".sentence", "Point at a token to see what it looks at. Click to hold it; Shift-click others to add theirs."],
  [".bar", "Choose a layer and a head, show background tokens, join the pieces of words."],
  [".heads-grid", "Every head as a small picture: sort them by what they look at, or find a link such as it → animal."],
  [".tabs", "More panels: compare two texts, follow each number, zoom into a long text, watch a model generate text."],
];
const OFFERED = "limelight-tour"; // key in the browser's storage

/** @param {import("./main.js").App} app */
export function offerTour(app) {
  try {
    if (localStorage.getItem(OFFERED) || navigator.webdriver) return;
    localStorage.setItem(OFFERED, "1");
  } catch {
    return; // without storage the tour would start on every visit
  }
  startTour(app);
}

/** @param {import("./main.js").App} app */
export function startTour(app) {
  app.store.set({ panel: "attention" });
  let stop = 0;
  const text = html("p", {});
  const next = html("button", { type: "button", class: "chip strong-chip", click: () => show(stop + 1) }, "Next");
  const skip = html("button", { type: "button", class: "chip", click: () => leave() }, "Skip");
  const box = html("div", { class: "tour", role: "dialog", "aria-label": "Tour", keydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Escape") leave(); } }, text, html("div", { class: "chips" }, next, skip));
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  document.querySelector(".tour")?.remove();
  document.getElementById("app")?.append(box);

  /** @param {number} index */
  function show(index) {
    document.querySelector(".toured")?.classList.remove("toured");
    if (index >= STOPS.length) { leave(); return; }
    stop = index;
    const target = document.querySelector(STOPS[index][0]);
    target?.classList.add("toured");
    target?.scrollIntoView({ block: "center" });
    text.replaceChildren(html("span", { class: "tour-count" }, `${index + 1} of ${STOPS.length}`), STOPS[index][1]);
    next.textContent = index + 1 < STOPS.length ? "Next" : "Done";
    next.focus();
  }

  function leave() {
    document.querySelector(".toured")?.classList.remove("toured");
    box.remove();
    before?.focus();
  }
  show(0);
}
