// Why a link: its score, split by the sources of its query and its key.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { colour, height, signed, textOn } from "../../views/page/assets/scale.js";
import { requestJson } from "./api.js";
import { bar } from "./bars.js";

/**
 * @typedef {{ query: string, key: string, score: number, reach: string, exact: boolean, count: number,
 *   sources: string[], parts: number[][], rest: number, strongest: [string, string, number][], python: string }} Split
 */

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const queryTokens = html("div", { class: "sentence", role: "group", "aria-label": "The query: click a token to choose it" });
  const keyTokens = html("div", { class: "sentence", role: "group", "aria-label": "The key: click a token to choose it" });
  const story = html("p", { class: "story", "aria-live": "polite" });
  const reach = html("p", { class: "reach" });
  const caption = html("p", { class: "hint" });
  const frame = html("div", { class: "why-frame", tabindex: 0, role: "group", "aria-label": "The matrix of parts, scrollable" });
  const pointed = html("p", { class: "pointed", role: "status" });
  const rows = html("tbody", {});
  const python = html("pre", { class: "code", tabindex: 0, "aria-label": "The same in Python" });
  const body = html("div", { class: "why-panel" },
    html("div", { class: "link-choice" }, html("span", { class: "hint" }, "from"), queryTokens, html("span", { class: "hint" }, "to"), keyTokens),
    story, reach,
    html("div", { class: "grid" },
      html("section", { class: "card", "aria-label": "Parts of the score" }, html("h3", {}, "Parts of the score"), caption, frame, pointed),
      html("section", { class: "card", "aria-label": "Strongest parts" }, html("h3", {}, "Strongest parts"), html("p", { class: "hint" }, "pairs of sources that raise or lower the score most"),
        html("table", { class: "effects parts" }, html("thead", {}, html("tr", {}, ...["source of the query", "source of the key", "part"].map((name) => html("th", { scope: "col", colspan: name === "part" ? 2 : 1 }, name)))), rows),
        html("details", { class: "fold" }, html("summary", {}, "The same in Python"), python))));
  let running = new AbortController();
  /** @type {Split | null} */
  let split = null;
  /** @type {number[]} of the query's row */
  let weights = [];
  let [query, target] = [0, 0];
  let requestKey = "";

  /** @param {import("./state.js").PageState} state @param {import("./state.js").PageState | null} before */
  async function update(state, before) {
    const read = app.text;
    if (!read) return;
    query = Math.min(state.locked ?? read.spec.choice.query, read.rows - 1);
    const key = JSON.stringify([read.request, state.layer, state.head, query, state.target]);
    if (key !== requestKey) {
      requestKey = key;
      await measure(key);
    } else if (!before || state.scheme !== before.scheme || state.systemDark !== before.systemDark || state.background !== before.background || state.log !== before.log) show();
  }

  /** @param {string} drawnKey marks the panel as drawn */
  async function measure(drawnKey) {
    running.abort();
    running = new AbortController();
    const controller = running;
    const read = /** @type {import("./text.js").ReadText} */ (app.text);
    const { layer, head, target: chosen } = store.get();
    delete body.dataset.drawn;
    try {
      const matrix = await read.matrix(layer, head);
      if (controller !== running) return;
      const row = [...matrix.row(query)];
      target = chosen !== null && chosen < read.columns && !isFuture(read, chosen) ? chosen : heaviest(read, row);
      const numbers = { layer: read.spec.layers[layer], head: read.spec.heads[head] };
      const response = await requestJson("/api/why", { ...read.request, ...numbers, query, key: target }, controller.signal);
      if (controller !== running) return;
      split = response;
      weights = row;
      show();
      body.dataset.drawn = drawnKey;
    } catch (error) {
      if (controller === running) app.fail(error);
    }
  }

  /** Whether a decoder cannot attend to a key, which comes after the query. @param {import("./text.js").ReadText} read @param {number} key */
  const isFuture = (read, key) => read.spec.kind === "decoder" && key > query;

  /** The key with the largest weight that is not hidden. @param {import("./text.js").ReadText} read @param {number[]} row */
  function heaviest(read, row) {
    const hidden = new Set(store.get().background ? [] : read.spec.keys.background);
    const keys = row.map((_, key) => key).filter((key) => !hidden.has(key) && !isFuture(read, key));
    return (keys.length ? keys : [query]).reduce((best, key) => (row[key] > row[best] ? key : best));
  }

  function show() {
    const read = app.text;
    if (!read || !split) return;
    const { spec } = read;
    const state = store.get();
    const palette = app.palette();
    const hidden = new Set(state.background ? [] : spec.keys.background);
    const largest = Math.max(1e-9, ...weights.filter((_, key) => !hidden.has(key)));
    queryTokens.replaceChildren(...spec.queries.labels.map((label, token) => html("button", {
      type: "button", class: `token${token === query ? " query" : ""}${hidden.has(token) ? " background" : ""}`, "aria-pressed": String(token === query),
      click: () => store.set({ locked: token, target: null }),
    }, shorten(label, 30))));
    keyTokens.replaceChildren(...spec.keys.labels.map((label, token) => {
      const button = html("button", {
        type: "button", class: `token${token === target ? " key" : ""}${hidden.has(token) ? " background" : ""}`, "aria-pressed": String(token === target), disabled: isFuture(read, token),
        title: `weight ${number(weights[token] ?? 0)}`, click: () => store.set({ target: token }),
      }, shorten(label, 30));
      const part = hidden.has(token) ? 0 : height((weights[token] ?? 0) / largest, 1, state.log);
      if (part > 0.03) { button.style.backgroundColor = colour(palette, part); button.style.color = textOn(palette, part); }
      return button;
    }));
    const [first, second, part] = split.strongest[0];
    story.replaceChildren(html("bdi", { class: "query-name" }, split.query), " → ", html("bdi", { class: "key-name" }, split.key), " scores ", html("strong", { class: "number", "data-score": "" }, number(split.score)),
      ` (weight ${number(weights[target] ?? 0)}). The strongest part: ${first} of the query with ${second} of the key, ${number(part)}.`);
    reach.replaceChildren(split.exact
      ? "Every source is separate, and the parts add up to the score. The scale of each norm is held fixed."
      : `This model normalises after each layer, so only the sources of the previous layer can be separated exactly: everything before them is one source, “${split.sources.find((name) => name.startsWith("before")) ?? "before"}”. Choose layer 0 to see token and position.`);
    caption.textContent = split.count > split.sources.length
      ? `the strongest ${split.sources.length} of ${split.count} sources: rows of the query, columns of the key; all other pairs add ${number(split.rest)}`
      : `all ${split.count} sources: rows of the query, columns of the key`;
    draw(palette);
    const peak = Math.max(...split.strongest.map(([, , value]) => Math.abs(value)));
    rows.replaceChildren(...split.strongest.map(([ofQuery, ofKey, value]) => html("tr", {}, html("td", {}, ofQuery), html("td", {}, ofKey),
      html("td", { class: "bar-cell" }, bar(Math.abs(value) / peak, value < 0 ? "change" : "weight")), html("td", { class: "number strong" }, number(value)))));
    python.textContent = split.python;
  }

  /** @param {import("../../views/page/assets/numbers.js").Palette} palette */
  function draw(palette) {
    const { sources, parts } = /** @type {Split} */ (split);
    const peak = Math.max(1e-9, ...parts.flat().map(Math.abs));
    const head = html("tr", {}, html("td", {}), ...sources.map((name) => html("th", { scope: "col", class: "upright" }, html("span", {}, name))));
    const lines = sources.map((name, i) => html("tr", {}, html("th", { scope: "row" }, name), ...sources.map((other, j) => {
      const cell = html("td", { class: "part", "data-row": i, "data-column": j, "aria-label": `${name} with ${other}: ${number(parts[i][j])}` });
      cell.style.backgroundColor = signed(palette, parts[i][j] / peak);
      return cell;
    })));
    frame.replaceChildren(html("table", { class: "why-matrix" }, html("thead", {}, head), html("tbody", {}, ...lines)));
    describePart(null);
  }

  /** @param {HTMLElement | null} cell */
  function describePart(cell) {
    const { sources, parts } = /** @type {Split} */ (split);
    for (const each of frame.querySelectorAll(".part.at")) each.classList.remove("at");
    if (!cell) { pointed.textContent = "Point at a cell, or use the arrow keys, to see its two sources and what they add to the score."; return; }
    cell.classList.add("at");
    const [i, j] = [Number(cell.dataset.row), Number(cell.dataset.column)];
    pointed.replaceChildren(`${sources[i]} of the query with ${sources[j]} of the key: `, html("span", { class: "number strong", "data-part": "" }, number(parts[i][j])));
  }

  frame.addEventListener("pointerover", (/** @type {any} */ event) => {
    const cell = /** @type {HTMLElement} */ (event.target).closest(".part");
    if (cell) describePart(/** @type {HTMLElement} */ (cell));
  });
  frame.addEventListener("keydown", (/** @type {any} */ event) => {
    const by = /** @type {Record<string, number[]>} */ ({ ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] })[event.key];
    if (!by || !split) return;
    event.preventDefault();
    const current = /** @type {HTMLElement | null} */ (frame.querySelector(".part.at"));
    const last = split.sources.length - 1;
    const next = current ? [Number(current.dataset.row) + by[0], Number(current.dataset.column) + by[1]] : [0, 0];
    const [i, j] = next.map((index) => Math.min(Math.max(index, 0), last));
    describePart(/** @type {HTMLElement} */ (frame.querySelector(`[data-row="${i}"][data-column="${j}"]`)));
  });

  return { element: body, update, leave: () => { running.abort(); requestKey = ""; } };
}
