// A long text as a map: pooled from afar, exact from near; zoom and pan as on any map.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { height, rgb } from "../../views/page/assets/scale.js";
import { requestFrame } from "./api.js";
import { card } from "./cards.js";
import { createGrid } from "./grid.js";
import { Tiles } from "./tiles.js";

const STRIP = 54; // pixels beside the map: names of tokens from near, strips of statistics from afar
const TALLEST = STRIP - 8; // of a strip's bars
const NEAREST = 1 / 24; // tokens a pixel at most zoom: a token is 24 pixels wide

/** @typedef {{ rows: number, columns: number, values: Float32Array }} Picture */

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { class: "map", tabindex: 0, role: "img" }));
  const mini = /** @type {HTMLCanvasElement} */ (html("canvas", { class: "minimap", width: 96, height: 96, role: "img", "aria-label": "The whole map, with the part that is shown" }));
  const tip = html("p", { class: "story map-tip", "aria-live": "polite" });
  const words = html("div", { class: "text-beside", tabindex: 0, "aria-label": "The text around the row that is looked at" });
  const links = html("div", { class: "jump", "aria-label": "Strongest links" });
  const search = /** @type {HTMLInputElement} */ (html("input", { type: "search", class: "find", placeholder: "a word", "aria-label": "Search a word and see who looks at it", change: () => find() }));
  const seekers = html("div", { class: "jump", "aria-live": "polite" });
  const button = (/** @type {string} */ label, /** @type {string} */ title, /** @type {() => void} */ click) => html("button", { type: "button", class: "chip", title, "aria-label": title, click }, label);
  const grid = createGrid(app, { several: false });
  const body = html("div", { class: "long" },
    html("div", { class: "grid-tools" }, button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)), button("Whole text", "Show the whole text", () => whole()),
      html("label", {}, html("span", { class: "hint" }, "Find "), search), html("span", { class: "hint keys" }, "drag to move, wheel to zoom; arrow keys, + and − too")),
    tip,
    html("div", { class: "long-grid" },
      html("section", { class: "card map-card", "aria-label": "Map" }, canvas, mini),
      html("section", { class: "card", "aria-label": "Text" }, html("h3", {}, "The text"), words),
      html("section", { class: "card", "aria-label": "Links" }, html("h3", {}, "Strongest links of this head"), html("p", { class: "hint" }, "beyond neighbours and background tokens"), links),
      html("section", { class: "card", "aria-label": "Found" }, html("h3", {}, "Who looks at it"), seekers),
      card(app, "All heads", "click one to see its map", grid, "heads-grid")));
  seekers.append(html("p", { class: "hint" }, "Search a word above."));

  /** @type {any} */
  let overview = null;
  /** @type {HTMLCanvasElement | null} */
  let base = null;
  let key = "";
  let turn = 0;
  let scale = 1; // tokens a pixel
  let [left, top] = [0, 0]; // the token at the corner
  /** @type {{ row: number, column: number } | null} */
  let pointed = null;
  let row = 0; // what the text beside is about
  let asked = 0;
  let textRow = -1; // the row and column that the text beside shows
  let textColumn = -1;
  const tiles = new Tiles(app, () => redraw());

  const size = () => Math.max(120, canvas.clientWidth - STRIP);
  const count = () => /** @type {import("./text.js").ReadText} */ (app.text).rows;

  /** @param {import("./state.js").Chosen} state @param {import("./state.js").Chosen | null} before */
  async function update(state, before) {
    const { text } = app;
    if (!text) return;
    const request = { ...text.request, layer: text.spec.layers[state.layer], head: text.spec.heads[state.head] };
    const now = JSON.stringify(request);
    turn += 1; // what is still awaited is of another choice
    if (now !== key) {
      const fresh = !key || JSON.parse(key).text !== request.text || JSON.parse(key).model !== request.model;
      const mine = turn;
      try {
        const frame = await requestFrame("/api/overview", request);
        if (mine !== turn) return;
        key = now;
        overview = frame;
        base = null;
        tiles.open(request);
        if (fresh) { pointed = null; textRow = -1; whole(); showTip(); seekers.replaceChildren(html("p", { class: "hint" }, "Search a word above.")); }
        list();
        if (search.value) find();
      } catch (error) {
        app.fail(error);
        return;
      }
    }
    if (!before || state.scheme !== before.scheme || state.systemDark !== before.systemDark || state.log !== before.log || state.background !== before.background || base === null) { base = null; tiles.repaint(); }
    redraw();
    grid.update(state, true);
    body.dataset.drawn = `${request.layer}.${request.head}`;
  }

  function whole() {
    scale = count() / size();
    [left, top] = [0, 0];
    redraw();
  }

  /** @param {number} by @param {{ x: number, y: number }} [around] pixels */
  function zoom(by, around = { x: size() / 2, y: size() / 2 }) {
    const next = Math.min(Math.max(scale * by, NEAREST), Math.max(count() / size(), NEAREST));
    left += around.x * (scale - next);
    top += around.y * (scale - next);
    scale = next;
    hold();
  }

  function hold() {
    const most = count() - size() * scale;
    left = Math.min(Math.max(left, 0), Math.max(most, 0));
    top = Math.min(Math.max(top, 0), Math.max(most, 0));
    redraw();
  }

  /** @param {number} query @param {number} token */
  function go(query, token) {
    scale = Math.min(1 / 8, count() / size());
    left = token - (size() * scale) / 2;
    top = query - (size() * scale) / 2;
    pointed = { row: query, column: token };
    row = query;
    hold();
  }

  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; if (overview && app.text) draw(); });
  }

  /** @param {Picture} picture */
  function painted(picture) {
    const made = document.createElement("canvas");
    [made.width, made.height] = [picture.columns, picture.rows];
    const pen = /** @type {CanvasRenderingContext2D} */ (made.getContext("2d"));
    const image = pen.createImageData(picture.columns, picture.rows);
    const palette = app.palette();
    const { log } = store.get();
    picture.values.forEach((value, k) => {
      const [red, green, blue] = rgb(palette, height(value, 1, log));
      image.data.set([red, green, blue, 255], 4 * k);
    });
    pen.putImageData(image, 0, 0);
    return made;
  }

  function draw() {
    const { shape, values } = overview.arrays.max;
    base ??= painted({ rows: shape[0], columns: shape[1], values });
    const side = size();
    const zoomed = Math.max(1, window.devicePixelRatio || 1);
    canvas.width = Math.round((side + STRIP) * zoomed);
    canvas.height = canvas.width;
    canvas.style.height = `${side + STRIP}px`;
    canvas.setAttribute("aria-label", `Map of ${count()} tokens: rows are queries, columns are keys. Shown: rows ${Math.floor(top)} to ${Math.ceil(top + side * scale)}, columns ${Math.floor(left)} to ${Math.ceil(left + side * scale)}.`);
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.scale(zoomed, zoomed);
    const palette = app.palette();
    pen.fillStyle = palette.paper;
    pen.fillRect(0, 0, side + STRIP, side + STRIP);
    pen.save();
    pen.beginPath();
    pen.rect(STRIP, STRIP, side, side);
    pen.clip();
    pen.imageSmoothingEnabled = false;
    const x = (/** @type {number} */ token) => STRIP + (token - left) / scale;
    const y = (/** @type {number} */ token) => STRIP + (token - top) / scale;
    pen.drawImage(base, x(0), y(0), count() / scale, count() / scale);
    // exact where the map is coarser than the screen
    const run = 2 ** Math.max(0, Math.floor(Math.log2(Math.max(scale, 1))));
    if (count() / shape[0] > scale) {
      for (const tile of tiles.within(left, top, side * scale, run, count())) {
        if (!tile.picture) continue;
        tile.painted ??= painted(tile.picture);
        pen.drawImage(tile.painted, x(tile.left), y(tile.top), (tile.painted.width * run) / scale, (tile.painted.height * run) / scale);
      }
    }
    if (pointed) {
      pen.strokeStyle = palette.query;
      pen.strokeRect(x(left), y(pointed.row), side, Math.max(1, 1 / scale));
      pen.strokeStyle = palette.key;
      pen.strokeRect(x(pointed.column), y(top), Math.max(1, 1 / scale), side);
    }
    pen.restore();
    if (1 / scale >= 11) names(pen, x, y, side);
    else strips(pen, side);
    minimap(side);
    beside();
    if (pointed) showTip(); // a tile that has come may know the weight
  }

  /** Entropy of the rows along the left, received along the top. */
  function strips(/** @type {CanvasRenderingContext2D} */ pen, /** @type {number} */ side) {
    const palette = app.palette();
    const { entropy, received } = overview.arrays;
    const most = Math.max(...sampled(entropy.values));
    const loud = Math.max(...sampled(received.values).map(Math.log1p));
    for (let p = 0; p < side; p += 1) {
      const [i, j] = [Math.floor(top + p * scale), Math.floor(left + p * scale)];
      if (i < entropy.values.length) { pen.fillStyle = palette.query; const part = (TALLEST * entropy.values[i]) / (most || 1); pen.fillRect(STRIP - 2 - part, STRIP + p, part, 1); }
      if (j < received.values.length) {
        const part = (TALLEST * Math.log1p(received.values[j])) / (loud || 1);
        pen.fillStyle = palette.key;
        pen.fillRect(STRIP + p, STRIP - 2 - part, 1, part);
      }
    }
  }

  const sampled = (/** @type {Float32Array} */ values) => Array.from(values);

  /** @param {CanvasRenderingContext2D} pen @param {(t: number) => number} x @param {(t: number) => number} y @param {number} side */
  function names(pen, x, y, side) {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const palette = app.palette();
    pen.font = `${Math.min(12, Math.max(10, 0.7 / scale))}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (let k = Math.floor(top); k < top + side * scale && k < count(); k += 1) {
      pen.fillStyle = pointed?.row === k ? palette.query : palette.ink;
      if (y(k) + 0.5 / scale > STRIP) pen.fillText(shorten(spec.queries.labels[k], 9), STRIP - 5, y(k) + 0.5 / scale, STRIP - 6);
    }
    pen.textAlign = "left";
    for (let k = Math.floor(left); k < left + side * scale && k < count(); k += 1) {
      if (x(k) + 0.5 / scale < STRIP) continue;
      pen.save();
      pen.translate(x(k) + 0.5 / scale, STRIP - 5);
      pen.rotate(-Math.PI / 2);
      pen.fillStyle = pointed?.column === k ? palette.key : palette.ink;
      pen.fillText(shorten(spec.keys.labels[k], 9), 0, 0, STRIP - 6);
      pen.restore();
    }
  }

  function minimap(/** @type {number} */ side) {
    const pen = /** @type {CanvasRenderingContext2D} */ (mini.getContext("2d"));
    pen.imageSmoothingEnabled = false;
    pen.drawImage(/** @type {HTMLCanvasElement} */ (base), 0, 0, 96, 96);
    const by = 96 / count();
    mini.hidden = side * scale >= count() - 1; // the map is the whole
    pen.strokeStyle = app.palette().query;
    pen.lineWidth = 1.5;
    pen.strokeRect(left * by, top * by, Math.max(3, side * scale * by), Math.max(3, side * scale * by));
  }

  /** The text around the row, its answers coloured where they are known. */
  function beside() {
    const at = pointed ? pointed.row : Math.floor(top + (size() * scale) / 2);
    if (at === textRow && (pointed?.column ?? -1) === textColumn) return;
    [textRow, textColumn] = [at, pointed?.column ?? -1];
    row = at;
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const piece = (/** @type {number} */ first, /** @type {number} */ last) => {
      const parts = [];
      for (let k = Math.max(0, first); k < Math.min(count(), last); k += 1) {
        if (!spec.queries.tight[k]) parts.push(" ");
        const label = spec.queries.labels[k];
        parts.push(k === row ? html("mark", { class: "query" }, label) : k === pointed?.column ? html("mark", { class: "key" }, label) : label);
      }
      return parts;
    };
    const column = pointed?.column ?? null;
    const apart = column !== null && Math.abs(column - row) > 140;
    words.replaceChildren(
      ...(apart && column !== null && column < row ? [html("p", {}, `… `, ...piece(column - 40, column + 40), " …")] : []),
      html("p", {}, html("span", { class: "hint" }, `tokens ${Math.max(0, row - 140).toLocaleString("en")}–${Math.min(count(), row + 140).toLocaleString("en")}  `), ...piece(row - 140, row + 140)),
      ...(apart && column !== null && column > row ? [html("p", {}, `… `, ...piece(column - 40, column + 40), " …")] : []));
    const marked = words.querySelector("mark.query");
    if (marked) words.scrollTop += marked.getBoundingClientRect().top - words.getBoundingClientRect().top - words.clientHeight / 2;
  }

  function showTip() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    if (!pointed) { tip.replaceChildren(html("span", { class: "hint" }, "Point at the map; left: entropy of each row, above: what each column receives.")); return; }
    const exact = tiles.weight(pointed.row, pointed.column);
    const { shape, values } = overview.arrays.max;
    const cell = values[Math.floor((pointed.row * shape[0]) / count()) * shape[1] + Math.floor((pointed.column * shape[1]) / count())];
    tip.replaceChildren(html("bdi", { class: "query-name" }, shorten(spec.queries.labels[pointed.row], 24)), html("sub", {}, String(pointed.row)), " → ",
      html("bdi", { class: "key-name" }, shorten(spec.keys.labels[pointed.column], 24)), html("sub", {}, String(pointed.column)), " ",
      exact === null ? html("span", { class: "number" }, `≤ ${number(cell)} in this cell`) : html("strong", { class: "number", "data-exact": "" }, number(exact)));
  }

  function list() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const { links: pairs, weights } = overview.arrays;
    const items = Array.from(weights.values, (weight, k) => ({ weight, query: pairs.values[2 * k], token: pairs.values[2 * k + 1] }));
    links.replaceChildren(...items.map(({ weight, query, token }) => jump(spec, query, token, weight)));
    if (!items.length) links.append(html("p", { class: "hint" }, "This head looks at neighbours and background tokens only."));
  }

  /** @param {any} spec @param {number} query @param {number} token @param {number} weight */
  function jump(spec, query, token, weight) {
    return html("button", { type: "button", class: "jump-link", click: () => { go(query, token); showTip(); } },
      html("span", { class: "number strong" }, number(weight)), " ", html("bdi", { class: "query-name" }, shorten(spec.queries.labels[query], 18)), html("sub", {}, String(query)), " → ",
      html("bdi", { class: "key-name" }, shorten(spec.keys.labels[token], 18)), html("sub", {}, String(token)));
  }

  async function find() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const word = search.value.trim().toLowerCase();
    if (!word || !key) return;
    const merged = spec.keys.merged ?? spec.keys;
    const tokens = spec.keys.labels.flatMap((label, k) => (label.toLowerCase() === word || merged.labels[spec.keys.words[k]]?.toLowerCase() === word ? [k] : []));
    asked += 1;
    const mine = asked;
    if (!tokens.length) { seekers.replaceChildren(html("p", { class: "hint" }, `“${search.value}” does not occur as a word.`)); return; }
    try {
      const { arrays } = await requestFrame("/api/tokens", { ...JSON.parse(key), tokens });
      if (mine !== asked) return;
      const best = Array.from(arrays.from.values, (weight, query) => ({ weight, query })).filter(({ query }) => !tokens.includes(query)).sort((a, b) => b.weight - a.weight).slice(0, 20);
      seekers.replaceChildren(html("p", { class: "hint" }, `“${search.value}” occurs ${tokens.length === 1 ? "once; it gets" : `${tokens.length} times; together they get`} from:`),
        ...best.map(({ weight, query }) => jump(spec, query, tokens.reduce((near, each) => (Math.abs(each - query) < Math.abs(near - query) ? each : near), tokens[0]), weight)));
      seekers.dataset.found = word;
    } catch (error) {
      app.fail(error);
    }
  }

  const place = (/** @type {MouseEvent} */ event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left - STRIP, y: event.clientY - box.top - STRIP };
  };
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, place(event)); }, { passive: false });
  /** @type {{ x: number, y: number, left: number, top: number } | null} */
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { ...place(event), left, top }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("dblclick", (event) => zoom(0.5, place(event)));
  canvas.addEventListener("pointermove", (event) => {
    const { x, y } = place(event);
    if (drag) { left = drag.left - (x - drag.x) * scale; top = drag.top - (y - drag.y) * scale; hold(); return; }
    const [i, j] = [Math.floor(top + y * scale), Math.floor(left + x * scale)];
    pointed = x >= 0 && y >= 0 && i < count() && j < count() ? { row: i, column: j } : null;
    showTip();
    redraw();
  });
  canvas.addEventListener("pointerleave", () => { if (!drag) { redraw(); } });
  canvas.addEventListener("keydown", (event) => {
    const step = size() * scale * 0.2;
    /** @type {Record<string, number[]>} */
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (event.key in moves) { event.preventDefault(); left += moves[event.key][0]; top += moves[event.key][1]; hold(); }
    if (event.key === "+" || event.key === "=") zoom(0.5);
    if (event.key === "-") zoom(2);
    if (event.key === "0") whole();
  });
  mini.addEventListener("pointerdown", (event) => {
    const box = mini.getBoundingClientRect();
    left = ((event.clientX - box.left) / box.width) * count() - (size() * scale) / 2;
    top = ((event.clientY - box.top) / box.height) * count() - (size() * scale) / 2;
    hold();
  });
  let width = 0; // of the map when it was last sized
  new ResizeObserver(() => {
    if (!overview || !app.text || size() === width) return;
    if (width) scale *= width / size(); // the same part of the text stays in view
    scale = Math.min(scale, count() / size());
    width = size();
    hold();
  }).observe(canvas);

  return { element: body, update };
}
