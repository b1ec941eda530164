// The fields for a model's input: one text, or a question and a passage.
import { html } from "../core/html.js";
import { patch } from "../core/address.js";
import { examplesFor, isMasked } from "../core/tasks.js";
import { TextField } from "./basics.js";

export function InputFields({ model, params, hint, rows = "1" }) {
  const clear = { target: null, pick: null, line: null, around: null, chosen: null, prefix: null, position: null, edits: null };
  return html`<div class="stack tight">
    <${TextField} id="text" label=${model.task === "answer" ? "Question" : hint ? `Text: ${hint}` : "Text"} value=${params.text} rows=${rows} onInput=${(text) => patch({ text, ...clear })} placeholder=${examplesFor(model)[0]} />
    ${model.task === "answer" && html`<${TextField} label="Passage" value=${params.passage} rows="4" onInput=${(passage) => patch({ passage, ...clear })} />`}
    <div class="row examples">${model.task === "fill" && params.text?.trim() && !isMasked(params.text) && html`<button class="chip-button small" onClick=${() => patch({ text: params.text.replace(/\S+(\s*)$/, "[MASK]$1"), ...clear })}>Mask the last word</button>`}${examplesFor(model).slice(0, 3).map((text) => html`<button class="chip-button small" dir="auto" onClick=${() => patch({ text, ...clear })}>${text.length > 44 ? `${text.slice(0, 43)}…` : text}</button>`)}</div>
  </div>`;
}
