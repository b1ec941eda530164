// The heads and feed-forward networks without which the loss rises most, and the role of each head.
import { html, useRef, useEffect } from "../core/html.js";
import { signed, percent, plural } from "../core/format.js";
import { toggledHead, toggledPart } from "../core/switches.js";
import { Card } from "./basics.js";
import { Exports } from "./export.js";

const ROWS = 8;
const change = (row) => Object.values(row.changes)[0].loss;

// The change of loss when a part is off, as a share of the largest among parts of its kind: 0 … 1 by part.
export function importanceOf(census) {
  const rows = census?.parts ?? [], largest = {};
  if (!rows.length) return null;
  for (const row of rows) largest[row.kind] = Math.max(largest[row.kind] ?? 1e-9, change(row).value);
  return Object.fromEntries(rows.map((row) => [row.part, Math.max(0, change(row).value) / largest[row.kind]]));
}

export function CensusRanking({ census, off, inView }) {
  const box = useRef(null);
  useEffect(() => { if (inView) box.current.scrollIntoView({ block: "center" }); }, []);
  const rows = census.parts.filter((row) => row.head !== null || /feed.forward/.test(row.kind)).sort((a, b) => change(b).value - change(a).value).slice(0, ROWS);
  const head = rows.find((row) => row.head !== null);
  return html`<div class="later" ref=${box}><${Card} title="Most important parts" tools=${html`<${Exports} name="census" values=${census} />`}>
    ${head && html`<p>Most important head: <b>${head.part.replace(".head.", ", head ")}</b>. Without it the loss changes by ${signed(change(head).value)} nats per ${census.unit} (95% interval ${signed(change(head).low)} to ${signed(change(head).high)}).</p>`}<div class="scroll"><table class="plain stacked"><tr><th>part</th><th class="number">change of loss without it</th><th>attends to</th></tr>${rows.map((row) => html`<tr>
      <td><button class="link" onClick=${() => (row.head === null ? toggledPart(off, row.part) : toggledHead(off, row.part.replace(/\.head\.\d+$/, ""), row.head))}>${row.part.replace(".head.", ", head ")}</button></td>
      <td class="number" data-label="change of loss">${signed(change(row).value)} <span class="muted">(${signed(change(row).low)} to ${signed(change(row).high)})</span></td><td class="small" data-label="attends to">${row.role ? `${row.role.role.replaceAll("_", " ")}${row.role.share === null ? "" : ` ${percent(row.role.share)}`}` : ""}</td></tr>`)}</table></div>
    <p class="small muted">Loss in nats per ${census.unit} on ${plural(census.texts, "validation text")}, with 95% intervals; each part was replaced by zeros. Click a part to switch it off.</p><//></div>`;
}
