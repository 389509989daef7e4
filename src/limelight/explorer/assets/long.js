// A long text as a map to zoom and pan: pooled from afar, exact from near.

import { html, number, shorten } from "../../views/page/assets/dom.js";
import { height, rgb } from "../../views/page/assets/scale.js";
import { requestFrame } from "./api.js";
import { card } from "./cards.js";
import { createGrid } from "./grid.js";
import { Tiles } from "./tiles.js";

const STRIP = 54; // pixels beside the map: labels of tokens from near, statistics from afar
const LONGEST_BAR = STRIP - 8;
const NEAREST = 1 / 24; // tokens per pixel at most zoom: a token is 24 pixels wide
const MINIMAP = 96; // pixels along a side

/** @param {import("./main.js").App} app @returns {import("./main.js").Panel} */
export function create(app) {
  const { store } = app;
  const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { class: "map", tabindex: 0, role: "img" }));
  const minimap = /** @type {HTMLCanvasElement} */ (html("canvas", { class: "minimap", width: MINIMAP, height: MINIMAP, role: "img", "aria-label": "The whole map, with a frame around the part that is shown" }));
  const tip = html("p", { class: "story map-tip", "aria-live": "polite" });
  const excerpt = html("div", { class: "text-beside", tabindex: 0, "aria-label": "The text around the query" });
  const links = html("div", { class: "jump", "aria-label": "Strongest links" });
  const search = /** @type {HTMLInputElement} */ (html("input", { type: "search", class: "find", placeholder: "a word", "aria-label": "Search for a word, to see which tokens look at it", change: () => find() }));
  const foundLinks = html("div", { class: "jump", "aria-live": "polite" });
  const button = (/** @type {string} */ label, /** @type {string} */ title, /** @type {() => void} */ click) => html("button", { type: "button", class: "chip", title, "aria-label": title, click }, label);
  const grid = createGrid(app, { several: false });
  const body = html("div", { class: "long" },
    html("div", { class: "grid-tools" }, button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)), button("Whole text", "Show the whole text", () => showWhole()),
      html("label", {}, html("span", { class: "hint" }, "Find "), search), html("span", { class: "hint keys" }, "drag to move, wheel to zoom; arrow keys, + and − too")),
    tip,
    html("div", { class: "long-grid" },
      html("section", { class: "card map-card", "aria-label": "Map" }, canvas, minimap),
      html("section", { class: "card", "aria-label": "Text" }, html("h3", {}, "The text"), excerpt),
      html("section", { class: "card", "aria-label": "Links" }, html("h3", {}, "Strongest links of this head"), html("p", { class: "hint" }, "beyond neighbours and background tokens"), links),
      html("section", { class: "card", "aria-label": "Found" }, html("h3", {}, "Tokens that look at a word"), foundLinks),
      card(app, "All heads", "click a head to see its map", grid, "heads-grid")));
  clearSearch();

  /** @type {any} */
  let overview = null;
  /** @type {HTMLCanvasElement | null} */
  let pooledMap = null; // painted; null if it has to be painted again
  let requestKey = "";
  let newest = 0; // id of the newest update
  let newestSearch = 0;
  let scale = 1; // tokens per pixel
  let [left, top] = [0, 0]; // the token at the corner
  /** @type {{ row: number, column: number } | null} */
  let pointed = null;
  let [excerptRow, excerptColumn] = [-1, -1]; // the link that the excerpt shows
  const tiles = new Tiles(app, () => redraw());

  const size = () => Math.max(120, canvas.clientWidth - STRIP);
  const count = () => /** @type {import("./text.js").ReadText} */ (app.text).rows;

  /** @param {import("./state.js").PageState} state @param {import("./state.js").PageState | null} before */
  async function update(state, before) {
    const { text } = app;
    if (!text) return;
    const request = { ...text.request, layer: text.spec.layers[state.layer], head: text.spec.heads[state.head] };
    const key = JSON.stringify(request);
    newest += 1; // supersedes a pending request
    if (key !== requestKey) {
      const isNewText = !requestKey || JSON.parse(requestKey).text !== request.text || JSON.parse(requestKey).model !== request.model;
      const id = newest;
      try {
        const frame = await requestFrame("/api/overview", request);
        if (id !== newest) return;
        requestKey = key;
        overview = frame;
        pooledMap = null;
        tiles.open(request);
        if (isNewText) { pointed = null; excerptRow = -1; showWhole(); showTip(); clearSearch(); }
        listLinks();
        if (search.value) find();
      } catch (error) {
        app.fail(error);
        return;
      }
    }
    if (!before || state.scheme !== before.scheme || state.systemDark !== before.systemDark || state.log !== before.log || state.background !== before.background || pooledMap === null) { pooledMap = null; tiles.repaint(); }
    redraw();
    grid.update(state, true);
    body.dataset.drawn = `${request.layer}.${request.head}`;
  }

  function showWhole() {
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
    clampAndRedraw();
  }

  /** Keeps the shown part within the text. */
  function clampAndRedraw() {
    const last = Math.max(count() - size() * scale, 0);
    left = Math.min(Math.max(left, 0), last);
    top = Math.min(Math.max(top, 0), last);
    redraw();
  }

  /** Shows the map around a link. @param {number} query @param {number} key */
  function jumpTo(query, key) {
    scale = Math.min(1 / 8, count() / size());
    left = key - (size() * scale) / 2;
    top = query - (size() * scale) / 2;
    pointed = { row: query, column: key };
    clampAndRedraw();
  }

  let scheduled = false;
  function redraw() {
    if (scheduled) return;
    scheduled = true;
    requestAnimationFrame(() => { scheduled = false; if (overview && app.text) draw(); });
  }

  /** @param {{ rows: number, columns: number, values: Float32Array }} weights */
  function paint({ rows, columns, values }) {
    const painted = document.createElement("canvas");
    [painted.width, painted.height] = [columns, rows];
    const pen = /** @type {CanvasRenderingContext2D} */ (painted.getContext("2d"));
    const image = pen.createImageData(columns, rows);
    const palette = app.palette();
    const { log } = store.get();
    values.forEach((value, k) => {
      const [red, green, blue] = rgb(palette, height(value, 1, log));
      image.data.set([red, green, blue, 255], 4 * k);
    });
    pen.putImageData(image, 0, 0);
    return painted;
  }

  function draw() {
    const side = size();
    const pixelRatio = Math.max(1, window.devicePixelRatio || 1);
    canvas.width = Math.round((side + STRIP) * pixelRatio);
    canvas.height = canvas.width;
    canvas.style.height = `${side + STRIP}px`;
    canvas.setAttribute("aria-label", `Map of ${count()} tokens: rows are queries, columns are keys. Shown: rows ${Math.floor(top)} to ${Math.ceil(top + side * scale)}, columns ${Math.floor(left)} to ${Math.ceil(left + side * scale)}.`);
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.scale(pixelRatio, pixelRatio);
    pen.fillStyle = app.palette().paper;
    pen.fillRect(0, 0, side + STRIP, side + STRIP);
    const x = (/** @type {number} */ token) => STRIP + (token - left) / scale;
    const y = (/** @type {number} */ token) => STRIP + (token - top) / scale;
    drawWeights(pen, x, y, side);
    if (1 / scale >= 11) drawLabels(pen, x, y, side);
    else drawStrips(pen, side);
    drawMinimap(side);
    showExcerpt();
    if (pointed) showTip(); // its tile may have arrived
  }

  /** The pooled map, exact tiles over it, and a frame around the row and column that are pointed at. @param {CanvasRenderingContext2D} pen @param {(token: number) => number} x @param {(token: number) => number} y @param {number} side */
  function drawWeights(pen, x, y, side) {
    const { shape, values } = overview.arrays.max;
    pooledMap ??= paint({ rows: shape[0], columns: shape[1], values });
    const palette = app.palette();
    pen.save();
    pen.beginPath();
    pen.rect(STRIP, STRIP, side, side);
    pen.clip();
    pen.imageSmoothingEnabled = false;
    pen.drawImage(pooledMap, x(0), y(0), count() / scale, count() / scale);
    // tiles where the map is coarser than the screen
    const run = 2 ** Math.max(0, Math.floor(Math.log2(Math.max(scale, 1))));
    if (count() / shape[0] > scale) {
      for (const tile of tiles.within(left, top, side * scale, run, count())) {
        if (!tile.picture) continue;
        tile.painted ??= paint(tile.picture);
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
  }

  /** Bars for the entropy of each row on the left, and for what each column receives on top. */
  function drawStrips(/** @type {CanvasRenderingContext2D} */ pen, /** @type {number} */ side) {
    const palette = app.palette();
    const { entropy, received } = overview.arrays;
    const maxEntropy = Math.max(...entropy.values);
    const maxReceived = Math.log1p(Math.max(...received.values));
    for (let p = 0; p < side; p += 1) {
      const [i, j] = [Math.floor(top + p * scale), Math.floor(left + p * scale)];
      if (i < entropy.values.length) {
        const length = (LONGEST_BAR * entropy.values[i]) / (maxEntropy || 1);
        pen.fillStyle = palette.query;
        pen.fillRect(STRIP - 2 - length, STRIP + p, length, 1);
      }
      if (j < received.values.length) {
        const length = (LONGEST_BAR * Math.log1p(received.values[j])) / (maxReceived || 1);
        pen.fillStyle = palette.key;
        pen.fillRect(STRIP + p, STRIP - 2 - length, 1, length);
      }
    }
  }

  /** @param {CanvasRenderingContext2D} pen @param {(token: number) => number} x @param {(token: number) => number} y @param {number} side */
  function drawLabels(pen, x, y, side) {
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

  function drawMinimap(/** @type {number} */ side) {
    const pen = /** @type {CanvasRenderingContext2D} */ (minimap.getContext("2d"));
    pen.imageSmoothingEnabled = false;
    pen.drawImage(/** @type {HTMLCanvasElement} */ (pooledMap), 0, 0, MINIMAP, MINIMAP);
    const zoomOut = MINIMAP / count();
    minimap.hidden = side * scale >= count() - 1; // the map shows everything
    pen.strokeStyle = app.palette().query;
    pen.lineWidth = 1.5;
    pen.strokeRect(left * zoomOut, top * zoomOut, Math.max(3, side * scale * zoomOut), Math.max(3, side * scale * zoomOut));
  }

  /** The text around the row that is pointed at, or in the middle of the map; the row and its key are marked. */
  function showExcerpt() {
    const row = pointed ? pointed.row : Math.floor(top + (size() * scale) / 2);
    if (row === excerptRow && (pointed?.column ?? -1) === excerptColumn) return;
    [excerptRow, excerptColumn] = [row, pointed?.column ?? -1];
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
    excerpt.replaceChildren(
      ...(apart && column !== null && column < row ? [html("p", {}, `… `, ...piece(column - 40, column + 40), " …")] : []),
      html("p", {}, html("span", { class: "hint" }, `tokens ${Math.max(0, row - 140).toLocaleString("en")}–${(Math.min(count(), row + 140) - 1).toLocaleString("en")}  `), ...piece(row - 140, row + 140)),
      ...(apart && column !== null && column > row ? [html("p", {}, `… `, ...piece(column - 40, column + 40), " …")] : []));
    const marked = excerpt.querySelector("mark.query");
    if (marked) excerpt.scrollTop += marked.getBoundingClientRect().top - excerpt.getBoundingClientRect().top - excerpt.clientHeight / 2;
  }

  function showTip() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    if (!pointed) { tip.replaceChildren(html("span", { class: "hint" }, "Point at the map. Bars: entropy of each row (left), attention received by each column (top).")); return; }
    const exact = tiles.weight(pointed.row, pointed.column);
    const { shape, values } = overview.arrays.max;
    const cell = values[Math.floor((pointed.row * shape[0]) / count()) * shape[1] + Math.floor((pointed.column * shape[1]) / count())];
    tip.replaceChildren(html("bdi", { class: "query-name" }, shorten(spec.queries.labels[pointed.row], 24)), html("sub", {}, String(pointed.row)), " → ",
      html("bdi", { class: "key-name" }, shorten(spec.keys.labels[pointed.column], 24)), html("sub", {}, String(pointed.column)), " ",
      exact === null ? html("span", { class: "number" }, `≤ ${number(cell)} in this cell`) : html("strong", { class: "number", "data-exact": "" }, number(exact)));
  }

  function listLinks() {
    const { links: pairs, weights } = overview.arrays;
    const items = Array.from(weights.values, (weight, k) => linkButton(pairs.values[2 * k], pairs.values[2 * k + 1], weight));
    links.replaceChildren(...(items.length ? items : [html("p", { class: "hint" }, "This head looks at neighbours and background tokens only.")]));
  }

  /** @param {number} query @param {number} key @param {number} weight */
  function linkButton(query, key, weight) {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    return html("button", { type: "button", class: "jump-link", click: () => { jumpTo(query, key); showTip(); } },
      html("span", { class: "number strong" }, number(weight)), " ", html("bdi", { class: "query-name" }, shorten(spec.queries.labels[query], 18)), html("sub", {}, String(query)), " → ",
      html("bdi", { class: "key-name" }, shorten(spec.keys.labels[key], 18)), html("sub", {}, String(key)));
  }

  function clearSearch() {
    foundLinks.replaceChildren(html("p", { class: "hint" }, "Search for a word above."));
  }

  /** Lists the tokens that look most at a word, wherever it occurs. */
  async function find() {
    const { spec } = /** @type {import("./text.js").ReadText} */ (app.text);
    const word = search.value.trim().toLowerCase();
    if (!word || !requestKey) return;
    const merged = spec.keys.merged ?? spec.keys;
    const tokens = spec.keys.labels.flatMap((label, k) => (label.toLowerCase() === word || merged.labels[spec.keys.words[k]]?.toLowerCase() === word ? [k] : []));
    newestSearch += 1;
    const id = newestSearch;
    if (!tokens.length) { foundLinks.replaceChildren(html("p", { class: "hint" }, `“${search.value}” does not occur as a word.`)); return; }
    try {
      const { arrays } = await requestFrame("/api/tokens", { ...JSON.parse(requestKey), tokens });
      if (id !== newestSearch) return;
      const strongest = Array.from(arrays.from.values, (weight, query) => ({ weight, query })).filter(({ query }) => !tokens.includes(query)).sort((a, b) => b.weight - a.weight).slice(0, 20);
      const nearest = (/** @type {number} */ query) => tokens.reduce((best, token) => (Math.abs(token - query) < Math.abs(best - query) ? token : best));
      foundLinks.replaceChildren(html("p", { class: "hint" }, `“${search.value}” occurs ${tokens.length === 1 ? "once; it receives" : `${tokens.length} times; in all it receives`} most from:`),
        ...strongest.map(({ weight, query }) => linkButton(query, nearest(query), weight)));
      foundLinks.dataset.found = word;
    } catch (error) {
      app.fail(error);
    }
  }

  /** The pixel of the map under the pointer. @param {MouseEvent} event */
  const pixelAt = (event) => {
    const box = canvas.getBoundingClientRect();
    return { x: event.clientX - box.left - STRIP, y: event.clientY - box.top - STRIP };
  };
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.25 : 0.8, pixelAt(event)); }, { passive: false });
  /** @type {{ x: number, y: number, left: number, top: number } | null} */
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => { drag = { ...pixelAt(event), left, top }; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener("pointerup", () => { drag = null; });
  canvas.addEventListener("dblclick", (event) => zoom(0.5, pixelAt(event)));
  canvas.addEventListener("pointermove", (event) => {
    const { x, y } = pixelAt(event);
    if (drag) { left = drag.left - (x - drag.x) * scale; top = drag.top - (y - drag.y) * scale; clampAndRedraw(); return; }
    const [i, j] = [Math.floor(top + y * scale), Math.floor(left + x * scale)];
    pointed = x >= 0 && y >= 0 && i < count() && j < count() ? { row: i, column: j } : null;
    showTip();
    redraw();
  });

  canvas.addEventListener("keydown", (event) => {
    const step = size() * scale * 0.2;
    /** @type {Record<string, number[]>} */
    const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
    if (event.key in moves) { event.preventDefault(); left += moves[event.key][0]; top += moves[event.key][1]; clampAndRedraw(); }
    if (event.key === "+" || event.key === "=") zoom(0.5);
    if (event.key === "-") zoom(2);
    if (event.key === "0") showWhole();
  });
  minimap.addEventListener("pointerdown", (event) => {
    const box = minimap.getBoundingClientRect();
    left = ((event.clientX - box.left) / box.width) * count() - (size() * scale) / 2;
    top = ((event.clientY - box.top) / box.height) * count() - (size() * scale) / 2;
    clampAndRedraw();
  });
  let width = 0; // of the map when it was last sized
  new ResizeObserver(() => {
    if (!overview || !app.text || size() === width) return;
    if (width) scale *= width / size(); // the same part of the text stays in view
    scale = Math.min(scale, count() / size());
    width = size();
    clampAndRedraw();
  }).observe(canvas);

  return { element: body, update };
}
