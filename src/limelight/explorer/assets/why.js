// Why this link: its score, split by where the parts of query and key came from.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { colour, height, signed, textOn } from "../../views/page/assets/scale.js";
import { requestJson } from "./api.js";

/**
 * @typedef {{ query: string, key: string, score: number, reach: string, exact: boolean, count: number,
 *   sources: string[], parts: number[][], rest: number, strongest: [string, string, number][], python: string }} Split
 */

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const looks = html("div", { class: "sentence", role: "group", "aria-label": "The token that looks: click another" });
  const looked = html("div", { class: "sentence", role: "group", "aria-label": "The token looked at: click another" });
  const story = html("p", { class: "story", "aria-live": "polite" });
  const reach = html("p", { class: "reach" });
  const caption = html("p", { class: "hint" });
  const frame = html("div", { class: "why-frame", tabindex: 0, role: "group", "aria-label": "The matrix of parts; it scrolls" });
  const pointed = html("p", { class: "pointed", role: "status" });
  const rows = html("tbody", {});
  const python = html("pre", { class: "code", tabindex: 0, "aria-label": "The same in Python" });
  const body = html("div", { class: "why-panel" },
    html("div", { class: "link-choice" }, html("span", { class: "hint" }, "from"), looks, html("span", { class: "hint" }, "to"), looked),
    story, reach,
    html("div", { class: "grid" },
      html("section", { class: "card", "aria-label": "Parts of the score" }, html("h3", {}, "Parts of the score"), caption, frame, pointed),
      html("section", { class: "card", "aria-label": "Strongest parts" }, html("h3", {}, "Strongest parts"), html("p", { class: "hint" }, "what of the query meets what of the key"),
        html("table", { class: "effects parts" }, html("thead", {}, html("tr", {}, ...["of the query", "of the key", "part"].map((name) => html("th", { scope: "col", colspan: name === "part" ? 2 : 1 }, name)))), rows),
        html("details", { class: "same" }, html("summary", {}, "The same in Python"), python))));
  let running = new AbortController();
  /** @type {Split | null} */
  let split = null;
  let [query, target] = [0, 0];
  let asked = "";

  /** @param {import("./state.js").Chosen} state @param {import("./state.js").Chosen | null} before */
  async function update(state, before) {
    const read = app.text;
    if (!read) return;
    query = Math.min(state.locked ?? read.spec.choice.query, read.rows - 1);
    const now = JSON.stringify([read.request, state.layer, state.head, query, state.target]);
    if (now !== asked) {
      asked = now;
      await measure(now);
    } else if (!before || state.scheme !== before.scheme || state.systemDark !== before.systemDark || state.background !== before.background || state.log !== before.log) show();
  }

  /** @param {string} now */
  async function measure(now) {
    running.abort();
    running = new AbortController();
    const mine = running;
    const read = /** @type {import("./text.js").ReadText} */ (app.text);
    const { layer, head, target: chosen } = store.get();
    delete body.dataset.drawn;
    try {
      const row = await weightsOf(read, layer, head);
      if (mine !== running) return;
      target = chosen !== null && chosen < read.columns && !later(read, chosen) ? chosen : heaviest(read, row);
      const place = { layer: read.spec.layers[layer], head: read.spec.heads[head] };
      const answer = await requestJson("/api/why", { ...read.request, ...place, query, key: target }, mine.signal);
      if (mine !== running) return;
      split = answer;
      weights = row;
      show();
      body.dataset.drawn = now;
    } catch (error) {
      if (mine === running) app.fail(error);
    }
  }

  /** @type {Float32Array | number[]} */
  let weights = [];

  /** @param {import("./text.js").ReadText} read @param {number} layer @param {number} head */
  async function weightsOf(read, layer, head) {
    const matrix = await read.matrix(layer, head);
    return Array.from({ length: read.columns }, (_, key) => matrix.at(query, key));
  }

  /** Whether a decoder cannot see it yet. @param {import("./text.js").ReadText} read @param {number} key */
  const later = (read, key) => read.spec.kind === "decoder" && key > query;

  /** The key with the largest weight that is not hidden. @param {import("./text.js").ReadText} read @param {number[]} row */
  function heaviest(read, row) {
    const hidden = new Set(store.get().background ? [] : read.spec.keys.background);
    const keys = row.map((_, key) => key).filter((key) => !hidden.has(key) && !later(read, key));
    return (keys.length ? keys : [query]).reduce((best, key) => (row[key] > row[best] ? key : best));
  }

  function show() {
    const read = app.text;
    if (!read || !split) return;
    const { spec } = read;
    const state = store.get();
    const palette = app.palette();
    const hidden = new Set(state.background ? [] : spec.keys.background);
    const most = Math.max(1e-9, ...[...weights].filter((_, key) => !hidden.has(key)));
    looks.replaceChildren(...spec.queries.labels.map((label, token) => html("button", {
      type: "button", class: `token${token === query ? " query" : ""}${hidden.has(token) ? " background" : ""}`, "aria-pressed": String(token === query),
      click: () => store.set({ locked: token, target: null }),
    }, shorten(label, 30))));
    looked.replaceChildren(...spec.keys.labels.map((label, token) => {
      const button = html("button", {
        type: "button", class: `token${token === target ? " key" : ""}${hidden.has(token) ? " background" : ""}`, "aria-pressed": String(token === target), disabled: later(read, token),
        title: `weight ${number(weights[token] ?? 0)}`, click: () => store.set({ target: token }),
      }, shorten(label, 30));
      const part = hidden.has(token) ? 0 : height((weights[token] ?? 0) / most, 1, state.log);
      if (part > 0.03) { button.style.backgroundColor = colour(palette, part); button.style.color = textOn(palette, part); }
      return button;
    }));
    const [first, second, part] = split.strongest[0];
    story.replaceChildren(html("bdi", { class: "query-name" }, split.query), " → ", html("bdi", { class: "key-name" }, split.key), " scores ", html("strong", { class: "number", "data-score": "" }, plain(split.score)),
      ` (weight ${number(weights[target] ?? 0)}). The strongest part: ${first} of the query with ${second} of the key, ${plain(part)}.`);
    reach.replaceChildren(split.exact
      ? "Every source stands by itself, and the parts add up to the score. The scale of each norm is held fixed."
      : `This model normalises after each layer, so only the sources of the layer before can be separated exactly: what lies further back is one source, “${split.sources.find((name) => name.startsWith("before")) ?? "before"}”. Choose layer 0 to see token and position.`);
    caption.textContent = split.count > split.sources.length
      ? `the strongest ${split.sources.length} of ${split.count} sources; all other pairs together ${plain(split.rest)}`
      : `all ${split.count} sources: rows of the query, columns of the key`;
    draw(palette);
    const peak = Math.max(...split.strongest.map(([, , value]) => Math.abs(value)));
    rows.replaceChildren(...split.strongest.map(([ofQuery, ofKey, value]) => {
      const inner = html("span", { class: `bar-fill ${value < 0 ? "change" : ""}` });
      inner.style.width = `${(100 * Math.abs(value)) / peak}%`;
      return html("tr", {}, html("td", {}, ofQuery), html("td", {}, ofKey), html("td", { class: "bar-cell" }, html("span", { class: "track" }, inner)), html("td", { class: "number strong" }, plain(value)));
    }));
    python.textContent = split.python;
  }

  /** @param {import("../../views/page/assets/numbers.js").Palette} palette */
  function draw(palette) {
    const { sources, parts } = /** @type {Split} */ (split);
    const peak = Math.max(1e-9, ...parts.flat().map(Math.abs));
    const head = html("tr", {}, html("td", {}), ...sources.map((name) => html("th", { scope: "col", class: "upright" }, html("span", {}, name))));
    const lines = sources.map((name, i) => html("tr", {}, html("th", { scope: "row" }, name), ...sources.map((other, j) => {
      const cell = html("td", { class: "part", "data-row": i, "data-column": j, "aria-label": `${name} with ${other}: ${plain(parts[i][j])}` });
      cell.style.backgroundColor = signed(palette, parts[i][j] / peak);
      return cell;
    })));
    frame.replaceChildren(html("table", { class: "why-matrix" }, html("thead", {}, head), html("tbody", {}, ...lines)));
    say(null);
  }

  /** @param {HTMLElement | null} cell */
  function say(cell) {
    const { sources, parts } = /** @type {Split} */ (split);
    for (const each of frame.querySelectorAll(".part.at")) each.classList.remove("at");
    if (!cell) { pointed.textContent = "Point at a cell, or use the arrow keys: which source met which, and what that adds."; return; }
    cell.classList.add("at");
    const [i, j] = [Number(cell.dataset.row), Number(cell.dataset.column)];
    pointed.replaceChildren(`${sources[i]} of the query with ${sources[j]} of the key: `, html("span", { class: "number strong", "data-part": "" }, plain(parts[i][j])));
  }

  frame.addEventListener("pointerover", (/** @type {any} */ event) => {
    const cell = /** @type {HTMLElement} */ (event.target).closest(".part");
    if (cell) say(/** @type {HTMLElement} */ (cell));
  });
  frame.addEventListener("keydown", (/** @type {any} */ event) => {
    const by = /** @type {Record<string, number[]>} */ ({ ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] })[event.key];
    if (!by || !split) return;
    event.preventDefault();
    event.stopPropagation(); // the page's own arrows choose a head
    const at = /** @type {HTMLElement | null} */ (frame.querySelector(".part.at"));
    const last = split.sources.length - 1;
    const place = at ? [Number(at.dataset.row) + by[0], Number(at.dataset.column) + by[1]] : [0, 0];
    const [i, j] = place.map((each) => Math.min(Math.max(each, 0), last));
    say(/** @type {HTMLElement} */ (frame.querySelector(`[data-row="${i}"][data-column="${j}"]`)));
  });

  return { element: body, update, leave: () => { running.abort(); asked = ""; } };
}

/** With its sign. @param {number} value */
function plain(value) {
  return `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(3)}`;
}
