// The attention of one model minus that of another, for the same answer.
import { html, useMemo } from "../core/html.js";
import { groups, outputGroups, pooled } from "../core/rows.js";
import { signed } from "../core/format.js";
import { Word } from "./basics.js";

const MOST = 26, WRITTEN = 0.095;

// Attention between the words of the answer and those of the source, whatever the tokens: { rows, columns, weights }.
function wordAttention(look) {
  const map = look.attention.find((candidate) => candidate.name === look.alignment?.head.part) ?? look.attention.filter((candidate) => candidate.kind === "cross").at(-1);
  if (!map) return null;
  const head = look.alignment && map.name === look.alignment.head.part ? look.alignment.head.head : null;
  const rows = outputGroups(look, "spaces").filter((group) => !group.special), columns = groups(look.inputs, "spaces").filter((group) => !group.special);
  return { rows, columns, weights: pooled(map, head, rows, columns), name: `${map.name}, ${head === null ? "mean of its heads" : `head ${head}`}` };
}

export function DifferenceMap({ first, second, names }) {
  const [one, other] = useMemo(() => [wordAttention(first), wordAttention(second)], [first, second]);
  const isComparable = one && other && one.rows.length === other.rows.length && one.columns.length === other.columns.length && one.rows.length <= MOST && one.columns.length <= MOST;
  if (!isComparable) return null;
  const at = (row, column) => one.weights[row * one.columns.length + column] - other.weights[row * one.columns.length + column];
  const style = (value) => ({ background: `color-mix(in srgb, var(${value < 0 ? "--down" : "--up"}) ${Math.round(Math.min(1, Math.abs(value)) * 45)}%, var(--raised))` });
  return html`<div class="stack tight"><div class="scroll"><table class="matrix difference"><tr><td></td>${one.columns.map((column) => html`<th><${Word}>${column.label}<//></th>`)}</tr>
    ${one.rows.map((row, y) => html`<tr><th><${Word}>${row.label}<//></th>${one.columns.map((column, x) => html`<td style=${style(at(y, x))} title=${`${row.label} ← ${column.label}: ${signed(at(y, x))}`}>${Math.abs(at(y, x)) >= WRITTEN ? signed(at(y, x), 1) : ""}</td>`)}</tr>`)}</table></div>
    <p class="small muted">Attention of ${names[0]} (${one.name}) minus that of ${names[1]} (${other.name}), both given the answer of ${names[0]}. Blue, +: ${names[0]} attends more; orange, −: ${names[1]} attends more.</p></div>`;
}
