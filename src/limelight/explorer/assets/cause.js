// The effect of each link beside its weight: the link is cut and the model run again.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { colour, height, textOn } from "../../views/page/assets/scale.js";
import { requestEvents, requestJson } from "./api.js";
import { bar } from "./bars.js";

/** @typedef {{ key: number, weight: number, change: number }} Effect */
/** @typedef {{ tokens: number[], next?: { text: string, before: number, after: number }[], kl?: number, sentence?: number }} Changes */

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const scope = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Where a link is cut", change: () => measure() },
    html("option", { value: "head" }, "in this head"), html("option", { value: "everywhere" }, "in every head of every layer")));
  const stop = html("button", { type: "button", class: "chip", click: () => running.abort() }, "Stop");
  const restore = html("button", { type: "button", class: "chip", click: () => { cutKeys = []; show(); runCut(); } }, "Restore all links");
  const progress = /** @type {HTMLProgressElement} */ (html("progress", { max: 1, value: 0, "aria-label": "Links cut so far" }));
  const text = html("div", { class: "sentence", role: "group", "aria-label": "The query: click a token to choose it" });
  const story = html("p", { class: "story", "aria-live": "polite" });
  const rows = html("tbody", {});
  const after = html("div", { "aria-live": "polite" });
  const measureName = html("th", { scope: "col", class: "over-number" }, "change when cut");
  const body = html("div", { class: "cause" },
    html("div", { class: "grid-tools" }, html("label", {}, html("span", { class: "hint" }, "Cut "), scope), progress, stop, restore),
    text, story,
    html("div", { class: "grid" },
      html("section", { class: "card", "aria-label": "Weight and effect" }, html("h3", {}, "Weight and effect"), html("p", { class: "hint" }, "each link is cut on its own; cut several together to see what changes"),
        html("table", { class: "effects" }, html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "to"), html("td", { class: "bar-cell" }), html("th", { scope: "col", class: "over-number" }, "weight"), html("td", { class: "bar-cell" }), measureName, html("td", {}))), rows)),
      html("section", { class: "card", "aria-label": "What changes" }, html("h3", {}, "What changes"), after)));
  let running = new AbortController();
  /** @type {Effect[]} */
  let effects = [];
  /** @type {number[]} keys whose links are cut together */
  let cutKeys = [];
  let query = 0;
  let requestKey = ""; // of the effects that are shown
  let newestCut = 0;
  let measureText = "";

  /** @param {import("./state.js").PageState} state @param {import("./state.js").PageState | null} before */
  function update(state, before) {
    const read = app.text;
    if (!read) return;
    query = Math.min(state.locked ?? read.spec.choice.query, read.rows - 1);
    const key = JSON.stringify([read.request, state.layer, state.head, query]);
    if (key !== requestKey) {
      requestKey = key;
      cutKeys = [];
      measure();
    } else if (!before || state.scheme !== before.scheme || state.systemDark !== before.systemDark || state.background !== before.background) show();
  }

  const headRequest = () => {
    const read = /** @type {import("./text.js").ReadText} */ (app.text);
    const state = store.get();
    return { ...read.request, layer: read.spec.layers[state.layer], head: read.spec.heads[state.head] };
  };

  async function measure() {
    running.abort();
    running = new AbortController();
    const controller = running;
    effects = [];
    delete body.dataset.drawn;
    stop.hidden = progress.hidden = false;
    progress.value = 0;
    show();
    runCut();
    try {
      for await (const event of requestEvents("/api/effects", { ...headRequest(), query, everywhere: scope.value === "everywhere" }, controller.signal)) {
        if (controller !== running) return;
        if (event.done) { measureText = event.done.measure; body.dataset.drawn = requestKey; } else { effects.push(event); progress.value = event.share; }
        show();
      }
    } catch (error) {
      if (controller === running) app.fail(error);
    } finally {
      if (controller === running) stop.hidden = progress.hidden = true;
    }
  }

  function show() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const state = store.get();
    const palette = app.palette();
    const hidden = new Set(state.background ? [] : spec.keys.background);
    const largest = Math.max(1e-9, ...effects.map(({ change }) => change));
    const byKey = new Map(effects.map((effect) => [effect.key, effect]));
    text.replaceChildren(...spec.queries.labels.map((label, token) => {
      const button = html("button", {
        type: "button", class: `token${token === query ? " query" : ""}${hidden.has(token) ? " background" : ""}${cutKeys.includes(token) ? " cut" : ""}`,
        "aria-pressed": String(token === query), click: () => store.set({ locked: token }),
      }, shorten(label, 30));
      const part = hidden.has(token) ? 0 : height((byKey.get(token)?.change ?? 0) / largest, 1, state.log);
      if (part > 0.03 && token !== query) { button.style.backgroundColor = colour(palette, part); button.style.color = textOn(palette, part); }
      return button;
    }));
    measureName.textContent = measureText ? `change when cut (${measureText})` : "change when cut";
    const shown = effects.filter(({ key }) => !hidden.has(key)).sort((a, b) => b.change - a.change).slice(0, 24);
    rows.replaceChildren(...shown.map((effect) => {
      const isCut = cutKeys.includes(effect.key);
      return html("tr", { class: isCut ? "is-cut" : "" },
        html("th", { scope: "row" }, html("bdi", {}, shorten(spec.keys.labels[effect.key], 16))),
        html("td", { class: "bar-cell" }, bar(effect.weight)), html("td", { class: "number" }, number(effect.weight)),
        html("td", { class: "bar-cell" }, bar(effect.change / largest, "change")), html("td", { class: "number strong" }, precise(effect.change)),
        html("td", {}, html("button", { type: "button", class: "quiet", "aria-pressed": String(isCut), "aria-label": `${isCut ? "Restore" : "Cut"} the link to ${spec.keys.labels[effect.key]}`, click: () => toggle(effect.key) }, isCut ? "restore" : "cut")));
    }));
    restore.hidden = cutKeys.length === 0;
    const queryName = html("bdi", { class: "query-name" }, spec.queries.labels[query]);
    if (!shown.length) { story.replaceChildren("Cutting the links of ", queryName, " one by one …"); return; }
    const heaviest = [...shown].sort((a, b) => b.weight - a.weight)[0];
    const rank = shown.indexOf(heaviest) + 1;
    story.replaceChildren(queryName, " changes most without ", html("bdi", { class: "key-name" }, spec.keys.labels[shown[0].key]), ` (${precise(shown[0].change)}); its largest weight is on `,
      html("bdi", { class: "key-name" }, spec.keys.labels[heaviest.key]), ` (${number(heaviest.weight)}), rank ${rank} by effect.`);
  }

  /** @param {number} key */
  function toggle(key) {
    cutKeys = cutKeys.includes(key) ? cutKeys.filter((other) => other !== key) : [...cutKeys, key];
    show();
    runCut();
  }

  async function runCut() {
    newestCut += 1;
    const id = newestCut;
    if (!cutKeys.length) {
      after.replaceChildren(html("p", { class: "hint" }, "Cut a link to see how the final vectors of all tokens change and, in a decoder, the prediction of the next token."));
      return;
    }
    const { layer, head, ...request } = headRequest();
    try {
      const changes = await requestJson("/api/cut", { ...request, links: cutKeys.map((key) => ({ layer, head, query, key })), everywhere: scope.value === "everywhere" });
      if (id === newestCut) showChanges(changes);
    } catch (error) {
      app.fail(error);
    }
  }

  /** @param {Changes} changes */
  function showChanges({ tokens, next, kl, sentence }) {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const largest = Math.max(1e-9, ...tokens);
    const moved = tokens.map((change, token) => ({ change, token })).sort((a, b) => b.change - a.change).slice(0, 8);
    const row = (/** @type {string} */ name, /** @type {(Node | string)[]} */ ...cells) => html("tr", {}, html("th", { scope: "row" }, html("bdi", {}, shorten(name, 18))), ...cells.map((cell) => html("td", { class: typeof cell === "string" ? "number" : "bar-cell" }, cell)));
    const parts = [html("p", { class: "hint" }, "tokens whose final vectors move most, 1 − cosine"),
      html("table", { class: "small-table" }, html("tbody", {}, ...moved.map(({ change, token }) => row(spec.queries.labels[token], bar(change / largest, "change"), precise(change)))))];
    if (next) {
      parts.unshift(html("p", { class: "hint" }, `next token, before and after the cut (KL ${precise(kl ?? 0)} nats)`),
        html("table", { class: "small-table" }, html("tbody", {}, ...next.slice(0, 10).map(({ text: name, before, after: probability }) => row(name, bar(before), number(before), bar(probability, "change"), number(probability))))));
    } else parts.unshift(html("p", {}, "The mean of all final vectors moves by ", html("span", { class: "number strong", "data-sentence": "" }, precise(sentence ?? 0)), " (1 − cosine)."));
    after.replaceChildren(...parts);
  }

  return { element: body, update, leave: () => running.abort() };
}

/** Four decimals, or a power of ten for a smaller number. @param {number} value */
function precise(value) {
  return value >= 0.001 || value === 0 ? number(value, 4) : value.toExponential(1).replace("e-", "·10⁻").replace(/⁻(\d+)/, (_, digits) => `⁻${[...digits].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`);
}
