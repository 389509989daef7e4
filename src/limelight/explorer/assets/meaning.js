// A word's path through the layers toward groups of words, in two sentences at once.

import { html, number, shorten, svg } from "../../views/page/assets/dom.js";
import { colour, textOn } from "../../views/page/assets/scale.js";
import { requestJson } from "./api.js";

/**
 * @typedef {{ word: string, sentences: string[], groups: string[], similarity: number[][][], paths: [number, number][][],
 *   ends: [number, number][], nearest: string[], sources: string[][], tokens: string[][], places: number[][], took: number[][], python: string }} WordPath
 */

const DASHES = ["none", "7 4", "2 3", "9 3 2 3", "1 5", "12 3", "4 2", "6 2 1 2"];
const EXAMPLE_GROUPS = /** @type {Record<string, string>} */ ({
  apple: "fruit = banana, pear, mango\ntech = laptop, computer, phone",
  bank: "water = river, lake, shore\nmoney = loan, cheque, account",
  it: "animal = dog, cat, horse\nroad = street, road, path",
});
const DEFAULT_GROUPS = "person = man, woman, child\nanimal = dog, cat, horse\nthing = table, key, car\nplace = house, city, shop";

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store, config } = app;
  /** @type {Partial<import("./state.js").PageState>} edits that are not yet in the store */
  let edits = {};
  const edit = (/** @type {Partial<import("./state.js").PageState>} */ change) => {
    edits = { ...edits, ...change };
    clearTimeout(timer);
    timer = setTimeout(() => { const changes = edits; edits = {}; store.set(changes); }, 250);
  };
  const word = /** @type {HTMLInputElement} */ (html("input", { class: "find", "aria-label": "The word to follow", spellcheck: "false", maxlength: 80, input: () => edit({ word: word.value.trim() }) }));
  const other = /** @type {HTMLTextAreaElement} */ (html("textarea", { class: "type small", rows: 1, "aria-label": "The second sentence", spellcheck: "false", maxlength: 4000, input: () => edit({ other: other.value }) }));
  const groups = /** @type {HTMLTextAreaElement} */ (html("textarea", { class: "type small groups", rows: 3, "aria-label": "Groups of words, one on each line", spellcheck: "false", maxlength: 2000, input: () => edit({ groups: groups.value }) }));
  const template = /** @type {HTMLInputElement} */ (html("input", { class: "find", "aria-label": "The sentence for the words of a group, with {} for the word", spellcheck: "false", maxlength: 200, input: () => edit({ template: template.value.trim() }) }));
  const story = html("p", { class: "story", "aria-live": "polite" });
  const chart = html("div", { class: "drawing" });
  const plane = html("div", { class: "drawing" });
  const sentences = html("div", { class: "halves" });
  const all = html("div", { class: "all-layers", tabindex: 0, role: "group", "aria-label": "Cosine at every layer, scrollable" });
  const python = html("pre", { class: "code", tabindex: 0, "aria-label": "The same in Python" });
  const body = html("div", { class: "meaning" },
    html("div", { class: "meaning-form" },
      html("label", {}, html("span", { class: "hint" }, "word"), word),
      html("label", {}, html("span", { class: "hint" }, "second sentence"), other),
      html("div", { class: "toward" }, html("label", {}, html("span", { class: "hint" }, "groups, one on each line: name = words"), groups),
        html("label", {}, html("span", { class: "hint" }, "sentence for the words of a group; {} is the word"), template))),
    story,
    html("div", { class: "grid" },
      html("section", { class: "card", "aria-label": "Similarity to each group" }, html("h3", {}, "Similarity to each group"), html("p", { class: "hint" }, "cosine with the mean of the group, layer by layer"), chart,
        html("details", { class: "fold" }, html("summary", {}, "All numbers"), all)),
      html("section", { class: "card", "aria-label": "Path through the layers" }, html("h3", {}, "Path through the layers"), html("p", { class: "hint" }, "relative to the mean of the groups; ○ before attention, ● at the end, ★ groups"), plane,
        html("details", { class: "fold" }, html("summary", {}, "The same in Python"), python))),
    sentences);
  let timer = 0;
  let running = new AbortController();
  /** @type {WordPath | null} */
  let path = null;
  let requestKey = "";
  new ResizeObserver(() => { if (path) draw(path); }).observe(chart);

  /** @param {import("./state.js").PageState} state @param {import("./state.js").PageState | null} before */
  function update(state, before) {
    if (!app.text) return;
    const counterpart = config.examples.find((/** @type {any} */ example) => example.text === state.text)?.other ?? "";
    const second = state.other || counterpart;
    const followed = occurrences(state.text, state.word) === 1 ? state.word : defaultWord(state.text);
    const toward = state.groups || EXAMPLE_GROUPS[followed.toLowerCase()] || DEFAULT_GROUPS;
    const fields = /** @type {[HTMLInputElement | HTMLTextAreaElement, string][]} */ ([[word, followed], [other, second], [groups, toward], [template, state.template]]);
    for (const [field, value] of fields) if (document.activeElement !== field && field.value !== value) field.value = value;
    for (const field of [other, groups]) { field.style.height = "auto"; field.style.height = `${field.scrollHeight + 2}px`; }
    word.setAttribute("aria-invalid", String(state.word !== "" && occurrences(state.text, state.word) !== 1));
    other.setAttribute("aria-invalid", String(second !== "" && occurrences(second, followed) !== 1));
    const both = [state.text, ...(second.trim() && second !== state.text && occurrences(second, followed) === 1 ? [second] : [])];
    const parsed = parseGroups(toward);
    const validTemplate = state.template.split("{}").length === 2;
    template.setAttribute("aria-invalid", String(state.template !== "" && !validTemplate));
    const request = { model: state.model, word: followed, sentences: both, groups: parsed, ...(validTemplate ? { template: state.template } : {}) };
    const key = JSON.stringify(request);
    if (!followed || !Object.keys(parsed).length) {
      story.textContent = followed ? "Name a group and its words: fruit = banana, pear" : "No word occurs exactly once in this text.";
    } else if (key !== requestKey) {
      requestKey = key;
      measure(request, key);
    } else if (path && (!before || state.scheme !== before.scheme || state.systemDark !== before.systemDark)) show(path);
  }

  /** @param {{ template?: string }} request @param {string} drawnKey marks the panel as drawn */
  async function measure(request, drawnKey) {
    running.abort();
    running = new AbortController();
    const controller = running;
    delete body.dataset.drawn;
    try {
      const response = await requestJson("/api/meaning", request, controller.signal);
      if (controller !== running) return; // superseded
      path = /** @type {WordPath} */ (response);
      if (!request.template) template.placeholder = response.template;
      show(path);
      body.dataset.drawn = drawnKey;
    } catch (error) {
      if (controller === running) app.fail(error);
    }
  }

  const tint = (/** @type {number} */ s) => (s === 0 ? app.palette().query : app.palette().key);

  /** @param {WordPath} shift */
  function show(shift) {
    story.replaceChildren(html("bdi", { class: "query-name" }, shift.word), ...shift.sentences.flatMap((_, s) => [
      s ? "; in the second sentence to " : " ends nearest to ",
      html("strong", { "data-nearest": s }, shift.nearest[s]), shift.sources[s].length ? ` (took most from ${shift.sources[s].join(", ")})` : "",
    ]), ".", samePaths(shift) ? " Both paths are the same: this model reads from left to right, and the sentences differ only after the word." : "");
    draw(shift);
    sentences.replaceChildren(...shift.sentences.map((_, s) => sentenceCard(shift, s)));
    const stages = shift.similarity[0].map((_, stage) => html("tr", {}, html("th", { scope: "row" }, stage ? `layer ${stage - 1}` : "before"),
      ...shift.sentences.flatMap((_sentence, s) => shift.groups.map((_group, g) => html("td", { class: "number" }, number(shift.similarity[s][stage][g]))))));
    all.replaceChildren(html("table", {}, html("thead", {}, html("tr", {}, html("td", {}), ...shift.sentences.flatMap((_, s) => shift.groups.map((group) => html("th", { scope: "col" }, sentenceKey(s), group))))), html("tbody", {}, ...stages)));
    python.textContent = shift.python;
  }

  /** A sentence coloured by what the word took from each token, and the similarity to each group. @param {WordPath} shift @param {number} s */
  function sentenceCard(shift, s) {
    const palette = app.palette();
    const isWord = (/** @type {number} */ token) => shift.places[s].includes(token);
    const taken = shift.took[s].map((value, token) => (isWord(token) ? 0 : value));
    const largest = Math.max(1e-9, ...taken);
    const tokens = shift.tokens[s].map((label, token) => {
      const element = html("span", { class: `token still${isWord(token) ? " followed" : ""}` }, shorten(label, 30));
      if (isWord(token)) element.style.color = tint(s);
      const share = taken[token] / largest;
      if (share > 0.15) { element.style.backgroundColor = colour(palette, share); element.style.color = textOn(palette, share); }
      return element;
    });
    const last = shift.similarity[s].length - 1;
    const rows = shift.groups.map((group, g) => {
      const [first, end] = [shift.similarity[s][0][g], shift.similarity[s][last][g]];
      return html("tr", { "data-group": group }, html("th", { scope: "row" }, group),
        html("td", { class: "number" }, number(first)), html("td", { class: "number strong" }, number(end)), html("td", { class: "number" }, `${end >= first ? "+" : ""}${number(end - first)}`));
    });
    return html("section", { class: "card", "aria-label": `${s ? "Second" : "First"} sentence`, "data-sentence": s },
      html("h3", {}, sentenceKey(s), s ? "Second sentence" : "First sentence"),
      html("div", { class: "sentence small", role: "group", "aria-label": shift.sentences[s] }, ...tokens), html("p", { class: "hint" }, "the deeper the colour of a token, the more the word took from it over all layers"),
      html("table", { class: "nearness" }, html("thead", {}, html("tr", {}, ...["group", "before attention", "at the end", "change"].map((name) => html("th", { scope: "col" }, name)))), html("tbody", {}, ...rows)));
  }

  /** The colour and number of a sentence. @param {number} s */
  function sentenceKey(s) {
    const swatch = html("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.backgroundColor = tint(s);
    return html("span", { class: "sentence-key" }, swatch, ` ${s + 1} `);
  }

  /** @param {WordPath} shift */
  function draw(shift) {
    chart.replaceChildren(similarityChart(shift, Math.max(260, chart.clientWidth)));
    plane.replaceChildren(pathChart(shift, Math.max(260, plane.clientWidth)));
  }

  /** @param {WordPath} shift @param {number} width */
  function similarityChart(shift, width) {
    const palette = app.palette();
    const [height, left, right, top, bottom] = [300, 36, 92, 10, 30];
    const values = shift.similarity.flat(2);
    const [low, high] = [Math.min(0, ...values), Math.max(...values, 0.1)];
    const last = shift.similarity[0].length - 1;
    const x = (/** @type {number} */ stage) => left + ((width - left - right) * stage) / last;
    const y = (/** @type {number} */ value) => top + ((height - top - bottom) * (high - value)) / (high - low);
    const parts = [];
    const step = (high - low) / 4;
    for (let value = low; value <= high + 1e-9; value += step) {
      parts.push(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: palette.line }), label(left - 6, y(value) + 4, value.toFixed(2), { "text-anchor": "end", fill: palette.muted }));
    }
    const every = Math.ceil(last / 8);
    for (let stage = 0; stage <= last; stage += every) parts.push(label(x(stage), height - 10, stage ? String(stage) : "before", { "text-anchor": "middle", fill: palette.muted }));
    /** @type {{ y: number, name: string, s: number }[]} */
    const ends = [];
    shift.similarity.forEach((stages, s) => { shift.groups.forEach((group, g) => {
      const points = stages.map((cosines, stage) => `${x(stage).toFixed(1)},${y(cosines[g]).toFixed(1)}`).join(" ");
      parts.push(svg("polyline", { points, fill: "none", stroke: tint(s), "stroke-width": 2.2, "stroke-dasharray": DASHES[g], "stroke-linejoin": "round" },
        svg("title", {}, `${group}, sentence ${s + 1}: ${number(stages[0][g])} before, ${number(stages[last][g])} at the end`)));
      ends.push({ y: y(stages[last][g]), name: `${group} ${s + 1}`, s });
    }); });
    ends.sort((a, b) => a.y - b.y);
    ends.forEach((end, k) => { if (k) end.y = Math.max(end.y, ends[k - 1].y + 14); }); // names do not overlap
    const overflow = ends.length ? Math.max(0, ends[ends.length - 1].y - (height - bottom)) : 0;
    for (const end of ends) parts.push(label(width - right + 7, end.y - overflow + 4, shorten(end.name, 13), { fill: tint(end.s), "font-weight": 600 }));
    const nearest = shift.sentences.map((_, s) => `sentence ${s + 1} ends nearest to ${shift.nearest[s]}`).join("; ");
    return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Cosine of ${shift.word} with each group, layer by layer: ${nearest}` }, ...parts);
  }

  /** @param {WordPath} shift @param {number} width */
  function pathChart(shift, width) {
    const palette = app.palette();
    const [height, edge] = [300, 34];
    const points = [...shift.paths.flat(), ...shift.ends];
    const [xs, ys] = [points.map(([a]) => a), points.map(([, b]) => b)];
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const zoom = Math.min((width - 2 * edge) / (right - left || 1), (height - 2 * edge) / (high - low || 1)); // the same on both axes, so that lengths can be compared
    const x = (/** @type {number} */ value) => width / 2 + (value - (left + right) / 2) * zoom;
    const y = (/** @type {number} */ value) => height / 2 - (value - (low + high) / 2) * zoom;
    /** @type {any[]} */
    const parts = [];
    shift.paths.forEach((stages, s) => {
      const pixels = stages.map(([a, b]) => [x(a), y(b)]);
      parts.push(svg("polyline", { points: pixels.map((pixel) => pixel.map((value) => value.toFixed(1)).join(",")).join(" "), fill: "none", stroke: tint(s), "stroke-width": 1.8, "stroke-linejoin": "round" }));
      pixels.forEach(([a, b], stage) => {
        const isLast = stage === pixels.length - 1;
        parts.push(svg("circle", { cx: a, cy: b, r: isLast ? 6 : stage ? 2.6 : 5, fill: stage ? tint(s) : palette.raised, stroke: tint(s), "stroke-width": 1.6 }, svg("title", {}, stage ? `sentence ${s + 1}, after layer ${stage - 1}` : "before attention")));
      });
      const [a, b] = pixels[pixels.length - 1];
      parts.push(label(a + (s ? 10 : -10), b + (s ? 14 : -6), String(s + 1), { "text-anchor": s ? "start" : "end", fill: tint(s), "font-weight": 700 }));
    });
    shift.ends.forEach(([a, b], g) => {
      const atEdge = x(a) > width - 90;
      // the names of neighbouring stars go above and below them
      const neighbour = shift.ends.find(([c, d], k) => k !== g && Math.abs(x(c) - x(a)) < 90 && Math.abs(y(d) - y(b)) < 16);
      const name = shorten(shift.groups[g], 16);
      const above = neighbour !== undefined && (b > neighbour[1] || (b === neighbour[1] && a < neighbour[0]));
      parts.push(label(x(a), y(b) + 6, "★", { "text-anchor": "middle", fill: palette.ink, "font-size": 17 }),
        neighbour ? label(x(a), y(b) + (above ? -11 : 21), name, { "text-anchor": "middle", fill: palette.ink })
          : label(x(a) + (atEdge ? -11 : 11), y(b) + 5, name, { "text-anchor": atEdge ? "end" : "start", fill: palette.ink }));
    });
    return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `The path of ${shift.word} in a plane, with ${shift.groups.length} groups` }, ...parts);
  }

  return { element: body, update, leave: () => { running.abort(); requestKey = ""; clearTimeout(timer); } };
}

/** Whether the word moves in the same way in both sentences. @param {WordPath} shift */
function samePaths({ similarity: [first, second] }) {
  return second !== undefined && first.every((row, stage) => row.every((value, g) => Math.abs(value - second[stage][g]) < 1e-6));
}

/** @param {number} x @param {number} y @param {string} text @param {object} attributes */
function label(x, y, text, attributes) {
  return svg("text", { x, y, "font-size": 12, ...attributes }, text);
}

/** How often a word occurs in a text, not as part of a longer word. @param {string} text @param {string} word */
function occurrences(text, word) {
  if (!word) return 0;
  const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return [...text.matchAll(new RegExp(`(?<![\\p{L}\\p{N}_])${escaped}(?![\\p{L}\\p{N}_])`, "giu"))].length;
}

/** The word of an example, else the longest that occurs exactly once. @param {string} text */
function defaultWord(text) {
  const exampleWord = Object.keys(EXAMPLE_GROUPS).find((word) => occurrences(text, word) === 1);
  if (exampleWord) return exampleWord;
  const words = text.slice(0, 4000).match(/[\p{L}\p{N}_]+/gu) ?? [];
  return words.filter((word) => occurrences(text, word) === 1).sort((a, b) => b.length - a.length)[0] ?? "";
}

/** Groups by name, from lines such as "fruit = pear, mango". @param {string} lines @returns {Record<string, string[]>} */
function parseGroups(lines) {
  /** @type {Record<string, string[]>} */
  const groups = {};
  for (const line of lines.split("\n").slice(0, 8)) {
    const [name, members] = line.split("=").map((part) => part.trim());
    const words = (members ?? "").split(",").map((part) => part.trim()).filter(Boolean).slice(0, 24);
    if (name && words.length) groups[name] = words;
  }
  return groups;
}
