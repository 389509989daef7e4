// A picture as a file, with a title: SVG as on the screen, or PNG at twice its size.

import { fitted, html, svg } from "./dom.js";

const TITLE = 30; // height of the title, above the picture
const MARGIN = 8;

/** The picture by itself, on its own paper, with its title above it. */
function standalone(/** @type {SVGSVGElement} */ picture, /** @type {import("./numbers.js").Palette} */ palette, /** @type {string} */ title) {
  const copy = /** @type {SVGSVGElement} */ (picture.cloneNode(true));
  const { width, height } = picture.viewBox.baseVal;
  const box = { x: -MARGIN, y: -TITLE, width: width + 2 * MARGIN, height: height + TITLE + MARGIN };
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("viewBox", Object.values(box).join(" "));
  copy.setAttribute("width", String(box.width));
  copy.setAttribute("height", String(box.height));
  copy.prepend(
    svg("title", {}, title),
    svg("rect", { ...box, fill: palette.raised }),
    svg("text", { class: "title", x: 0, y: 16 - TITLE, "font-size": 13, "font-weight": 650, fill: palette.ink },
      fitted(title, 13, width, title.length)),
  );
  const blob = new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
  return { blob, width: box.width, height: box.height };
}

function download(/** @type {Blob} */ blob, /** @type {string} */ name) {
  const address = URL.createObjectURL(blob);
  html("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // a busy machine may begin the download late
}

export function saveSvg(/** @type {SVGSVGElement} */ picture, /** @type {import("./numbers.js").Palette} */ palette, /** @type {string} */ title, /** @type {string} */ name) {
  download(standalone(picture, palette, title).blob, `${name}.svg`);
}

export async function savePng(/** @type {SVGSVGElement} */ picture, /** @type {import("./numbers.js").Palette} */ palette, /** @type {string} */ title, /** @type {string} */ name) {
  const { blob, width, height } = standalone(picture, palette, title);
  const address = URL.createObjectURL(blob);
  const image = new Image();
  image.src = address;
  await image.decode();
  const canvas = html("canvas", { width: 2 * width, height: 2 * height });
  /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d")).drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  download(await new Promise((done) => { canvas.toBlob((png) => done(/** @type {Blob} */ (png)), "image/png"); }), `${name}.png`);
}
