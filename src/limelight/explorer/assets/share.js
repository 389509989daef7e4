// Share and export: a link, an HTML page, JSON, and the lines of Python that make the same picture.

import { html } from "../../views/page/assets/dom.js";
import { requestBlob, requestJson } from "./api.js";
import { formatHash } from "./state.js";
import { startTour } from "./tour.js";

/** @param {import("./main.js").App} app */
export function createShare(app) {
  const code = html("pre", { class: "code", tabindex: 0, "aria-label": "Python" });
  const dialog = /** @type {HTMLDialogElement} */ (html("dialog", { class: "share", "aria-label": "Share" },
    html("h3", {}, "Share and export"),
    html("div", { class: "chips" },
      action("Copy link", "A link to this page, for a browser on this machine", copyLink),
      action("HTML", "One file with everything, which opens without a server", () => save("/api/html", "attention.html")),
      action("JSON", "The weights of this head with all digits", () => save("/api/json", "attention.json")),
      action("Copy Python", "The lines of Python that make the same picture", () => copy(code.textContent ?? "", "Python"))),
    html("p", { class: "hint" }, "To save one picture as PNG or SVG, use the buttons on its card. The same in Python:"),
    code, html("form", { method: "dialog" }, html("button", { class: "chip" }, "Close"))));

  function action(/** @type {string} */ label, /** @type {string} */ title, /** @type {() => Promise<void>} */ click) {
    return html("button", { type: "button", class: "chip", title, click: () => click().catch(app.fail) }, label);
  }

  const headRequest = () => {
    const text = /** @type {import("./text.js").ReadText} */ (app.text);
    const state = app.store.get();
    return { ...text.request, layer: text.spec.layers[state.layer], head: text.spec.heads[state.head] };
  };

  /** @param {string} text @param {string} name */
  async function copy(text, name) {
    await navigator.clipboard.writeText(text).then(() => app.say(`${name} copied.`), () => app.say(`${name}: ${text}`));
  }

  async function copyLink() {
    const hash = formatHash(app.store.get());
    history.replaceState(null, "", hash);
    await copy(`${location.origin}/${hash}`, "Link");
  }

  /** @param {string} path @param {string} name */
  async function save(path, name) {
    const address = URL.createObjectURL(await requestBlob(path, headRequest()));
    html("a", { href: address, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  }

  async function open() {
    dialog.showModal();
    const state = app.store.get();
    code.textContent = (await requestJson("/api/python", { ...headRequest(), token: state.words ? null : state.locked, valued: state.valued })).python;
  }

  return {
    element: dialog,
    buttons: [
      html("button", { type: "button", class: "quiet", click: () => startTour(app) }, "Tour"),
      html("button", { type: "button", class: "quiet", "aria-haspopup": "dialog", click: () => open().catch(app.fail) }, "Share"),
    ],
  };
}
