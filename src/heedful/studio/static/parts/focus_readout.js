// What the token in focus reads, or by which tokens it is read, in words: nothing is renormalized in silence.
import { html } from "../core/html.js";
import { percent } from "../core/format.js";
import { visible } from "./basics.js";

const SHOWN = 4;

export function FocusReadout({ focus, rows, columns, weights, hidden }) {
  if (!focus) return html`<p class="readout small muted">Point at a word, or pin it with a click: its sources light up here, in every head and in the map.</p>`;
  const isRow = focus.side === "below", names = isRow ? columns : rows, own = (isRow ? rows : columns)[focus.index];
  if (!own) return html`<p class="readout small muted"></p>`;
  const values = names.map((group, index) => ({ label: group.label, weight: isRow ? weights[focus.index * columns.length + index] : weights[index * columns.length + focus.index] }));
  values.sort((a, b) => b.weight - a.weight);
  const rest = values.slice(SHOWN), sum = rest.reduce((total, each) => total + each.weight, 0);
  return html`<p class="readout small" aria-live="polite"><b><bdi>${visible(own.label)}</bdi></b> ${isRow ? "read" : "was read by"} ${values.slice(0, SHOWN).map((each, index) => html`${index > 0 ? ", " : ""}<bdi>${visible(each.label)}</bdi> <span class="strong">${percent(each.weight)}</span>`)}${
    isRow && rest.length > 0 ? ` + ${rest.length} others ${percent(sum)}` : ""}${isRow && hidden ? ` + hidden ${percent(hidden[focus.index])}` : ""}</p>`;
}
