// A word's way through the layers, in two sentences at once, toward groups of words.

import { html, shorten, svg } from "../../views/page/assets/dom.js";
import { colour, textOn } from "../../views/page/assets/scale.js";
import { requestJson } from "./api.js";

/**
 * @typedef {{ word: string, sentences: string[], groups: string[], similarity: number[][][], paths: [number, number][][],
 *   ends: [number, number][], nearest: string[], sources: string[][], tokens: string[][], places: number[][], took: number[][], python: string }} Way
 */

const DASHES = ["none", "7 4", "2 3", "9 3 2 3", "1 5", "12 3", "4 2", "6 2 1 2"];
const GROUPS = /** @type {Record<string, string>} */ ({
  apple: "fruit = banana, pear, mango\ntech = laptop, computer, phone",
  bank: "water = river, lake, shore\nmoney = loan, cheque, account",
  it: "animal = dog, cat, horse\nroad = street, road, path",
});
const PLAIN = "person = man, woman, child\nanimal = dog, cat, horse\nthing = table, key, car\nplace = house, city, shop";

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store, config } = app;
  /** @type {Partial<import("./state.js").Chosen>} what was edited and not yet looked at */
  let edited = {};
  const edit = (/** @type {Partial<import("./state.js").Chosen>} */ change) => {
    edited = { ...edited, ...change };
    clearTimeout(later);
    later = setTimeout(() => { const now = edited; edited = {}; store.set(now); }, 250);
  };
  const word = /** @type {HTMLInputElement} */ (html("input", { class: "find", "aria-label": "The word that is followed", spellcheck: "false", maxlength: 80, input: () => edit({ word: word.value.trim() }) }));
  const other = /** @type {HTMLTextAreaElement} */ (html("textarea", { class: "type small", rows: 1, "aria-label": "The second sentence", spellcheck: "false", maxlength: 4000, input: () => edit({ other: other.value }) }));
  const groups = /** @type {HTMLTextAreaElement} */ (html("textarea", { class: "type small groups", rows: 3, "aria-label": "Groups of words, a line each", spellcheck: "false", maxlength: 2000, input: () => edit({ groups: groups.value }) }));
  const template = /** @type {HTMLInputElement} */ (html("input", { class: "find", "aria-label": "The sentence that the words of a group stand in, {} for the word", spellcheck: "false", maxlength: 200, input: () => edit({ template: template.value.trim() }) }));
  const story = html("p", { class: "story", "aria-live": "polite" });
  const chart = html("div", { class: "drawing" });
  const plane = html("div", { class: "drawing" });
  const sentences = html("div", { class: "halves" });
  const all = html("div", { class: "all-layers", tabindex: 0, role: "group", "aria-label": "Cosine at every layer; it scrolls" });
  const python = html("pre", { class: "code", tabindex: 0, "aria-label": "The same in Python" });
  const body = html("div", { class: "meaning" },
    html("div", { class: "meaning-form" },
      html("label", {}, html("span", { class: "hint" }, "word"), word),
      html("label", {}, html("span", { class: "hint" }, "here, and in"), other),
      html("div", { class: "toward" }, html("label", {}, html("span", { class: "hint" }, "groups, a line each: name = words"), groups),
        html("label", {}, html("span", { class: "hint" }, "their words are read in; {} stands for each"), template))),
    story,
    html("div", { class: "grid" },
      html("section", { class: "card", "aria-label": "Similarity to each group" }, html("h3", {}, "Similarity to each group"), html("p", { class: "hint" }, "cosine with the mean of the group, layer by layer"), chart,
        html("details", { class: "same" }, html("summary", {}, "All numbers"), all)),
      html("section", { class: "card", "aria-label": "Path through the layers" }, html("h3", {}, "Path through the layers"), html("p", { class: "hint" }, "seen from the middle of the groups; ○ before attention, ● at the end, ★ groups"), plane,
        html("details", { class: "same" }, html("summary", {}, "The same in Python"), python))),
    sentences);
  let later = 0;
  let running = new AbortController();
  /** @type {Way | null} */
  let way = null;
  let asked = "";
  new ResizeObserver(() => { if (way) draw(); }).observe(chart);

  /** @param {import("./state.js").Chosen} state @param {import("./state.js").Chosen | null} before */
  function update(state, before) {
    if (!app.text) return;
    const sibling = config.examples.find((/** @type {any} */ example) => example.text === state.text)?.other ?? "";
    const second = state.other || sibling;
    const followed = times(state.text, state.word) === 1 ? state.word : aWord(state.text);
    const toward = state.groups || GROUPS[followed.toLowerCase()] || PLAIN;
    const fields = /** @type {[HTMLInputElement | HTMLTextAreaElement, string][]} */ ([[word, followed], [other, second], [groups, toward], [template, state.template]]);
    for (const [field, value] of fields) if (document.activeElement !== field && field.value !== value) field.value = value;
    for (const field of [other, groups]) { field.style.height = "auto"; field.style.height = `${field.scrollHeight + 2}px`; }
    word.setAttribute("aria-invalid", String(state.word !== "" && times(state.text, state.word) !== 1));
    other.setAttribute("aria-invalid", String(second !== "" && times(second, followed) !== 1));
    const both = [state.text, ...(second.trim() && second !== state.text && times(second, followed) === 1 ? [second] : [])];
    const parsed = parseGroups(toward);
    const fits = state.template.split("{}").length === 2;
    template.setAttribute("aria-invalid", String(state.template !== "" && !fits));
    const request = { model: state.model, word: followed, sentences: both, groups: parsed, ...(fits ? { template: state.template } : {}) };
    const now = JSON.stringify(request);
    if (!followed || !Object.keys(parsed).length) {
      story.textContent = followed ? "Name a group and its words: fruit = banana, pear" : "No word stands exactly once in this text.";
    } else if (now !== asked) {
      asked = now;
      measure(request, now);
    } else if (way && (!before || state.scheme !== before.scheme || state.systemDark !== before.systemDark)) show();
  }

  /** @param {{ template?: string }} request @param {string} now */
  async function measure(request, now) {
    running.abort();
    running = new AbortController();
    const mine = running;
    delete body.dataset.drawn;
    try {
      const answer = await requestJson("/api/meaning", request, mine.signal);
      if (mine !== running) return; // stale: never drawn
      way = answer;
      if (!request.template) template.placeholder = answer.template;
      show();
      body.dataset.drawn = now;
    } catch (error) {
      if (mine === running) app.fail(error);
    }
  }

  const tint = (/** @type {number} */ s) => (s === 0 ? app.palette().query : app.palette().key);

  function show() {
    const found = /** @type {Way} */ (way);
    const palette = app.palette();
    story.replaceChildren(html("bdi", { class: "query-name" }, found.word), ...found.sentences.flatMap((_, s) => [
      s ? "; in the second sentence to " : " ends nearest to ",
      html("strong", { "data-nearest": s }, found.nearest[s]), found.sources[s].length ? ` (took most from ${found.sources[s].join(", ")})` : "",
    ]), ".", alike(found) ? " Both ways are the same: this model reads from left to right, and what differs stands after the word." : "");
    draw();
    sentences.replaceChildren(...found.sentences.map((sentence, s) => {
      const own = found.took[s].map((value, at) => (part(found, s, at) ? 0 : value));
      const most = Math.max(1e-9, ...own);
      const tokens = found.tokens[s].map((token, at) => {
        const mine = part(found, s, at);
        const shown = html("span", { class: `token still${mine ? " followed" : ""}` }, shorten(token, 30));
        if (mine) shown.style.color = tint(s);
        const share = own[at] / most;
        if (share > 0.15) { shown.style.backgroundColor = colour(palette, share); shown.style.color = textOn(palette, share); }
        return shown;
      });
      const last = found.similarity[s].length - 1;
      const rows = found.groups.map((group, g) => {
        const [first, end] = [found.similarity[s][0][g], found.similarity[s][last][g]];
        return html("tr", { "data-group": group }, html("th", { scope: "row" }, group),
          html("td", { class: "number" }, plain(first)), html("td", { class: "number strong" }, plain(end)), html("td", { class: "number" }, `${end >= first ? "+" : ""}${plain(end - first)}`));
      });
      return html("section", { class: "card", "aria-label": `${s ? "Second" : "First"} sentence`, "data-sentence": s },
        html("h3", {}, key(s), s ? "Second sentence" : "First sentence"),
        html("div", { class: "sentence small", role: "group", "aria-label": sentence }, ...tokens), html("p", { class: "hint" }, "the deeper the colour, the more the word took from it over all layers"),
        html("table", { class: "nearness" }, html("thead", {}, html("tr", {}, ...["group", "before attention", "at the end", "change"].map((name) => html("th", { scope: "col" }, name)))), html("tbody", {}, ...rows)));
    }));
    const stages = found.similarity[0].map((_, stage) => html("tr", {}, html("th", { scope: "row" }, stage ? `layer ${stage - 1}` : "before"),
      ...found.sentences.flatMap((_each, s) => found.groups.map((_group, g) => html("td", { class: "number" }, plain(found.similarity[s][stage][g]))))));
    all.replaceChildren(html("table", {}, html("thead", {}, html("tr", {}, html("td", {}), ...found.sentences.flatMap((_, s) => found.groups.map((group) => html("th", { scope: "col" }, key(s), group))))), html("tbody", {}, ...stages)));
    python.textContent = found.python;
  }

  /** Whether a token belongs to the word. @param {Way} found @param {number} s @param {number} at */
  const part = (found, s, at) => found.places[s].includes(at);

  /** @param {number} s */
  function key(s) {
    const swatch = html("span", { class: "swatch", "aria-hidden": "true" });
    swatch.style.backgroundColor = tint(s);
    return html("span", { class: "key" }, swatch, ` ${s + 1} `);
  }

  function draw() {
    const found = /** @type {Way} */ (way);
    chart.replaceChildren(lines(found, Math.max(260, chart.clientWidth)));
    plane.replaceChildren(map(found, Math.max(260, plane.clientWidth)));
  }

  /** @param {Way} found @param {number} width */
  function lines(found, width) {
    const palette = app.palette();
    const [tall, left, right, top, bottom] = [300, 36, 92, 10, 30];
    const values = found.similarity.flat(2);
    const [low, high] = [Math.min(0, ...values), Math.max(...values, 0.1)];
    const last = found.similarity[0].length - 1;
    const x = (/** @type {number} */ stage) => left + ((width - left - right) * stage) / last;
    const y = (/** @type {number} */ value) => top + ((tall - top - bottom) * (high - value)) / (high - low);
    const parts = [];
    const step = (high - low) / 4;
    for (let value = low; value <= high + 1e-9; value += step) {
      parts.push(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), stroke: palette.line }), words(left - 6, y(value) + 4, value.toFixed(2), { "text-anchor": "end", fill: palette.muted }));
    }
    const every = Math.ceil(last / 8);
    for (let stage = 0; stage <= last; stage += every) parts.push(words(x(stage), tall - 10, stage ? String(stage) : "before", { "text-anchor": "middle", fill: palette.muted }));
    /** @type {any[]} */
    const ends = [];
    found.similarity.forEach((way_, s) => { found.groups.forEach((group, g) => {
      const points = way_.map((each, stage) => `${x(stage).toFixed(1)},${y(each[g]).toFixed(1)}`).join(" ");
      parts.push(svg("polyline", { points, fill: "none", stroke: tint(s), "stroke-width": 2.2, "stroke-dasharray": DASHES[g], "stroke-linejoin": "round" },
        svg("title", {}, `${group}, sentence ${s + 1}: ${plain(way_[0][g])} before, ${plain(way_[last][g])} at the end`)));
      ends.push({ at: y(way_[last][g]), name: `${group} ${s + 1}`, s });
    }); });
    ends.sort((a, b) => a.at - b.at);
    ends.forEach((end, k) => { if (k) end.at = Math.max(end.at, ends[k - 1].at + 14); });
    const over = ends.length ? Math.max(0, ends[ends.length - 1].at - (tall - bottom)) : 0;
    for (const end of ends) parts.push(words(width - right + 7, end.at - over + 4, shorten(end.name, 13), { fill: tint(end.s), "font-weight": 600 }));
    const nearest = found.sentences.map((_, s) => `sentence ${s + 1} ends nearest to ${found.nearest[s]}`).join("; ");
    return svg("svg", { viewBox: `0 0 ${width} ${tall}`, width, height: tall, role: "img", "aria-label": `Cosine of ${found.word} with each group, layer by layer: ${nearest}` }, ...parts);
  }

  /** @param {Way} found @param {number} width */
  function map(found, width) {
    const palette = app.palette();
    const [tall, edge] = [300, 34];
    const points = [...found.paths.flat(), ...found.ends];
    const [xs, ys] = [points.map(([a]) => a), points.map(([, b]) => b)];
    const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
    const zoom = Math.min((width - 2 * edge) / (right - left || 1), (tall - 2 * edge) / (high - low || 1)); // equal on both axes: lengths can be compared
    const x = (/** @type {number} */ value) => width / 2 + (value - (left + right) / 2) * zoom;
    const y = (/** @type {number} */ value) => tall / 2 - (value - (low + high) / 2) * zoom;
    /** @type {any[]} */
    const parts = [];
    found.paths.forEach((path, s) => {
      const at = path.map(([a, b]) => [x(a), y(b)]);
      parts.push(svg("polyline", { points: at.map((each) => each.map((value) => value.toFixed(1)).join(",")).join(" "), fill: "none", stroke: tint(s), "stroke-width": 1.8, "stroke-linejoin": "round" }));
      at.forEach(([a, b], stage) => {
        const end = stage === at.length - 1;
        parts.push(svg("circle", { cx: a, cy: b, r: end ? 6 : stage ? 2.6 : 5, fill: stage ? tint(s) : palette.raised, stroke: tint(s), "stroke-width": 1.6 }, svg("title", {}, stage ? `sentence ${s + 1}, after layer ${stage - 1}` : "before attention")));
      });
      const [a, b] = at[at.length - 1];
      parts.push(words(a + (s ? 10 : -10), b + (s ? 14 : -6), String(s + 1), { "text-anchor": s ? "start" : "end", fill: tint(s), "font-weight": 700 }));
    });
    found.ends.forEach(([a, b], g) => {
      const near = x(a) > width - 90;
      // names of stars that stand beside one another go above and below them
      const twin = found.ends.find(([c, d], other) => other !== g && Math.abs(x(c) - x(a)) < 90 && Math.abs(y(d) - y(b)) < 16);
      const name = shorten(found.groups[g], 16);
      const above = twin !== undefined && (b > twin[1] || (b === twin[1] && a < twin[0]));
      parts.push(words(x(a), y(b) + 6, "★", { "text-anchor": "middle", fill: palette.ink, "font-size": 17 }),
        twin ? words(x(a), y(b) + (above ? -11 : 21), name, { "text-anchor": "middle", fill: palette.ink })
          : words(x(a) + (near ? -11 : 11), y(b) + 5, name, { "text-anchor": near ? "end" : "start", fill: palette.ink }));
    });
    return svg("svg", { viewBox: `0 0 ${width} ${tall}`, width, height: tall, role: "img", "aria-label": `The way of ${found.word} in a plane, with ${found.groups.length} groups` }, ...parts);
  }

  return { element: body, update, leave: () => { running.abort(); asked = ""; clearTimeout(later); } };
}

/** Whether two sentences move the word in the same way. @param {Way} found */
function alike({ similarity: [first, second] }) {
  return second !== undefined && first.every((row, stage) => row.every((value, g) => Math.abs(value - second[stage][g]) < 1e-6));
}

/** @param {number} x @param {number} y @param {string} text @param {object} more */
function words(x, y, text, more) {
  return svg("text", { x, y, "font-size": 12, ...more }, text);
}

/** How often a word stands in a text by itself. @param {string} text @param {string} word */
function times(text, word) {
  if (!word) return 0;
  const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return [...text.matchAll(new RegExp(`(?<![\\p{L}\\p{N}_])${escaped}(?![\\p{L}\\p{N}_])`, "giu"))].length;
}

/** The word of an example, else the longest that stands once. @param {string} text */
function aWord(text) {
  const known = Object.keys(GROUPS).find((each) => times(text, each) === 1);
  if (known) return known;
  const each = text.slice(0, 4000).match(/[\p{L}\p{N}_]+/gu) ?? [];
  return each.filter((word) => times(text, word) === 1).sort((a, b) => b.length - a.length)[0] ?? "";
}

/** Groups by name, of lines such as "fruit = pear, mango". @param {string} lines @returns {Record<string, string[]>} */
function parseGroups(lines) {
  /** @type {Record<string, string[]>} */
  const found = {};
  for (const line of lines.split("\n").slice(0, 8)) {
    const [name, members] = line.split("=").map((part) => part.trim());
    const each = (members ?? "").split(",").map((part) => part.trim()).filter(Boolean).slice(0, 24);
    if (name && each.length) found[name] = each;
  }
  return found;
}

/** @param {number} value */
function plain(value) {
  return `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(3)}`;
}
