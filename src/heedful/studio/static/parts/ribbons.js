// Two rows of tokens joined by ribbons as wide as their weights.
// All ribbons are drawn once on a canvas, which fades while a token is in focus; only that token's ribbons are SVG, on top.
import { html, useRef, useEffect, useLayoutEffect, useMemo, useState } from "../core/html.js";
import { palette } from "../core/color.js";
import { scaleOf } from "../core/rows.js";
import { directionOf } from "../core/text.js";
import { rove } from "../core/roving.js";
import { Token } from "./tokens.js";
import { useTheme, useWidth } from "./basics.js";

const SMALLEST = 0.03;
const WIDEST = 9;
const LEAVING = 50;

// above: groups of the columns; below: groups of the rows; weights: rows × columns.
// layers: pinned heads, drawn for the token in focus instead of `weights`: { weights, color, dash }.
export function Ribbons({ above, below, weights, layers, picked, onPick, onHover, focused, sure, upright, compact }) {
  const frame = useRef(null), canvas = useRef(null);
  const [own, setOwn] = useState(null);
  const hovered = focused === undefined ? own : focused;
  // Leaving waits a moment, so that moving from one token to the next draws once.
  const leaving = useRef(0), setNow = (focus) => { setOwn(focus); onHover?.(focus); };
  const setHovered = (focus) => { clearTimeout(leaving.current); if (focus) setNow(focus); else leaving.current = setTimeout(setNow, LEAVING, null); };
  useEffect(() => () => clearTimeout(leaving.current), []);
  const [ends, setEnds] = useState(null);
  const width = useWidth(frame), theme = useTheme();
  const focus = hovered ?? picked;
  const scale = useMemo(() => scaleOf(weights), [weights]);
  const tops = useRef([]), bottoms = useRef([]);

  useLayoutEffect(() => {
    const box = frame.current.getBoundingClientRect();
    const end = (element, side) => {
      const bounds = element.getBoundingClientRect();
      return upright
        ? { x: (side === "above" ? bounds.right : bounds.left) - box.left, y: (bounds.top + bounds.bottom) / 2 - box.top }
        : { x: (bounds.left + bounds.right) / 2 - box.left, y: (side === "above" ? bounds.bottom : bounds.top) - box.top };
    };
    setEnds({
      above: above.map((_, index) => end(tops.current[index], "above")), below: below.map((_, index) => end(bottoms.current[index], "below")),
      size: [box.width, box.height],
    });
  }, [above, below, width, upright, compact]);

  useLayoutEffect(() => {
    if (!ends) return;
    const [wide, high] = ends.size, ratio = devicePixelRatio || 1;
    canvas.current.width = Math.round(wide * ratio);
    canvas.current.height = Math.round(high * ratio);
    const pen = canvas.current.getContext("2d");
    pen.scale(ratio, ratio);
    pen.strokeStyle = palette().ribbon;
    pen.globalAlpha = 0.45;
    pen.lineCap = "round";
    for (let row = 0; row < ends.below.length; row++) {
      const own = weights.subarray(row * above.length, (row + 1) * above.length), least = Math.min(SMALLEST, Math.max(...own) / 2);
      for (let column = 0; column < ends.above.length; column++) {
        if (own[column] < least || !own[column]) continue;
        pen.lineWidth = 0.5 + (own[column] / scale) * WIDEST;
        trace(pen, ends.above[column], ends.below[row], upright);
      }
    }
  }, [ends, weights, scale, theme]);

  const drawn = layers?.length ? layers : [{ weights, color: "var(--pick)", dash: null }];
  const active = focus && ends ? drawn.flatMap((layer, number) => strongest(focus, layer.weights, above.length, below.length, Math.floor(60 / drawn.length), scale)
    .map((ribbon) => ({ ...ribbon, layer, shift: (number - (drawn.length - 1) / 2) * 4 }))) : [];
  const mass = (side, index) => {
    if (!focus || focus.side === side) return 0;
    const weight = focus.side === "below" ? weights[focus.index * above.length + index] : weights[index * above.length + focus.index];
    return weight ?? 0;
  };
  const chip = (side, references) => (group, index) => html`<${Token} key=${index} group=${group} reference=${(element) => { references.current[index] = element; }}
    on=${focus?.side === side && focus.index === index} pinned=${picked?.side === side && picked.index === index} isReachable=${index === (picked?.side === side ? picked.index : 0)} mass=${mass(side, index)}
    onHover=${(on) => setHovered(on ? { side, index } : null)}
    onPick=${() => onPick(picked?.side === side && picked.index === index ? null : { side, index })}>
    ${side === "below" && sure?.[index] != null && html`<span class="sure" style=${{ background: palette().weights[5], transform: `scaleX(${sure[index]})` }}></span>`}<//>`;

  return html`<div class="scroll"><div data-focus=${Boolean(focus)} class=${`ribbons ${upright ? "upright" : ""} ${compact ? "compact" : ""}`} ref=${frame}>
    <canvas ref=${canvas} aria-hidden="true"></canvas>
    <svg aria-hidden="true">${active.map(({ row, column, weight, layer, shift }) => ends.below[row] && ends.above[column] && html`<path d=${curve(moved(ends.above[column], shift, upright), moved(ends.below[row], shift, upright), upright)}
      fill="none" stroke=${layer.color} stroke-linecap=${layer.dash ? "butt" : "round"} stroke-dasharray=${layer.dash} stroke-width=${1 + (weight / scale) * (layer.dash ? WIDEST / 2 : WIDEST)} stroke-opacity=${0.35 + 0.65 * Math.min(1, weight / scale)} />`)}</svg>
    <div class="tokens left" dir=${directionOf(above)} role="group" aria-label="read" onKeyDown=${rove}>${above.map(chip("above", tops))}</div>
    <div class="gap"></div>
    <div class="tokens right" dir=${directionOf(below)} role="group" aria-label="written" onKeyDown=${rove}>${below.map(chip("below", bottoms))}</div>
  </div></div>`;
}

const moved = (point, shift, upright) => (upright ? { x: point.x, y: point.y + shift } : { x: point.x + shift, y: point.y });

function trace(pen, from, to, upright) {
  const middle = upright ? (from.x + to.x) / 2 : (from.y + to.y) / 2;
  pen.beginPath();
  pen.moveTo(from.x, from.y);
  if (upright) pen.bezierCurveTo(middle, from.y, middle, to.y, to.x, to.y);
  else pen.bezierCurveTo(from.x, middle, to.x, middle, to.x, to.y);
  pen.stroke();
}

function curve(from, to, upright) {
  const middle = upright ? (from.x + to.x) / 2 : (from.y + to.y) / 2;
  return upright ? `M${from.x},${from.y}C${middle},${from.y} ${middle},${to.y} ${to.x},${to.y}` : `M${from.x},${from.y}C${from.x},${middle} ${to.x},${middle} ${to.x},${to.y}`;
}

// The ribbons of the token in focus, the widest first: { row, column, weight }.
function strongest(focus, weights, columns, rows, most, scale) {
  const all = [];
  if (focus.side === "below") for (let column = 0; column < columns; column++) all.push({ row: focus.index, column, weight: weights[focus.index * columns + column] });
  else for (let row = 0; row < rows; row++) all.push({ row, column: focus.index, weight: weights[row * columns + focus.index] });
  return all.filter(({ weight }) => weight > 0.005 * scale).sort((a, b) => b.weight - a.weight).slice(0, most);
}
