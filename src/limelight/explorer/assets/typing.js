// Where a text comes from: typed, an example, or a file that is dropped.

import { html } from "../../views/page/assets/dom.js";

const PAUSE = 60; // milliseconds of rest before a text is read

/** @param {import("./main.js").App} app */
export function createTyping(app) {
  const { config } = app;
  let later = 0;
  let pinned = false;
  const area = /** @type {HTMLTextAreaElement} */ (html("textarea", {
    class: "type", rows: 1, maxlength: config.limits.characters, spellcheck: "false", "aria-label": "The text to look at",
    placeholder: "Type a sentence, or drop a text file here",
    input: () => { grow(); clearTimeout(later); later = setTimeout(read, PAUSE); },
  }));
  const model = /** @type {HTMLSelectElement} */ (html("select", {
    class: "models", "aria-label": "Model", change: () => { pinned = false; read(); },
  }, ...config.models.map((/** @type {string} */ name) => html("option", { value: name }, name))));
  const examples = html("div", { class: "examples", role: "group", "aria-label": "Examples" },
    html("span", { class: "hint" }, "Try"),
    ...config.examples.map((/** @type {any} */ example) => html("button", {
      type: "button", class: "chip", title: example.about,
      click: () => { pinned = false; write(example.text, model.value); app.type({ model: model.value, text: example.text, other: example.other }); },
    }, example.name)));
  const file = /** @type {HTMLInputElement} */ (html("input", {
    type: "file", accept: "text/*,.md,.txt,.py,.json", class: "file", id: "file", "aria-label": "Open a text file",
    change: () => { if (file.files?.[0]) open(file.files[0]); },
  }));
  examples.append(html("label", { class: "chip", for: "file" }, "Open a file …"), file);
  const element = html("section", { class: "typing", "aria-label": "Text" }, area, examples);

  function grow() {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, 220)}px`;
  }

  function read() {
    app.type({ model: model.value, text: area.value });
  }

  /** @param {string} text @param {string} name */
  function write(text, name) {
    area.value = text;
    model.value = name;
    requestAnimationFrame(grow);
  }

  /** @param {File} dropped */
  async function open(dropped) {
    if (dropped.size > 900_000) {
      app.fail(new DOMException("too large"));
      app.say(`${dropped.name} is larger than 900 kB.`, "bad");
      return;
    }
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(await dropped.arrayBuffer());
    } catch {
      app.say(`${dropped.name} is not a text in UTF-8.`, "bad");
      return;
    }
    pinned = false;
    write(text.slice(0, config.limits.characters), model.value);
    read();
  }

  for (const name of ["dragover", "dragleave", "drop"]) {
    window.addEventListener(name, (event) => {
      event.preventDefault();
      element.classList.toggle("dropping", name === "dragover");
      const dropped = /** @type {DragEvent} */ (event).dataTransfer?.files[0];
      if (name === "drop" && dropped) open(dropped);
    });
  }
  window.addEventListener("resize", grow);

  return {
    element, model: html("label", { class: "model-choice" }, html("span", { class: "hint" }, "Model"), model), write,
    /** A head that a person chose stays while they type. */
    get pinned() { return pinned; },
    pin: () => { pinned = true; },
  };
}
