// A continuation token by token: what else might have come, and what each new token looked at.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { colour, height, textOn } from "../../views/page/assets/scale.js";
import { requestEvents } from "./api.js";

/**
 * @typedef {object} Written
 * @property {number} id
 * @property {string} text
 * @property {string} label
 * @property {number} probability
 * @property {{ id: number, text: string, p: number }[]} candidates
 * @property {{ mean: number[], heads: [number, number, number, number][] }} attended
 */

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const go = html("button", { type: "button", class: "chip strong-chip", click: () => write(written.map(({ id }) => id)) }, "Continue");
  const stop = html("button", { type: "button", class: "chip", hidden: true, click: () => running.abort() }, "Stop");
  const again = html("button", { type: "button", class: "chip", click: () => { running.abort(); written = []; chosen = null; draw(); } }, "Start over");
  const adopt = html("button", { type: "button", class: "chip", title: "Look at the whole text, prompt and continuation, in every panel", click: () => app.type({ text: store.get().text + written.map(({ text }) => text).join(""), panel: "attention" }) }, "Look at all of it");
  const temperature = /** @type {HTMLInputElement} */ (html("input", { type: "range", min: 0, max: 1.5, step: 0.1, value: 0, id: "heat", input: () => { heat.textContent = number(Number(temperature.value), 1); } }));
  const heat = html("output", { for: "heat", class: "number" }, "0.0");
  const text = html("div", { class: "sentence written", "aria-label": "Prompt and continuation", "aria-live": "polite" });
  const candidates = html("div", { class: "candidates" });
  const looked = html("div", {});
  const note = html("p", { class: "notice", hidden: true });
  const body = html("div", { class: "generation" }, note,
    html("div", { class: "grid-tools" }, go, stop, again, adopt, html("label", { for: "heat" }, "Temperature "), temperature, heat),
    text,
    html("div", { class: "grid" },
      html("section", { class: "card", "aria-label": "Next token" }, html("h3", {}, "Next-token probabilities"), html("p", { class: "hint" }, "click another token and go on from there"), candidates),
      html("section", { class: "card", "aria-label": "Attended" }, html("h3", {}, "What it attended to"), looked)));
  let running = new AbortController();
  /** @type {string[]} */
  let prompt = [];
  /** @type {Written[]} */
  let written = [];
  /** @type {number | null} */
  let chosen = null;
  let read = "";

  /** @param {import("./state.js").Chosen} state */
  function update(state) {
    const { text: current } = app;
    if (!current) return;
    const decoder = current.spec.kind === "decoder";
    note.hidden = decoder;
    go.toggleAttribute("disabled", !decoder);
    if (!decoder) {
      const others = app.config.models.filter((/** @type {string} */ name) => name !== state.model);
      note.replaceChildren(`${state.model} reads but does not write. `, ...others.map((/** @type {string} */ name) => html("button", {
        type: "button", class: "chip", click: () => app.type({ model: name }),
      }, `Write with ${name}`)));
    }
    const now = `${state.model} ${state.text}`;
    if (now !== read) {
      running.abort();
      read = now;
      written = [];
      chosen = null;
      prompt = current.spec.queries.labels;
    }
    draw();
  }

  /** @param {number[]} after */
  async function write(after) {
    running.abort();
    running = new AbortController();
    const mine = running;
    stop.hidden = false;
    const { model, text: words } = /** @type {import("./text.js").ReadText} */ (app.text).request;
    try {
      for await (const event of requestEvents("/api/generate", { model, text: words, after, max_tokens: 24, temperature: Number(temperature.value), seed: Math.floor(Math.random() * 1e9) }, mine.signal)) {
        if (mine.signal.aborted) return;
        if (event.prompt) prompt = event.prompt.slice(0, event.prompt.length - after.length);
        else if (event.id !== undefined) { written.push(event); chosen = written.length - 1; draw(); }
        else if (event.done) app.say(event.done.why === "end" ? "The model ended its text." : `${event.done.ids.length} tokens written.`);
      }
      body.dataset.drawn = String(written.length);
    } catch (error) {
      app.fail(error);
    } finally {
      if (mine === running) stop.hidden = true;
    }
  }

  function draw() {
    const palette = app.palette();
    const at = chosen === null ? null : written[chosen];
    const weights = at?.attended.mean ?? [];
    const token = (/** @type {string} */ label, /** @type {number} */ place, /** @type {number | null} */ mine) => {
      const button = html("button", { type: "button", class: `token${mine !== null ? " new" : ""}${mine !== null && mine === chosen ? " query" : ""}`, title: mine === null ? null : `probability ${number(written[mine].probability)}`, click: () => { if (mine !== null) { chosen = mine; draw(); } } }, shorten(label, 30));
      const part = place === 0 ? 0 : height(weights[place] ?? 0, Math.max(0.05, ...weights.slice(1)), store.get().log);
      if (part > 0.04 && mine !== chosen) { button.style.backgroundColor = colour(palette, part); button.style.color = textOn(palette, part); }
      return button;
    };
    text.replaceChildren(...prompt.map((label, k) => token(label, k, null)), ...written.map(({ label }, k) => token(label, prompt.length + k, k)));
    adopt.hidden = again.hidden = written.length === 0;
    go.textContent = written.length ? "Write on" : "Continue";
    candidates.replaceChildren(...(at?.candidates ?? []).map(({ id, text: label, p }) => {
      const fill = html("span", { class: "bar-fill" });
      fill.style.width = `${100 * p}%`;
      return html("button", {
        type: "button", class: "candidate", "aria-pressed": String(id === at?.id), "aria-label": `${label} ${number(p)}: go on from here`,
        click: () => branch(id),
      }, html("span", { class: "candidate-name" }, shorten(label, 24)), html("span", { class: "track" }, fill), html("span", { class: "number" }, number(p)));
    }));
    looked.replaceChildren(...attended(at));
  }

  /** @param {number} id */
  function branch(id) {
    const before = written.slice(0, chosen ?? 0);
    const { text: label } = /** @type {Written} */ (written[chosen ?? 0]).candidates.find((each) => each.id === id) ?? { text: "" };
    const here = written[chosen ?? 0];
    const p = here.candidates.find((each) => each.id === id)?.p ?? 0;
    written = [...before, { ...here, id, text: spaced(label, here), label, probability: p }];
    chosen = written.length - 1;
    draw();
    write(written.map((each) => each.id));
  }

  /** A candidate's text keeps the space that the drawn one had. @param {string} label @param {Written} here */
  const spaced = (label, here) => (here.text.startsWith(" ") && !label.startsWith(" ") ? ` ${label}` : label);

  /** @param {Written | null} at */
  function attended(at) {
    if (!at) return [html("p", { class: "hint" }, "Continue the text, then point at a new token.")];
    const labels = [...prompt, ...written.map(({ label }) => label)];
    const best = at.attended.mean.map((weight, place) => ({ weight, place })).sort((a, b) => b.weight - a.weight).slice(0, 7);
    const sharp = at.attended.heads.filter(([, , place]) => place !== 0).sort((a, b) => b[3] - a[3]).slice(0, 6);
    return [
      html("p", { class: "hint" }, "mean over all heads of all layers, when this token was chosen"),
      html("table", { class: "small-table" }, html("tbody", {}, ...best.map(({ weight, place }) => {
        const fill = html("span", { class: "bar-fill" });
        fill.style.width = `${100 * weight}%`;
        return html("tr", {}, html("th", { scope: "row" }, html("bdi", {}, shorten(labels[place] ?? "", 20)), html("sub", {}, String(place))), html("td", { class: "bar-cell" }, html("span", { class: "track" }, fill)), html("td", { class: "number strong" }, number(weight)));
      }))),
      html("p", { class: "hint" }, "heads with the strongest link beyond the first token"),
      html("div", { class: "movers" }, ...sharp.map(([layer, head, place, weight]) => html("span", { class: "chip" }, `${layer}.${head} → ${shorten(labels[place] ?? "", 14)} ${number(weight)}`))),
    ];
  }

  return { element: body, update, leave: () => running.abort() };
}
