// A beam search as a growing tree: one column per step, the best hypothesis first, the answer's path marked.
import { html, useMemo } from "../core/html.js";
import { number, percent } from "../core/format.js";
import { visible } from "./basics.js";

const COLUMN = 116, ROW = 28, WIDE = 72;

export function BeamTree({ tree, until, pruned }) {
  const shown = useMemo(() => layout(tree, until, pruned), [tree, until, pruned]);
  const steps = Math.max(0, ...shown.map(({ node }) => node.step)) + 1;
  const height = ROW * (1 + Math.max(1, ...shown.map(({ row }) => row)));
  const at = (entry) => ({ x: 24 + entry.node.step * COLUMN, y: 16 + entry.row * ROW });
  const byIndex = new Map(shown.map((entry) => [entry.index, entry]));
  return html`<div class="scroll tree"><svg width=${40 + steps * COLUMN} height=${height + 24} role="img" aria-label=${`Beam search: ${shown.length} hypotheses in ${steps} steps. The answer: ${tree.answer}`}>
    ${shown.map((entry) => {
      const parent = byIndex.get(entry.node.parent), to = at(entry), from = parent ? { x: at(parent).x + WIDE, y: at(parent).y } : { x: 4, y: 16 };
      return html`<path class=${`${entry.node.fate} ${entry.node.won ? "won" : ""}`} d=${`M${from.x},${from.y}C${from.x + 24},${from.y} ${to.x - 24},${to.y} ${to.x - 4},${to.y}`} />`;
    })}
    ${shown.map((entry) => html`<text class=${`${entry.node.fate} ${entry.node.won ? "won" : ""}`} x=${at(entry).x} y=${at(entry).y + 4}>${short(entry.node.text)} ${percent(Math.exp(entry.node.log_probability))}<title>${`log probability ${number(entry.node.total)}, ranked by ${number(entry.node.score)}: ${entry.node.fate}`}</title></text>`)}</svg></div>
    <p class="small muted">Ranked by log probability / length^${number(tree.length_penalty)}. ${tree.nodes.filter((node) => node.fate === "pruned").length} branches pruned, ${tree.nodes.filter((node) => node.fate === "ended").length} ended.</p>`;
}

const short = (text) => { const letters = [...visible(text)]; return letters.length > 9 ? `${letters.slice(0, 8).join("")}…` : letters.join(""); };

function layout(tree, until, pruned) {
  const rows = {};
  return tree.nodes.map((node, index) => ({ node, index }))
    .filter(({ node }) => node.step <= until && (node.won || pruned || node.fate !== "pruned"))
    .map((entry) => ({ ...entry, row: (rows[entry.node.step] = (rows[entry.node.step] ?? -1) + 1) }));
}
