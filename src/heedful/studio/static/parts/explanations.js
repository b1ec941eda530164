// Attributions of one output word by several methods, each with its measured faithfulness.
import { html } from "../core/html.js";
import { patch } from "../core/address.js";
import { useAnswer } from "../core/api.js";
import { lookRequest } from "../core/requests.js";
import { number, signed } from "../core/format.js";
import { Card, Failure, Word, shadeStyle, useTheme } from "./basics.js";
import { Exports } from "./export.js";

export function Explanations({ model, params, group }) {
  const asked = params.why === "1";
  const { answer, error, busy } = useAnswer("explain", asked && group ? { ...lookRequest(model, params, {}), target: params.target || undefined, ...(group.word === null ? {} : { word: group.word }) } : null, { wait: 200 });
  if (!group) return null;
  const methods = answer?.methods ?? [];
  return html`<${Card} title=${html`“<${Word}>${group.label}<//>”: attributions and their faithfulness`} busy=${busy} tools=${answer && html`<${Exports} name="explanations" values=${answer} />`}>
    ${!asked && html`<p class="muted">Gradients, occlusion and attention each score how much every input word contributed. Each method is tested by deleting the words it ranks highest.</p><div><button class="button" onClick=${() => patch({ why: "1" })}>Explain</button></div>`}
    <${Failure} error=${error} />${busy && !answer && html`<p class="muted">Computing attributions. The first time, their faithfulness is measured on validation text, which takes longer.</p><div class="skeleton"></div>`}
    ${methods.map((method) => html`<${Method} key=${method.name} method=${method} words=${answer.inputs.words} best=${method.name === answer.most_faithful} />`)}
    ${answer && html`<p class="small muted">Faithfulness: the area between the curves of deleting and inserting words in this order and in random orders, on ${answer.validation ? "validation text" : "this text"}. 0 is chance. Deleted words were ${answer.perturbation}. ★: the most faithful method. Dotted underline: a negative score.</p>`}
  <//>`;
}

function Method({ method, words, best }) {
  useTheme();
  const scores = (method.scores[0] ?? []).map((score) => score ?? 0), largest = Math.max(1e-9, ...scores.map(Math.abs));
  const measured = method.validation ?? method.faithfulness;
  return html`<div><div class="row between"><span title=${method.description}>${method.name.replaceAll("_", " ")}${best ? " ★" : ""}</span><span class="number small" title="95% interval">${measured ? `${signed(measured.area)} (${signed(measured.low)} to ${signed(measured.high)})` : ""}</span></div>
    <p dir="auto">${words.map((word, index) => html`<span style=${scores[index] > 0 ? shadeStyle(scores[index] / largest) : { textDecoration: scores[index] < 0 ? "underline dotted" : "none" }} title=${number(scores[index])}><${Word}>${word}<//></span>${" "}`)}</p></div>`;
}

