// Share and export: a link, a page, numbers, and the Python lines that make the same picture.

import { html } from "../../views/page/assets/dom.js";
import { requestBlob, requestJson } from "./api.js";
import { formatHash } from "./state.js";
import { startTour } from "./tour.js";

/** @param {import("./main.js").App} app */
export function createShare(app) {
  const code = html("pre", { class: "code", tabindex: 0, "aria-label": "Python" });
  const dialog = /** @type {HTMLDialogElement} */ (html("dialog", { class: "share", "aria-label": "Share" },
    html("h3", {}, "Share and export"),
    html("div", { class: "movers" },
      act("Copy link", "A link to what is shown now, on this machine", link),
      act("HTML", "One file with everything, to open without a server", () => save("/api/html", "attention.html")),
      act("JSON", "The weights of this head, all digits", () => save("/api/json", "attention.json")),
      act("Copy Python", "The lines that make the same picture", () => copy(code.textContent ?? "", "Python"))),
    html("p", { class: "hint" }, "PNG and SVG of a picture: the buttons on its card. The same in Python:"),
    code, html("form", { method: "dialog" }, html("button", { class: "chip" }, "Close"))));

  function act(/** @type {string} */ label, /** @type {string} */ title, /** @type {() => Promise<void>} */ click) {
    return html("button", { type: "button", class: "chip", title, click: () => click().catch(app.fail) }, label);
  }

  const shown = () => {
    const text = /** @type {import("./text.js").ReadText} */ (app.text);
    const state = app.store.get();
    return { ...text.request, layer: text.spec.layers[state.layer], head: text.spec.heads[state.head] };
  };

  /** @param {string} words @param {string} what */
  async function copy(words, what) {
    await navigator.clipboard.writeText(words).then(() => app.say(`${what} copied.`), () => app.say(`${what}: ${words}`));
  }

  async function link() {
    const end = formatHash(app.store.get());
    history.replaceState(null, "", end);
    await copy(`${location.origin}/${end}`, "Link");
  }

  /** @param {string} path @param {string} name */
  async function save(path, name) {
    const address = URL.createObjectURL(await requestBlob(path, shown()));
    html("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  async function open() {
    dialog.showModal();
    const state = app.store.get();
    code.textContent = (await requestJson("/api/python", { ...shown(), token: state.words ? null : state.locked, valued: state.valued })).python;
  }

  return {
    element: dialog,
    buttons: [
      html("button", { type: "button", class: "quiet", click: () => startTour(app) }, "Tour"),
      html("button", { type: "button", class: "quiet", "aria-haspopup": "dialog", click: () => open().catch(app.fail) }, "Share"),
    ],
  };
}
