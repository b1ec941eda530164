// One attention head as a table of colors, with the value under the pointer written out. Arrow keys move the crosshair.
import { html, useRef, useLayoutEffect, useMemo, useState } from "../core/html.js";
import { palette, shade } from "../core/color.js";
import { breadth, directionOf } from "../core/text.js";
import { number, percent } from "../core/format.js";
import { Bars, useTheme, useWidth, visible } from "./basics.js";

const MOST_LABELS = 90;

const NARROW = 330, BARS = 12;

// scale: the weight with the strongest color. Cells are drawn on one canvas, marks on a second one above it.
export function HeatMap({ rows, columns, weights, scale = 1, linear, picked, onPick, caption, masked = () => false, whole }) {
  const box = useRef(null), canvas = useRef(null), marks = useRef(null);
  const [cell, setCell] = useState(null);
  const width = useWidth(box), theme = useTheme();
  const layout = useMemo(() => measure(rows, columns, width || 340), [rows, columns, width]);
  // Columns of a right-to-left text run from the right, as its words do. `place` is its own inverse.
  const isMirrored = useMemo(() => directionOf(columns) === "rtl", [columns]), place = (x) => (isMirrored ? columns.length - 1 - x : x);

  const narrow = !whole && width > 0 && width < NARROW;

  useLayoutEffect(() => {
    if (!canvas.current) return;
    const { left, top, size } = layout, pen = penOf(canvas.current, layout), colors = palette();
    rows.forEach((row, y) => columns.forEach((column, x) => {
      const weight = weights[y * columns.length + x];
      if (Number.isNaN(weight) || (weight === 0 && masked(y, x))) return hatch(pen, left + place(x) * size, top + y * size, size, colors.line);
      pen.fillStyle = shade(weight / scale, linear);
      pen.fillRect(left + place(x) * size, top + y * size, size - (size > 8 ? 1 : 0), size - (size > 8 ? 1 : 0));
    }));
    pen.fillStyle = colors.muted;
    const every = Math.ceil(12 / size);
    if (rows.length <= MOST_LABELS || size >= 8) rows.forEach((row, y) => y % every || rowLabel(pen, row, y, layout));
    columns.forEach((column, x) => x % every || columnLabel(pen, column, place(x), layout));
  }, [rows, columns, weights, scale, linear, layout, narrow, theme]);

  useLayoutEffect(() => {
    if (!marks.current) return;
    const { left, top, size } = layout, pen = penOf(marks.current, layout), colors = palette();
    pen.fillStyle = pen.strokeStyle = colors.pick;
    pen.lineWidth = 2;
    if (picked?.side === "below" && rows[picked.index]) {
      rowLabel(pen, rows[picked.index], picked.index, layout);
      pen.strokeRect(left, top + picked.index * size, columns.length * size, size);
    }
    if (picked?.side === "above" && columns[picked.index]) {
      columnLabel(pen, columns[picked.index], place(picked.index), layout);
      pen.strokeRect(left + place(picked.index) * size, top, size, rows.length * size);
    }
    if (cell) {
      pen.strokeStyle = colors.accent;
      pen.strokeRect(left + place(cell.x) * size, top + cell.y * size, size, size);
    }
  }, [rows, columns, picked?.side, picked?.index, cell, layout, narrow, theme]);

  const at = (event) => {
    const bounds = canvas.current.getBoundingClientRect();
    const x = Math.floor((event.clientX - bounds.left - layout.left) / layout.size), y = Math.floor((event.clientY - bounds.top - layout.top) / layout.size);
    return x >= 0 && y >= 0 && x < columns.length && y < rows.length ? { x: place(x), y } : null;
  };
  const move = (event) => {
    const step = { ArrowLeft: [isMirrored ? 1 : -1, 0], ArrowRight: [isMirrored ? -1 : 1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const { x, y } = cell ?? { x: 0, y: 0 };
    setCell({ x: Math.min(columns.length - 1, Math.max(0, x + step[0])), y: Math.min(rows.length - 1, Math.max(0, y + step[1])) });
  };
  const text = cell && rows[cell.y] && columns[cell.x]
    ? `${visible(rows[cell.y].label)} → ${visible(columns[cell.x].label)}: ${weights[cell.y * columns.length + cell.x] === 0 && masked(cell.y, cell.x) ? "masked" : number(weights[cell.y * columns.length + cell.x])}`
    : caption ?? "Point at a cell, or focus the map and use the arrow keys.";
  if (narrow) return html`<div ref=${box}><${AttentionRow} rows=${rows} columns=${columns} weights=${weights} index=${picked?.side === "below" && rows[picked.index] ? picked.index : 0} /></div>`;
  return html`<div ref=${box} class="stack tight">
    <div class="scroll"><div class="heat"><canvas ref=${canvas} tabindex="0" role="img"
      aria-label=${`Attention: ${rows.length} rows, ${columns.length} columns. ${text}`}
      onMouseMove=${(event) => setCell(at(event))} onMouseLeave=${() => setCell(null)} onKeyDown=${move}
      onClick=${(event) => { const hit = at(event); if (hit) onPick?.({ side: "below", index: hit.y }); }}></canvas><canvas class="marks" ref=${marks} aria-hidden="true"></canvas></div></div>
    <p class="readout small muted" aria-live="polite">${text}</p>
  </div>`;
}

// A pen for a canvas of the layout's size, cleared.
function penOf(canvas, { size, wide, high }) {
  const ratio = devicePixelRatio || 1, [width, height] = [Math.round(wide * ratio), Math.round(high * ratio)], pen = canvas.getContext("2d");
  if (canvas.width !== width || canvas.height !== height) {  // a new size takes milliseconds
    [canvas.width, canvas.height] = [width, height];
    [canvas.style.width, canvas.style.height] = [`${wide}px`, `${high}px`];
  }
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, wide, high);
  pen.font = `${Math.min(12, Math.max(9, size - 4))}px system-ui, "Noto Sans CJK JP", sans-serif`;
  pen.textBaseline = "middle";
  return pen;
}

function rowLabel(pen, row, y, { left, top, size }) {
  pen.textAlign = "right";
  pen.fillText(clip(row.label), left - 6, top + (y + 0.5) * size);
}

function columnLabel(pen, column, x, { left, top, size }) {
  pen.save();
  pen.translate(left + (x + 0.5) * size, top - 6);
  pen.rotate(-Math.PI / 3.2);
  pen.textAlign = "left";
  pen.fillText(clip(column.label), 0, 0);
  pen.restore();
}

// A cell without a number: masked, or not a number.
function hatch(pen, x, y, size, color) {
  pen.strokeStyle = color;
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(x + 1, y + size - 2);
  pen.lineTo(x + size - 2, y + 1);
  pen.stroke();
}

// On a narrow screen: one row of the map, as bars.
function AttentionRow({ rows, columns, weights, index }) {
  const values = columns.map((column, x) => ({ label: column.label, value: weights[index * columns.length + x] })).sort((a, b) => b.value - a.value);
  const rest = values.slice(BARS).reduce((sum, entry) => sum + entry.value, 0);
  return html`<div class="stack tight"><p class="small muted">Attention weights of <b><bdi>${visible(rows[index].label)}</bdi></b>. Select another word above to see its row.</p><${Bars} items=${values.slice(0, BARS)} />
    ${values.length > BARS && html`<p class="small muted">+ ${values.length - BARS} others ${percent(rest)}</p>`}</div>`;
}

const LABEL = 14;
const clip = (label) => { const letters = [...visible(label)]; return letters.length > LABEL ? `${letters.slice(0, LABEL - 1).join("")}…` : letters.join(""); };

const extent = (group) => 7 * breadth(clip(group.label));

function measure(rows, columns, width) {
  const longest = (groups) => Math.max(7, ...groups.map(extent));
  const left = Math.min(110, 14 + longest(rows)), top = 18 + 0.84 * longest(columns), right = Math.max(24, 8 + 0.56 * Math.max(0, ...columns.slice(-3).map(extent)));
  const size = Math.max(4, Math.min(30, Math.floor((width - left - right) / Math.max(1, columns.length))));
  return { left, top, size, wide: left + columns.length * size + right, high: top + rows.length * size + 4 };
}
