// Two texts, two heads or two models side by side, with the difference in the middle.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { colour, height, signed, textOn } from "../../views/page/assets/scale.js";
import { requestFrame } from "./api.js";
import { bar } from "./bars.js";
import { ReadText } from "./text.js";

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store, config } = app;
  const other = /** @type {HTMLTextAreaElement} */ (html("textarea", {
    class: "type small", rows: 1, "aria-label": "The text to compare with", spellcheck: "false", maxlength: config.limits.characters,
    input: () => { clearTimeout(timer); timer = setTimeout(() => store.set({ other: other.value }), 80); },
  }));
  const model = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Model of the second text", change: () => store.set({ otherModel: model.value }) },
    ...config.models.map((/** @type {string} */ name) => html("option", { value: name }, name))));
  const layer = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Layer of the second text", change: () => choose() }));
  const head = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Head of the second text", change: () => choose() }));
  const story = html("p", { class: "story", "aria-live": "polite" });
  const left = html("section", { class: "card", "aria-label": "First" });
  const middle = html("section", { class: "card", "aria-label": "Difference" });
  const right = html("section", { class: "card", "aria-label": "Second" });
  const changedHeads = html("section", { class: "card", "aria-label": "Heads that change most" });
  const body = html("div", { class: "compare" },
    html("div", { class: "compare-with" }, html("span", { class: "hint" }, "Compare with"), other,
      html("div", { class: "choice" }, model, html("span", { class: "name" }, "layer"), layer, html("span", { class: "name" }, "head"), head)),
    story, html("div", { class: "thirds" }, left, middle, right), changedHeads);
  let timer = 0;
  /** @type {ReadText | null} */
  let secondText = null;
  /** @type {[number, number] | null} */
  let secondHead = null; // layer and head of the second text, once chosen; else those of the first
  let requestKey = ""; // of the second text
  let newestUpdate = 0;
  let newestDraw = 0;

  /** Makes the field as tall as its text. */
  function fit() {
    other.style.height = "auto";
    other.style.height = `${other.scrollHeight + 2}px`;
  }
  window.addEventListener("resize", fit);

  function choose() {
    secondHead = [layer.selectedIndex, head.selectedIndex];
    draw().catch(app.fail);
  }

  /** @param {import("./state.js").PageState} state */
  async function update(state) {
    const first = app.text;
    if (!first) return;
    const request = { model: state.otherModel || state.model, text: state.other || counterpart(state) };
    if (document.activeElement !== other) { other.value = request.text; fit(); }
    model.value = request.model;
    const key = JSON.stringify(request);
    newestUpdate += 1; // supersedes a pending request
    if (key !== requestKey) {
      const id = newestUpdate;
      try {
        const frame = await requestFrame("/api/look", request);
        if (id !== newestUpdate) return;
        const before = secondText;
        secondText = new ReadText(frame, request, config.colours);
        requestKey = key;
        if (!before || before.spec.layers.length !== secondText.spec.layers.length || before.spec.heads.length !== secondText.spec.heads.length) {
          layer.replaceChildren(...secondText.spec.layers.map((label) => html("option", {}, String(label))));
          head.replaceChildren(...secondText.spec.heads.map((label) => html("option", {}, String(label))));
          secondHead = null;
        }
      } catch (error) {
        app.fail(error);
        return;
      }
    }
    await draw().catch(app.fail);
  }

  /** The second text of an example, else the first text, for the user to edit. @param {import("./state.js").PageState} state */
  function counterpart(state) {
    return config.examples.find((/** @type {any} */ example) => example.text === state.text)?.other ?? state.text;
  }

  async function draw() {
    const [first, second, state] = [app.text, secondText, store.get()];
    if (!first || !second) return;
    newestDraw += 1;
    const id = newestDraw;
    if (!first.whole || !second.whole) {
      story.textContent = "Texts of more than 1,024 tokens cannot be compared: open them one at a time under Long text.";
      return;
    }
    const exists = secondHead && secondHead[0] < second.spec.layers.length && secondHead[1] < second.spec.heads.length;
    const chosen = exists && secondHead ? secondHead : /** @type {[number, number]} */ ([Math.min(state.layer, second.spec.layers.length - 1), Math.min(state.head, second.spec.heads.length - 1)]);
    [layer.selectedIndex, head.selectedIndex] = chosen;
    const heads = await Promise.all([first.head([[state.layer, state.head]], state), second.head([chosen], state)]);
    if (id !== newestDraw) return; // superseded
    const pairs = aligned(first.spec.queries.labels, second.spec.queries.labels);
    const row = state.locked !== null && pairs.some(([i]) => i === state.locked) ? state.locked : pairs.find(([i]) => !first.spec.keys.background.includes(i))?.[0] ?? 0;
    const secondRow = pairs.find(([i]) => i === row)?.[1] ?? 0;
    const [firstWeights, secondWeights] = heads.map(({ tokens }) => /** @type {any} */ (tokens));
    drawSide(left, "First", first, firstWeights, row, [state.layer, state.head], (token) => store.set({ locked: token }));
    drawSide(right, "Second", second, secondWeights, secondRow, chosen, (token) => {
      const pair = pairs.find(([, j]) => j === token);
      if (pair) store.set({ locked: pair[0] });
    });
    const changes = pairs.map(([i, j]) => ({ i, before: firstWeights.at(row, i), after: secondWeights.at(secondRow, j) }))
      .filter(({ i }) => state.background || !first.spec.keys.background.includes(i))
      .sort((x, y) => Math.abs(y.after - y.before) - Math.abs(x.after - x.before));
    drawDifference(changes.map(({ i, ...weights }) => ({ label: first.spec.keys.labels[i], ...weights })));
    const added = second.spec.queries.labels.filter((_, j) => !pairs.some(([, k]) => k === j));
    const [largest] = changes;
    story.replaceChildren(...(largest ? [
      "For ", html("bdi", { class: "query-name" }, first.spec.queries.labels[row]), ": ",
      html("bdi", { class: "key-name" }, first.spec.keys.labels[largest.i]), ` ${number(largest.before)} → ${number(largest.after)}`,
      added.length ? html("span", { class: "hint" }, `  ·  only in the second: ${added.slice(0, 6).join(" ")}`) : "",
    ] : ["The texts have no token in common."]));
    drawChangedHeads(first, second, row, secondRow, pairs);
    body.dataset.drawn = String(state.read);
  }

  /**
   * One text: its tokens coloured by the weights of a row, and the largest of these weights.
   * @param {HTMLElement} section
   * @param {string} title
   * @param {ReadText} text
   * @param {any} weights
   * @param {number} row
   * @param {[number, number]} head positions of layer and head
   * @param {(token: number) => void} select
   */
  function drawSide(section, title, { spec }, weights, row, [layerAt, headAt], select) {
    const state = store.get();
    const palette = app.palette();
    const hidden = (/** @type {number} */ token) => !state.background && spec.keys.background.includes(token);
    const tokens = spec.queries.labels.map((label, token) => {
      const button = html("button", {
        type: "button", class: `token${token === row ? " query" : ""}`, "aria-label": `${label} ${number(weights.at(row, token))}`, click: () => select(token),
      }, shorten(label, 30));
      const part = hidden(token) ? 0 : height(weights.at(row, token), 1, state.log);
      if (part > 0.01) { button.style.backgroundColor = colour(palette, part); button.style.color = textOn(palette, part); }
      return button;
    });
    section.replaceChildren(
      html("h3", {}, title),
      html("p", { class: "hint" }, `${spec.model} · layer ${spec.layers[layerAt]} head ${spec.heads[headAt]}`),
      html("div", { class: "sentence small" }, ...tokens),
      bars([...weights.row(row)].map((value, token) => ({ label: spec.keys.labels[token], value, hidden: hidden(token) }))));
  }

  /** @param {{ label: string, before: number, after: number }[]} changes largest first */
  function drawDifference(changes) {
    const palette = app.palette();
    const largest = Math.max(1e-6, ...changes.map(({ before, after }) => Math.abs(after - before)));
    middle.replaceChildren(html("h3", {}, "Difference"), html("p", { class: "hint" }, "second − first, for tokens in both texts"),
      table(changes.slice(0, 10).map(({ label, before, after }) => {
        const change = after - before;
        const cell = html("span", { class: "delta" });
        cell.style.background = signed(palette, change / largest);
        return [shorten(label, 16), number(before), number(after), cell, `${change > 0 ? "+" : ""}${number(change)}`];
      })));
  }

  /**
   * The heads in which the row changes most, if both texts come from models of one shape.
   * @param {ReadText} first
   * @param {ReadText} second
   * @param {number} row
   * @param {number} secondRow
   * @param {number[][]} pairs
   */
  function drawChangedHeads(first, second, row, secondRow, pairs) {
    const state = store.get();
    const sameShape = first.spec.layers.length === second.spec.layers.length && first.spec.heads.length === second.spec.heads.length;
    changedHeads.hidden = !sameShape || !first.arrays.weights || !second.arrays.weights;
    if (changedHeads.hidden) return;
    const shown = pairs.filter(([i]) => state.background || !first.spec.keys.background.includes(i));
    const changes = first.spec.layers.flatMap((_, l) => first.spec.heads.map((__, h) => {
      const [a, b] = [first.slice(first.headIndex(l, h)), second.slice(second.headIndex(l, h))];
      const parts = shown.map(([i, j]) => ({ i, change: b.at(secondRow, j) - a.at(row, i) })).sort((x, y) => Math.abs(y.change) - Math.abs(x.change));
      return { l, h, total: parts.reduce((sum, { change }) => sum + Math.abs(change), 0) / 2, best: parts[0] };
    })).sort((x, y) => y.total - x.total).slice(0, 12);
    changedHeads.replaceChildren(html("h3", {}, "Heads that change most"),
      html("p", { class: "hint" }, "by the share of the token's weight that moves; click a head to compare it"),
      html("div", { class: "chips" }, ...changes.map(({ l, h, total, best }) => html("button", {
        type: "button", class: "chip", "aria-pressed": String(state.layer === l && state.head === h),
        click: () => { secondHead = null; store.set({ layer: l, head: h }); },
      }, html("strong", {}, `${first.spec.layers[l]}.${first.spec.heads[h]}`), ` ${number(total)}`,
        best ? html("span", { class: "hint" }, `  ${shorten(first.spec.keys.labels[best.i], 12)} ${best.change > 0 ? "+" : ""}${number(best.change)}`) : ""))));
  }

  return { element: body, update };
}

/** @param {{ label: string, value: number, hidden: boolean }[]} values */
function bars(values) {
  const best = values.filter(({ hidden }) => !hidden).sort((a, b) => b.value - a.value).slice(0, 5);
  return table(best.map(({ label, value }) => [shorten(label, 18), bar(value), number(value)]));
}

/** @param {(string | HTMLElement)[][]} rows */
function table(rows) {
  return html("table", { class: "small-table" }, html("tbody", {}, ...rows.map(([first, ...rest]) => html("tr", {},
    html("th", { scope: "row" }, html("bdi", {}, first)), ...rest.map((cell) => html("td", { class: typeof cell === "string" ? "number" : "bar-cell" }, cell))))));
}

/** The pairs of equal tokens of two texts, in order: their longest common subsequence. @param {string[]} a @param {string[]} b @returns {[number, number][]} */
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
