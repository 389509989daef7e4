// What one head computes, as small matrices: point at a number to see where it came from.

import { html, number } from "../../views/page/assets/dom.js";
import { requestFrame } from "./api.js";
import { createMatrix } from "./matrix.js";
import { createWorked } from "./worked.js";

/** @typedef {import("./matrix.js").Shown} Shown */

// which numbers a cell at (row, column) came from
/** @type {Record<string, (row: number, column: number) => any>} */
const FROM = {
  Q: (/** @type {number} */ i, /** @type {number} */ j) => ({ X: { row: i }, W_Q: { column: j }, "Q unrotated": { row: i } }),
  "Q unrotated": (/** @type {number} */ i, /** @type {number} */ j) => ({ X: { row: i }, W_Q: { column: j } }),
  K: (/** @type {number} */ i, /** @type {number} */ j) => ({ X: { row: i }, W_K: { column: j }, "K unrotated": { row: i } }),
  "K unrotated": (/** @type {number} */ i, /** @type {number} */ j) => ({ X: { row: i }, W_K: { column: j } }),
  V: (/** @type {number} */ i, /** @type {number} */ j) => ({ X: { row: i }, W_V: { column: j } }),
  scores: (/** @type {number} */ i, /** @type {number} */ j) => ({ Q: { row: i }, K: { row: j } }),
  scaled: (/** @type {number} */ i, /** @type {number} */ j) => ({ scores: { row: i, column: j } }),
  masked: (/** @type {number} */ i, /** @type {number} */ j) => ({ scaled: { row: i, column: j }, mask: { row: i, column: j } }),
  weights: (/** @type {number} */ i) => ({ masked: { row: i } }),
  "weighted values": (/** @type {number} */ i, /** @type {number} */ j) => ({ weights: { row: i }, V: { column: j } }),
  concatenation: (/** @type {number} */ i) => ({ "weighted values": { row: i } }),
  output: (/** @type {number} */ i, /** @type {number} */ j) => ({ concatenation: { row: i }, W_O: { column: j } }),
};
const GROUPS = [
  ["Input and learned matrices", ["X", "W_Q", "W_K", "W_V"]],
  ["Query, key, value", ["Q unrotated", "K unrotated", "Q", "K", "V"]],
  ["Scores and weights", ["scores", "scaled", "bias", "position bias", "mask", "masked", "weights"]],
  ["Weighted sum and output", ["weighted values", "concatenation", "W_O", "output"]],
];

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const temperature = /** @type {HTMLInputElement} */ (html("input", { type: "range", min: -2, max: 2, step: 0.05, value: 0, id: "temperature", input: () => live() }));
  const shownTemperature = html("output", { for: "temperature", class: "number" }, "1.00");
  const mask = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Mask", change: () => live() },
    html("option", { value: "own" }, "the model's own"), html("option", { value: "none" }, "none"), html("option", { value: "causal" }, "causal: no look ahead")));
  const reset = html("button", { type: "button", class: "chip", click: () => { temperature.value = "0"; mask.value = "own"; live(); } }, "As the model has it");
  const story = html("p", { class: "story numbers", "aria-live": "polite" });
  const flow = html("div", { class: "flow" });
  const worked = createWorked(app);
  const body = html("div", { class: "steps-panel" },
    html("div", { class: "grid-tools" },
      html("label", { for: "temperature" }, "Temperature "), temperature, shownTemperature,
      html("label", {}, "Mask ", mask), reset),
    story, flow, worked.element);
  /** @type {Record<string, ReturnType<typeof createMatrix>>} */
  let boxes = {};
  /** @type {Record<string, Shown> | null} */
  let own = null;
  /** @type {any} */
  let about = null;
  let key = "";
  let turn = 0;

  /** @param {import("./state.js").Chosen} state @param {import("./state.js").Chosen | null} before */
  async function update(state, before) {
    const { text } = app;
    if (!text) return;
    worked.open();
    const request = { ...text.request, layer: text.spec.layers[state.layer], head: text.spec.heads[state.head] };
    const now = JSON.stringify(request);
    turn += 1; // what is still awaited is of another choice
    if (now !== key) {
      const mine = turn;
      try {
        const frame = await requestFrame("/api/steps", request);
        if (mine !== turn) return;
        key = now;
        about = frame.header;
        own = Object.fromEntries(Object.entries(frame.arrays).map(([name, { shape, values }]) => [name, {
          rows: shape.length > 1 ? shape[0] : 1, columns: shape[shape.length - 1], values: /** @type {Float32Array} */ (values),
        }]));
        build();
      } catch (error) {
        key = "";
        flow.replaceChildren(html("p", { class: "notice" }, error instanceof Error ? error.message : String(error)));
        return;
      }
    }
    if (!before || state.locked !== before.locked || state.scheme !== before.scheme || state.systemDark !== before.systemDark || now !== key) {
      for (const box of Object.values(boxes)) box.draw();
      showStory();
    }
    body.dataset.drawn = key ? `${request.layer}.${request.head}` : "";
  }

  function build() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const steps = Object.fromEntries(about.steps.map((/** @type {any} */ step) => [step.name, step]));
    boxes = {};
    const made = (/** @type {string} */ name) => {
      const { axes, formula } = steps[name];
      const labels = (/** @type {string} */ letter) => (letter === "i" ? spec.queries.labels : letter === "j" ? spec.keys.labels : null);
      const [row, column] = axes.split(" ");
      boxes[name] = createMatrix(app, {
        name, formula, kind: name === "weights" || name === "mask" ? "weights" : "signed",
        rowLabels: labels(row), columnLabels: column ? labels(column) : null,
        point: (i, j) => point(name, i, j), leave: () => leave(),
      });
      boxes[name].show(/** @type {Record<string, Shown>} */ (own)[name]);
      return boxes[name].element;
    };
    flow.replaceChildren(...GROUPS.map(([title, names]) => html("section", { class: "card flow-group" },
      html("h3", {}, String(title)), html("div", { class: "matrices" }, .../** @type {string[]} */ (names).filter((name) => steps[name]).map(made)))),
      about.missing ? html("p", { class: "hint" }, about.missing) : "");
    live();
  }

  /** Everything after the scores, with the temperature and the mask that are chosen. */
  function live() {
    if (!own?.scores) return;
    const heat = 10 ** Number(temperature.value);
    shownTemperature.textContent = number(heat, 2);
    const asOwn = heat === 1 && mask.value === "own";
    if (asOwn) {
      for (const name of ["scaled", "masked", "weights", "weighted values", "concatenation", "output"]) if (boxes[name]) boxes[name].show(own[name], formulaOf(name));
      showStory();
      return;
    }
    const { rows, columns } = own.scores;
    const scaled = own.scores.values.map((value) => (value * about.scale) / heat);
    const masked = scaled.map((value, k) => {
      const [i, j] = [Math.floor(k / columns), k % columns];
      const capped = about.softcap ? about.softcap * Math.tanh(value / about.softcap) : value;
      const added = (own?.bias?.values[k] ?? 0) + (own?.["position bias"]?.values[k] ?? 0);
      const open = mask.value === "own" ? (own?.mask?.values[k] ?? 1) > 0 : mask.value === "none" || j <= i + columns - rows;
      return open ? capped + added : Number.NEGATIVE_INFINITY;
    });
    const weights = new Float32Array(rows * columns);
    for (let i = 0; i < rows; i += 1) {
      const row = masked.subarray(i * columns, (i + 1) * columns);
      const top = row.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
      if (top === Number.NEGATIVE_INFINITY) continue;
      const total = row.reduce((sum, value) => sum + Math.exp(value - top), 0);
      row.forEach((value, j) => { weights[i * columns + j] = Math.exp(value - top) / total; });
    }
    const size = own.V.columns;
    const mixed = new Float32Array(rows * size);
    for (let i = 0; i < rows; i += 1) {
      for (let j = 0; j < columns; j += 1) {
        for (let c = 0; c < size; c += 1) mixed[i * size + c] += weights[i * columns + j] * /** @type {Record<string, Shown>} */ (own).V.values[j * size + c];
      }
    }
    boxes.scaled?.show({ rows, columns, values: scaled }, `scores · ${number(about.scale, 4)} / ${number(heat, 2)}`);
    boxes.masked?.show({ rows, columns, values: masked }, `${mask.options[mask.selectedIndex].text}`);
    boxes.weights?.show({ rows, columns, values: weights });
    boxes["weighted values"]?.show({ rows, columns: size, values: mixed });
    rejoin(rows, size, mixed);
    showStory();
  }

  /** The other heads stay as they are: this head's part of the joined heads and of the output changes. */
  function rejoin(/** @type {number} */ rows, /** @type {number} */ size, /** @type {Float32Array} */ mixed) {
    const { concatenation, output, W_O: last } = /** @type {Record<string, Shown>} */ (own);
    if (!concatenation || !boxes.concatenation) return;
    const first = about.position * size;
    const joined = concatenation.values.slice();
    const given = output ? output.values.slice() : null;
    for (let i = 0; i < rows; i += 1) {
      for (let c = 0; c < size; c += 1) {
        const at = i * concatenation.columns + first + c;
        const change = mixed[i * size + c] - joined[at];
        joined[at] = mixed[i * size + c];
        if (given && last && output) for (let k = 0; k < output.columns; k += 1) given[i * output.columns + k] += change * last.values[(first + c) * last.columns + k];
      }
    }
    boxes.concatenation.show({ ...concatenation, values: joined });
    if (given && last && output) boxes.output?.show({ ...output, values: given });
  }

  const formulaOf = (/** @type {string} */ name) => about.steps.find((/** @type {any} */ step) => step.name === name).formula;

  /** @param {string} name @param {number} row @param {number} column */
  function point(name, row, column) {
    const from = FROM[name]?.(row, column) ?? {};
    for (const [other, box] of Object.entries(boxes)) {
      const place = from[other];
      box.mark(other === name ? [{ row, column }] : place ? [place] : []);
    }
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const axes = about.steps.find((/** @type {any} */ step) => step.name === name).axes.split(" ");
    const label = (/** @type {string} */ letter, /** @type {number} */ k) => (letter === "i" ? spec.queries.labels[k] : letter === "j" ? spec.keys.labels[k] : String(k));
    const value = boxes[name].at(row, column);
    story.replaceChildren(html("strong", {}, `${name}[${label(axes[0], row)}${axes[1] ? `, ${label(axes[1], column)}` : ""}]`),
      " = ", html("span", { class: "number strong" }, Number.isFinite(value) ? number(value, 4) : "−∞"), "   ", html("span", { class: "hint" }, came(name, row, column)));
  }

  /** In numbers how a cell came about. @param {string} name @param {number} i @param {number} j */
  function came(name, i, j) {
    const at = (/** @type {string} */ box, /** @type {number} */ r, /** @type {number} */ c) => boxes[box].at(r, c);
    if (name === "scores") return `${boxes.Q.shown.columns} products of query and key added: ${number(at("Q", i, 0), 2)}·${number(at("K", j, 0), 2)} + ${number(at("Q", i, 1), 2)}·${number(at("K", j, 1), 2)} + …`;
    if (name === "scaled") return `${number(at("scores", i, j), 3)} × ${number(boxes.scaled.at(i, j) / (at("scores", i, j) || 1), 4)}`;
    if (name === "weights") return `e^${number(at("masked", i, j), 3)} / Σ of the row; the row sums to ${number(sum(i), 3)}`;
    if (name === "weighted values") return `${number(at("weights", i, 0), 3)}·${number(at("V", 0, j), 2)} + ${number(at("weights", i, 1), 3)}·${number(at("V", 1, j), 2)} + …`;
    return about.steps.find((/** @type {any} */ step) => step.name === name).formula;
  }

  const sum = (/** @type {number} */ row) => boxes.weights.shown.values.subarray(row * boxes.weights.shown.columns, (row + 1) * boxes.weights.shown.columns).reduce((a, b) => a + b, 0);

  function leave() {
    for (const box of Object.values(boxes)) box.mark([]);
    showStory();
  }

  function showStory() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const row = store.get().locked ?? spec.choice.query;
    if (!boxes.weights || row >= boxes.weights.shown.rows) return;
    const weights = boxes.weights.shown.values.subarray(row * boxes.weights.shown.columns, (row + 1) * boxes.weights.shown.columns);
    const best = weights.indexOf(Math.max(...weights));
    story.replaceChildren(html("bdi", { class: "query-name" }, spec.queries.labels[row]), " matches ", html("bdi", { class: "key-name" }, spec.keys.labels[best]),
      ` best: score ${number(boxes.scores.at(row, best), 2)}, scaled ${number(boxes.scaled.at(row, best), 2)}, weight `, html("span", { class: "number strong", "data-weight": "" }, number(weights[best])),
      html("span", { class: "hint" }, "   Point at any number to see where it came from."));
  }

  return { element: body, update };
}
