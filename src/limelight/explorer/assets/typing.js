// Where a text or a picture comes from: typed, an example, or a file that is dropped.

import { html } from "../../views/page/assets/dom.js";
import { ApiError } from "./api.js";

const REST = 30; // milliseconds without a key before another text is read, while one is being read

const SIDE = 384; // pixels along the longer side of a picture, as it is sent

/** A decoded picture: base64 of red, green and blue. @typedef {{ width: number, height: number, pixels: string }} Pixels */

/** @param {import("./main.js").App} app */
export function createTyping(app) {
  const { config } = app;
  let timer = 0;
  let pinned = false;
  /** @type {Pixels | null} the picture that was opened last, while no text is typed */
  let picture = null;
  const area = /** @type {HTMLTextAreaElement} */ (html("textarea", {
    class: "type", rows: 1, maxlength: config.limits.characters, spellcheck: "false", "aria-label": "The text to look at",
    placeholder: "Type a sentence, or drop a file here: a text, or a picture for a vision model",
    input: () => { clearTimeout(timer); if (app.reading()) timer = setTimeout(read, REST); else read(); grow(); },
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
    type: "file", accept: "text/*,image/*,.md,.txt,.py,.json", class: "file", id: "file", "aria-label": "Open a text, or a picture for a vision model",
    change: () => { if (file.files?.[0]) open(file.files[0]).catch(app.fail); file.value = ""; },
  }));
  examples.append(html("label", { class: "chip", for: "file" }, "Open a file …"), file);
  const element = html("section", { class: "typing", "aria-label": "Text" }, area, examples);

  function grow() {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, 220)}px`;
  }

  function read() {
    if (area.value.trim()) picture = null;
    if (picture) app.type({ model: model.value, panel: "attention" }, picture);
    else app.type({ model: model.value, text: area.value });
  }

  /** @param {string} text @param {string} name */
  function write(text, name) {
    clearTimeout(timer); // what was typed before is not read
    area.value = text;
    model.value = name;
    requestAnimationFrame(grow);
  }

  /** @param {File} dropped */
  async function open(dropped) {
    if (dropped.type.startsWith("image/")) {
      picture = await decoded(dropped);
      pinned = false;
      write("", model.value);
      read();
      return;
    }
    if (dropped.size > 900_000) throw new ApiError(413, `${dropped.name} is larger than 900 kB.`);
    let text;
    try {
      text = new TextDecoder("utf-8", { fatal: true }).decode(await dropped.arrayBuffer());
    } catch {
      throw new ApiError(422, `${dropped.name} is neither a text in UTF-8 nor a picture.`);
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
  window.addEventListener("resize", grow);

  return {
    element, model: html("label", { class: "model-choice" }, html("span", { class: "hint" }, "Model"), model), write,
    /** A head that a person chose stays while they type. */
    get pinned() { return pinned; },
    pin: () => { pinned = true; },
  };
}

/** A picture as the server takes it: decoded and made smaller here, so that the server reads no image format. @param {File} file @returns {Promise<Pixels>} */
async function decoded(file) {
  if (file.size > 50_000_000) throw new ApiError(413, `${file.name} is larger than 50 MB.`);
  const bitmap = await createImageBitmap(file).catch(() => { throw new ApiError(422, `${file.name} is not a picture that this browser reads.`); });
  const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { width, height }));
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.fillStyle = "#ffffff"; // under what is transparent
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  bitmap.close();
  const { data } = context.getImageData(0, 0, width, height);
  let bytes = "";
  for (let k = 0; k < data.length; k += 4) bytes += String.fromCharCode(data[k], data[k + 1], data[k + 2]);
  return { width, height, pixels: btoa(bytes) };
}
