// All heads at once, a thumbnail each; choose one with pointer or arrow keys.

import { FONT, html, number, scrolling, shorten, svg } from "./dom.js";
import { byRole, roleTitle, shortRole } from "./roles.js";
import { height, rgb } from "./scale.js";

/** @typedef {import("./numbers.js").Spec} Spec */
/** @typedef {import("./view.js").View} View */

/** @typedef {(text: string, x: number, y: number, anchor: string, size?: number) => SVGTextElement} Label */

const GAP = 5;
const LEFT = 24;
const TOP = 20;
const WIDE = 48; // a thumbnail with its gap, where heads are sorted by role
const ACROSS = 14; // thumbnails in a row

/**
 * @param {import("./store.js").Store} store
 * @param {Spec} spec
 */
export function createHeads(store, spec) {
  const { layers } = spec;
  const heads = spec.heads.length;
  const name = (/** @type {number} */ layer, /** @type {number} */ head) => `layer ${layers[layer]}, head ${spec.heads[head]}`;
  const root = svg("svg", { class: "picture heads", role: "group", "aria-label": "All heads", "font-family": FONT });
  const caption = html("p", { class: "caption", "aria-live": "polite" });
  const ramp = html("canvas", { class: "ramp", width: 64, height: 1, role: "img", "aria-label": "Colours from 0 to 1" });
  const cell = Math.floor(Math.min(72, Math.max(24, Math.min(720 / layers.length, 640 / heads)))); // with its gap
  const roleHeight = spec.roles.length && cell >= 40 ? 11 : 0; // for a role under each thumbnail
  /** @type {any[]} */
  const thumbs = [];
  /** @type {any} */
  let drawn = null;
  const sort = html("select", { "aria-label": "Sort heads", change: () => { build(drawn); mark(drawn); } },
    html("option", { value: "layer" }, "by layer"), html("option", { value: "role" }, "by role"));
  const sorter = spec.roles.length ? html("label", { class: "sorter" }, "Sort ", sort) : "";

  function draw(/** @type {import("./view.js").View} */ view) {
    const before = drawn;
    drawn = view;
    const same = before && /** @type {const} */ (["log", "background"]).every((key) => before.state[key] === view.state[key]);
    if (!same || before.palette !== view.palette) build(view);
    mark(view);
  }

  function build(/** @type {import("./view.js").View} */ view) {
    paintRamp(ramp, view);
    const focused = thumbs.some(({ group }) => group === /** @type {ShadowRoot} */ (root.getRootNode()).activeElement);
    const label = (/** @type {string} */ text, /** @type {number} */ x, /** @type {number} */ y, /** @type {string} */ anchor, size = 10.5) => svg("text", {
      x, y, "text-anchor": anchor, "dominant-baseline": "central", "font-size": size, fill: view.palette.muted,
    }, text);
    thumbs.length = 0;
    const { parts, width, height: total } = sort.value === "role" ? rolesDown(view, label) : layersDown(view, label);
    root.setAttribute("viewBox", `0 0 ${width} ${total}`);
    root.setAttribute("width", String(width));
    root.setAttribute("height", String(total));
    root.replaceChildren(...parts, ...thumbs.map((each) => each.group));
    if (focused) at(view.state.layer, view.state.head).focus();
  }

  function at(/** @type {number} */ layer, /** @type {number} */ head) {
    return thumbs.find((each) => each.layer === layer && each.head === head).group;
  }

  function layersDown(/** @type {import("./view.js").View} */ view, /** @type {Label} */ label) {
    const tall = cell + roleHeight;
    const parts = [];
    for (let head = 0; head < heads; head += 1) {
      parts.push(label(String(spec.heads[head]), LEFT + head * cell + (cell - GAP) / 2, 9, "middle"));
    }
    layers.forEach((number_, layer) => {
      const y = TOP + layer * tall;
      parts.push(label(String(number_), LEFT - 8, y + (cell - GAP) / 2, "end"));
      for (let head = 0; head < heads; head += 1) {
        const x = LEFT + head * cell;
        thumbs.push(thumb(view, layer, head, x, y, cell - GAP));
        if (roleHeight) parts.push(label(shortRole(spec.roles[layer * heads + head]), x + (cell - GAP) / 2, y + cell + 1, "middle", 9));
      }
    });
    return { parts, width: LEFT + heads * cell, height: TOP + layers.length * tall };
  }

  function rolesDown(/** @type {import("./view.js").View} */ view, /** @type {Label} */ label) {
    const parts = [];
    let y = 2;
    for (const { role, places } of byRole(spec.roles)) {
      const title = label(`${roleTitle(role)} · ${places.length}`, LEFT, y + 8, "start", 11.5);
      title.setAttribute("fill", view.palette.ink);
      parts.push(title);
      y += 20;
      places.forEach((place, k) => {
        const [x, down] = [LEFT + (k % ACROSS) * WIDE, y + Math.floor(k / ACROSS) * (WIDE + 11)];
        const [layer, head] = [Math.floor(place / heads), place % heads];
        thumbs.push(thumb(view, layer, head, x, down, WIDE - GAP));
        parts.push(label(`${layers[layer]}.${spec.heads[head]}`, x + (WIDE - GAP) / 2, down + WIDE + 1, "middle", 9));
      });
      y += Math.ceil(places.length / ACROSS) * (WIDE + 11) + 8;
    }
    return { parts, width: LEFT + ACROSS * WIDE, height: y };
  }

  function thumb(/** @type {import("./view.js").View} */ view, /** @type {number} */ layer, /** @type {number} */ head, /** @type {number} */ x, /** @type {number} */ y, /** @type {number} */ side) {
    const box = { x, y, width: side, height: side };
    const image = svg("image", {
      ...box, href: paintThumb(view, layer * heads + head), preserveAspectRatio: "none", "image-rendering": "pixelated",
    });
    const edge = svg("rect", { ...box, rx: 3, fill: "none", stroke: view.palette.line });
    const group = svg("g", {
      class: "thumb", role: "button", tabindex: -1, "aria-label": name(layer, head),
      click: () => store.set({ layer, head }),
      pointerenter: () => explain(layer, head),
      pointerleave: () => explain(drawn.state.layer, drawn.state.head),
      focus: () => explain(layer, head),
      keydown: (/** @type {any} */ event) => move(event, layer, head),
    }, image, edge);
    return { group, edge, layer, head };
  }

  function move(/** @type {any} */ event, /** @type {number} */ layer, /** @type {number} */ head) {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      store.set({ layer, head });
      return;
    }
    /** @type {Record<string, number[]>} */
    const steps = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
    if (!(event.key in steps)) return;
    event.preventDefault();
    const [down, right] = steps[event.key];
    const here = thumbs.findIndex((each) => each.layer === layer && each.head === head);
    const to = sort.value === "role"
      ? thumbs[Math.min(Math.max(here + right + down * ACROSS, 0), thumbs.length - 1)]
      : { layer: Math.min(Math.max(layer + down, 0), layers.length - 1), head: Math.min(Math.max(head + right, 0), heads - 1) };
    store.set({ layer: to.layer, head: to.head });
    at(to.layer, to.head).focus();
  }

  function mark(/** @type {import("./view.js").View} */ view) {
    for (const { group, edge, layer, head } of thumbs) {
      const chosen = layer === view.state.layer && head === view.state.head;
      edge.setAttribute("stroke", chosen ? view.palette.query : view.palette.line);
      edge.setAttribute("stroke-width", chosen ? 2.5 : 1);
      group.setAttribute("aria-pressed", String(chosen));
      group.setAttribute("tabindex", chosen ? 0 : -1);
    }
    explain(view.state.layer, view.state.head);
  }

  function explain(/** @type {number} */ layer, /** @type {number} */ head) {
    const place = layer * heads + head;
    const best = spec.summary.strongest[place];
    /** @type {(Node | string)[]} */
    const parts = [html("strong", {}, name(layer, head).replace("l", "L"))];
    if (best) {
      const [query, key, weight] = best;
      parts.push(
        "  strongest ",
        html("bdi", { class: "query-name" }, shorten(spec.queries.labels[query], 20)), " → ",
        html("bdi", { class: "key-name" }, shorten(spec.keys.labels[key], 20)), " ",
        html("span", { class: "number" }, number(weight)),
      );
    }
    const roles = spec.roles[place] ?? [];
    if (roles.length) parts.push(`  ·  ${roles.join(", ")}`);
    parts.push(`  ·  entropy ${number(spec.summary.entropy[place], 2)} bits  ·  reach ${number(spec.summary.distance[place], 1)} tokens`);
    caption.replaceChildren(...parts);
  }

  return {
    element: html("div", {}, sorter, scrolling({ class: "frame" }, root), caption,
      html("p", { class: "legend" }, "weight 0 ", ramp, " 1")),
    picture: root, draw, focus: () => {},
  };
}

function paintRamp(/** @type {HTMLCanvasElement} */ canvas, /** @type {import("./view.js").View} */ view) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  for (let k = 0; k < canvas.width; k += 1) {
    context.fillStyle = `rgb(${rgb(view.palette, height(k / (canvas.width - 1), 1, view.state.log)).join()})`;
    context.fillRect(k, 0, 1, 1);
  }
}

/** The thumbnail of one head, each pixel the strongest weight under it, on a scale from 0 to 1. */
function paintThumb(/** @type {import("./view.js").View} */ view, /** @type {number} */ place) {
  const { rows, columns, plain, all } = view.spec.thumbs;
  const codes = (view.state.background ? all : plain).subarray(place * rows * columns, (place + 1) * rows * columns);
  const canvas = html("canvas", { width: columns, height: rows });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(columns, rows);
  codes.forEach((/** @type {number} */ code, /** @type {number} */ k) => {
    image.data.set([...rgb(view.palette, height((code / 255) ** 2, 1, view.state.log)), 255], 4 * k);
  });
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}
