// The computation of one head as small matrices: point at a number to see what it depends on.

import { html, number } from "../../views/page/assets/dom.js";
import { requestFrame } from "./api.js";
import { createMatrix } from "./matrix.js";
import { createWorked } from "./worked.js";

/** @typedef {import("./matrix.js").MatrixData} MatrixData */

// the rows, columns and cells of other matrices that a cell at (i, j) depends on
/** @type {Record<string, (row: number, column: number) => any>} */
const DEPENDENCIES = {
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
  const temperature = /** @type {HTMLInputElement} */ (html("input", { type: "range", min: -2, max: 2, step: 0.05, value: 0, id: "temperature", input: () => recompute() }));
  const shownTemperature = html("output", { for: "temperature", class: "number" }, "1.00");
  const mask = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Mask", change: () => recompute() },
    html("option", { value: "own" }, "the model's own"), html("option", { value: "none" }, "none"), html("option", { value: "causal" }, "causal: no looking ahead")));
  const reset = html("button", { type: "button", class: "chip", click: () => { temperature.value = "0"; mask.value = "own"; recompute(); } }, "Reset");
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
  /** @type {Record<string, MatrixData> | null} the model's own matrices */
  let own = null;
  /** @type {any} */
  let header = null;
  let requestKey = "";
  let newest = 0; // id of the newest update

  /** @param {import("./state.js").PageState} state @param {import("./state.js").PageState | null} before */
  async function update(state, before) {
    const { text } = app;
    if (!text) return;
    worked.open();
    const request = { ...text.request, layer: text.spec.layers[state.layer], head: text.spec.heads[state.head] };
    const key = JSON.stringify(request);
    newest += 1; // supersedes a pending request
    if (key !== requestKey) {
      const id = newest;
      try {
        const frame = await requestFrame("/api/steps", request);
        if (id !== newest) return;
        requestKey = key;
        header = frame.header;
        own = Object.fromEntries(Object.entries(frame.arrays).map(([name, { shape, values }]) => [name, {
          rows: shape.length > 1 ? shape[0] : 1, columns: shape[shape.length - 1], values: /** @type {Float32Array} */ (values),
        }]));
        build();
      } catch (error) {
        if (id !== newest) return;
        requestKey = "";
        flow.replaceChildren(html("p", { class: "notice" }, error instanceof Error ? error.message : String(error)));
        return;
      }
    }
    if (!before || state.locked !== before.locked || state.scheme !== before.scheme || state.systemDark !== before.systemDark) {
      for (const box of Object.values(boxes)) box.draw();
      showStory();
    }
    body.dataset.drawn = `${request.layer}.${request.head}`;
  }

  function build() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    boxes = {};
    const box = (/** @type {string} */ name) => {
      const { axes, formula } = stepOf(name);
      const labels = (/** @type {string} */ letter) => (letter === "i" ? spec.queries.labels : letter === "j" ? spec.keys.labels : null);
      const [row, column] = axes.split(" ");
      boxes[name] = createMatrix(app, {
        name, formula, kind: name === "weights" || name === "mask" ? "weights" : "signed",
        rowLabels: labels(row), columnLabels: column ? labels(column) : null,
        point: (i, j) => point(name, i, j), leave: () => leave(),
      });
      boxes[name].show(/** @type {Record<string, MatrixData>} */ (own)[name]);
      return boxes[name].element;
    };
    flow.replaceChildren(...GROUPS.map(([title, names]) => html("section", { class: "card flow-group" },
      html("h3", {}, String(title)), html("div", { class: "matrices" }, .../** @type {string[]} */ (names).filter(stepOf).map(box)))),
      header.missing ? html("p", { class: "hint" }, header.missing) : "");
    recompute();
  }

  const stepOf = (/** @type {string} */ name) => header.steps.find((/** @type {any} */ step) => step.name === name);

  /** Shows everything after the scores, with the chosen temperature and mask. */
  function recompute() {
    if (!own?.scores) return;
    const chosen = 10 ** Number(temperature.value);
    shownTemperature.textContent = number(chosen, 2);
    if (chosen === 1 && mask.value === "own") {
      for (const name of ["scaled", "masked", "weights", "weighted values", "concatenation", "output"]) if (boxes[name]) boxes[name].show(own[name], stepOf(name).formula);
      showStory();
      return;
    }
    const { rows, columns } = own.scores;
    const scaled = own.scores.values.map((value) => (value * header.scale) / chosen);
    const masked = maskedScores(own, scaled);
    const weights = softmax(masked, rows, columns);
    const values = weightedValues(weights, own.V, rows);
    boxes.scaled?.show({ rows, columns, values: scaled }, `scores · ${number(header.scale, 4)} / ${number(chosen, 2)}`);
    boxes.masked?.show({ rows, columns, values: masked }, `${mask.options[mask.selectedIndex].text}`);
    boxes.weights?.show({ rows, columns, values: weights });
    boxes["weighted values"]?.show({ rows, columns: own.V.columns, values });
    showOutput(own, rows, values);
    showStory();
  }

  /** Softcap, then biases, then the chosen mask. @param {Record<string, MatrixData>} matrices @param {Float32Array} scaled */
  function maskedScores({ scores: { rows, columns }, bias, mask: ownMask, ...rest }, scaled) {
    const positionBias = rest["position bias"];
    return scaled.map((value, k) => {
      const [i, j] = [Math.floor(k / columns), k % columns];
      const capped = header.softcap ? header.softcap * Math.tanh(value / header.softcap) : value;
      const visible = mask.value === "own" ? (ownMask?.values[k] ?? 1) > 0 : mask.value === "none" || j <= i + columns - rows;
      return visible ? capped + (bias?.values[k] ?? 0) + (positionBias?.values[k] ?? 0) : Number.NEGATIVE_INFINITY;
    });
  }

  /** Replaces this head's part of the concatenation, and of the output; the other heads stay as they are. @param {Record<string, MatrixData>} matrices @param {number} rows @param {Float32Array} values */
  function showOutput({ V, concatenation, output, W_O }, rows, values) {
    if (!concatenation || !boxes.concatenation) return;
    const size = V.columns;
    const first = header.position * size;
    const joined = concatenation.values.slice();
    const projected = output && W_O ? output.values.slice() : null;
    for (let i = 0; i < rows; i += 1) {
      for (let c = 0; c < size; c += 1) {
        const index = i * concatenation.columns + first + c;
        const change = values[i * size + c] - joined[index];
        joined[index] = values[i * size + c];
        if (projected) for (let k = 0; k < output.columns; k += 1) projected[i * output.columns + k] += change * W_O.values[(first + c) * W_O.columns + k];
      }
    }
    boxes.concatenation.show({ ...concatenation, values: joined });
    if (projected) boxes.output?.show({ ...output, values: projected });
  }

  /** @param {string} name @param {number} row @param {number} column */
  function point(name, row, column) {
    const dependencies = DEPENDENCIES[name]?.(row, column) ?? {};
    for (const [other, box] of Object.entries(boxes)) {
      box.mark(other === name ? [{ row, column }] : other in dependencies ? [dependencies[other]] : []);
    }
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const axes = stepOf(name).axes.split(" ");
    const label = (/** @type {string} */ letter, /** @type {number} */ k) => (letter === "i" ? spec.queries.labels[k] : letter === "j" ? spec.keys.labels[k] : String(k));
    const value = boxes[name].at(row, column);
    story.replaceChildren(html("strong", {}, `${name}[${label(axes[0], row)}${axes[1] ? `, ${label(axes[1], column)}` : ""}]`),
      " = ", html("span", { class: "number strong" }, Number.isFinite(value) ? number(value, 4) : "−∞"), "   ", html("span", { class: "hint" }, calculation(name, row, column)));
  }

  /** How a cell is computed, in numbers. @param {string} name @param {number} i @param {number} j */
  function calculation(name, i, j) {
    const at = (/** @type {string} */ matrix, /** @type {number} */ row, /** @type {number} */ column) => boxes[matrix].at(row, column);
    if (name === "scores") return `sum of ${boxes.Q.shown.columns} products of query and key: ${number(at("Q", i, 0), 2)}·${number(at("K", j, 0), 2)} + ${number(at("Q", i, 1), 2)}·${number(at("K", j, 1), 2)} + …`;
    if (name === "scaled") return `${number(at("scores", i, j), 3)} × ${number(boxes.scaled.at(i, j) / (at("scores", i, j) || 1), 4)}`;
    if (name === "weights") return `e^${number(at("masked", i, j), 3)} / Σ of the row; the row sums to ${number(weightsRow(i).reduce((sum, weight) => sum + weight, 0), 3)}`;
    if (name === "weighted values") return `${number(at("weights", i, 0), 3)}·${number(at("V", 0, j), 2)} + ${number(at("weights", i, 1), 3)}·${number(at("V", 1, j), 2)} + …`;
    return stepOf(name).formula;
  }

  const weightsRow = (/** @type {number} */ row) => boxes.weights.shown.values.subarray(row * boxes.weights.shown.columns, (row + 1) * boxes.weights.shown.columns);

  function leave() {
    for (const box of Object.values(boxes)) box.mark([]);
    showStory();
  }

  function showStory() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const row = store.get().locked ?? spec.choice.query;
    if (!boxes.weights || row >= boxes.weights.shown.rows) return;
    const weights = weightsRow(row);
    const best = weights.indexOf(Math.max(...weights));
    story.replaceChildren(html("bdi", { class: "query-name" }, spec.queries.labels[row]), " matches ", html("bdi", { class: "key-name" }, spec.keys.labels[best]),
      ` best: score ${number(boxes.scores.at(row, best), 2)}, scaled ${number(boxes.scaled.at(row, best), 2)}, weight `, html("span", { class: "number strong", "data-weight": "" }, number(weights[best])),
      html("span", { class: "hint" }, "   Point at any number to see how it is computed."));
  }

  return { element: body, update };
}

/** The softmax of each row; zeros where everything is masked. @param {Float32Array} scores @param {number} rows @param {number} columns */
function softmax(scores, rows, columns) {
  const weights = new Float32Array(rows * columns);
  for (let i = 0; i < rows; i += 1) {
    const row = scores.subarray(i * columns, (i + 1) * columns);
    const max = row.reduce((a, b) => Math.max(a, b), Number.NEGATIVE_INFINITY);
    if (max === Number.NEGATIVE_INFINITY) continue;
    const total = row.reduce((sum, value) => sum + Math.exp(value - max), 0);
    row.forEach((value, j) => { weights[i * columns + j] = Math.exp(value - max) / total; });
  }
  return weights;
}

/** @param {Float32Array} weights @param {MatrixData} values @param {number} rows */
function weightedValues(weights, { rows: keys, columns, values }, rows) {
  const sums = new Float32Array(rows * columns);
  for (let i = 0; i < rows; i += 1) {
    for (let j = 0; j < keys; j += 1) {
      for (let c = 0; c < columns; c += 1) sums[i * columns + c] += weights[i * keys + j] * values[j * columns + c];
    }
  }
  return sums;
}
