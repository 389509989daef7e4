// Reads a text or a picture on the server: the newest one wins, and a late response is dropped.

import { html } from "../../views/page/assets/dom.js";
import { requestEvents, requestFrame } from "./api.js";
import { ReadText } from "./text.js";

const SHORT = 4000; // characters of a text that is read without reporting progress

/** @typedef {import("./state.js").PageState} PageState */

/**
 * @param {import("./main.js").App} app
 * @param {HTMLElement} root marked as busy while a text is read
 * @param {{ isPinned: () => boolean, show: (text: ReadText, selection: Partial<PageState>) => void }} page isPinned: whether the head stays the same
 */
export function createReader(app, root, { isPinned, show }) {
  const progress = html("progress", { max: 1, "aria-label": "How much of the text is read" });
  const element = html("div", { class: "reading", hidden: true }, progress, html("button", { type: "button", class: "chip", click: () => cancel() }, "Cancel"));
  let running = new AbortController();
  let newest = 0; // id of the newest reading
  /** @type {Set<string>} */
  const loadedModels = new Set();

  /** @param {Partial<PageState>} change @param {import("./typing.js").Pixels | null} picture to read instead of a text */
  async function read(change, picture = null) {
    const state = { ...app.store.get(), ...change };
    newest += 1;
    const id = newest;
    running.abort();
    running = new AbortController();
    if (!picture && !state.text.trim()) { finish(); return; }
    root.setAttribute("aria-busy", "true");
    const began = performance.now();
    const request = { model: state.model, text: state.text };
    try {
      if (!picture && request.text.length > SHORT) await readLong(request, running.signal);
      if (id !== newest) return;
      if (!loadedModels.has(request.model)) app.say(`Loading ${request.model} …`);
      const frame = picture ? await requestFrame("/api/picture", { model: request.model, ...picture }, running.signal) : await requestFrame("/api/look", request, running.signal);
      loadedModels.add(request.model);
      if (picture) change.text = request.text = frame.header.text; // names the picture in later requests
      if (id !== newest) return;
      const text = new ReadText(frame, request, app.config.colours);
      show(text, { ...change, ...selection(app.text, text, state, change, isPinned()), read: id });
      app.say(summary(text, Math.round(performance.now() - began)));
      root.dataset.ready = String(id);
    } catch (error) {
      if (id === newest) app.fail(error);
    } finally {
      if (id === newest) finish();
    }
  }

  function finish() {
    root.removeAttribute("aria-busy");
    element.hidden = true;
  }

  /** Reads a long text layer by layer, with its progress and a way to cancel it. @param {{ model: string, text: string }} request @param {AbortSignal} signal */
  async function readLong(request, signal) {
    progress.removeAttribute("value");
    element.hidden = false;
    const began = performance.now();
    app.say("Reading …");
    for await (const { layer, layers } of requestEvents("/api/read", request, signal)) {
      if (layers === undefined) break; // the last event
      progress.setAttribute("value", String(layer / layers));
      const left = (performance.now() - began) * (layers / layer - 1) / 1000;
      app.say(`Reading: layer ${layer + 1} of ${layers}${layer > 1 ? ` · about ${Math.ceil(left)} s left` : ""}`);
    }
    progress.removeAttribute("value");
    app.say("Reading: finding the links worth a look");
  }

  function cancel() {
    running.abort();
    app.say("Cancelled: the pictures below still show the previous text.");
  }

  return { element, read };
}

/**
 * What to select in a new text: the current choice as far as it still applies, else the link worth a look.
 * @param {ReadText | null} previous
 * @param {ReadText} text
 * @param {PageState} state
 * @param {Partial<PageState>} change what the request for the text chose itself
 * @param {boolean} pinned
 * @returns {Partial<PageState>}
 */
function selection(previous, text, state, change, pinned) {
  const { choice, layers, heads, queries } = text.spec;
  const sameModel = previous?.spec.model === text.spec.model && previous?.spec.heads.length === heads.length;
  const exists = state.layer < layers.length && state.head < heads.length;
  const keepHead = pinned && sameModel && exists;
  const chosenToken = change.locked !== undefined && change.locked !== null && change.locked < text.rows;
  const sameToken = keepHead && state.locked !== null && previous?.spec.queries.labels[state.locked] === queries.labels[state.locked];
  return {
    query: null, key: null,
    ...(sameModel ? {} : { others: [] }),
    ...(keepHead || (change.layer !== undefined && exists) ? {} : { layer: choice.layer, head: choice.head }),
    ...(chosenToken || sameToken ? {} : { locked: choice.query, held: [] }),
    ...(change.target === undefined ? { target: null } : {}),
    ...(!text.whole && state.panel === "attention" ? { panel: "long" } : {}),
  };
}

/** @param {ReadText} text @param {number} milliseconds */
function summary(text, milliseconds) {
  const { layers, heads, made, picture } = text.spec;
  const cut = /the first [\d,]+ of [\d,]+ tokens/.exec(made)?.[0];
  const size = cut ? `${cut}, as many as this model takes` : `${text.rows.toLocaleString("en")} ${picture ? "patches" : "tokens"}`;
  return `${size} · ${layers.length} layers × ${heads.length} heads · ${milliseconds} ms`;
}
