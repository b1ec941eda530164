// All heads of all layers as small pictures; one click opens one.
import { html, useRef, useLayoutEffect, useMemo } from "../core/html.js";
import { rove } from "../core/roving.js";
import { shade } from "../core/color.js";
import { weightsOf, scaleOf, focus } from "../core/rows.js";
import { number } from "../core/format.js";
import { useTheme } from "./basics.js";

const LARGEST = 48;

// version: a text that changes with `off` and `pinned`. band: the tokens in focus, which are marked in every picture:
// { side: "below" | "above", first, last }.
export function Heads({ maps, selected, measured, onSelect, off = () => false, pinned = () => -1, band, version }) {
  const most = Math.max(...maps.map((map) => map.heads)), scale = useMemo(() => Math.max(...maps.map((map) => scaleOf(weightsOf(map)))), [maps]);
  const pictures = useMemo(() => html`${maps.map((map) => html`
      <span class="small muted">${map.layer === null ? "" : `layer ${map.layer}`}</span>
      ${Array.from({ length: most }, (_, head) => head < map.heads
        ? html`<${Thumb} key=${`${map.name}.${head}`} map=${map} head=${head} scale=${scale} off=${off(map.name, head)} pin=${pinned(map.name, head)}
            isReachable=${map.name === selected.part && head === (selected.head ?? 0)}
            mark=${measured?.part === map.name && (measured.head === head || measured.head === null)}
            pressed=${selected.part === map.name && (selected.head === head || selected.head === null)} onSelect=${() => onSelect({ part: map.name, head })} />`
        : html`<span></span>`)}`)}`, [maps, scale, selected.part, selected.head, measured, version]);
  return html`<div class="scroll"><div class="grid-heads" style=${{ gridTemplateColumns: `max-content repeat(${most}, minmax(36px, 72px))`, ...bandStyle(band, maps[0]) }} data-band=${band?.side} role="group" aria-label="Heads" onKeyDown=${(event) => rove(event, most)}>
    <span class="small muted">head</span>${Array.from({ length: most }, (_, head) => html`<span class="small muted head-number">${head}</span>`)}
    ${pictures}
  </div></div>`;
}

// Where the tokens in focus are in a picture, as shares of its height or width.
function bandStyle(band, map) {
  if (!band) return {};
  const size = map.shape[band.side === "below" ? 1 : 2];
  return { "--from": `${(100 * band.first) / size}%`, "--size": `${(100 * (band.last + 1 - band.first)) / size}%` };
}

function Thumb({ map, head, scale, pressed, isReachable, mark, off, pin, onSelect }) {
  const canvas = useRef(null), theme = useTheme();
  useLayoutEffect(() => draw(canvas.current, map, head, scale), [map, head, scale, theme]);
  const name = `${map.layer === null ? map.kind : `layer ${map.layer}`}, head ${head}`;
  return html`<button class=${`head-thumb ${off ? "off" : ""}`} aria-pressed=${pressed} tabindex=${isReachable ? 0 : -1} onClick=${onSelect}
    aria-label=${`${name}${mark ? ", aligns best" : ""}${pin >= 0 ? `, pinned as ${pin + 1}` : ""}${off ? ", off" : ""}`} title=${`${name} · focus ${number(focus(map, head), 2)}${mark ? " · the measured alignment head" : ""}`}>
    <span class="picture"><canvas ref=${canvas} width="44" height="44" aria-hidden="true"></canvas><i class="band"></i></span>${mark && html`<span class="mark" aria-hidden="true">★</span>`}${pin >= 0 && html`<span class=${`pin-mark head-${pin}`}>${pin + 1}</span>`}</button>`;
}

// The weights as pixels; a map larger than the picture shows the largest weight of each block.
function draw(canvas, map, head, scale) {
  const [, rows, columns] = map.shape, weights = weightsOf(map);
  const block = Math.max(1, Math.ceil(Math.max(rows, columns) / LARGEST));
  const [wide, high] = [Math.ceil(columns / block), Math.ceil(rows / block)];
  canvas.width = wide;
  canvas.height = high;
  const pen = canvas.getContext("2d");
  for (let y = 0; y < high; y++)
    for (let x = 0; x < wide; x++) {
      let largest = 0;
      for (let row = y * block; row < Math.min(rows, (y + 1) * block); row++)
        for (let column = x * block; column < Math.min(columns, (x + 1) * block); column++)
          largest = Math.max(largest, weights[(head * rows + row) * columns + column]);
      pen.fillStyle = shade(largest / scale);
      pen.fillRect(x, y, 1, 1);
    }
}
