// A horizontal bar.

import { html } from "../../views/page/assets/dom.js";

/** @param {number} share of the full length; more is cut off @param {"weight" | "change"} [kind] which colour it has */
export function bar(share, kind = "weight") {
  const fill = html("span", { class: `bar-fill ${kind}` });
  fill.style.width = `${Math.min(100, 100 * share)}%`;
  return html("span", { class: "track" }, fill);
}
