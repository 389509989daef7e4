// A matrix as coloured cells; frames mark the rows, columns and cells that a number depends on.

import { html } from "../../views/page/assets/dom.js";
import { colour, signed } from "../../views/page/assets/scale.js";

/**
 * @typedef {object} MatrixData
 * @property {number} rows
 * @property {number} columns
 * @property {Float32Array} values
 */

/**
 * @param {import("./main.js").App} app
 * @param {{ name: string, formula: string, kind: "signed" | "weights", rowLabels?: string[] | null, columnLabels?: string[] | null, point: (row: number, column: number) => void, leave: () => void }} about
 */
export function createMatrix(app, about) {
  const canvas = /** @type {HTMLCanvasElement} */ (html("canvas", { class: "matrix", tabindex: 0, role: "img" }));
  const title = html("h4", {}, about.name);
  const formula = html("p", { class: "formula" }, about.formula);
  const size = html("span", { class: "hint" });
  const element = html("figure", { class: "matrix-box", "data-step": about.name }, html("figcaption", {}, title, size, formula), canvas);
  /** @type {MatrixData} */
  let shown = { rows: 0, columns: 0, values: new Float32Array(0) };
  /** @type {{ row?: number, column?: number }[]} */
  let frames = [];
  let cursor = { row: 0, column: 0 };
  let [cellWidth, cellHeight, left] = [8, 8, 0];

  /** @param {MatrixData} matrix @param {string} [newFormula] */
  function show(matrix, newFormula) {
    shown = matrix;
    if (newFormula !== undefined) formula.textContent = newFormula;
    size.textContent = ` ${matrix.rows} × ${matrix.columns}`;
    canvas.setAttribute("aria-label", `${about.name}: ${matrix.rows} rows, ${matrix.columns} columns. Arrow keys move the cell whose number is shown above.`);
    draw();
  }

  function draw() {
    const { rows, columns, values } = shown;
    const palette = app.palette();
    const labels = about.rowLabels;
    left = labels ? 58 : 0;
    cellHeight = Math.min(14, Math.max(about.rowLabels ? 9 : 0.4, 230 / Math.max(rows, 1)));
    cellWidth = Math.min(16, Math.max(0.75, (about.columnLabels ? 200 : 170) / Math.max(columns, 1)));
    const zoom = Math.max(1, window.devicePixelRatio || 1);
    const [width, height] = [left + columns * cellWidth, rows * cellHeight];
    canvas.width = Math.ceil(width * zoom);
    canvas.height = Math.ceil(height * zoom);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    pen.scale(zoom, zoom);
    let peak = 0;
    for (const value of values) if (Number.isFinite(value)) peak = Math.max(peak, Math.abs(value));
    for (let i = 0; i < rows; i += 1) {
      for (let j = 0; j < columns; j += 1) {
        const value = values[i * columns + j];
        if (!Number.isFinite(value)) pen.fillStyle = palette.line;
        else pen.fillStyle = about.kind === "weights" ? colour(palette, value) : signed(palette, value / (peak || 1));
        pen.fillRect(left + j * cellWidth, i * cellHeight, Math.max(cellWidth - (cellWidth > 6 ? 0.75 : 0), 0.75), cellHeight - (cellHeight > 6 ? 0.75 : 0));
      }
      if (labels) {
        pen.fillStyle = i === app.store.get().locked ? palette.query : palette.muted;
        pen.font = `${i === app.store.get().locked ? 650 : 400} ${Math.min(11, cellHeight)}px system-ui, sans-serif`;
        pen.textAlign = "right";
        pen.textBaseline = "middle";
        pen.fillText(labels[i].slice(0, 9), left - 5, (i + 0.5) * cellHeight);
      }
    }
    pen.lineWidth = 1.75;
    for (const { row, column } of frames) {
      pen.strokeStyle = row !== undefined && column !== undefined ? palette.ink : row !== undefined ? palette.query : palette.key;
      const x = left + (column ?? 0) * cellWidth;
      const y = (row ?? 0) * cellHeight;
      pen.strokeRect(x + 0.5, y + 0.5, Math.max((column === undefined ? columns : 1) * cellWidth - 1, 2), (row === undefined ? rows : 1) * cellHeight - 1);
    }
  }

  /** @param {{ row?: number, column?: number }[]} newFrames */
  function mark(newFrames) {
    if (!newFrames.length && !frames.length) return;
    frames = newFrames;
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const zoom = (left + shown.columns * cellWidth) / box.width;
    const row = Math.floor(((event.clientY - box.top) * zoom) / cellHeight);
    const column = Math.floor(((event.clientX - box.left) * zoom - left) / cellWidth);
    if (row >= 0 && row < shown.rows && column >= 0 && column < shown.columns) { cursor = { row, column }; about.point(row, column); }
  });
  canvas.addEventListener("pointerleave", about.leave);
  canvas.addEventListener("focus", () => about.point(Math.min(cursor.row, shown.rows - 1), Math.min(cursor.column, shown.columns - 1)));
  canvas.addEventListener("blur", about.leave);
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!by) return;
    event.preventDefault();
    cursor = { row: Math.min(Math.max(cursor.row + by[0], 0), shown.rows - 1), column: Math.min(Math.max(cursor.column + by[1], 0), shown.columns - 1) };
    about.point(cursor.row, cursor.column);
  });

  return {
    element, show, mark, draw,
    at: (/** @type {number} */ row, /** @type {number} */ column) => shown.values[row * shown.columns + column],
    get shown() { return shown; },
  };
}
