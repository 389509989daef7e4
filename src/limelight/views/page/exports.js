// A picture as a file: SVG as it stands on the screen, or PNG at twice its size.

import { html, svg } from "./dom.js";

function standalone(picture, palette) {
  const copy = picture.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.prepend(svg("rect", { width: "100%", height: "100%", fill: palette.raised }));
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

function offer(blob, name) {
  const address = URL.createObjectURL(blob);
  html("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000); // a busy machine may be slow to begin
}

export function saveSvg(picture, palette, name) {
  offer(standalone(picture, palette), `${name}.svg`);
}

export async function savePng(picture, palette, name) {
  const address = URL.createObjectURL(standalone(picture, palette));
  const image = new Image();
  image.src = address;
  await image.decode();
  const { width, height } = picture.viewBox.baseVal;
  const canvas = html("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(address);
  offer(await new Promise((done) => { canvas.toBlob(done, "image/png"); }), `${name}.png`);
}
