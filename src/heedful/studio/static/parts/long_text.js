// A long text is drawn in windows: the rows around one row, and the columns that get most of their attention.
import { html, useRef, useLayoutEffect } from "../core/html.js";
import { patch } from "../core/address.js";
import { shade, palette } from "../core/color.js";
import { scaleOf } from "../core/rows.js";
import { useTheme } from "./basics.js";

const LONGEST = 60, AROUND = 20;

// The part of rows and columns to draw: { rows: [first, end], columns: [first, end] }; null if all of them fit.
export function windowOf(rows, columns, weights, center) {
  if (Math.max(rows.length, columns.length) <= LONGEST) return null;
  const part = (length, middle) => (length <= LONGEST ? [0, length] : [Math.max(0, Math.min(length, middle + AROUND + 1) - 2 * AROUND - 1), Math.min(length, Math.max(2 * AROUND + 1, middle + AROUND + 1))]);
  const near = part(rows.length, Math.min(center, rows.length - 1));
  const read = new Float32Array(columns.length);
  for (let row = near[0]; row < near[1]; row++) for (let column = 0; column < columns.length; column++) read[column] += weights[row * columns.length + column];
  return { rows: near, columns: part(columns.length, densest(read)) };
}

// The middle of the stretch of columns with the largest sum.
function densest(values) {
  let sum = 0, best = -1, at = 0;
  values.forEach((value, index) => {
    sum += value - (index > 2 * AROUND ? values[index - 2 * AROUND - 1] : 0);
    if (sum > best + 1e-6) [best, at] = [sum, Math.max(0, index - AROUND)];
  });
  return at;
}

export function cutWeights(weights, width, { rows, columns }) {
  const cut = new Float32Array((rows[1] - rows[0]) * (columns[1] - columns[0]));
  for (let row = rows[0]; row < rows[1]; row++)
    cut.set(weights.subarray(row * width + columns[0], row * width + columns[1]), (row - rows[0]) * (columns[1] - columns[0]));
  return cut;
}

// The whole map as a strip, with the window marked; a click or the slider moves it.
export function Minimap({ rows, columns, weights, shown }) {
  const canvas = useRef(null), theme = useTheme();
  const middle = Math.round((shown.rows[0] + shown.rows[1]) / 2);
  useLayoutEffect(() => {
    const element = canvas.current, pen = element.getContext("2d");
    element.width = rows.length;
    element.height = columns.length;
    const scale = scaleOf(weights);
    for (let row = 0; row < rows.length; row++)
      for (let column = 0; column < columns.length; column++) {
        pen.fillStyle = shade(weights[row * columns.length + column] / scale);
        pen.fillRect(row, column, 1, 1);
      }
    pen.strokeStyle = palette().pick;
    pen.lineWidth = 2;
    pen.strokeRect(shown.rows[0], shown.columns[0], shown.rows[1] - shown.rows[0], shown.columns[1] - shown.columns[0]);
  }, [weights, shown.rows[0], shown.columns[0], theme]);
  return html`<div class="stack tight"><canvas class="minimap" ref=${canvas} aria-hidden="true" onClick=${(event) => { const box = canvas.current.getBoundingClientRect(); patch({ around: Math.floor(((event.clientX - box.left) / box.width) * rows.length) }); }}></canvas>
    <label class="row small muted"><span>Rows ${shown.rows[0] + 1} to ${shown.rows[1]} of ${rows.length}</span><input type="range" min="0" max=${rows.length - 1} value=${middle} onInput=${(event) => patch({ around: event.target.value })} /></label></div>`;
}
