// The worked example of the documents, to edit cell by cell, with the audit of its print beside it.

import { html, number } from "../../views/page/assets/dom.js";
import { requestJson } from "./api.js";

/** @type {Record<string, string>} */
const NAMES = { x: "X", w_query: "W_Q", w_key: "W_K", w_value: "W_V" };

/** @param {import("./main.js").App} app */
export function createWorked(app) {
  const inputs = html("div", { class: "matrices" });
  const results = html("div", { class: "matrices" });
  const slips = html("div", { class: "slips", "aria-live": "polite" });
  const reset = html("button", { type: "button", class: "chip", click: () => { edited = {}; load(true); } }, "As printed");
  const element = html("section", { class: "card worked" },
    html("div", { class: "card-head" }, html("h3", {}, "A worked example: “I love apple phones”"), html("p", {}, "change any number and follow it through"), reset),
    inputs, results, slips);
  /** @type {Record<string, number[][]>} */
  let edited = {};
  let opened = false;
  let later = 0;
  let turn = 0;

  async function load(/** @type {boolean} */ fresh) {
    turn += 1;
    const mine = turn;
    try {
      const found = await requestJson("/api/worked", edited);
      if (mine !== turn) return;
      if (fresh) inputs.replaceChildren(...Object.keys(NAMES).map((name) => table(NAMES[name], name === "x" ? found.tokens : [], found.tables[name], (i, j, value) => change(name, found.tables[name], i, j, value))));
      results.replaceChildren(...found.steps.filter((/** @type {any} */ step) => !(step.name in NAMES)).map((/** @type {any} */ step) => {
        const wrong = new Set(found.mismatches.filter((/** @type {any} */ slip) => slip.step === step.name).map((/** @type {any} */ slip) => `${slip.token} ${slip.column}`));
        return result(step, found.tokens, wrong);
      }));
      slips.replaceChildren(html("p", { class: "hint" }, found.mismatches.length
        ? `${found.mismatches.length} numbers printed in the document do not follow from X, the matrices and what is printed before them:`
        : "Every printed number follows."),
      html("ul", {}, ...found.mismatches.map((/** @type {any} */ slip) => html("li", {}, slip.text))));
      element.dataset.drawn = String(mine);
    } catch (error) {
      app.fail(error);
    }
  }

  /** @param {string} name @param {number[][]} rows @param {number} i @param {number} j @param {number} value */
  function change(name, rows, i, j, value) {
    edited[name] ??= rows.map((row) => [...row]);
    edited[name][i][j] = value;
    clearTimeout(later);
    later = setTimeout(() => load(false), 120);
  }

  return { element, open: () => { if (!opened) { opened = true; load(true); } } };
}

/** @param {string} name @param {string[]} labels @param {number[][]} rows @param {(i: number, j: number, value: number) => void} change */
function table(name, labels, rows, change) {
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
function result(step, tokens, wrong) {
  return html("figure", { class: "matrix-box", "data-step": step.name }, html("figcaption", {}, html("h4", {}, step.name), html("p", { class: "formula" }, step.formula)),
    html("table", { class: "edit" },
      html("thead", {}, html("tr", {}, html("th", {}), ...step.columns.map((/** @type {string} */ column) => html("th", { scope: "col" }, column)))),
      html("tbody", {}, ...step.table.map((/** @type {number[]} */ row, /** @type {number} */ i) => html("tr", {}, html("th", { scope: "row" }, tokens[i]),
        ...row.map((value, j) => {
          const column = ["scores", "weights", "scaled"].includes(step.name) ? step.columns[j] : String(j + 1);
          const slip = wrong.has(`${tokens[i]} ${column}`);
          return html("td", { class: `number${slip ? " slip" : ""}`, title: slip ? "the document prints another number" : null }, number(value, 3));
        }))))));
}
