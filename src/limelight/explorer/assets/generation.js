// A continuation token by token: the candidates for each new token, and what it attended to.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { colour, height, textOn } from "../../views/page/assets/scale.js";
import { requestEvents } from "./api.js";
import { bar } from "./bars.js";

/**
 * @typedef {object} NewToken
 * @property {number} id
 * @property {string} text
 * @property {string} label
 * @property {number} probability
 * @property {{ id: number, text: string, label: string, p: number }[]} candidates
 * @property {{ mean: number[], heads: [number, number, number, number][] }} attended
 */

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const go = html("button", { type: "button", class: "chip strong-chip", click: () => generate(newTokens.map(({ id }) => id)) }, "Continue");
  const stop = html("button", { type: "button", class: "chip", hidden: true, click: () => running.abort() }, "Stop");
  const restart = html("button", { type: "button", class: "chip", click: () => { running.abort(); newTokens = []; chosen = null; draw(); } }, "Start over");
  const adopt = html("button", { type: "button", class: "chip", title: "Show prompt and continuation as one text in every panel", click: () => app.open({ text: store.get().text + newTokens.map(({ text }) => text).join(""), panel: "attention" }) }, "Look at the whole text");
  const temperature = /** @type {HTMLInputElement} */ (html("input", { type: "range", min: 0, max: 1.5, step: 0.1, value: 0, id: "generation-temperature", input: () => { shownTemperature.textContent = number(Number(temperature.value), 1); } }));
  const shownTemperature = html("output", { for: "generation-temperature", class: "number" }, "0.0");
  const text = html("div", { class: "sentence written", "aria-label": "Prompt and continuation", "aria-live": "polite" });
  const candidates = html("div", { class: "candidates" });
  const attention = html("div", {});
  const note = html("p", { class: "notice", hidden: true });
  const body = html("div", { class: "generation" }, note,
    html("div", { class: "grid-tools" }, go, stop, restart, adopt, html("label", { for: "generation-temperature" }, "Temperature "), temperature, shownTemperature),
    text,
    html("div", { class: "grid" },
      html("section", { class: "card", "aria-label": "Next token" }, html("h3", {}, "Next-token probabilities"), html("p", { class: "hint" }, "click another token to continue from it"), candidates),
      html("section", { class: "card", "aria-label": "Attended" }, html("h3", {}, "What it attended to"), attention)));
  let running = new AbortController();
  /** @type {string[]} */
  let prompt = [];
  /** @type {NewToken[]} */
  let newTokens = [];
  /** @type {number | null} */
  let chosen = null;
  let promptKey = ""; // model and text that are continued

  /** @param {import("./state.js").PageState} state */
  function update(state) {
    const { text: current } = app;
    if (!current) return;
    const decoder = current.spec.kind === "decoder";
    note.hidden = decoder;
    go.toggleAttribute("disabled", !decoder);
    if (!decoder) {
      const others = app.config.models.filter((/** @type {string} */ name) => name !== state.model);
      note.replaceChildren(`${state.model} does not generate text. `, ...others.map((/** @type {string} */ name) => html("button", {
        type: "button", class: "chip", click: () => app.open({ model: name }),
      }, `Use ${name}`)));
    }
    const key = `${state.model} ${state.text}`;
    if (key !== promptKey) {
      running.abort();
      promptKey = key;
      newTokens = [];
      chosen = null;
      prompt = current.spec.queries.labels; // until the server sends the labels of the prompt it continues
    }
    draw();
  }

  /** @param {number[]} after ids of the tokens after the prompt */
  async function generate(after) {
    running.abort();
    running = new AbortController();
    const controller = running;
    stop.hidden = false;
    const { request } = /** @type {import("./text.js").ReadText} */ (app.text);
    try {
      for await (const event of requestEvents("/api/generate", { ...request, after, max_tokens: 24, temperature: Number(temperature.value), seed: Math.floor(Math.random() * 1e9) }, controller.signal)) {
        if (controller.signal.aborted) return;
        if (event.prompt) prompt = event.prompt.slice(0, event.prompt.length - after.length);
        else if (event.id !== undefined) { newTokens.push(event); chosen = newTokens.length - 1; draw(); }
        else if (event.done) app.say(event.done.why === "end" ? "The model ended its text." : `${event.done.ids.length} tokens generated.`);
      }
      body.dataset.drawn = String(newTokens.length);
    } catch (error) {
      app.fail(error);
    } finally {
      if (controller === running) stop.hidden = true;
    }
  }

  function draw() {
    const palette = app.palette();
    const current = chosen === null ? null : newTokens[chosen];
    const weights = current?.attended.mean ?? [];
    const shade = (/** @type {HTMLElement} */ button, /** @type {number} */ position) => {
      // the first token draws so much weight that it would hide the others
      const part = position === 0 ? 0 : height(weights[position] ?? 0, Math.max(0.05, ...weights.slice(1)), store.get().log);
      if (part > 0.04) { button.style.backgroundColor = colour(palette, part); button.style.color = textOn(palette, part); }
      return button;
    };
    text.replaceChildren(
      ...prompt.map((label, k) => shade(html("button", { type: "button", class: "token" }, shorten(label, 30)), k)),
      ...newTokens.map(({ label, probability }, k) => {
        const button = html("button", { type: "button", class: `token new${k === chosen ? " query" : ""}`, title: `probability ${number(probability)}`, click: () => { chosen = k; draw(); } }, shorten(label, 30));
        return k === chosen ? button : shade(button, prompt.length + k);
      }));
    adopt.hidden = restart.hidden = newTokens.length === 0;
    candidates.replaceChildren(...(current?.candidates ?? []).map((candidate) => html("button", {
      type: "button", class: "candidate", "aria-pressed": String(candidate.id === current?.id), "aria-label": `${candidate.label} ${number(candidate.p)}: continue from it`,
      click: () => branch(candidate),
    }, html("span", { class: "candidate-name" }, shorten(candidate.label, 24)), bar(candidate.p), html("span", { class: "number" }, number(candidate.p)))));
    attention.replaceChildren(...attended(current));
  }

  /** Replaces the chosen token by another candidate and continues from it. @param {NewToken["candidates"][number]} candidate */
  function branch({ p, ...candidate }) {
    const replaced = newTokens[chosen ?? 0];
    newTokens = [...newTokens.slice(0, chosen ?? 0), { ...replaced, ...candidate, probability: p }];
    chosen = newTokens.length - 1;
    draw();
    generate(newTokens.map((token) => token.id));
  }

  /** @param {NewToken | null} token */
  function attended(token) {
    if (!token) return [html("p", { class: "hint" }, "Continue the text, then click a new token.")];
    const labels = [...prompt, ...newTokens.map(({ label }) => label)];
    const strongest = token.attended.mean.map((weight, key) => ({ weight, key })).sort((a, b) => b.weight - a.weight).slice(0, 7);
    const sharpHeads = token.attended.heads.filter(([, , key]) => key !== 0).sort((a, b) => b[3] - a[3]).slice(0, 6);
    return [
      html("p", { class: "hint" }, "mean over all heads of all layers, when this token was generated"),
      html("table", { class: "small-table" }, html("tbody", {}, ...strongest.map(({ weight, key }) => html("tr", {},
        html("th", { scope: "row" }, html("bdi", {}, shorten(labels[key] ?? "", 20)), html("sub", {}, String(key))), html("td", { class: "bar-cell" }, bar(weight)), html("td", { class: "number strong" }, number(weight)))))),
      html("p", { class: "hint" }, "heads with the strongest link beyond the first token"),
      html("div", { class: "chips" }, ...sharpHeads.map(([layer, head, key, weight]) => html("span", { class: "chip" }, `${layer}.${head} → ${shorten(labels[key] ?? "", 14)} ${number(weight)}`))),
    ];
  }

  return { element: body, update, leave: () => running.abort() };
}
