// A short tour, offered on the first visit.

import { html } from "../../views/page/assets/dom.js";

const STOPS = [
  [".type", "Type here, or drop a file: the tokens and their strongest links appear while you type."],
  [".sentence", "Point at a token to see what it looks at. Click to hold it; Shift-click others to add theirs."],
  [".bar", "Choose a layer and a head, hide background tokens, join the pieces of words."],
  [".heads-grid", "Every head as a small picture: sort them by what they look at, or find a link such as it → animal."],
  [".tabs", "More ways to look: compare two texts, follow each number, zoom into a long text, watch a model write."],
];
const SEEN = "limelight-tour";

/** @param {import("./main.js").App} app */
export function offerTour(app) {
  try {
    if (localStorage.getItem(SEEN) || navigator.webdriver) return;
    localStorage.setItem(SEEN, "1");
  } catch {
    return; // a browser that keeps nothing: no tour each time
  }
  startTour(app);
}

/** @param {import("./main.js").App} app */
export function startTour(app) {
  app.store.set({ panel: "attention" });
  let stop = 0;
  const words = html("p", {});
  const next = html("button", { type: "button", class: "chip strong-chip", click: () => go(stop + 1) }, "Next");
  const end = html("button", { type: "button", class: "chip", click: () => leave() }, "Skip");
  const box = html("div", { class: "tour", role: "dialog", "aria-label": "Tour", keydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Escape") leave(); } }, words, html("div", { class: "movers" }, next, end));
  const before = /** @type {HTMLElement | null} */ (document.activeElement);
  document.querySelector(".tour")?.remove();
  document.getElementById("app")?.append(box);

  /** @param {number} to */
  function go(to) {
    document.querySelector(".toured")?.classList.remove("toured");
    if (to >= STOPS.length) { leave(); return; }
    stop = to;
    const target = document.querySelector(STOPS[to][0]);
    target?.classList.add("toured");
    target?.scrollIntoView({ block: "center" });
    words.replaceChildren(html("span", { class: "tour-count" }, `${to + 1} of ${STOPS.length}`), STOPS[to][1]);
    next.textContent = to + 1 < STOPS.length ? "Next" : "Done";
    next.focus();
  }

  function leave() {
    document.querySelector(".toured")?.classList.remove("toured");
    box.remove();
    before?.focus();
  }
  go(0);
}
