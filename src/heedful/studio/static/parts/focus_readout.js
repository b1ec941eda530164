// The attention weights of the token in focus as a line of text, with the sum of those that are left out.
import { html } from "../core/html.js";
import { percent } from "../core/format.js";
import { visible } from "./basics.js";

const SHOWN = 4;

export function FocusReadout({ focus, rows, columns, weights, hidden }) {
  if (!focus) return html`<p class="readout small muted">Point at a word to see its attention weights here, in every head and in the map; click to keep it selected.</p>`;
  const isRow = focus.side === "below", names = isRow ? columns : rows, own = (isRow ? rows : columns)[focus.index];
  if (!own) return html`<p class="readout follow small muted"></p>`;
  const values = names.map((group, index) => ({ label: group.label, weight: isRow ? weights[focus.index * columns.length + index] : weights[index * columns.length + focus.index] }));
  values.sort((a, b) => b.weight - a.weight);
  const rest = values.slice(SHOWN), sum = rest.reduce((total, entry) => total + entry.weight, 0);
  return html`<p class="readout follow small" aria-live="polite"><b><bdi>${visible(own.label)}</bdi></b> ${isRow ? "attends to" : "receives attention from"} ${values.slice(0, SHOWN).map((entry, index) => html`${index > 0 ? ", " : ""}<bdi>${visible(entry.label)}</bdi> <span class="strong">${percent(entry.weight)}</span>`)}${
    isRow && rest.length > 0 ? ` + ${rest.length} others ${percent(sum)}` : ""}${isRow && hidden ? ` + hidden ${percent(hidden[focus.index])}` : ""}</p>`;
}
