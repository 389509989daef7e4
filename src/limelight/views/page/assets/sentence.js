// The text itself: hover over or lock a token, and the others are coloured by its weights on them.

import { html, number, reveal, shorten } from "./dom.js";
import { colour, height, textOn } from "./scale.js";
import { LONG, activeQueries, activeQuery, summedKeys, takenByBackground } from "./view.js";

/** @typedef {import("./view.js").View} View */
/** @typedef {import("./numbers.js").Side} Side */

const MOST_BUTTONS = 4096; // a longer text is shown in excerpts only

/**
 * All tokens of a short text; of a long one excerpts around the query and its keys.
 * @param {import("./store.js").Store} store
 */
export function createSentence(store) {
  const list = html("div", {
    class: "sentence",
    role: "toolbar",
    "aria-label": "Tokens. Arrow keys move, Enter locks, Escape releases.",
    dir: "auto",
    pointerleave: () => store.set({ query: null, key: null }),
    keydown: (/** @type {KeyboardEvent} */ event) => move(event),
  });
  const story = html("p", { class: "story", "aria-live": "polite" });
  const hold = html("button", {
    type: "button", class: "quiet hold", "aria-pressed": "false",
    title: "Each clicked token is held with the others, and their rows add up (or click with Shift)",
    click: () => { several = !several; hold.setAttribute("aria-pressed", String(several)); },
  }, "Select several");
  const release = html("button", { type: "button", class: "quiet", click: () => store.set({ locked: null, held: [], key: null }) }, "Clear");
  const more = html("button", { type: "button", class: "quiet more", click: () => { open = !open; draw(drawn); } });
  /** @type {Map<number, HTMLButtonElement>} */
  let buttons = new Map();
  /** @type {number[]} */
  let tokens = [];
  let built = "";
  /** @type {unknown} */
  let spec = null;
  let open = false;
  let several = false;
  /** @type {View} */
  let drawn;

  /** @param {View} view */
  function draw(view) {
    drawn = view;
    const total = view.rows.labels.length;
    tokens = view.excerpt && !(open && total <= MOST_BUTTONS) ? view.excerpt.rows : [...view.rows.labels.keys()];
    // buttons are reused where possible: a new one would not have the focus
    const key = `${view.rows === view.spec.queries} ${tokens.length === total ? "all" : tokens.join()}`;
    if (key !== built || view.spec !== spec) build(view);
    [built, spec] = [key, view.spec];
    more.hidden = total <= LONG || total > MOST_BUTTONS;
    more.textContent = open ? "Show excerpts" : `Show all ${total.toLocaleString("en")} tokens`;
    focus(view);
  }

  /** @param {View} view */
  function build(view) {
    const root = /** @type {ShadowRoot} */ (list.getRootNode());
    const active = [...buttons].find(([, button]) => button === root.activeElement)?.[0];
    const cursor = tokens.includes(activeQuery(view.state) ?? -1) ? activeQuery(view.state) : tokens[0];
    buttons = new Map(tokens.map((token) => [token, /** @type {HTMLButtonElement} */ (html("button", {
      type: "button",
      class: tokenClasses(view.rows, token),
      title: title(view, token),
      tabindex: token === cursor ? 0 : -1,
      pointerenter: () => hover(token),
      focus: () => hover(token),
      blur: () => store.set({ query: null, key: null }),
      click: (/** @type {MouseEvent} */ event) => lock(token, several || event.shiftKey || event.ctrlKey || event.metaKey),
    }, shorten(view.rows.labels[token], 40)))]));
    /** @type {Node[]} */
    const parts = [];
    tokens.forEach((token, place) => {
      const before = place ? tokens[place - 1] : -1;
      if (before !== token - 1) parts.push(html("span", { class: "gap", title: `${token - before - 1} tokens left out` }, "…"));
      parts.push(/** @type {Node} */ (buttons.get(token)));
    });
    if (tokens[tokens.length - 1] < view.rows.labels.length - 1) parts.push(html("span", { class: "gap" }, "…"));
    list.replaceChildren(...parts);
    if (active !== undefined) buttons.get(active)?.focus();
  }

  /** @param {number} token */
  function hover(token) {
    store.set({ query: token, key: store.get().locked === null ? null : token });
  }

  /** @param {number} token @param {boolean} more besides those already held */
  function lock(token, more) {
    const { locked, held = [] } = store.get();
    if (more && locked === token && held.length) store.set({ locked: held[0], held: held.slice(1), key: null });
    else if (more && locked !== null && locked !== token) {
      store.set({ held: held.includes(token) ? held.filter((each) => each !== token) : [...held, token], key: null });
    } else store.set({ locked: locked === token ? null : token, held: [], key: null });
  }

  /** @param {KeyboardEvent} event */
  function move(event) {
    const here = tokens.findIndex((token) => buttons.get(token) === event.target);
    const jump = { ArrowRight: 1, ArrowLeft: -1, Home: -here, End: tokens.length - 1 - here }[event.key];
    if (here < 0 || jump === undefined) return;
    event.preventDefault();
    const [before, next] = [here, Math.min(Math.max(here + jump, 0), tokens.length - 1)]
      .map((place) => /** @type {HTMLButtonElement} */ (buttons.get(tokens[place])));
    before.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  }

  /** @param {View} view */
  function focus(view) {
    drawn = view;
    const { state, palette } = view;
    const rows = activeQueries(state);
    const twoSided = view.rows.labels !== view.columns.labels;
    const weights = new Map(!rows.length || twoSided ? [] : summedKeys(view, rows).map(({ column, weight }) => [column, weight]));
    const peak = Math.max(view.grid.kind === "whole" ? view.grid.peak : 1, ...(rows.length > 1 ? weights.values() : []));
    buttons.forEach((button, token) => {
      const weight = weights.get(token) ?? 0;
      const part = height(weight, peak, state.log);
      button.style.backgroundColor = part > 0.01 ? colour(palette, part) : "";
      button.style.color = part > 0.01 ? textOn(palette, part) : "";
      button.classList.toggle("query", rows.includes(token));
      button.classList.toggle("background", view.background.has(token) && !twoSided);
      button.setAttribute("aria-pressed", String(state.locked !== null && rows.includes(token)));
    });
    release.hidden = state.locked === null;
    story.replaceChildren(...storyParts(view, rows));
  }

  return {
    element: html("section", { class: "hero" }, list, story, html("div", { class: "holds" }, hold, release, more)),
    draw,
    focus,
    reveal: (/** @type {number} */ row) => { const button = buttons.get(row); if (button) reveal(list, button); },
  };
}

/** @param {View} view @param {number} token */
function title(view, token) {
  const label = view.rows.labels[token];
  if (view.excerpt) return `token ${token}`;
  return label.length > 40 ? shorten(label, 200) : null;
}

/** The classes of a token; those with no space between them are joined. @param {Side} side @param {number} token */
function tokenClasses(side, token) {
  const names = ["token"];
  if (side.tight[token]) names.push("joined");
  if (side.tight[token + 1]) names.push("open");
  if (side.special.includes(token)) names.push("special");
  return names.join(" ");
}

/** The label of a token, with its index where another has the same label. @param {Side} side @param {number} token */
function named(side, token) {
  const label = shorten(side.labels[token], 24);
  const repeated = side.labels.indexOf(side.labels[token]) !== side.labels.lastIndexOf(side.labels[token]);
  return repeated ? [label, html("sub", { class: "place", title: `token ${token}` }, String(token))] : [label];
}

/** @param {View} view @param {number[]} rows */
function storyParts(view, rows) {
  if (!rows.length) return [html("span", { class: "hint" }, "Point at a token to see where it looks; click to hold it, with Shift to add it to those held.")];
  // weights that print as 0.000 are left out
  const best = summedKeys(view, rows).slice(0, 4).filter(({ weight }, place) => place === 0 || weight >= 0.0005);
  /** @type {(Node | string)[]} */
  const parts = rows.flatMap((row, place) => [place ? " + " : "", html("bdi", { class: "query-name" }, ...named(view.rows, row))]);
  parts.push(rows.length > 1 ? " look at " : " looks at ");
  if (!best.length) parts.push("tokens that are not kept in this file");
  best.forEach(({ column, weight }, place) => {
    if (place > 0) parts.push(html("span", { class: "dot" }, " · "));
    parts.push(
      html("bdi", { class: "key-name" }, ...named(view.columns, column)), " ",
      html("span", { class: "number" }, number(weight)),
    );
  });
  const taken = view.state.background ? 0 : rows.reduce((total, row) => total + (takenByBackground(view, row) ?? 0), 0);
  if (taken >= 0.0005) parts.push(html("span", { class: "hint" }, ` — ${number(taken)} rests on background tokens`));
  return parts;
}
