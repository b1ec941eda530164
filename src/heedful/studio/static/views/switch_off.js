// Switch off: the model's own architecture as a drawing in which every part is a switch.
import { html, useState, useEffect } from "../core/html.js";
import { useAddress, patch, open } from "../core/address.js";
import { useModel, interventionsOf, setInterventions, toast } from "../core/session.js";
import { useAnswer, post, forget } from "../core/api.js";
import { answerOf, difference } from "../core/rows.js";
import { number, percent, signed } from "../core/format.js";
import { isReady } from "../core/tasks.js";
import { lookRequest } from "../core/requests.js";
import { Card, Failure, Empty, Toggle } from "../parts/basics.js";
import { Architecture } from "../parts/architecture.js";
import { RecurrentArchitecture } from "../parts/recurrent_architecture.js";
import { CensusRanking, importanceOf } from "../parts/census_ranking.js";
import { InputFields } from "../parts/input_fields.js";
import { Exports } from "../parts/export.js";
import { AttentionRibbons } from "../parts/attention_ribbons.js";
import { ScoredText } from "../parts/scored_text.js";
import { Equation } from "../parts/equation.js";

export default function SwitchOff() {
  const params = { ...useAddress().params, target: null }, model = useModel();  // answers of the model's own, never a given one
  const { answer: parts, error } = useAnswer(`models/${encodeURIComponent(model?.name ?? "")}/parts`, model ? undefined : null);
  const { answer: earlier } = useAnswer(`studio/census/${encodeURIComponent(model?.name ?? "")}`, model ? undefined : null);
  const [taken, setTaken] = useState(null), [measuring, setMeasuring] = useState(false);
  const census = taken && taken.model === model?.name ? taken.census : earlier;
  const before = useAnswer("look", lookRequest(model, params, { top: 3 }), { wait: 200 });
  const measure = async () => {
    setMeasuring(true);
    try { setTaken({ model: model.name, census: await post("studio/census", { model: model.name }) }); } catch (failure) { toast(failure.message); }
    forget();  // an answer that there is no census yet
    setMeasuring(false);
  };
  // The link “Which head matters most?” asks for the census.
  useEffect(() => { if (params.measure === "1" && earlier && !earlier.parts.length && !taken && !measuring) measure(); }, [params.measure, earlier]);
  if (!model) return null;
  if (model.family === "word_vectors") return html`<${Card} title="Switch off"><${Empty} action="See its vectors" onAction=${() => open("vectors", {})}>${model.name} is a table of word vectors: it has no layers to switch off.<//><//>`;
  // Everything appears at once, so that nothing moves when another answer arrives.
  const isShown = parts && earlier && (before.answer || before.error || !isReady(model, params));
  return html`<div class="split">
    <div class="stack">
      <${Card} label="Text" place="first"><${InputFields} model=${model} params=${params} /><//>
      <${Failure} error=${error} />
      ${isShown ? html`<${/recurrent/.test(model.family) ? RecurrentArchitecture : Architecture} parts=${parts} importance=${importanceOf(census)} params=${params} measuring=${measuring} onMeasure=${measure} />` : !error && html`<div class="skeleton"></div>`}
      ${isShown && html`<${Equation} part=${params.part} parts=${parts} />`}
      ${isShown && census?.parts?.length > 0 && html`<${CensusRanking} census=${census} off=${interventionsOf(params)} inView=${params.measure === "1"} />`}
    </div>
    <div class="stack">
      ${isShown && html`<${Presets} head=${before.answer?.alignment?.head} parts=${parts} params=${params} />`}
      ${isReady(model, params) ? isShown && html`<div class="stack answers"><${BeforeAndAfter} model=${model} params=${params} before=${before} /></div>` : html`<${Card} title="As trained"><${Empty}>Type a text to compare the answers.<//><//>`}
    </div>
  </div>`;
}

function Presets({ head, parts, params }) {
  const off = interventionsOf(params), has = (name) => parts.parts.some((part) => part.name === name || part.name.startsWith(`${name}.`));
  const stack = has("decoder.0") ? "decoder" : "encoder";
  const cross = parts.parts.filter((part) => part.kind === "cross-attention" && part.head === null);
  const onlyAligning = head && cross.map((part) => ({ kind: "ablate", part: part.name, ...(part.name === head.part && head.head !== null ? { heads: Array.from({ length: part.heads }, (_, index) => index).filter((index) => index !== head.head) } : {}) }))
    .filter((change) => change.part !== head.part || change.heads?.length);
  const presets = [
    parts.parts.some((part) => part.kind === "positions") && ["without positions", [{ kind: "ablate", part: "positions" }]],
    head && ["without the aligning head", [{ kind: "ablate", part: head.part, ...(head.head === null ? {} : { heads: [head.head] }) }]],
    onlyAligning?.length && ["only the aligning head", onlyAligning],
    has(`${stack}.0.feed_forward.skip`) && ["no feed-forward skip in layer 0", [{ kind: "ablate", part: `${stack}.0.feed_forward.skip` }]],
    has("decoder.0.attention") && ["no causal mask (may look ahead)", [{ kind: "unmask", part: "decoder" }]],
    has(`${stack}.0.attention.weights`) && ["uniform attention", [{ kind: "uniform", part: `${stack}.*.${cross.length ? "cross" : "attention"}` }]],
    has(`${stack}.0.feed_forward`) && ["no feed-forward", [{ kind: "ablate", part: `${stack}.*.feed_forward` }]],
  ].filter(Boolean);
  return html`<${Card} title="Presets" place="soon" tools=${off.length > 0 && html`<button class="button" onClick=${() => setInterventions([], "Everything on")}>Switch everything on</button>`}><div class="row">${presets.map(([name, list]) => {
    const chosen = JSON.stringify(off) === JSON.stringify(list);
    return html`<button class="chip-button" aria-pressed=${chosen} onClick=${() => setInterventions(chosen ? [] : list, chosen ? "Everything on" : name)}>${name}</button>`;
  })}</div><//>`;
}

function BeforeAndAfter({ model, params, before }) {
  const off = interventionsOf(params);
  const after = useAnswer("look", off.length ? lookRequest(model, params, { top: 3, interventions: off }) : null, { wait: 60 });
  // The probability of the original answer under the changed model.
  const kept = useAnswer("look", off.length && before.answer && model.task === "translate" ? lookRequest(model, { ...params, target: answerOf(before.answer) }, { top: 1, interventions: off }) : null, { wait: 120 });
  const attended = before.answer?.attention.some((map) => map.name === params.part) ? params.part : undefined;
  const logProbability = (look) => look?.outputs.reduce((sum, output) => sum + Math.log(Math.max(output.probability, 1e-30)), 0);
  return html`
    <${Card} title=${`As trained${before.answer ? ` · log probability ${number(logProbability(before.answer))}` : ""}`} busy=${before.busy}><${Failure} error=${before.error} />
      ${before.answer && html`<p class="answer" dir="auto"><${ScoredText} look=${before.answer} /></p>
        <div><${Toggle} on=${params.ribbons === "1"} onChange=${(on) => patch({ ribbons: on ? "1" : null })}>show attention<//></div>${params.ribbons === "1" && html`<${AttentionRibbons} look=${before.answer} part=${attended} />`}`}<//>
    ${off.length > 0 && html`<${Card} title=${`With your switches${after.answer ? ` · log probability ${number(logProbability(after.answer))}` : ""}`} busy=${after.busy}
        tools=${html`<${Exports} name="before-and-after" values=${{ interventions: off, before: before.answer && answerOf(before.answer), after: after.answer && answerOf(after.answer) }} />`}>
      <${Failure} error=${after.error} />
      ${after.answer && before.answer && html`<p class="answer" dir="auto" aria-live="polite"><${Difference} before=${answerOf(before.answer)} after=${answerOf(after.answer)} /></p>
        ${answerOf(before.answer) === answerOf(after.answer) && html`<p class="small muted">The answer is unchanged.</p>`}
        <${Probabilities} before=${before.answer} after=${after.answer} />
        ${kept.answer && html`<p class="small muted">With these switches the original answer has log probability ${number(logProbability(kept.answer))} (${signed(logProbability(kept.answer) - logProbability(before.answer))}).</p>`}
        ${params.ribbons === "1" && html`<${AttentionRibbons} look=${after.answer} part=${attended} />`}
        <p class="small muted">${after.answer.interventions.join("; ")}</p>
        <div class="row"><button class="button" onClick=${() => open("look", {})}>Show attention with these switches</button></div>`}<//>`}`;
}

export const Difference = ({ before, after }) => difference(before, after).map((piece) => (piece.kind === "same" ? piece.text : piece.kind === "old" ? html`<del>${piece.text}</del>` : html`<ins>${piece.text}</ins>`));

// For one prediction (a class): the probabilities beside each other.
export function Probabilities({ before, after, names = ["as trained", "now"] }) {
  if (before.outputs.length !== 1 || after.outputs.length !== 1) return null;
  const old = Object.fromEntries(before.outputs[0].top.map((prediction) => [prediction.text, prediction.probability]));
  return html`<table class="plain"><tr><th>label</th>${names.map((name) => html`<th class="number">${name}</th>`)}<th class="number">change</th></tr>
    ${after.outputs[0].top.map((prediction) => html`<tr><td>${prediction.text}</td><td class="number">${percent(old[prediction.text] ?? 0)}</td><td class="number">${percent(prediction.probability)}</td><td class="number">${signed(prediction.probability - (old[prediction.text] ?? 0))}</td></tr>`)}</table>`;
}
