// Use: the answer is updated as the text is typed; a click on a word shows its alternatives, which can be forced.
import { html, useState, useEffect, useRef } from "../core/html.js";
import { useAddress, patch, open, whole } from "../core/address.js";
import { useModel, useSession, toast, interventionsOf } from "../core/session.js";
import { useAnswer, get, post, stream } from "../core/api.js";
import { outputGroups } from "../core/rows.js";
import { percent, number, plural } from "../core/format.js";
import { ANSWER, VERB, examplesFor, isMasked, isReady } from "../core/tasks.js";
import { cut, size } from "../core/text.js";
import { lookRequest } from "../core/requests.js";
import { Card, Failure, Empty, TextField, Bars, Confidence, Word, Toggle } from "../parts/basics.js";
import { ScoredText } from "../parts/scored_text.js";
import { InputFields } from "../parts/input_fields.js";
import { Exports } from "../parts/export.js";

const ENDPOINT = { translate: "translate", generate: "generate", classify: "classify", fill: "fill", answer: "answer" };

export default function Use() {
  const { params } = useAddress(), model = useModel();
  if (!model) return null;
  const Result = { translate: Translation, generate: Continuation, classify: Label, fill: Filled, answer: Span }[model.task] ?? Vector;
  return html`<div class="halves">
    <${Card} title=${VERB[model.task] ?? "Text"} label="Input">
      <${InputFields} model=${model} params=${params} rows=${model.task === "answer" ? "1" : "3"} />
      ${model.task === "translate" && html`<${Glossary} params=${params} />`}
      ${model.task === "generate" && html`<${Sampling} params=${params} />`}
    <//>
    ${isReady(model, params) ? html`<${Result} key=${model.name} model=${model} params=${params} />`
      : html`<${Card} title=${ANSWER[model.task] ?? "Vector"}><${Empty} action="Try an example" onAction=${() => patch({ text: examplesFor(model)[0] })}>Type a text. The answer is updated as you type.<//><//>`}
  </div>`;
}

// Pairs of terms from lines "term = translation".
function glossaryOf(params) {
  const pairs = (params.glossary ?? "").split("\n").map((line) => line.split("=").map((side) => side.trim())).filter((pair) => pair.length === 2 && pair[0] && pair[1]);
  return pairs.length ? Object.fromEntries(pairs) : undefined;
}

function Glossary({ params }) {
  const [shown, setShown] = useState(Boolean(params.glossary));
  return html`<div class="stack tight"><div><${Toggle} on=${shown} onChange=${setShown}>Glossary<//></div>
    ${shown && html`<${TextField} label="One term per line, as in: bicycle = Fahrrad. The translation has to contain these terms." value=${params.glossary} rows="3" onInput=${(glossary) => patch({ glossary })} />`}</div>`;
}

function Translation({ model, params }) {
  const body = { model: model.name, text: params.text, ...(params.prefix ? { prefix: params.prefix } : {}), n_best: 3, glossary: glossaryOf(params), interventions: interventionsOf().length ? interventionsOf() : undefined };
  const { answer, error, busy } = useAnswer("translate", body, { wait: 150 });
  const result = answer?.results?.[0], corrections = useCorrections(model);
  const onForce = (prefix) => patch({ prefix, chosen: null });
  return html`<div class="stack"><${Card} title=${ANSWER.translate} busy=${busy} tools=${html`<${Exports} name="translation" values=${answer} />`}>
      <${Failure} error=${error} />
      ${result && html`<p class="answer" dir="auto" aria-live="polite"><${ScoredAnswer} model=${model} params=${params} text=${result.text} words=${result.words} /></p>
        ${result.warnings?.map((warning) => html`<p class="small bad">${warning}</p>`)}
        ${params.prefix && html`<p class="row small"><span class="muted">Forced beginning: <bdi>“${params.prefix}”</bdi></span><button class="button" onClick=${() => patch({ prefix: null })}>Remove it</button></p>`}
        <${Alternatives} model=${model} params=${params} text=${result.text} onForce=${onForce} />
        <div class="row"><button class="button" onClick=${() => open("look", { target: params.prefix ? result.text : null })}>Show attention</button><button class="button" onClick=${() => open("switch", {})}>Switch parts off</button></div>`}
    <//>
    ${result?.alternatives?.length > 0 && html`<${Card} title="Other translations">${result.alternatives.map((alternative) => html`<p dir="auto">${alternative.text} <span class="muted small">score ${number(alternative.score)}</span></p>`)}<p class="small muted">Hypotheses of the beam search, ranked by score: log probability divided by a length penalty.</p><//>`}
    ${result && html`<${Correct} key=${params.text} model=${model} source=${params.text} answer=${result.text} corrections=${corrections} />`}</div>`;
}

// The words of an answer, underlined by confidence; the whitespace between them as it is in the text.
function ScoredAnswer({ text, words, params }) {
  const pieces = [];
  let at = 0;
  (words ?? []).forEach((word, index) => {
    const found = text.indexOf(word.text, at);
    if (found < 0) return;
    if (found > at) pieces.push(text.slice(at, found));
    pieces.push(html`<${Confidence} key=${index} label=${word.text} probability=${word.probability} pressed=${params.chosen === String(index)} onClick=${() => patch({ chosen: params.chosen === String(index) ? null : index })} />`);
    at = found + word.text.length;
  });
  return [...pieces, text.slice(at)];
}

// The alternatives to the chosen word; a click on one continues decoding from it.
function Alternatives({ model, params, text, onForce, promptLength = 0 }) {
  const chosen = whole(params.chosen, null);
  const { answer: look, error } = useAnswer("look", chosen === null ? null : lookRequest(model, { ...params, target: text }, { top: 6, interventions: interventionsOf() }));
  if (chosen === null) return html`<p class="small muted">Click a word to see its alternatives. Underline: probability, dashed below 90%, double below 50%.</p>`;
  if (!look) return html`<${Failure} error=${error} />${!error && html`<div class="skeleton"></div>`}`;
  const group = outputGroups(look, "spaces").filter((candidate) => !candidate.special)[chosen];
  if (!group) return null;
  const output = look.outputs[group.outputs[0]], row = look.target ?? look.inputs;
  const token = row.tokens[output.position + 1];
  const start = token?.span ? token.span[0] : size(row.text);
  return html`<div class="stack tight"><h3>Alternatives to “<${Word}>${group.label}<//>”</h3>
    <${Bars} items=${output.top.map((prediction) => ({ label: prediction.text.trim() || prediction.text || "∅", value: prediction.probability, onClick: prediction.id === output.label || /^<.*>$/.test(prediction.text) ? null : () => onForce(joined(cut(row.text, promptLength, start), prediction.text)) }))} />
    <p class="small muted">Click an alternative to continue decoding from it.</p></div>`;
}

// A text followed by another token. The token's leading space is dropped where the text already ends with one.
function joined(before, piece) {
  return before.endsWith(" ") ? before + piece.trimStart() : before + (before ? piece : piece.trimStart());
}

// The number of corrected pairs of a model.
function useCorrections(model) {
  const { canTrain } = useSession(), [pairs, setPairs] = useState(0);
  useEffect(() => { if (canTrain) get(`studio/corrections/${encodeURIComponent(model.name)}`).then((answer) => setPairs(answer.pairs), () => {}); }, [canTrain, model.name]);
  return [canTrain, pairs, setPairs];
}

function Correct({ model, source, answer, corrections: [canTrain, pairs, setPairs] }) {
  const [text, setText] = useState(null);
  if (!canTrain) return null;
  const save = async () => {
    try {
      const saved = await post("studio/corrections", { model: model.name, source, target: text });
      setPairs(saved.pairs);
      setText(null);
      toast(`Saved: ${plural(saved.pairs, "pair")} in ${saved.file}`);
    } catch (error) { toast(error.message); }
  };
  const improve = async () => {
    try {
      const run = await post("studio/improve", { model: model.name });
      open("train", { run: run.name });
    } catch (error) { toast(error.message); }
  };
  return html`<${Card} title="Correction">
    ${text === null ? html`<div class="row"><button class="button" onClick=${() => setText(answer)}>Correct this</button>
        ${pairs > 0 && html`<button class="button" onClick=${improve}>Fine-tune on ${plural(pairs, "correction")}</button>`}</div>`
      : html`<${TextField} label="Correct answer" value=${text} rows="2" onInput=${setText} /><div class="row"><button class="button main" onClick=${save} disabled=${!text.trim() || text === answer}>Save the pair</button><button class="button" onClick=${() => setText(null)}>Cancel</button></div>`}<//>`;
}

function Sampling({ params }) {
  const slider = (name, label, least, most, step, normal) => html`<label class="row"><span class="small muted" style=${{ minWidth: "110px" }}>${label} ${params[name] ?? normal}</span>
    <input type="range" min=${least} max=${most} step=${step} value=${params[name] ?? normal} style=${{ flex: "1" }} onInput=${(event) => patch({ [name]: event.target.value })} /></label>`;
  return html`<div class="stack tight">${slider("temperature", "temperature", 0, 2, 0.1, 0.8)}${slider("length", "max. tokens", 10, 300, 10, 80)}${slider("seed", "seed", 0, 50, 1, 1)}</div>`;
}

function Continuation({ model, params }) {
  const [text, setText] = useState(""), [error, setError] = useState(null), [busy, setBusy] = useState(false);
  const controller = useRef(null);
  const options = { temperature: Number(params.temperature ?? 0.8), max_length: Number(params.length ?? 80), seed: Number(params.seed ?? 1) };
  const key = JSON.stringify([model.name, params.text, params.prefix, options, params.off]);
  useEffect(() => {
    controller.current = new AbortController();
    const { signal } = controller.current;
    const timer = setTimeout(async () => {
      setText(params.prefix ?? "");
      setError(null);
      setBusy(true);
      const interventions = interventionsOf();
      try {
        await stream("generate", { model: model.name, prompt: params.text + (params.prefix ?? ""), stream: true, ...options, ...(interventions.length ? { interventions } : {}) },
          (name, data) => (name === "error" ? setError(new Error(data.error?.message ?? "the stream failed")) : setText((before) => before + (data.text ?? ""))), signal);
      } catch (failure) {
        if (failure.name !== "AbortError") setError(failure);
      }
      setBusy(false);
    }, 250);
    return () => { clearTimeout(timer); controller.current.abort(); };
  }, [key]);
  return html`<${Card} title=${ANSWER.generate} tools=${busy ? html`<button class="button" onClick=${() => { controller.current.abort(); setBusy(false); }}>Stop</button>` : html`<${Exports} name="continuation" values=${{ prompt: params.text, text, ...options }} />`}>
    <${Failure} error=${error} />
    <p class="answer" dir="auto" aria-busy=${busy}><span class="muted">${params.text}</span>${busy || params.chosen === undefined ? text : html`<${Scored} model=${model} params=${params} text=${text} />`}</p>
    ${!busy && text && html`<div class="row"><button class="button" onClick=${() => patch({ chosen: params.chosen === undefined ? 0 : null })}>${params.chosen === undefined ? "Show probabilities" : "Hide probabilities"}</button>
      <button class="button" onClick=${() => open("look", { target: text })}>Show attention</button>
      ${params.prefix && html`<button class="button" onClick=${() => patch({ prefix: null })}>Restart from the prompt</button>`}</div>`}
    ${!busy && text && params.chosen !== undefined && html`<${Alternatives} model=${model} params=${params} text=${text} promptLength=${size(params.text)} onForce=${(prefix) => patch({ prefix, chosen: null })} />`}
  <//>`;
}

function Scored({ model, params, text }) {
  const { answer: look } = useAnswer("look", lookRequest(model, { ...params, target: text }, { top: 6 }));
  if (!look) return text;
  return html`<${ScoredText} look=${look} picked=${Number(params.chosen)} onPick=${(index) => patch({ chosen: index })} />`;
}

const single = (model, params, extra) => ({ model: model.name, text: params.text, ...extra, ...(interventionsOf().length ? { interventions: interventionsOf() } : {}) });

function Label({ model, params }) {
  const { answer, error, busy } = useAnswer("classify", single(model, params), { wait: 150 });
  const result = answer?.results?.[0];
  return html`<${Card} title="Label" busy=${busy} tools=${html`<${Exports} name="label" values=${answer} />`}><${Failure} error=${error} />
    ${result && html`<p class="answer strong" aria-live="polite">${[result.label].flat().join(", ") || "none"}</p>
      <${Bars} items=${Object.entries(result.probabilities).map(([label, value]) => ({ label, value }))} />
      <div class="row"><button class="button" onClick=${() => open("look", {})}>Show attention</button><button class="button" onClick=${() => open("switch", {})}>Switch parts off</button></div>`}<//>`;
}

// The text with its mask number `index` replaced.
function filledAt(text, index, word) {
  let at = -1;
  return text.replace(/\[MASK\]/g, (mask) => ((at += 1) === index ? word : mask));
}

function Filled({ model, params }) {
  const masked = isMasked(params.text);
  const { answer, error, busy } = useAnswer("fill", masked ? single(model, params, { top: 6 }) : null, { wait: 150 });
  const result = answer?.results?.[0];
  return html`<${Card} title="Filled in" busy=${busy} tools=${result && html`<${Exports} name="filled" values=${answer} />`}><${Failure} error=${error} />
    ${!masked && html`<${Empty}>Replace a word by [MASK].<//>`}
    ${masked && result && html`<p class="answer" dir="auto">${result.filled}</p>
      ${result.guesses.map((guesses, index) => html`<div class="stack tight">${result.guesses.length > 1 && html`<h3>Word ${index + 1}</h3>`}<${Bars} items=${guesses.map((guess) => ({ label: guess.word, value: guess.probability, onClick: () => patch({ text: filledAt(params.text, index, guess.word) }) }))} /></div>`)}
      <p class="small muted">Click a word to insert it.</p><div class="row"><button class="button" onClick=${() => open("look", {})}>Show attention</button></div>`}<//>`;
}

function Span({ model, params }) {
  const { answer, error, busy } = useAnswer("answer", { model: model.name, question: params.text, passage: params.passage, top: 3 }, { wait: 200 });
  const result = answer?.results?.[0];
  return html`<${Card} title="Answer" busy=${busy} tools=${result && html`<${Exports} name="answer" values=${answer} />`}><${Failure} error=${error} />
    ${result && html`<p class="answer strong" dir="auto">${result.answer ?? "The passage has no answer."}</p>
      ${result.start !== null && html`<p dir="auto">${cut(params.passage, 0, result.start)}<ins>${cut(params.passage, result.start, result.end)}</ins>${cut(params.passage, result.end)}</p>`}
      <${Bars} items=${[result, ...(result.alternatives ?? [])].map((span) => ({ label: span.answer ?? "no answer", value: span.probability, text: percent(span.probability) }))} />`}<//>`;
}

function Vector({ model, params }) {
  const { answer, error, busy } = useAnswer("embed", single(model, params), { wait: 150 });
  const vector = answer?.results?.[0]?.vector;
  return html`<${Card} title="Vector" busy=${busy} tools=${vector && html`<${Exports} name="vector" values=${answer} />`}><${Failure} error=${error} />
    ${vector && html`<p class="muted">${plural(vector.length, "number")}, the mean of the final states of all tokens. The first ones:</p><p class="number">${vector.slice(0, 12).map((value) => number(value)).join("  ")} …</p>
      <div class="row"><button class="button" onClick=${() => open("vectors", {})}>Compare with other texts</button></div>`}<//>`;
}
