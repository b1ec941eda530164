// The worked numbers of the notes as small experiments, and a table of the printed and the computed values.
import { html, useRef, useEffect } from "../core/html.js";
import { patch } from "../core/address.js";
import { useAnswer } from "../core/api.js";
import { number } from "../core/format.js";
import { softmax } from "../core/softmax.js";
import { Card, Choice, Failure, Toggle, shadeStyle, useTheme } from "./basics.js";
import { Exports } from "./export.js";

const WORDS = ["<start>", "not", "on", "your", "life", "<end>"];
const MONEY = [0.41, 0.08, 0.51, 0.87];
const two = (value) => (Math.round(value * 100) / 100 || 0).toFixed(2).replace("-", "−");

// One example of the list; a lesson brings it into view.
function Example({ id, params, title, children, tools }) {
  const box = useRef(null), asked = params.example === id;
  useEffect(() => { if (asked) box.current.scrollIntoView({ block: "center" }); }, [asked]);
  return html`<div ref=${box} data-example=${id}><${Card} title=${title} tools=${tools}>${children}<//></div>`;
}

const numbersOf = (text, normal) => { const values = text ? text.split(",").map(Number) : []; return values.length === normal.length && values.every(Number.isFinite) ? values : normal; };

// Scores divided by √d_k, and their softmax.
function TwoScores({ params }) {
  const [first, second, keyWidth] = numbersOf(params.n1, [6, 4, 16]);
  const set = (...values) => patch({ n1: values.join(",") });
  const scaled = [first, second].map((score) => score / Math.sqrt(keyWidth)), weights = softmax(scaled);
  const field = (label, current, change) => html`<label><span class="label">${label}</span><input type="number" class="field" style=${{ width: "92px" }} value=${current} onInput=${(event) => event.target.value !== "" && change(Number(event.target.value))} /></label>`;
  return html`<${Example} id="1" params=${params} title="Worked example 1: help me!">
    <div class="row">${field("first score", first, (value) => set(value, second, keyWidth))}${field("second score", second, (value) => set(first, value, keyWidth))}${field("d_k", keyWidth, (value) => set(first, second, Math.max(1, value)))}</div>
    <div class="row"><button class="chip-button" onClick=${() => set(6, 4, 16)}>help: 6 and 4</button><button class="chip-button" onClick=${() => set(3, 8, 16)}>me: 3 and 8</button></div>
    <p>Divided by √${keyWidth} = ${number(Math.sqrt(keyWidth))}: <b>${number(scaled[0])}</b> and <b>${number(scaled[1])}</b>. After the softmax: <b>${two(weights[0])}</b> and <b>${two(weights[1])}</b>. Without the division: ${softmax([first, second]).map(two).join(" and ")}.</p><//>`;
}

// Sinusoidal positions for a width of four, added to the embedding of "money".
function MoneyPosition({ params }) {
  const [position] = numbersOf(params.n2, [3]);
  const encoding = [0, 1].flatMap((pair) => { const angle = position / 10000 ** (pair / 2); return [Math.sin(angle), Math.cos(angle)]; });
  const row = (label, values, strong) => html`<tr><th>${label}</th>${values.map((value) => html`<td>${strong ? html`<b>${two(value)}</b>` : two(value)}</td>`)}</tr>`;
  return html`<${Example} id="2" params=${params} title="Worked example 2: show me the money">
    <label class="row"><span class="small muted">position ${position}</span><input type="range" min="0" max="20" value=${position} style=${{ flex: "1" }} onInput=${(event) => patch({ n2: event.target.value })} /></label>
    <div class="scroll"><table class="matrix">${row("embedding of money", MONEY)}${row(`PE: sin i, cos i, sin i/100, cos i/100`, encoding)}${row("sum", MONEY.map((value, index) => value + encoding[index]), true)}</table></div>
    <p class="small muted">Angles are in radians: position 1 begins with sin(1) = 0.84. The notes print 0.02, the sine of one degree.</p><//>`;
}

// The 6 × 6 table of scores under the causal mask.
function NotOnYourLife({ params, table }) {
  useTheme();
  const masked = params.n3mask !== "0", keyWidth = Number(params.n3 ?? 64);
  const weights = table?.scores.map((row, y) => softmax(row.map((score, x) => (masked && x > y ? null : score / Math.sqrt(keyWidth)))));
  const furthest = weights && Math.max(...weights.flatMap((row, y) => row.map((weight, x) => Math.abs(weight - table.printed[y][x]))));
  return html`<${Example} id="3" params=${params} title="Worked example 3: not on your life!">
    <div class="row"><${Toggle} on=${masked} onChange=${(on) => patch({ n3mask: on ? null : "0" })}>causal mask<//><span class="small muted">d_k</span><${Choice} label="d_k" options=${["1", "6", "16", "64", "256"].map((choice) => [choice, choice])} value=${String(keyWidth)} onChange=${(choice) => patch({ n3: choice })} /></div>
    ${weights && html`<div class="scroll"><table class="matrix"><tr><td></td>${WORDS.map((word) => html`<th>${word}</th>`)}<th>sum</th></tr>${weights.map((row, y) => html`<tr><th>${WORDS[y]}</th>${row.map((weight, x) => html`<td style=${masked && x > y ? {} : shadeStyle(weight)} title=${`score ${number(table.scores[y][x])}`}>${masked && x > y ? html`<span class="muted" title="masked">–</span>` : two(weight)}</td>`)}<td>${two(row.reduce((sum, weight) => sum + weight, 0))}</td></tr>`)}</table></div>
      <p class="small muted">Every row sums to 1; a masked cell (–) is excluded, which is not the same as a weight of 0. The table printed in the notes differs by up to ${two(furthest)}: no scale makes it the softmax of these scores.</p>`}<//>`;
}

export function WorkedExamples({ params }) {
  const { answer, error } = useAnswer("studio/worked-numbers");
  return html`<h2 class="section">The worked numbers of the notes</h2><${Failure} error=${error} />
    <div class="halves" aria-busy=${!answer && !error}><div class="stack"><${TwoScores} params=${params} /><${MoneyPosition} params=${params} /></div><${NotOnYourLife} params=${params} table=${answer?.table} /></div>
    ${answer && html`<${Example} id="all" params=${params} title="Printed and computed values" tools=${html`<${Exports} name="worked-numbers" values=${answer} />`}>
      <div class="scroll"><table class="plain stacked"><tr><th>example</th><th>quantity</th><th>printed</th><th>computed now</th><td></td></tr>${answer.examples.flatMap((example) => example.numbers.map((entry, index) => html`<tr>
        <td title=${example.text}>${index ? "" : example.title}</td><td>${entry.quantity}</td><td data-label="printed">${entry.printed}</td><td class="strong" data-label="computed now">${entry.computed}</td><td class="verdict">${entry.printed === entry.computed ? html`<span class="good">✓ agrees</span>` : html`<span class="bad">differs</span>`}</td></tr>`))}</table></div><//>`}`;
}
