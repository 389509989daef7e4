// The text itself: hover or lock a token, and the others light up by how much it looks at them.

import { html, number, reveal, shorten } from "./dom.js";
import { colour, height, textOn } from "./scale.js";
import { answers, asking, takenBySinks } from "./view.js";

export function createSentence(store) {
  const list = html("div", {
    class: "sentence",
    role: "toolbar",
    "aria-label": "Tokens. Arrow keys move, Enter locks, Escape lets go.",
    dir: "auto",
    pointerleave: () => store.set({ query: null, key: null }),
    keydown: (event) => move(event),
  });
  const story = html("p", { class: "story", "aria-live": "polite" });
  let buttons = [];
  let labels = null;

  function draw(view) {
    // the same buttons stay while they can: a new one would not have the focus
    if (labels !== view.rows.labels) build(view);
    labels = view.rows.labels;
    focus(view);
  }

  function build(view) {
    const focused = buttons.includes(list.getRootNode().activeElement);
    const cursor = Math.min(asking(view.state) ?? 0, view.rows.labels.length - 1);
    buttons = view.rows.labels.map((label, token) => html("button", {
      type: "button",
      class: dressed(view.rows, token),
      title: label.length > 40 ? shorten(label, 200) : null,
      tabindex: token === cursor ? 0 : -1,
      pointerenter: () => hover(token),
      focus: () => hover(token),
      blur: () => store.set({ query: null, key: null }),
      click: () => lock(token),
    }, shorten(label, 40)));
    list.replaceChildren(...buttons);
    if (focused) buttons[cursor].focus();
  }

  function hover(token) {
    store.set({ query: token, key: store.get().locked === null ? null : token });
  }

  function lock(token) {
    store.set({ locked: store.get().locked === token ? null : token, key: null });
  }

  function move(event) {
    const here = buttons.indexOf(event.target);
    const jump = { ArrowRight: 1, ArrowLeft: -1, Home: -here, End: buttons.length - 1 - here };
    if (here < 0 || !(event.key in jump)) return;
    event.preventDefault();
    const next = buttons[Math.min(Math.max(here + jump[event.key], 0), buttons.length - 1)];
    buttons[here].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  function focus(view) {
    const { state, palette } = view;
    const row = asking(state);
    const twoSided = view.rows.labels !== view.columns.labels;
    buttons.forEach((button, token) => {
      const asks = token === row;
      const paints = row !== null && !twoSided && view.shown(token);
      const weight = paints ? view.matrix.at(row, token) : 0;
      const part = height(weight, view.peak, state.log);
      button.style.backgroundColor = part > 0.01 ? colour(palette, part) : "";
      button.style.color = part > 0.01 ? textOn(palette, part) : "";
      button.classList.toggle("asks", asks);
      button.classList.toggle("apart", view.apart.has(token) && !twoSided);
      button.setAttribute("aria-pressed", String(state.locked === token));
    });
    story.replaceChildren(...tell(view, row));
  }

  return {
    element: html("section", { class: "hero" }, list, story), draw, focus, reveal: (row) => reveal(list, buttons[row]),
  };
}

/** Pieces of text without a space between them stand close. */
function dressed(side, token) {
  const names = ["token"];
  if (side.tight[token]) names.push("joined");
  if (side.tight[token + 1]) names.push("open");
  if (side.special.includes(token)) names.push("special");
  return names.join(" ");
}

function tell(view, row) {
  if (row === null) return [html("span", { class: "hint" }, "Point at a token to see where it looks; click to hold it.")];
  // what would be printed as 0.000 says nothing
  const best = answers(view, row).slice(0, 4).filter(({ weight }, place) => place === 0 || weight >= 0.0005);
  const parts = [html("bdi", { class: "asker" }, shorten(view.rows.labels[row], 24)), " looks at "];
  best.forEach(({ column, weight }, place) => {
    if (place > 0) parts.push(html("span", { class: "dot" }, " · "));
    parts.push(
      html("bdi", { class: "answer" }, shorten(view.columns.labels[column], 24)), " ",
      html("span", { class: "number" }, number(weight)),
    );
  });
  const taken = view.state.sinks ? 0 : takenBySinks(view, row);
  if (taken >= 0.0005) parts.push(html("span", { class: "hint" }, ` — ${number(taken)} rests on tokens set apart`));
  return parts;
}
