// All heads, a small picture each: sorted, searched, one chosen or several laid over one another.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { byRole, roleTitle, shortRole } from "../../views/page/assets/roles.js";
import { height, rgb } from "../../views/page/assets/scale.js";
import { headColour } from "./overlay.js";

/** @typedef {import("./text.js").ReadText} ReadText */

const SHADES = 256;
/** @type {Record<string, string>} */
const PATTERN_NAMES = { previous: "previous token", self: "itself", next: "next token", first: "first token (sink)", same: "same word before", "after same": "after the same word (induction)" };

/** @param {import("./main.js").App} app @param {{ several: boolean }} [options] whether heads may be laid over one another */
export function createGrid(app, { several } = { several: true }) {
  const { store } = app;
  const cells = html("div", { class: "cells", role: "group", "aria-label": "All heads" });
  const caption = html("p", { class: "caption", "aria-live": "polite" });
  const sort = /** @type {HTMLSelectElement} */ (html("select", { "aria-label": "Sort heads", change: () => arrange() }));
  const search = /** @type {HTMLInputElement} */ (html("input", {
    type: "search", class: "find", placeholder: "it → animal", "aria-label": "Which heads have a link? Write two tokens, such as it → animal",
    input: () => { clearTimeout(later); later = setTimeout(find, 120); },
  }));
  const blend = html("button", {
    type: "button", class: "chip", title: "Several heads: a colour each, or their mean",
    click: () => store.set({ blend: store.get().blend === "mean" ? "colours" : "mean" }),
  });
  const alone = html("button", { type: "button", class: "chip", click: () => store.set({ others: [] }) }, "One head");
  const tools = html("div", { class: "grid-tools" },
    html("label", {}, html("span", { class: "hint" }, "Sort "), sort), html("label", {}, html("span", { class: "hint" }, "Find "), search), blend, alone);
  let later = 0;
  /** @type {string[][]} of every head, where they were measured */
  let roles = [];
  /** @type {{ button: HTMLButtonElement, canvas: HTMLCanvasElement, note: HTMLElement, does: HTMLElement, layer: number, head: number, place: number }[]} */
  let thumbs = [];
  /** @type {ReadText | null} */
  let text = null;
  /** @type {Float32Array | null} the weight of the link that is looked for, in each head */
  let found = null;
  let painted = "";
  let searches = 0;
  /** @type {Record<string, string[]> | undefined} */
  let measuredBy;

  function build() {
    found = null;
    text = /** @type {ReadText} */ (app.text);
    const { spec } = text;
    const kept = sort.value;
    const measured = app.roles.get(store.get().model);
    measuredBy = measured;
    roles = measured ? spec.layers.flatMap((layer) => spec.heads.map((head) => measured[`${layer}.${head}`] ?? [])) : spec.roles;
    const here = Array.from(spec.patterns, (name) => html("option", { value: name }, `looks at ${PATTERN_NAMES[name] ?? name}`));
    sort.replaceChildren(html("option", { value: "layer" }, "by layer"),
      html("option", { value: "role", disabled: !roles.length }, roles.length ? "by role" : "by role: measure them under Heads"),
      html("optgroup", { label: "in this text" }, ...here, html("option", { value: "entropy" }, "sharpest first")));
    sort.value = kept && [...sort.options].some((option) => option.value === kept) ? kept : "layer";
    const heads = spec.heads.length;
    const shape = `${spec.layers.length} × ${heads}`;
    if (shape !== cells.dataset.shape) thumbs = spec.layers.flatMap((_, layer) => spec.heads.map((__, head) => {
      const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { width: 1, height: 1 }));
      const note = html("span", { class: "note" });
      const does = html("span", { class: "note role" });
      const place = layer * heads + head;
      const button = /** @type {HTMLButtonElement} */ (html("button", {
        type: "button", class: "cell", tabindex: -1,
        click: (/** @type {MouseEvent} */ event) => choose(layer, head, several && (event.shiftKey || event.ctrlKey || event.metaKey)),
        pointerenter: () => explain(place), focus: () => explain(place), pointerleave: () => explain(null),
        keydown: (/** @type {KeyboardEvent} */ event) => move(event, place),
      }, canvas, note, does));
      return { button, canvas, note, does, layer, head, place };
    }));
    cells.dataset.shape = shape;
    painted = "";
    arrange();
    if (search.value.trim()) find();
  }

  /** @param {number} layer @param {number} head @param {boolean} more */
  function choose(layer, head, more) {
    const state = store.get();
    const same = (/** @type {[number, number]} */ [l, h]) => l === layer && h === head;
    if (!more) store.set({ layer, head, others: [] });
    else if (state.layer === layer && state.head === head) return;
    else if (state.others.some(same)) store.set({ others: state.others.filter((place) => !same(place)) });
    else store.set({ others: [...state.others.slice(-6), [layer, head]] });
  }

  /** @param {KeyboardEvent} event @param {number} place */
  function move(event, place) {
    const order = [...cells.querySelectorAll(".cell")];
    const here = order.indexOf(thumbs[place].button);
    const columns = getComputedStyle(cells).gridTemplateColumns.split(" ").length;
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    /** @type {HTMLElement} */ (order[Math.min(Math.max(here + by, 0), order.length - 1)]).focus();
  }

  function values() {
    if (found) return found;
    const read = /** @type {ReadText} */ (text);
    const pattern = read.spec.patterns.indexOf(sort.value);
    if (pattern >= 0) return Float32Array.from(thumbs, ({ place }) => read.pattern(place, pattern));
    if (sort.value === "entropy") return Float32Array.from(thumbs, ({ place }) => -read.spec.summary.entropy[place]);
    return null;
  }

  function arrange() {
    if (!text) return;
    const by = values();
    const order = by ? [...thumbs].sort((a, b) => by[b.place] - by[a.place] || a.place - b.place) : thumbs;
    const grouped = !by && sort.value === "role";
    cells.classList.toggle("ranked", by !== null || grouped);
    cells.classList.toggle("plain", grouped || !roles.length); // a role under each would say nothing new
    cells.style.setProperty("--heads", String(text.spec.heads.length * beside()));
    for (const thumb of thumbs) {
      const { layer, head, place, note, does, button } = thumb;
      const name = `${/** @type {ReadText} */ (text).spec.layers[layer]}.${/** @type {ReadText} */ (text).spec.heads[head]}`;
      const shown = by ? number(Math.abs(by[place]), sort.value === "entropy" && !found ? 2 : 3) : "";
      note.textContent = by ? `${name}  ${shown}` : name;
      const names = roles[place] ?? [];
      does.textContent = shortRole(names);
      button.title = names.join(", ");
      button.setAttribute("aria-label", `Layer ${name.replace(".", ", head ")}${by ? `: ${shown}` : ""}`);
      button.classList.toggle("faint", found !== null && found[place] < 0.1);
    }
    if (grouped) {
      cells.replaceChildren(...byRole(roles).flatMap(({ role, places }) => [
        html("h4", { class: "role-group", "data-role": role }, roleTitle(role), html("span", { class: "hint" }, ` ${places.length}`)),
        ...places.map((place) => thumbs[place].button)]));
    } else if (order.length !== cells.children.length || order.some(({ button }, k) => cells.children[k] !== button)) {
      cells.replaceChildren(...order.map(({ button }) => button));
    }
    mark(store.get());
  }

  /** Layers that stand side by side, so that the heads of a deep model fill their card. */
  function beside() {
    const { layers, heads } = /** @type {ReadText} */ (text).spec;
    const room = Math.floor((cells.clientWidth || 1200) / (heads.length * 42));
    return Math.max(1, Math.min(Math.ceil(layers.length / 10), room));
  }
  new ResizeObserver(() => { if (text) cells.style.setProperty("--heads", String(text.spec.heads.length * beside())); }).observe(cells);

  /** "it → animal": the tokens or words so called, and the weight of that link in every head. */
  async function find() {
    const read = /** @type {ReadText} */ (text);
    const [query, key] = search.value.split(/\s*(?:→|->|>|\s)\s*/).filter(Boolean);
    searches += 1;
    const mine = searches;
    found = null;
    search.removeAttribute("aria-invalid");
    if (query && key) {
      const queries = tokens(read.spec.queries, query);
      const keys = tokens(read.spec.keys, key);
      if (queries.length && keys.length) {
        try {
          const weights = await read.links(queries, keys);
          if (mine !== searches || read !== text) return; // another was asked for meanwhile
          found = weights;
        } catch (error) {
          app.fail(error);
        }
      } else search.setAttribute("aria-invalid", "true");
    }
    arrange();
    if (found) {
      const best = found.indexOf(Math.max(...found));
      explain(best, `“${query} → ${key}” is strongest in `);
    }
  }

  function paint() {
    const read = /** @type {ReadText} */ (text);
    const state = store.get();
    const palette = app.palette();
    const hidden = new Uint8Array(read.columns);
    if (!state.background && !read.arrays.thumbs) for (const column of read.spec.keys.background) hidden[column] = 1;
    let peak = 0; // of all heads, so that they can be compared
    const shades = Uint32Array.from({ length: SHADES }, (_, k) => {
      const [red, green, blue] = rgb(palette, k / (SHADES - 1));
      return (255 << 24) | (blue << 16) | (green << 8) | red; // as they lie in memory
    });
    const pictures = thumbs.map(({ canvas, place }) => {
      const matrix = read.thumb(place);
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

  /** @param {import("./state.js").Chosen} state */
  function mark(state) {
    for (const { button, layer, head } of thumbs) {
      const chosen = layer === state.layer && head === state.head;
      const other = state.others.findIndex(([l, h]) => l === layer && h === head);
      button.setAttribute("aria-pressed", String(chosen || other >= 0));
      button.tabIndex = chosen ? 0 : -1;
      button.style.setProperty("--mark", other >= 0 ? headColour(other + 1, app.scheme()) : state.others.length && state.blend === "colours" ? headColour(0, app.scheme()) : "var(--query)");
    }
    blend.hidden = alone.hidden = state.others.length === 0;
    blend.textContent = state.blend === "mean" ? "Mean → colours" : "Colours → mean";
    explain(null);
  }

  /** @param {number | null} at @param {string} [before] */
  function explain(at, before = "") {
    const read = /** @type {ReadText} */ (text);
    const state = store.get();
    const place = at ?? read.place(state.layer, state.head);
    const { layer, head } = thumbs[place];
    const parts = [before, html("strong", {}, `${before ? "l" : "L"}ayer ${read.spec.layers[layer]}, head ${read.spec.heads[head]}`)];
    if (found) parts.push(" ", html("span", { class: "number" }, number(found[place])));
    const best = read.spec.summary.strongest[place];
    if (best) {
      parts.push("  strongest ", html("bdi", { class: "query-name" }, shorten(read.spec.queries.labels[best[0]], 20)), " → ",
        html("bdi", { class: "key-name" }, shorten(read.spec.keys.labels[best[1]], 20)), " ", html("span", { class: "number" }, number(best[2])));
    }
    if (roles[place]?.length) parts.push(`  ·  ${roles[place].join(", ")}`);
    const shares = read.spec.patterns.map((name, k) => /** @type {[string, number]} */ ([name, read.pattern(place, k)])).sort((a, b) => b[1] - a[1]);
    if (shares.length && shares[0][1] > 0.3) parts.push(`  ·  ${number(shares[0][1], 2)} on ${PATTERN_NAMES[shares[0][0]] ?? shares[0][0]}`);
    parts.push(`  ·  entropy ${number(read.spec.summary.entropy[place], 2)} bits`);
    caption.replaceChildren(...parts);
  }

  return {
    element: html("div", {}, tools, cells, caption),
    /** @param {import("./state.js").Chosen} state @param {boolean} redraw */
    update(state, redraw) {
      if (text !== app.text || (app.roles.has(state.model) && app.roles.get(state.model) !== measuredBy)) build();
      const key = [state.background, state.log, app.scheme(), state.read].join();
      if (key !== painted) paint();
      painted = key;
      if (redraw) mark(state);
    },
  };
}

/** The tokens of a name: a token, or a word made of several. @param {import("../../views/page/assets/numbers.js").TokenSide} side @param {string} name */
function tokens(side, name) {
  const same = (/** @type {string} */ label) => label.toLowerCase() === name.toLowerCase();
  const direct = side.labels.flatMap((label, k) => (same(label) ? [k] : []));
  if (direct.length || !side.merged) return direct;
  const words = side.merged.labels.flatMap((label, k) => (same(label) ? [k] : []));
  return side.words.flatMap((word, k) => (words.includes(word) ? [k] : []));
}
