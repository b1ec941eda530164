// Compare: two models on the same input, and over a test set.
import { html, useState, useEffect } from "../core/html.js";
import { useAddress, patch } from "../core/address.js";
import { useModel, useSession, refreshModels, toast } from "../core/session.js";
import { useAnswer, get, post } from "../core/api.js";
import { number, percent, signed, count } from "../core/format.js";
import { answerOf } from "../core/rows.js";
import { isReady } from "../core/tasks.js";
import { lookRequest } from "../core/requests.js";
import { Card, Failure, Empty, TextField, Bars } from "../parts/basics.js";
import { ScoredText } from "../parts/scored_text.js";
import { AttentionRibbons } from "../parts/attention_ribbons.js";
import { DifferenceMap } from "../parts/difference_map.js";
import { InputFields } from "../parts/input_fields.js";
import { Exports } from "../parts/export.js";
import { Difference, Probabilities } from "./switch_off.js";

export default function Compare() {
  const params = { ...useAddress().params, target: null }, { models, canTrain } = useSession(), model = useModel();
  const others = (models ?? []).filter((candidate) => candidate.task === model?.task && candidate.name !== model?.name);
  const other = others.find((candidate) => candidate.name === params.other) ?? others[0];
  if (!model) return null;
  if (!other) return html`<${Second} model=${model} canTrain=${canTrain} />`;
  return html`<div class="stack">
    <${Card} label="Text"><${InputFields} model=${model} params=${params} /><label class="row"><span class="small muted">${model.name} is compared with</span><select class="pill" value=${other.name} onChange=${(event) => patch({ other: event.target.value })}>${others.map((candidate) => html`<option value=${candidate.name}>${candidate.name}</option>`)}</select></label><//>
    <${isReady(model, params) ? SideBySide : NoText} key=${`${model.name} ${other.name}`} models=${[model, other]} params=${params}>
      ${["translate", "classify"].includes(model.task) && html`<${TestSet} models=${[model, other]} params=${params} />`}<//>
  </div>`;
}

const NoText = ({ children }) => html`<${Card} label="Answers"><${Empty}>Type a text, or choose an example, to compare both answers.<//><//>${children}`;

// Shown while only one model is served: the finished runs of this folder that can be compared with it.
function Second({ model, canTrain }) {
  const [runs, setRuns] = useState([]);
  useEffect(() => { if (canTrain) get("studio/runs").then((answer) => setRuns(answer.runs.filter((run) => run.task === model.task && run.state === "finished" && !run.served)), () => {}); }, [canTrain, model.task]);
  const choose = async (name) => {
    try {
      await post(`studio/runs/${name}/serve`, {});
      await refreshModels();
      patch({ other: name });
    } catch (error) { toast(error.message); }
  };
  return html`<${Card} title="Compare"><${Empty}>${model.name} is the only model here that can ${model.task}. ${runs.length ? "Choose a second one:" : html`Start with two: <code>heedful studio MODEL_A MODEL_B</code>. A transformer and a recurrent model make an instructive pair.`}<//>
    ${runs.length > 0 && html`<div class="row" style=${{ justifyContent: "center" }}>${runs.slice(0, 8).map((run) => html`<button class="button" onClick=${() => choose(run.name)}>${run.name}</button>`)}</div>`}<//>`;
}

function SideBySide({ models, params, children }) {
  const looks = models.map((model) => useAnswer("look", lookRequest(model, params, { top: 3 }), { wait: 200 }));
  const [first, second] = looks.map((look) => look.answer);
  const isTranslation = models[0].task === "translate";
  const forced = useAnswer("look", first && second && isTranslation ? lookRequest(models[1], { ...params, target: answerOf(first) }, { top: 1 }) : null, { wait: 100 });
  const [blink, setBlink] = useState(false), [link, setLink] = useState(null);
  useEffect(() => {
    const set = (down) => (event) => { if ((event.key === "b" || event.key === "B") && !event.target.closest("input, textarea, select")) setBlink(down); };
    const [press, release] = [set(true), set(false)];
    addEventListener("keydown", press);
    addEventListener("keyup", release);
    return () => { removeEventListener("keydown", press); removeEventListener("keyup", release); };
  }, []);
  if (looks.some(({ answer, error }) => !answer && !error)) return html`<div class="skeleton" aria-busy="true"></div>`;  // both at once: nothing that is shown moves
  const shown = blink ? [1, 0] : [0, 1], hold = { onPointerDown: () => setBlink(true), onPointerUp: () => setBlink(false), onPointerLeave: () => setBlink(false) };
  return html`<div class="halves">${shown.map((index) => html`<${Side} key=${models[index].name} model=${models[index]} look=${looks[index].answer} error=${looks[index].error} busy=${looks[index].busy} link=${link} onLink=${setLink} />`)}</div>
    ${first && second && html`<${Card} title="The difference" tools=${html`<span class="row"><button class="button" ...${hold}>Hold to swap the sides (B)</button><${Exports} name="difference" values=${{ models: models.map((model) => model.name), answers: [answerOf(first), answerOf(second)] }} /></span>`}>
      <p class="answer" dir="auto"><${Difference} before=${answerOf(first)} after=${answerOf(second)} /></p>
      <p class="small muted">Crossed out: only ${models[0].name}. Marked: only ${models[1].name}. A word selected above is selected on both sides.</p>
      <${Probabilities} before=${first} after=${second} names=${models.map((model) => model.name)} />
      ${forced.answer && html`<${DifferenceMap} first=${first} second=${forced.answer} names=${models.map((model) => model.name)} />`}<//>`}${children}`;
}

function Side({ model, look, error, busy, link, onLink }) {
  const logProbability = look?.outputs.reduce((sum, output) => sum + Math.log(Math.max(output.probability, 1e-30)), 0);
  return html`<${Card} title=${`${model.name}: ${model.family.replaceAll("_", " ")}, ${count(model.parameters)} parameters`} busy=${busy} tools=${html`<${Exports} name=${model.name} values=${look} />`}><${Failure} error=${error} />
    ${look ? html`<p class="answer" dir="auto"><${ScoredText} look=${look} /></p>
      ${look.outputs.length === 1 && html`<${Bars} items=${look.outputs[0].top.map((prediction) => ({ label: prediction.text, value: prediction.probability }))} />`}
      <p class="small muted">log probability ${number(logProbability)}</p>
      <div class="compared"><${AttentionRibbons} look=${look} link=${link} onLink=${onLink} /></div>` : ""}<//>`;
}

// Scores of both models by source length, and the answers that differ most, on pasted pairs (one per line, with a tab
// between) or on the validation text.
function TestSet({ models, params }) {
  const pairs = (params.pairs ?? "").split("\n").map((line) => line.split("\t")).filter((pair) => pair.length >= 2 && pair[0].trim() && pair[1].trim()).map((pair) => pair.slice(0, 2)).slice(0, 200);
  const names = { model: models[0].name, other: models[1].name };
  const asked = params.test === "validation" ? { ...names, pairs: [] } : params.test === "pairs" && pairs.length ? { ...names, pairs } : null;
  const { answer, error, busy } = useAnswer("studio/compare", asked, { wait: 300 });
  return html`<${Card} title="Scores by source length" busy=${busy} tools=${answer && html`<${Exports} name="compare" values=${answer} />`}>
    <div class="row"><button class="button" aria-pressed=${params.test === "validation"} onClick=${() => patch({ test: "validation" })}>Compare on 200 validation texts</button></div>
    <${TextField} label=${`Or pairs, one per line: ${models[0].task === "classify" ? "text, tab, label" : "source, tab, reference"}`} rows="3" value=${params.pairs} onInput=${(value) => patch({ pairs: value, test: null })} />
    <div><button class="button" disabled=${!pairs.length} onClick=${() => patch({ test: "pairs" })}>Compare on ${pairs.length === 1 ? "1 pair" : `${pairs.length || "these"} pairs`}</button></div>
    <${Failure} error=${error} />${busy && html`<p class="muted">Running both models …</p>`}
    ${answer && html`<div class="scroll"><table class="plain"><tr><th>source words</th><th class="number">texts</th>${answer.names.map((name) => html`<th class="number">${name}</th>`)}<th class="number">difference (95%)</th></tr>${[...answer.buckets, { ...answer.overall, all: true }].map((row) => html`<tr>
        <td>${row.all ? "all" : row.shortest === row.longest ? row.shortest : `${row.shortest} to ${row.longest}`}</td><td class="number">${row.texts}</td>${row.scores.map((score) => html`<td class="number">${number(score)}</td>`)}
        <td class="number">${signed(row.difference.value)} (${signed(row.difference.low)} to ${signed(row.difference.high)})</td></tr>`)}</table></div>
      <p class="small muted">${answer.metric}, by source length. ${percent(answer.same_answers)} of the answers are equal. Those that differ most:</p>
      ${answer.examples.slice(0, 12).map((example) => html`<div><p class="muted" dir="auto">${example.text}</p><p dir="auto"><${Difference} before=${String(example.answers[0])} after=${String(example.answers[1])} /> <span class="small muted">${example.scores.map((score) => number(score)).join(" against ")}</span></p></div>`)}`}<//>`;
}
