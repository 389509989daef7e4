// Two texts, two heads or two models side by side, with the difference in the middle.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { colour, height, signed, textOn } from "../../views/page/assets/scale.js";
import { requestFrame } from "./api.js";
import { ReadText } from "./text.js";

/** @typedef {import("./text.js").ReadText} Text */

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store, config } = app;
  const other = /** @type {HTMLTextAreaElement} */ (html("textarea", {
    class: "type small", rows: 1, "aria-label": "The text to compare with", spellcheck: "false", maxlength: config.limits.characters,
    input: () => { clearTimeout(later); later = setTimeout(() => store.set({ other: other.value }), 80); },
  }));
  const model = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Model of the second text", change: () => store.set({ otherModel: model.value }) },
    ...config.models.map((/** @type {string} */ name) => html("option", { value: name }, name))));
  const layer = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Layer of the second", change: () => choose() }));
  const head = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Head of the second", change: () => choose() }));
  const story = html("p", { class: "story", "aria-live": "polite" });
  const left = html("section", { class: "card", "aria-label": "First" });
  const middle = html("section", { class: "card", "aria-label": "Difference" });
  const right = html("section", { class: "card", "aria-label": "Second" });
  const most = html("section", { class: "card", "aria-label": "Heads that change most" });
  const body = html("div", { class: "compare" },
    html("div", { class: "compare-with" }, html("span", { class: "hint" }, "with"), other,
      html("div", { class: "choice" }, model, html("span", { class: "name" }, "layer"), layer, html("span", { class: "name" }, "head"), head)),
    story, html("div", { class: "thirds" }, left, middle, right), most);
  let later = 0;
  /** @type {Text | null} */
  let second = null;
  /** @type {[number, number] | null} */
  let place = null; // of the second; the first's where not chosen
  let key = "";
  let turn = 0;
  let draws = 0;

  function choose() {
    place = [layer.selectedIndex, head.selectedIndex];
    draw().catch(app.fail);
  }

  /** @param {import("./state.js").Chosen} state */
  async function update(state) {
    const first = app.text;
    if (!first) return;
    const wanted = { model: state.otherModel || state.model, text: state.other || sibling(state) };
    if (document.activeElement !== other) { other.value = wanted.text; other.style.height = "auto"; other.style.height = `${other.scrollHeight + 2}px`; }
    model.value = wanted.model;
    const now = JSON.stringify(wanted);
    turn += 1; // what is still awaited is of another choice
    if (now !== key) {
      const mine = turn;
      try {
        const frame = await requestFrame("/api/look", wanted);
        if (mine !== turn) return;
        const before = second;
        second = new ReadText(frame, wanted, config.colours);
        key = now;
        if (!before || before.spec.layers.length !== second.spec.layers.length || before.spec.heads.length !== second.spec.heads.length) {
          layer.replaceChildren(...second.spec.layers.map((each) => html("option", {}, String(each))));
          head.replaceChildren(...second.spec.heads.map((each) => html("option", {}, String(each))));
          place = null;
        }
      } catch (error) {
        app.fail(error);
        return;
      }
    }
    await draw().catch(app.fail);
  }

  /** The other half of an example, else the text itself with its last word changed by hand. @param {import("./state.js").Chosen} state */
  function sibling(state) {
    return config.examples.find((/** @type {any} */ example) => example.text === state.text)?.other ?? state.text;
  }

  async function draw() {
    const [first, state] = [app.text, store.get()];
    if (!first || !second) return;
    draws += 1;
    const mine = draws;
    if (!first.whole || !second.whole) {
      story.textContent = "Texts of more than 1,024 tokens are looked at one by one, as long texts.";
      return;
    }
    const inside = place && place[0] < second.spec.layers.length && place[1] < second.spec.heads.length;
    const at = inside && place ? place : /** @type {[number, number]} */ ([Math.min(state.layer, second.spec.layers.length - 1), Math.min(state.head, second.spec.heads.length - 1)]);
    [layer.selectedIndex, head.selectedIndex] = at;
    const [one, two] = await Promise.all([first.head([[state.layer, state.head]], state), second.head([at], state)]);
    if (mine !== draws) return; // stale: never drawn
    const pairs = aligned(first.spec.queries.labels, second.spec.queries.labels);
    const row = state.locked !== null && pairs.some(([i]) => i === state.locked) ? state.locked : pairs.find(([i]) => !first.spec.keys.background.includes(i))?.[0] ?? 0;
    const twin = pairs.find(([i]) => i === row)?.[1] ?? 0;
    const [a, b] = [/** @type {any} */ (one.tokens), /** @type {any} */ (two.tokens)];
    const weight = (/** @type {number} */ i, /** @type {number} */ j) => b.at(twin, j) - a.at(row, i);
    const changes = pairs.map(([i, j]) => ({ i, j, change: weight(i, j) })).filter(({ i }) => state.background || !first.spec.keys.background.includes(i));
    const largest = Math.max(1e-6, ...changes.map(({ change }) => Math.abs(change)));
    const palette = app.palette();
    const token = (/** @type {Text} */ text, /** @type {number} */ k, /** @type {number} */ asks, /** @type {number} */ value, /** @type {boolean} */ first_) => {
      const button = html("button", {
        type: "button", class: `token${k === asks ? " query" : ""}`, "aria-label": `${text.spec.queries.labels[k]} ${number(value)}`,
        click: () => { if (first_) store.set({ locked: k }); else { const back = pairs.find(([, j]) => j === k); if (back) store.set({ locked: back[0] }); } },
      }, shorten(text.spec.queries.labels[k], 30));
      const hidden = !state.background && text.spec.keys.background.includes(k);
      const part = hidden ? 0 : height(value, 1, state.log);
      if (part > 0.01) { button.style.backgroundColor = colour(palette, part); button.style.color = textOn(palette, part); }
      return button;
    };
    const side = (/** @type {HTMLElement} */ box, /** @type {string} */ title, /** @type {Text} */ text, /** @type {any} */ matrix, /** @type {number} */ asks, /** @type {[number, number]} */ where, /** @type {boolean} */ first_) => box.replaceChildren(
      html("h3", {}, title),
      html("p", { class: "hint" }, `${text.spec.model} · layer ${text.spec.layers[where[0]]} head ${text.spec.heads[where[1]]}`),
      html("div", { class: "sentence small" }, ...text.spec.queries.labels.map((_, k) => token(text, k, asks, matrix.at(asks, k), first_))),
      bars([...matrix.row(asks)].map((value, k) => ({ label: text.spec.keys.labels[k], value, hidden: !state.background && text.spec.keys.background.includes(k) }))));
    side(left, "First", first, a, row, [state.layer, state.head], true);
    side(right, "Second", second, b, twin, at, false);
    changes.sort((x, y) => Math.abs(y.change) - Math.abs(x.change));
    middle.replaceChildren(html("h3", {}, "Difference"), html("p", { class: "hint" }, "second − first, for tokens that both have"),
      table(changes.slice(0, 10).map(({ i, j, change }) => {
        const cell = html("span", { class: "delta" });
        cell.style.background = signed(palette, change / largest);
        return [shorten(first.spec.keys.labels[i], 16), number(a.at(row, i)), number(b.at(twin, j)), cell, `${change > 0 ? "+" : ""}${number(change)}`];
      })));
    const only = second.spec.queries.labels.filter((_, j) => !pairs.some(([, k]) => k === j));
    const top = changes[0];
    story.replaceChildren(...(top ? [
      "For ", html("bdi", { class: "query-name" }, first.spec.queries.labels[row]), ": ",
      html("bdi", { class: "key-name" }, first.spec.keys.labels[top.i]), ` ${number(a.at(row, top.i))} → ${number(b.at(twin, top.j))}`,
      only.length ? html("span", { class: "hint" }, `  ·  only in the second: ${only.slice(0, 6).join(" ")}`) : "",
    ] : ["The texts have no token in common."]));
    heads(first, second, row, twin, pairs, state);
    body.dataset.drawn = String(state.read);
  }

  /** The heads in which the row changes most, where both texts come from models of one shape. */
  function heads(/** @type {Text} */ first, /** @type {Text} */ two, /** @type {number} */ row, /** @type {number} */ twin, /** @type {number[][]} */ pairs, /** @type {import("./state.js").Chosen} */ state) {
    const alike = first.spec.layers.length === two.spec.layers.length && first.spec.heads.length === two.spec.heads.length;
    most.hidden = !alike || !first.arrays.weights || !two.arrays.weights;
    if (most.hidden) return;
    const kept = pairs.filter(([i]) => state.background || !first.spec.keys.background.includes(i));
    const changes = first.spec.layers.flatMap((_, l) => first.spec.heads.map((__, h) => {
      const [a, b] = [first.slice(first.place(l, h)), two.slice(two.place(l, h))];
      const parts = kept.map(([i, j]) => ({ i, change: b.at(twin, j) - a.at(row, i) })).sort((x, y) => Math.abs(y.change) - Math.abs(x.change));
      return { l, h, total: parts.reduce((sum, { change }) => sum + Math.abs(change), 0) / 2, best: parts[0] };
    })).sort((x, y) => y.total - x.total).slice(0, 12);
    most.replaceChildren(html("h3", {}, "Heads that change most"),
      html("p", { class: "hint" }, "the share of the weight that moves, over all heads; click to look at one"),
      html("div", { class: "movers" }, ...changes.map(({ l, h, total, best }) => html("button", {
        type: "button", class: "chip", "aria-pressed": String(state.layer === l && state.head === h),
        click: () => { place = null; store.set({ layer: l, head: h }); },
      }, html("strong", {}, `${first.spec.layers[l]}.${first.spec.heads[h]}`), ` ${number(total)}`,
        best ? html("span", { class: "hint" }, `  ${shorten(first.spec.keys.labels[best.i], 12)} ${best.change > 0 ? "+" : ""}${number(best.change)}`) : ""))));
  }

  return { element: body, update };
}

/** @param {{ label: string, value: number, hidden: boolean }[]} values */
function bars(values) {
  const best = values.filter(({ hidden }) => !hidden).sort((a, b) => b.value - a.value).slice(0, 5);
  return table(best.map(({ label, value }) => {
    const inner = html("span", { class: "bar-fill" });
    inner.style.width = `${Math.min(100, 100 * value)}%`;
    return [shorten(label, 18), html("span", { class: "track" }, inner), number(value)];
  }));
}

/** @param {(string | HTMLElement)[][]} rows */
function table(rows) {
  return html("table", { class: "small-table" }, html("tbody", {}, ...rows.map(([first, ...rest]) => html("tr", {},
    html("th", { scope: "row" }, html("bdi", {}, first)), ...rest.map((cell) => html("td", { class: typeof cell === "string" ? "number" : "bar-cell" }, cell))))));
}

/** Which token of one text is which of the other: the longest common subsequence. @param {string[]} a @param {string[]} b @returns {[number, number][]} */
function aligned(a, b) {
  const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      best[i][j] = a[i].toLowerCase() === b[j].toLowerCase() ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  /** @type {[number, number][]} */
  const pairs = [];
  for (let i = 0, j = 0; i < a.length && j < b.length;) {
    if (a[i].toLowerCase() === b[j].toLowerCase()) { pairs.push([i, j]); i += 1; j += 1; }
    else if (best[i + 1][j] >= best[i][j + 1]) i += 1;
    else j += 1;
  }
  return pairs;
}
