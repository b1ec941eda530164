// Curves over training steps, drawn by uPlot, which is loaded when the first chart is.
import { html, useRef, useEffect } from "../core/html.js";
import { palette } from "../core/color.js";
import { number } from "../core/format.js";
import { useTheme, useWidth } from "./basics.js";

let loading = null;

function load() {
  loading ??= new Promise((resolve, reject) => {
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: "vendor/uplot.css" });
    const script = Object.assign(document.createElement("script"), { src: "vendor/uplot.js", onload: () => resolve(globalThis.uPlot), onerror: () => reject(new Error("the chart could not be loaded")) });
    document.head.append(style, script);
  });
  return loading;
}

const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

// curves: [{ label, points: [[step, value], …] }]
export function LineChart({ curves, label, height = 240 }) {
  const box = useRef(null), chart = useRef(null), width = useWidth(box), theme = useTheme();
  useEffect(() => {
    if (!width || !curves.some((curve) => curve.points.length)) return undefined;
    let gone = false;
    load().then((Plot) => {
      if (gone) return;
      const colors = palette(), steps = [...new Set(curves.flatMap((curve) => curve.points.map(([step]) => step)))].sort((a, b) => a - b);
      const columns = curves.map((curve) => { const values = new Map(curve.points); return steps.map((step) => values.get(step) ?? null); });
      const axis = { stroke: colors.muted, grid: { stroke: colors.line, width: 1 }, ticks: { stroke: colors.line }, font: "12px system-ui" };
      chart.current?.destroy();
      box.current.querySelector(".uplot")?.remove();
      chart.current = new Plot({ width, height, scales: { x: { time: false } }, cursor: { drag: { x: false, y: false } }, axes: [axis, { ...axis, size: 56, values: (_, splits) => splits.map((value) => number(value)) }],
        series: [{ label: "step" }, ...curves.map((curve, index) => ({ label: curve.label, stroke: resolved(index % 4), width: 2, dash: DASHES[index % 4], spanGaps: true, points: { show: curve.points.length < 40, size: 5 }, value: (_, value) => number(value) }))] },
      [steps, ...columns], box.current);
    }, (error) => { if (box.current) box.current.textContent = error.message; });
    return () => { gone = true; };
  }, [width, theme, JSON.stringify(curves.map((curve) => [curve.label, curve.points.length, curve.points.at(-1)]))]);
  useEffect(() => () => chart.current?.destroy(), []);
  return html`<div ref=${box} class="plot" style=${{ minHeight: `${height + 40}px` }} role="img" aria-label=${`${label}: ${curves.map((curve) => `${curve.label} ${curve.points.length ? number(curve.points.at(-1)[1]) : "has no points yet"}`).join(", ")}`}></div>`;
}

function resolved(index) {
  const probe = document.createElement("i");
  probe.style.color = `var(--h${index})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}
