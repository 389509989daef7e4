// Input of a text or a picture: typed, an example, or a file.

import { html } from "../../views/page/assets/dom.js";
import { ApiError } from "./api.js";

const DEBOUNCE = 30; // milliseconds after the last key before a text is read, while another is being read

const MAX_SIDE = 384; // pixels along the longer side of a picture that is sent

/** A decoded picture: base64 of red, green and blue. @typedef {{ width: number, height: number, pixels: string }} Pixels */

/** @param {import("./main.js").App} app */
export function createTyping(app) {
  const { config } = app;
  let timer = 0;
  let pinned = false;
  /** @type {Pixels | null} the picture to read while the text field is empty */
  let picture = null;
  const area = /** @type {HTMLTextAreaElement} */ (html("textarea", {
    class: "type", rows: 1, maxlength: config.limits.characters, spellcheck: "false", "aria-label": "The text to look at",
    placeholder: "Type a sentence, or drop a file here: a text, or a picture for a vision model",
    input: () => { clearTimeout(timer); if (app.reading()) timer = setTimeout(read, DEBOUNCE); else read(); fit(); },
  }));
  const model = /** @type {HTMLSelectElement} */ (html("select", {
    class: "models", "aria-label": "Model", change: () => { pinned = false; read(); },
  }, ...config.models.map((/** @type {string} */ name) => html("option", { value: name }, name))));
  const examples = html("div", { class: "examples", role: "group", "aria-label": "Examples" },
    html("span", { class: "hint" }, "Try"),
    ...config.examples.map((/** @type {any} */ example) => html("button", {
      type: "button", class: "chip", title: example.about,
      click: () => { pinned = false; app.open({ model: model.value, text: example.text, other: example.other }); },
    }, example.name)));
  const file = /** @type {HTMLInputElement} */ (html("input", {
    type: "file", accept: "text/*,image/*,.md,.txt,.py,.json", class: "file", id: "file", "aria-label": "Open a text, or a picture for a vision model",
    change: () => { if (file.files?.[0]) open(file.files[0]).catch(app.fail); file.value = ""; },
  }));
  examples.append(html("label", { class: "chip", for: "file" }, "Open a file …"), file);
  const element = html("section", { class: "typing", "aria-label": "Text" }, area, examples);

  /** Makes the field as tall as its text. */
  function fit() {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, 220)}px`;
  }

  function read() {
    if (area.value.trim()) picture = null;
    if (picture) app.read({ model: model.value, panel: "attention" }, picture);
    else app.read({ model: model.value, text: area.value });
  }

  /** @param {string} text @param {string} modelName */
  function write(text, modelName) {
    clearTimeout(timer); // the text that it replaces need not be read
    area.value = text;
    model.value = modelName;
    requestAnimationFrame(fit);
  }

  /** @param {File} source */
  async function open(source) {
    if (source.type.startsWith("image/")) {
      picture = await decode(source);
      pinned = false;
      write("", model.value);
      read();
      return;
    }
    if (source.size > 900_000) throw new ApiError(413, `${source.name} is larger than 900 kB.`);
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(await source.arrayBuffer());
    } catch {
      throw new ApiError(422, `${source.name} is neither UTF-8 text nor a picture.`);
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
      if (name === "drop" && dropped) open(dropped).catch(app.fail);
    });
  }
  window.addEventListener("resize", fit);

  return {
    element, model: html("label", { class: "model-choice" }, html("span", { class: "hint" }, "Model"), model), write,
    get text() { return area.value; },
    /** Whether the user has chosen a head, which then stays while they type. */
    get pinned() { return pinned; },
    pin: () => { pinned = true; },
  };
}

/** The pixels of a picture, decoded and scaled down here so that the server parses no image format. @param {File} file @returns {Promise<Pixels>} */
async function decode(file) {
  if (file.size > 50_000_000) throw new ApiError(413, `${file.name} is larger than 50 MB.`);
  const bitmap = await createImageBitmap(file).catch(() => { throw new ApiError(422, `${file.name} is not a picture that this browser can read.`); });
  const scale = Math.min(1, MAX_SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { width, height }));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.fillStyle = "#ffffff"; // behind transparent pixels
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  let bytes = "";
  for (let k = 0; k < data.length; k += 4) bytes += String.fromCharCode(data[k], data[k + 1], data[k + 2]);
  return { width, height, pixels: btoa(bytes) };
}
