// All heads, a small picture each: sorted, searched, one of them chosen or several overlaid.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { byRole, roleTitle, shortRole } from "../../views/page/assets/roles.js";
import { height, rgb } from "../../views/page/assets/scale.js";
import { headColour } from "./overlay.js";

/** @typedef {import("./text.js").ReadText} ReadText */

const SHADES = 256;
/** @type {Record<string, string>} */
const PATTERN_NAMES = { previous: "previous token", self: "itself", next: "next token", first: "first token (sink)", same: "same token earlier", "after same": "token after the same token earlier (induction)" };

/** @param {import("./main.js").App} app @param {{ several: boolean }} [options] whether heads can be overlaid */
export function createGrid(app, { several } = { several: true }) {
  const { store } = app;
  const cells = html("div", { class: "cells", role: "group", "aria-label": "All heads" });
  const caption = html("p", { class: "caption", "aria-live": "polite" });
  const sort = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Sort heads", change: () => arrange() }));
  const search = /** @type {HTMLInputElement} */ (html("input", {
    type: "search", class: "find", placeholder: "it → animal", "aria-label": "Find the heads with a link between two tokens, such as it → animal",
    input: () => { clearTimeout(timer); timer = setTimeout(find, 120); },
  }));
  const blend = html("button", {
    type: "button", class: "chip", title: "Show several heads in one colour each, or their mean",
    click: () => store.set({ blend: store.get().blend === "mean" ? "colours" : "mean" }),
  });
  const single = html("button", { type: "button", class: "chip", click: () => store.set({ others: [] }) }, "One head");
  const tools = html("div", { class: "grid-tools" },
    html("label", {}, html("span", { class: "hint" }, "Sort "), sort), html("label", {}, html("span", { class: "hint" }, "Find "), search), blend, single);
  let timer = 0;
  /** @type {string[][]} of every head; empty if they are not measured */
  let roles = [];
  /** @type {{ button: HTMLButtonElement, canvas: HTMLCanvasElement, nameLabel: HTMLElement, roleLabel: HTMLElement, layer: number, head: number, index: number }[]} */
  let thumbs = [];
  /** @type {ReadText | null} */
  let text = null;
  /** @type {Float32Array | null} the weight of the searched link in each head */
  let linkWeights = null;
  let paintedKey = "";
  let newestSearch = 0;
  /** @type {Record<string, string[]> | undefined} */
  let measuredRoles;

  function build() {
    linkWeights = null;
    text = /** @type {ReadText} */ (app.text);
    const { spec } = text;
    const order = sort.value;
    const measured = app.roles.get(store.get().model);
    measuredRoles = measured;
    roles = measured ? spec.layers.flatMap((layer) => spec.heads.map((head) => measured[`${layer}.${head}`] ?? [])) : spec.roles;
    const patterns = Array.from(spec.patterns, (name) => html("option", { value: name }, `looks at ${PATTERN_NAMES[name] ?? name}`));
    sort.replaceChildren(html("option", { value: "layer" }, "by layer"),
      html("option", { value: "role", disabled: !roles.length }, roles.length ? "by role" : "by role: measure them under Heads"),
      html("optgroup", { label: "in this text" }, ...patterns, html("option", { value: "entropy" }, "sharpest first")));
    sort.value = order && [...sort.options].some((option) => option.value === order) ? order : "layer";
    const heads = spec.heads.length;
    const shape = `${spec.layers.length} × ${heads}`;
    if (shape !== cells.dataset.shape) thumbs = spec.layers.flatMap((_, layer) => spec.heads.map((__, head) => {
      const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { width: 1, height: 1 }));
      const nameLabel = html("span", { class: "note" });
      const roleLabel = html("span", { class: "note role" });
      const index = layer * heads + head;
      const button = /** @type {HTMLButtonElement} */ (html("button", {
        type: "button", class: "cell", tabindex: -1,
        click: (/** @type {MouseEvent} */ event) => choose(layer, head, several && (event.shiftKey || event.ctrlKey || event.metaKey)),
        pointerenter: () => explain(index), focus: () => explain(index), pointerleave: () => explain(null),
        keydown: (/** @type {KeyboardEvent} */ event) => move(event, index),
      }, canvas, nameLabel, roleLabel));
      return { button, canvas, nameLabel, roleLabel, layer, head, index };
    }));
    cells.dataset.shape = shape;
    paintedKey = "";
    arrange();
    if (search.value.trim()) find();
  }

  /** @param {number} layer @param {number} head @param {boolean} overlay */
  function choose(layer, head, overlay) {
    const state = store.get();
    const same = (/** @type {[number, number]} */ [l, h]) => l === layer && h === head;
    if (!overlay) store.set({ layer, head, others: [] });
    else if (state.layer === layer && state.head === head) return;
    else if (state.others.some(same)) store.set({ others: state.others.filter((other) => !same(other)) });
    else store.set({ others: [...state.others.slice(-6), [layer, head]] });
  }

  /** @param {KeyboardEvent} event @param {number} index */
  function move(event, index) {
    const order = [...cells.querySelectorAll(".cell")];
    const here = order.indexOf(thumbs[index].button);
    const columns = getComputedStyle(cells).gridTemplateColumns.split(" ").length;
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    /** @type {HTMLElement} */ (order[Math.min(Math.max(here + by, 0), order.length - 1)]).focus();
  }

  /** What the heads are ranked by, largest first; null where their order is that of layers or roles. */
  function rankedBy() {
    if (linkWeights) return linkWeights;
    const read = /** @type {ReadText} */ (text);
    const pattern = read.spec.patterns.indexOf(sort.value);
    if (pattern >= 0) return Float32Array.from(thumbs, ({ index }) => read.pattern(index, pattern));
    if (sort.value === "entropy") return Float32Array.from(thumbs, ({ index }) => -read.spec.summary.entropy[index]);
    return null;
  }

  function arrange() {
    if (!text) return;
    const values = rankedBy();
    const order = values ? [...thumbs].sort((a, b) => values[b.index] - values[a.index] || a.index - b.index) : thumbs;
    const grouped = !values && sort.value === "role";
    cells.classList.toggle("ranked", values !== null || grouped);
    cells.classList.toggle("plain", grouped || !roles.length); // the heading of a group names the role already
    cells.style.setProperty("--heads", String(text.spec.heads.length * layersPerRow()));
    for (const thumb of thumbs) {
      const { layer, head, index, nameLabel, roleLabel, button } = thumb;
      const name = `${/** @type {ReadText} */ (text).spec.layers[layer]}.${/** @type {ReadText} */ (text).spec.heads[head]}`;
      const value = values ? number(Math.abs(values[index]), sort.value === "entropy" && !linkWeights ? 2 : 3) : "";
      nameLabel.textContent = values ? `${name}  ${value}` : name;
      const headRoles = roles[index] ?? [];
      roleLabel.textContent = shortRole(headRoles);
      button.title = headRoles.join(", ");
      button.setAttribute("aria-label", `Layer ${name.replace(".", ", head ")}${values ? `: ${value}` : ""}`);
      button.classList.toggle("faint", linkWeights !== null && linkWeights[index] < 0.1);
    }
    if (grouped) {
      cells.replaceChildren(...byRole(roles).flatMap(({ role, places }) => [
        html("h4", { class: "role-group", "data-role": role }, roleTitle(role), html("span", { class: "hint" }, ` ${places.length}`)),
        ...places.map((index) => thumbs[index].button)]));
    } else if (order.length !== cells.children.length || order.some(({ button }, k) => cells.children[k] !== button)) {
      cells.replaceChildren(...order.map(({ button }) => button));
    }
    mark(store.get());
  }

  /** How many layers share a row, so that the heads of a deep model fill their card. */
  function layersPerRow() {
    const { layers, heads } = /** @type {ReadText} */ (text).spec;
    const fitting = Math.floor((cells.clientWidth || 1200) / (heads.length * 42));
    return Math.max(1, Math.min(Math.ceil(layers.length / 10), fitting));
  }
  new ResizeObserver(() => { if (text) cells.style.setProperty("--heads", String(text.spec.heads.length * layersPerRow())); }).observe(cells);

  /** Ranks the heads by the weight of a link such as "it → animal" between tokens or words. */
  async function find() {
    const read = /** @type {ReadText} */ (text);
    const [query, key] = search.value.split(/\s*(?:→|->|>|\s)\s*/).filter(Boolean);
    newestSearch += 1;
    const id = newestSearch;
    linkWeights = null;
    search.removeAttribute("aria-invalid");
    if (query && key) {
      const queries = tokensOf(read.spec.queries, query);
      const keys = tokensOf(read.spec.keys, key);
      if (queries.length && keys.length) {
        try {
          const weights = await read.links(queries, keys);
          if (id !== newestSearch || read !== text) return; // superseded
          linkWeights = weights;
        } catch (error) {
          app.fail(error);
        }
      } else search.setAttribute("aria-invalid", "true");
    }
    arrange();
    if (linkWeights) {
      const best = linkWeights.indexOf(Math.max(...linkWeights));
      explain(best, `“${query} → ${key}” is strongest in `);
    }
  }

  function paint() {
    const read = /** @type {ReadText} */ (text);
    const state = store.get();
    const palette = app.palette();
    const hidden = new Uint8Array(read.columns);
    if (!state.background && !read.arrays.thumbs) for (const column of read.spec.keys.background) hidden[column] = 1;
    let peak = 0; // over all heads, so that they can be compared
    const shades = Uint32Array.from({ length: SHADES }, (_, k) => {
      const [red, green, blue] = rgb(palette, k / (SHADES - 1));
      return (255 << 24) | (blue << 16) | (green << 8) | red; // little-endian RGBA
    });
    const pictures = thumbs.map(({ canvas, index }) => {
      const matrix = read.thumb(index);
      const [rows, columns] = [Math.min(matrix.rows, 48), Math.min(matrix.columns, 48)];
      const pooled = new Float32Array(rows * columns);
      for (let i = 0; i < matrix.rows; i += 1) {
        const start = Math.floor((i * rows) / matrix.rows) * columns;
        for (let j = 0; j < matrix.columns; j += 1) {
          const at = start + Math.floor((j * columns) / matrix.columns);
          const weight = hidden[j] ? 0 : matrix.at(i, j);
          if (weight > pooled[at]) pooled[at] = weight;
          if (weight > peak) peak = weight;
        }
      }
      return { canvas, rows, columns, pooled };
    });
    for (const { canvas, rows, columns, pooled } of pictures) {
      if (canvas.width !== columns) canvas.width = columns;
      if (canvas.height !== rows) canvas.height = rows;
      const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
      const image = context.createImageData(columns, rows);
      const pixels = new Uint32Array(image.data.buffer);
      pooled.forEach((weight, k) => { pixels[k] = shades[Math.round(Math.min(1, height(weight, peak, state.log)) * (SHADES - 1))]; });
      context.putImageData(image, 0, 0);
    }
  }

  /** @param {import("./state.js").PageState} state */
  function mark(state) {
    for (const { button, layer, head } of thumbs) {
      const chosen = layer === state.layer && head === state.head;
      const other = state.others.findIndex(([l, h]) => l === layer && h === head);
      button.setAttribute("aria-pressed", String(chosen || other >= 0));
      button.tabIndex = chosen ? 0 : -1;
      button.style.setProperty("--mark", other >= 0 ? headColour(other + 1, app.scheme()) : state.others.length && state.blend === "colours" ? headColour(0, app.scheme()) : "var(--query)");
    }
    blend.hidden = single.hidden = state.others.length === 0;
    blend.textContent = state.blend === "mean" ? "Mean → colours" : "Colours → mean";
    explain(null);
  }

  /** Describes a head, or the chosen one, in the caption. @param {number | null} pointed @param {string} [prefix] */
  function explain(pointed, prefix = "") {
    const read = /** @type {ReadText} */ (text);
    const state = store.get();
    const index = pointed ?? read.headIndex(state.layer, state.head);
    const { layer, head } = thumbs[index];
    const parts = [prefix, html("strong", {}, `${prefix ? "l" : "L"}ayer ${read.spec.layers[layer]}, head ${read.spec.heads[head]}`)];
    if (linkWeights) parts.push(" ", html("span", { class: "number" }, number(linkWeights[index])));
    const best = read.spec.summary.strongest[index];
    if (best) {
      parts.push("  strongest ", html("bdi", { class: "query-name" }, shorten(read.spec.queries.labels[best[0]], 20)), " → ",
        html("bdi", { class: "key-name" }, shorten(read.spec.keys.labels[best[1]], 20)), " ", html("span", { class: "number" }, number(best[2])));
    }
    if (roles[index]?.length) parts.push(`  ·  ${roles[index].join(", ")}`);
    const shares = read.spec.patterns.map((name, k) => /** @type {[string, number]} */ ([name, read.pattern(index, k)])).sort((a, b) => b[1] - a[1]);
    if (shares.length && shares[0][1] > 0.3) parts.push(`  ·  ${number(shares[0][1], 2)} on ${PATTERN_NAMES[shares[0][0]] ?? shares[0][0]}`);
    parts.push(`  ·  entropy ${number(read.spec.summary.entropy[index], 2)} bits`);
    caption.replaceChildren(...parts);
  }

  return {
    element: html("div", {}, tools, cells, caption),
    /** @param {import("./state.js").PageState} state @param {boolean} redraw */
    update(state, redraw) {
      if (text !== app.text || (app.roles.has(state.model) && app.roles.get(state.model) !== measuredRoles)) build();
      const key = [state.background, state.log, app.scheme(), state.read].join();
      if (key !== paintedKey) paint();
      paintedKey = key;
      if (redraw) mark(state);
    },
  };
}

/** The indices of tokens with this label, or of the tokens of words with it. @param {import("../../views/page/assets/numbers.js").TokenSide} side @param {string} name */
function tokensOf(side, name) {
  const same = (/** @type {string} */ label) => label.toLowerCase() === name.toLowerCase();
  const matches = side.labels.flatMap((label, k) => (same(label) ? [k] : []));
  if (matches.length || !side.merged) return matches;
  const words = side.merged.labels.flatMap((label, k) => (same(label) ? [k] : []));
  return side.words.flatMap((word, k) => (words.includes(word) ? [k] : []));
}
