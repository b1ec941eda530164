// Step through: the computation of one token in one layer, with the model's own numbers.
import { html, useState, useEffect } from "../core/html.js";
import { useAddress, address, patch, whole } from "../core/address.js";
import { useModel, interventionsOf } from "../core/session.js";
import { useAnswer } from "../core/api.js";
import { number, percent } from "../core/format.js";
import { isReady, examplesFor } from "../core/tasks.js";
import { softmax } from "../core/softmax.js";
import { lookRequest } from "../core/requests.js";
import { Card, Failure, Empty, Choice, Bars, Toggle, Word, shadeStyle, useTheme } from "../parts/basics.js";
import { InputFields } from "../parts/input_fields.js";
import { VectorStrip } from "../parts/vector_strip.js";
import { BeamTree } from "../parts/beam_tree.js";
import { WorkedExamples } from "../parts/worked_examples.js";
import { Formula, fraction, root, sub, name, operator, value } from "../parts/formula.js";
import { Exports } from "../parts/export.js";

export default function Steps() {
  const { params } = useAddress(), model = useModel();
  if (!model) return null;
  const transformer = !/recurrent|word_vectors/.test(model.family);
  return html`<div class="stack">
    <${Card} label="Text"><${InputFields} model=${model} params=${params} /><//>
    ${!transformer && html`<${Card} title="Layers"><${Empty}>A ${model.family.replaceAll("_", " ")} has no attention layers to walk through. Look shows its attention, Switch off its gates.<//><//>`}
    ${transformer && !isReady(model, params) && html`<${Card} title="Layers"><${Empty} action="Take the first example" onAction=${() => patch({ text: examplesFor(model)[0] })}>Type a short text to follow one of its tokens through a layer, number by number.<//><//>`}
    <${transformer && isReady(model, params) ? Walk : Plain} model=${model} params=${params}>
      <${isReady(model, params) && ["translate", "generate"].includes(model.task) ? Search : Plain} model=${model} params=${params}><${WorkedExamples} params=${params} /><//><//>
  </div>`;
}

// Children below a card appear together with it, so that nothing on the page moves.
const Plain = ({ children }) => children;

// The default token: the first ones have few tokens to attend to.
const START = 3;

function Walk({ model, params, children }) {
  const at = (key) => whole(params[key], 0);
  const requestAt = (position) => lookRequest(model, params, { layer: at("layer"), position, head: at("at"), ...(params.stack ? { stack: params.stack } : {}), interventions: interventionsOf() });
  const asked = useAnswer("studio/walkthrough", requestAt(whole(params.position, START)), { wait: 80 });
  const first = useAnswer("studio/walkthrough", asked.error && params.position === undefined ? requestAt(0) : null);  // a text that is too short
  const { answer: walk, error, busy } = asked.error && params.position === undefined ? first : asked;
  const phases = walk ? phasesOf(walk, params) : [];
  const phase = Math.max(0, phases.findIndex((entry) => entry.key === params.phase));
  const go = (index) => patch({ phase: phases[index].key, edits: null });
  const toToken = (position) => patch({ position, edits: null });
  useEffect(() => {
    const listen = (event) => {
      if (event.target.closest("input, textarea, select, button, dialog") || !phases.length) return;
      const { params: now } = address(), step = Math.max(0, phases.findIndex((entry) => entry.key === now.phase)), position = whole(now.position, walk.position);
      if (event.key === " " || event.key === ".") { event.preventDefault(); go((step + 1) % phases.length); }
      if (event.key === ",") go(Math.max(0, step - 1));
      if (event.key === "ArrowRight" && !event.shiftKey) toToken(Math.min(walk.tokens.length - 1, position + 1));
      if (event.key === "ArrowLeft" && !event.shiftKey) toToken(Math.max(0, position - 1));
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [walk]);
  if (!walk) return error ? html`<${Failure} error=${error} />${children}` : html`<div key="waiting" class="skeleton" aria-busy=${busy}></div>`;
  const numbers = (count) => Array.from({ length: count }, (_, index) => [String(index), String(index)]);
  return html`<${Failure} error=${error} />
    <${Card} title=${html`Token ${walk.position} of the ${walk.stack}: “<${Word}>${walk.tokens[walk.position]}<//>”`} label="Token" busy=${busy} tools=${html`<${Exports} name="walkthrough" values=${walk} />`}>
      <div class="tokens">${walk.tokens.map((token, index) => html`<button class="token" aria-pressed=${index === walk.position} onClick=${() => toToken(index)}><${Word}>${token}<//></button>`)}</div>
      <div class="row">${model.family === "encoder_decoder" && html`<${Choice} label="Stack" options=${[["encoder", "encoder"], ["decoder", "decoder"]]} value=${walk.stack} onChange=${(stack) => patch({ stack, layer: null, position: null, phase: null, edits: null })} />`}
        <span class="small muted">layer</span><${Choice} label="Layer" options=${numbers(walk.layers)} value=${String(walk.layer)} onChange=${(layer) => patch({ layer, edits: null })} />
        <span class="small muted">head</span><${Choice} label="Head" options=${numbers(walk.heads)} value=${String(at("at"))} onChange=${(head) => patch({ at: head, edits: null })} /></div>
    <//>
    <div class="split"><${Card} title=${phases[phase].title} tools=${html`<span class="row"><${Exports} name=${phases[phase].key} values=${walk} /><button class="button" disabled=${phase === 0} onClick=${() => go(phase - 1)}>Back</button>
        <button class="button main" onClick=${() => go((phase + 1) % phases.length)}>Next</button></span>`}>${phases[phase].show()}<//>
      <${Card} title="Steps"><ol class="stack tight" style=${{ listStyle: "none" }}>${phases.map((entry, index) => html`<li class="phase" data-on=${index === phase}>
        <button class="button" style=${{ border: 0, padding: "2px 4px", justifyContent: "start" }} aria-current=${index === phase ? "step" : null} onClick=${() => go(index)}>${entry.title}</button></li>`)}</ol>
        <p class="small muted"><kbd>Space</kbd> next · <kbd>,</kbd> back · <kbd>←</kbd> <kbd>→</kbd> token</p><//></div>${children}`;
}

function phasesOf(walk, params) {
  const { vectors, settings } = walk, pre = settings.norm_order === "pre";
  const phases = [{ key: "embedding", title: "Embedding", show: () => html`<p>The embedding matrix has one learned vector for each token of the vocabulary. This is the vector of <b><${Word}>${walk.tokens[walk.position]}<//></b>.</p><${VectorStrip} label="embedding" values=${walk.embedding} />` }];
  if (walk.positions) phases.push({ key: "positions", title: "Position", show: () => html`<${Positions} walk=${walk} />` });
  const around = (sublayer, title, part) => {
    const normed = vectors[`${sublayer}.norm`];
    if (pre && normed) phases.push({ key: `norm-${sublayer}`, title: `Norm before ${title.toLowerCase()}`, show: () => html`<${Norm} before=${vectors[`${sublayer}.skip`]} after=${normed} name=${settings.norm} />` });
    phases.push(...part);
    phases.push({ key: `skip-${sublayer}`, title: `Skip-connection around ${title.toLowerCase()}`, show: () => html`<p>The input x of the sub-layer is added to its output f(x).</p>
      ${vectors[`${sublayer}.skip`] ? html`<${VectorStrip} label="x" values=${vectors[`${sublayer}.skip`]} />` : html`<p class="muted">This layer has no skip-connection.</p>`}<${VectorStrip} label=${`f(x): ${title.toLowerCase()}`} values=${vectors[`${sublayer}.output`]} /><${VectorStrip} label=${pre ? "x + f(norm(x))" : "norm(x + f(x))"} values=${vectors[`${sublayer}.residual`]} />` });
  };
  for (const [sublayer, step] of Object.entries(walk.attention)) {
    const title = sublayer === "cross" ? "Cross-attention" : "Self-attention";
    around(sublayer, title, [
      { key: sublayer === "attention" ? "attention" : "cross", title: `${title}: scores and softmax`, show: () => html`<${Scores} key=${sublayer} walk=${walk} step=${step} title=${title} params=${params} />` },
      { key: `values-${sublayer}`, title: `${title}: weighted sum`, show: () => html`<${WeightedSum} step=${step} tokens=${tokensOf(walk, step)} />` },
    ]);
  }
  if (vectors["feed_forward.output"]) around("feed_forward", "Feed-forward", [{ key: "feed-forward", title: "Feed-forward", show: () => html`<${FeedForward} hidden=${vectors["feed_forward.hidden"]} output=${vectors["feed_forward.output"]} settings=${settings} />` }]);
  if (walk.top.length) phases.push({ key: "choice", title: "Output distribution", show: () => html`<p>The state after the last layer is multiplied with the output vector of every token; the softmax of these products is the distribution of the next token.</p><${Bars} items=${walk.top.map(([label, probability]) => ({ label: label || " ", value: probability }))} />` });
  return phases.map((phase) => (phase.key.startsWith("norm-attention") ? { ...phase, key: "norm" } : phase));
}

const tokensOf = (walk, step) => (step.columns === "inputs" ? walk.inputs : walk.tokens);

function Positions({ walk }) {
  const rotary = walk.settings.positions === "rotary", alibi = walk.settings.positions === "alibi";
  return html`<p>${rotary ? "Rotary positions rotate pairs of numbers of every query and key by these angles (in radians), so that products of queries and keys depend on relative distances only."
    : alibi ? "ALiBi subtracts from each score a term proportional to the distance. These are the terms of the first head." : `Position ${walk.position} has a vector of its own, which is added to the embedding.`}</p>
    <${VectorStrip} label=${rotary ? "angles" : alibi ? "biases" : "position"} values=${walk.positions} />${!rotary && !alibi && html`<${VectorStrip} label="embedding + position" values=${walk.entry} />`}`;
}

function Norm({ before, after, name: kind }) {
  const mean = (values) => values.reduce((sum, component) => sum + component, 0) / values.length;
  const spread = (values) => Math.sqrt(mean(values.map((component) => (component - mean(values)) ** 2)));
  return html`<p>${kind === "rms" ? "RMSNorm divides by the root mean square" : "LayerNorm subtracts the mean and divides by the standard deviation"}, then multiplies by a learned gain.</p>
    ${before && html`<${VectorStrip} label=${`before: mean ${number(mean(before))}, deviation ${number(spread(before))}`} values=${before} />`}<${VectorStrip} label=${`after: mean ${number(mean(after))}, deviation ${number(spread(after))}`} values=${after} />`;
}

// "2:1.5,4:0" as { 2: 1.5, 4: 0 }.
const editsOf = (params) => Object.fromEntries((params.edits ?? "").split(",").map((edit) => edit.split(":").map(Number)).filter(([index, score]) => Number.isInteger(index) && Number.isFinite(score)));

// Rows of masked tokens that are written out; a long text has many.
const MASKED = 3;

// The number that dot products are divided by, √d_k or 1; null if the scores are not dot products.
function scaleOfScores({ query, keys, scores }) {
  const dots = keys.map((key) => query.reduce((sum, component, index) => sum + component * key[index], 0));
  const fits = (scale) => scores.every((score, index) => score === null || Math.abs(dots[index] / scale - score) < 0.001 * Math.max(1, Math.abs(score)));
  return [Math.sqrt(query.length), 1].find(fits) ?? null;
}

// Scores and their softmax. A score can be edited, and the weights follow. Pointing at a row shows its dot product.
function Scores({ walk, step, title, params }) {
  useTheme();
  const [over, setOver] = useState(null), edited = editsOf(params);
  const setEdited = (edits) => patch({ edits: Object.entries(edits).map(([index, score]) => `${index}:${score}`).join(",") || null });
  const tokens = tokensOf(walk, step), scale = scaleOfScores(step), isSoftmax = walk.settings.softmax !== false;
  const scores = step.scores.map((score, index) => (score === null ? null : edited[index] ?? score)), changed = Object.keys(edited).length > 0;
  const weights = !changed ? step.weights : isSoftmax ? softmax(scores) : scores.map((score) => score ?? 0);
  const product = [name("q"), operator("·"), sub(name("k"), name("j"))], named = [name((walk.settings.score ?? "score").replaceAll("_", " ")), operator("("), name("q"), operator(","), sub(name("k"), name("j")), operator(")")];
  const shown = Math.min(tokens.length, scores.findLastIndex((score) => score !== null) + 1 + MASKED);
  const formula = scale === 1 ? product : scale ? [fraction(product, root(value(step.query.length)))] : named;
  return html`<${Formula} of=${[sub(name("α"), name("j")), operator("="), ...(isSoftmax ? [name("softmax"), operator("("), ...formula, operator(")")] : formula)]} />
    <p class="small">The query of <b><${Word}>${walk.tokens[walk.position]}<//></b> ${scale ? "is multiplied with" : "is compared with"} the key of every token (${title.toLowerCase()}, head ${step.head}). Edit a score to see how the weights change${scale ? "; point at a row to see its dot product" : ""}.</p>
    <div class="scroll"><table class="matrix wide"><tr><th>token</th>${scale && html`<th>q · k</th>`}<th>score${scale ? ` = q · k / ${number(scale)}` : ""}</th><td class="grow"></td><th>weight</th></tr>
      ${tokens.slice(0, shown).map((token, index) => html`<tr data-on=${over === index} onMouseEnter=${() => setOver(index)} onFocusIn=${() => setOver(index)}><th><${Word}>${token}<//></th>
        ${scale && html`<td>${scores[index] === null ? "–" : number(scores[index] * scale)}</td>`}
        <td>${scores[index] === null ? html`<span class="muted" title="the mask forbids it">masked</span>` : html`<input type="number" step="0.5" class="field" style=${{ width: "92px", padding: "2px 6px" }} aria-label=${`score of ${token}`} value=${Number(scores[index].toPrecision(4))} onInput=${(event) => event.target.value !== "" && setEdited({ ...edited, [index]: Number(event.target.value) })} />`}</td>
        <td class="grow"><span class="track"><span class="bar" style=${{ display: "block", width: `${100 * weights[index]}%` }}></span></span></td>${scores[index] === null ? html`<td>–</td>` : html`<td style=${shadeStyle(weights[index])}>${percent(weights[index])}</td>`}</tr>`)}
      ${shown < tokens.length && html`<tr><th colspan=${scale ? 5 : 4}>+ ${tokens.length - shown} later tokens, masked</th></tr>`}<tr><th>sum</th>${scale && html`<td></td>`}<td>${changed && html`<button class="button" onClick=${() => setEdited({})}>Reset the scores</button>`}</td><td></td><td>${number(weights.reduce((sum, weight) => sum + weight, 0))}</td></tr></table></div>
    ${scale && over !== null && step.scores[over] != null && html`<p class="small" aria-live="polite">q · k of <b><${Word}>${tokens[over]}<//></b> = ${step.query.slice(0, 4).map((component, index) => `${number(component, 2)} × ${number(step.keys[over][index], 2)}`).join(" + ")} + … = ${number(step.scores[over] * scale)}</p>`}
    <${VectorStrip} label="query q" values=${step.query} />${scale && over !== null && step.keys[over] && html`<${VectorStrip} label=${html`key k of <${Word}>${tokens[over]}<//>`} values=${step.keys[over]} /><${VectorStrip} label="q × k, element by element" values=${step.query.map((component, index) => component * step.keys[over][index])} />`}`;
}

function WeightedSum({ step, tokens }) {
  const largest = Math.max(...step.values.flat().map(Math.abs));
  const order = step.weights.map((weight, index) => [weight, index]).sort((a, b) => b[0] - a[0]);
  const rest = order.slice(6).reduce((sum, [weight]) => sum + weight, 0);
  return html`<p>The head's output is the sum of all values, each times its weight. Those with the largest weights:</p>
    ${order.slice(0, 6).map(([weight, index]) => html`<${VectorStrip} label=${html`${percent(weight)} × value of <${Word}>${tokens[index]}<//>`} values=${step.values[index]} scale=${largest} />`)}
    ${order.length > 6 && html`<p class="small muted">+ ${order.length - 6} others, together ${percent(rest)}</p>`}<${VectorStrip} label="sum: the head's output" values=${step.output} scale=${largest} />`;
}

function FeedForward({ hidden, output, settings }) {
  const active = hidden.filter((activation) => activation > 0).length;
  const strongest = hidden.map((activation, index) => [activation, index]).sort((a, b) => b[0] - a[0]).slice(0, 8);
  return html`<p>Two matrices with ${settings.activation ?? "relu"} between them, applied to each token separately. ${active} of ${hidden.length} hidden units are above zero.</p>
    <${VectorStrip} label="hidden units" values=${hidden} /><p class="small muted">Strongest: ${strongest.map(([activation, index]) => `unit ${index} (${number(activation, 2)})`).join(", ")}</p><${VectorStrip} label="output" values=${output} />`;
}

function Search({ model, params, children }) {
  const beam = whole(params.beam, 3), penalty = Number(params.penalty ?? 1), pruned = params.pruned !== "0";
  const { answer: tree, error, busy } = useAnswer("studio/beam-tree", lookRequest(model, { ...params, target: null }, { beam, length_penalty: penalty, max_length: 30, interventions: interventionsOf() }), { wait: 150 });
  const last = tree ? Math.max(...tree.nodes.map((node) => node.step), 0) : 0, shown = Math.min(last, whole(params.until, last));
  const show = (until) => patch({ until: until >= last ? null : until });
  if (!tree && !error) return html`<div key="waiting" class="skeleton" aria-busy=${busy}></div>`;
  return html`<${Card} title="Beam search, step by step" busy=${busy} tools=${html`<${Exports} name="beam-search" values=${tree} />`}>
    <${Failure} error=${error} />
    <div class="row"><span class="small muted">beam</span><${Choice} label="Beam size" options=${["1", "2", "3", "4", "6"].map((choice) => [choice, choice])} value=${String(beam)} onChange=${(choice) => patch({ beam: choice, until: null })} />
      <span class="small muted">length penalty</span><${Choice} label="Length penalty" options=${["0", "0.6", "1", "2"].map((choice) => [choice, choice])} value=${String(penalty)} onChange=${(choice) => patch({ penalty: choice, until: null })} /><${Toggle} on=${pruned} onChange=${(on) => patch({ pruned: on ? null : "0" })}>show pruned<//></div>
    ${tree && html`<p class="answer" dir="auto">${tree.answer.trim() || html`<span class="muted">only spaces and line breaks</span>`}</p>
      <div class="row"><button class="button" disabled=${shown === 0} onClick=${() => show(shown - 1)}>Step back</button><button class="button" disabled=${shown === last} onClick=${() => show(shown + 1)}>Next step</button>
        <input type="range" aria-label="Steps shown" min="0" max=${last} value=${shown} style=${{ maxWidth: "280px" }} onInput=${(event) => show(Number(event.target.value))} /><span class="small muted">step ${shown + 1} of ${last + 1}</span></div>
      <${BeamTree} tree=${tree} until=${shown} pruned=${pruned} />`}<//>${children}`;
}
