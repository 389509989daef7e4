// The worked example, to edit cell by cell, and the audit of its printed numbers.

import { html, number } from "../../views/page/assets/dom.js";
import { requestJson } from "./api.js";

/** @type {Record<string, string>} */
const NAMES = { x: "X", w_query: "W_Q", w_key: "W_K", w_value: "W_V" };

/** @param {import("./main.js").App} app */
export function createWorked(app) {
  const inputs = html("div", { class: "matrices" });
  const results = html("div", { class: "matrices" });
  const mismatchList = html("div", { class: "mismatches", "aria-live": "polite" });
  const reset = html("button", { type: "button", class: "chip", click: () => { edited = {}; load(true); } }, "Reset");
  const element = html("section", { class: "card worked" },
    html("div", { class: "card-head" }, html("h3", {}, "A worked example: “I love apple phones”"), html("p", {}, "change any number and follow it through"), reset),
    inputs, results, mismatchList);
  /** @type {Record<string, number[][]>} */
  let edited = {};
  let loaded = false;
  let timer = 0;
  let newest = 0; // id of the newest request

  async function load(/** @type {boolean} */ rebuildInputs) {
    newest += 1;
    const id = newest;
    try {
      const { tokens, tables, steps, mismatches } = await requestJson("/api/worked", edited);
      if (id !== newest) return;
      if (rebuildInputs) inputs.replaceChildren(...Object.keys(NAMES).map((name) => inputTable(NAMES[name], name === "x" ? tokens : [], tables[name], (i, j, value) => change(name, tables[name], i, j, value))));
      results.replaceChildren(...steps.filter((/** @type {any} */ step) => !(step.name in NAMES)).map((/** @type {any} */ step) => {
        const wrong = new Set(mismatches.filter((/** @type {any} */ mismatch) => mismatch.step === step.name).map((/** @type {any} */ mismatch) => `${mismatch.token} ${mismatch.column}`));
        return resultTable(step, tokens, wrong);
      }));
      mismatchList.replaceChildren(html("p", { class: "hint" }, mismatches.length
        ? `${mismatches.length} numbers printed in the document do not follow from X, the matrices and the numbers printed before them:`
        : "Every printed number follows from those before it."),
      html("ul", {}, ...mismatches.map((/** @type {any} */ mismatch) => html("li", {}, mismatch.text))));
      element.dataset.drawn = String(id);
    } catch (error) {
      app.fail(error);
    }
  }

  /** @param {string} name @param {number[][]} rows @param {number} i @param {number} j @param {number} value */
  function change(name, rows, i, j, value) {
    edited[name] ??= rows.map((row) => [...row]);
    edited[name][i][j] = value;
    clearTimeout(timer);
    timer = setTimeout(() => load(false), 120);
  }

  return { element, open: () => { if (!loaded) { loaded = true; load(true); } } };
}

/** @param {string} name @param {string[]} labels @param {number[][]} rows @param {(i: number, j: number, value: number) => void} change */
function inputTable(name, labels, rows, change) {
  return html("figure", { class: "matrix-box" }, html("figcaption", {}, html("h4", {}, name)),
    html("table", { class: "edit" }, html("tbody", {}, ...rows.map((row, i) => html("tr", {},
      labels.length ? html("th", { scope: "row" }, labels[i]) : "",
      ...row.map((value, j) => {
        const input = /** @type {HTMLInputElement} */ (html("input", {
          type: "number", step: "any", value: String(value), "aria-label": `${name}, row ${i + 1}, column ${j + 1}`,
          input: () => { if (input.value !== "" && Number.isFinite(Number(input.value)) && Math.abs(Number(input.value)) <= 1e6) change(i, j, Number(input.value)); },
        }));
        return html("td", {}, input);
      }))))));
}

/** @param {any} step @param {string[]} tokens @param {Set<string>} wrong */
function resultTable(step, tokens, wrong) {
  return html("figure", { class: "matrix-box", "data-step": step.name }, html("figcaption", {}, html("h4", {}, step.name), html("p", { class: "formula" }, step.formula)),
    html("table", { class: "edit" },
      html("thead", {}, html("tr", {}, html("th", {}), ...step.columns.map((/** @type {string} */ column) => html("th", { scope: "col" }, column)))),
      html("tbody", {}, ...step.table.map((/** @type {number[]} */ row, /** @type {number} */ i) => html("tr", {}, html("th", { scope: "row" }, tokens[i]),
        ...row.map((value, j) => {
          const column = ["scores", "weights", "scaled"].includes(step.name) ? step.columns[j] : String(j + 1);
          const mismatch = wrong.has(`${tokens[i]} ${column}`);
          return html("td", { class: `number${mismatch ? " mismatch" : ""}`, title: mismatch ? "the document prints a different number" : null }, number(value, 3));
        }))))));
}
