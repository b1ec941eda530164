// A vector as a strip of colors (orange below zero, blue above) with its first numbers written out.
import { html, useRef, useLayoutEffect } from "../core/html.js";
import { palette } from "../core/color.js";
import { number } from "../core/format.js";
import { useTheme } from "./basics.js";

const SHOWN = 6;

export function VectorStrip({ label, values, scale, note }) {
  const canvas = useRef(null), theme = useTheme();
  const largest = scale ?? Math.max(1e-9, ...values.map(Math.abs));
  useLayoutEffect(() => {
    const element = canvas.current, pen = element.getContext("2d"), colors = palette();
    element.width = values.length;
    element.height = 1;
    values.forEach((value, index) => {
      pen.globalAlpha = Math.min(1, Math.abs(value) / largest);
      pen.fillStyle = value < 0 ? colors.down : colors.up;
      pen.fillRect(index, 0, 1, 1);
    });
  }, [values, theme, largest]);
  const size = Math.hypot(...values);
  return html`<div class="stack tight"><div class="row between small"><span>${label}</span><span class="muted number">${values.slice(0, SHOWN).map((value) => number(value, 2)).join("  ")}${values.length > SHOWN ? " …" : ""} · ${values.length} values, norm ${number(size)}</span></div>
    <canvas ref=${canvas} class="strip" role="img" aria-label=${`${label}: ${values.slice(0, SHOWN).map((value) => number(value, 2)).join(", ")} …`}></canvas>${note && html`<p class="small muted">${note}</p>`}</div>`;
}
