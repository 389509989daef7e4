// Effect beside weight: each link of a token is cut, and the model run again.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { colour, height, textOn } from "../../views/page/assets/scale.js";
import { requestEvents, requestJson } from "./api.js";

/** @typedef {{ key: number, weight: number, change: number }} Effect */

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const scope = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Where a link is cut", change: () => measure() },
    html("option", { value: "head" }, "in this head"), html("option", { value: "everywhere" }, "in every head of every layer")));
  const stop = html("button", { type: "button", class: "chip", click: () => running.abort() }, "Stop");
  const restore = html("button", { type: "button", class: "chip", click: () => { cut = []; show(); change(); } }, "Restore all links");
  const progress = /** @type {HTMLProgressElement} */ (html("progress", { max: 1, value: 0, "aria-label": "Links cut so far" }));
  const text = html("div", { class: "sentence", role: "group", "aria-label": "The token that looks: click another" });
  const story = html("p", { class: "story", "aria-live": "polite" });
  const rows = html("tbody", {});
  const after = html("div", { "aria-live": "polite" });
  const measureName = html("th", { scope: "col", class: "over-number" }, "change when cut");
  const body = html("div", { class: "cause" },
    html("div", { class: "grid-tools" }, html("label", {}, html("span", { class: "hint" }, "Cut "), scope), progress, stop, restore),
    text, story,
    html("div", { class: "grid" },
      html("section", { class: "card", "aria-label": "Effect beside weight" }, html("h3", {}, "Effect beside weight"), html("p", { class: "hint" }, "each link cut by itself; cut some together and see what changes"),
        html("table", { class: "effects" }, html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "to"), html("td", { class: "bar-cell" }), html("th", { scope: "col", class: "over-number" }, "weight"), html("td", { class: "bar-cell" }), measureName, html("td", {}))), rows)),
      html("section", { class: "card", "aria-label": "What changes" }, html("h3", {}, "What changes"), after)));
  let running = new AbortController();
  /** @type {Effect[]} */
  let effects = [];
  /** @type {number[]} keys that are cut */
  let cut = [];
  /** @type {any} */
  let changed = null;
  let query = 0;
  let key = "";
  let turn = 0;
  let measureText = "";

  /** @param {import("./state.js").Chosen} state @param {import("./state.js").Chosen | null} before */
  function update(state, before) {
    const read = app.text;
    if (!read) return;
    query = Math.min(state.locked ?? read.spec.choice.query, read.rows - 1);
    const now = JSON.stringify([read.request, state.layer, state.head, query]);
    if (now !== key) {
      key = now;
      cut = [];
      changed = null;
      measure();
    } else if (!before || state.scheme !== before.scheme || state.systemDark !== before.systemDark || state.background !== before.background) show();
  }

  const place = () => {
    const read = /** @type {import("./text.js").ReadText} */ (app.text);
    const state = store.get();
    return { ...read.request, layer: read.spec.layers[state.layer], head: read.spec.heads[state.head] };
  };

  async function measure() {
    running.abort();
    running = new AbortController();
    const mine = running;
    effects = [];
    delete body.dataset.drawn;
    stop.hidden = progress.hidden = false;
    progress.value = 0;
    show();
    change();
    try {
      for await (const event of requestEvents("/api/effects", { ...place(), query, everywhere: scope.value === "everywhere" }, mine.signal)) {
        if (mine !== running) return;
        if (event.done) { measureText = event.done.measure; body.dataset.drawn = key; } else { effects.push(event); progress.value = event.share; }
        show();
      }
    } catch (error) {
      if (mine === running) app.fail(error);
    } finally {
      if (mine === running) stop.hidden = progress.hidden = true;
    }
  }

  function show() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const state = store.get();
    const palette = app.palette();
    const hidden = new Set(state.background ? [] : spec.keys.background);
    const most = Math.max(1e-9, ...effects.map(({ change: each }) => each));
    const byKey = new Map(effects.map((effect) => [effect.key, effect]));
    text.replaceChildren(...spec.queries.labels.map((label, token) => {
      const button = html("button", {
        type: "button", class: `token${token === query ? " query" : ""}${hidden.has(token) ? " background" : ""}${cut.includes(token) ? " cut" : ""}`,
        "aria-pressed": String(token === query), click: () => store.set({ locked: token }),
      }, shorten(label, 30));
      const part = hidden.has(token) ? 0 : height((byKey.get(token)?.change ?? 0) / most, 1, state.log);
      if (part > 0.03 && token !== query) { button.style.backgroundColor = colour(palette, part); button.style.color = textOn(palette, part); }
      return button;
    }));
    measureName.textContent = measureText ? `change when cut (${measureText})` : "change when cut";
    const shown = effects.filter(({ key: each }) => !hidden.has(each)).sort((a, b) => b.change - a.change).slice(0, 24);
    rows.replaceChildren(...shown.map((effect) => {
      const bar = (/** @type {number} */ share, /** @type {string} */ kind) => {
        const inner = html("span", { class: `bar-fill ${kind}` });
        inner.style.width = `${Math.min(100, 100 * share)}%`;
        return html("span", { class: "track" }, inner);
      };
      const isCut = cut.includes(effect.key);
      return html("tr", { class: isCut ? "is-cut" : "" },
        html("th", { scope: "row" }, html("bdi", {}, shorten(spec.keys.labels[effect.key], 16))),
        html("td", { class: "bar-cell" }, bar(effect.weight, "weight")), html("td", { class: "number" }, number(effect.weight)),
        html("td", { class: "bar-cell" }, bar(effect.change / most, "change")), html("td", { class: "number strong" }, precise(effect.change)),
        html("td", {}, html("button", { type: "button", class: "quiet", "aria-pressed": String(isCut), "aria-label": `${isCut ? "Restore" : "Cut"} the link to ${spec.keys.labels[effect.key]}`, click: () => toggle(effect.key) }, isCut ? "restore" : "cut")));
    }));
    const asker = html("bdi", { class: "query-name" }, spec.queries.labels[query]);
    if (!shown.length) { story.replaceChildren("Cutting the links of ", asker, " one by one …"); return; }
    const heavy = [...shown].sort((a, b) => b.weight - a.weight)[0];
    const rank = shown.indexOf(heavy) + 1;
    story.replaceChildren(asker, " changes most without ", html("bdi", { class: "key-name" }, spec.keys.labels[shown[0].key]), ` (${precise(shown[0].change)}); its largest weight goes to `,
      html("bdi", { class: "key-name" }, spec.keys.labels[heavy.key]), ` (${number(heavy.weight)}), rank ${rank} by what its cut causes.`);
    restore.hidden = cut.length === 0;
  }

  /** @param {number} to */
  function toggle(to) {
    cut = cut.includes(to) ? cut.filter((each) => each !== to) : [...cut, to];
    show();
    change();
  }

  async function change() {
    turn += 1;
    const mine = turn;
    if (!cut.length) {
      changed = null;
      after.replaceChildren(html("p", { class: "hint" }, "Cut a link: every token's final vector, and what a decoder says next, before and after."));
      return;
    }
    const { layer, head, ...request } = place();
    try {
      changed = await requestJson("/api/cut", { ...request, links: cut.map((each) => ({ layer, head, query, key: each })), everywhere: scope.value === "everywhere" });
      if (mine === turn) showChange();
    } catch (error) {
      app.fail(error);
    }
  }

  function showChange() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const most = Math.max(1e-9, ...changed.tokens);
    const bars = changed.tokens.map((/** @type {number} */ value, /** @type {number} */ token) => ({ value, token })).sort((/** @type {any} */ a, /** @type {any} */ b) => b.value - a.value).slice(0, 8);
    const row = (/** @type {string} */ name, /** @type {(Node | string)[]} */ ...cells) => html("tr", {}, html("th", { scope: "row" }, html("bdi", {}, shorten(name, 18))), ...cells.map((cell) => html("td", { class: typeof cell === "string" ? "number" : "bar-cell" }, cell)));
    const bar = (/** @type {number} */ share, /** @type {string} */ kind) => { const inner = html("span", { class: `bar-fill ${kind}` }); inner.style.width = `${Math.min(100, 100 * share)}%`; return html("span", { class: "track" }, inner); };
    const parts = [html("p", { class: "hint" }, "tokens whose final vector moves, 1 − cosine"),
      html("table", { class: "small-table" }, html("tbody", {}, ...bars.map((/** @type {any} */ { value, token }) => row(spec.queries.labels[token], bar(value / most, "change"), precise(value)))))];
    if (changed.next) {
      parts.unshift(html("p", { class: "hint" }, `what comes next, before and after (KL ${precise(changed.kl)} nats)`),
        html("table", { class: "small-table next" }, html("tbody", {}, ...changed.next.slice(0, 10).map((/** @type {any} */ { text: name, before, after: now }) => row(name, bar(before, "weight"), number(before), bar(now, "change"), number(now))))));
    } else parts.unshift(html("p", {}, "The mean of all final vectors moves by ", html("span", { class: "number strong", "data-sentence": "" }, precise(changed.sentence)), " (1 − cosine)."));
    after.replaceChildren(...parts);
  }

  return { element: body, update, leave: () => running.abort() };
}

/** Three digits that say something, however small. @param {number} value */
function precise(value) {
  return value >= 0.001 || value === 0 ? number(value, 4) : value.toExponential(1).replace("e-", "·10⁻").replace(/⁻(\d+)/, (_, digits) => `⁻${[...digits].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("")}`);
}
