// Lab: the open questions as experiments, with predictions, runs and reports.
import { html, useState, useEffect } from "../core/html.js";
import { useAddress, patch } from "../core/address.js";
import { useSession, toast } from "../core/session.js";
import { get, post } from "../core/api.js";
import { plural } from "../core/format.js";
import { Card, Failure, Empty } from "../parts/basics.js";
import { Exports } from "../parts/export.js";

const POLL = 3000;

export default function Lab() {
  const { params } = useAddress(), { canTrain } = useSession();
  const [studies, setStudies] = useState(null), [error, setError] = useState(null);
  const refresh = () => get("studio/studies").then((answer) => { setStudies(answer.studies); setError(null); }, setError);
  useEffect(() => {
    if (!canTrain) return undefined;
    refresh();
    const timer = setInterval(refresh, POLL);
    return () => clearInterval(timer);
  }, [canTrain]);
  if (!canTrain) return html`<${Card} title="Lab"><${Empty}>This server does not run studies. Start heedful studio on your own machine.<//><//>`;
  const study = studies?.find((study) => study.name === params.study);
  return html`<div class="stack">
    ${study && html`<${Study} key=${study.name} study=${study} onChange=${refresh} />`}
    <${Card} title="The open questions of the notes, as experiments" tools=${studies && html`<${Exports} name="studies" values=${studies} />`}><${Failure} error=${error} />
      <p class="muted">Each study compares variants that differ in one setting. Open a study to read its question and predictions before you run it. A quick run takes about a minute; its answer is only indicative.</p>
      ${!studies && !error && html`<div class="skeleton" aria-busy="true"></div>`}
      ${studies && html`<div class="scroll"><table class="plain stacked"><tr><th>study</th><th>question</th><th>predictions</th><td></td></tr>${studies.map((study) => html`<tr>
        <td><button class="link" aria-pressed=${study.name === params.study} onClick=${() => patch({ study: study.name })}>${study.name}</button></td><td>${study.question} <span class="small muted">${study.concept}, ${plural(study.variants, "variant")}</span></td>
        <td><${Outcomes} study=${study} /></td>
        <td>${study.state !== "running" && html`<button class="button" aria-label=${`Run quickly: ${study.name}`} onClick=${() => { patch({ study: study.name }); act(`${study.name}/run`, { quick: true }, refresh); }}>Run quickly</button>`}</td></tr>`)}</table></div>`}<//>
  </div>`;
}

const STYLES = { held: "good", "did not hold": "bad" };
const running = (study) => `running: ${plural(study.trials, "trial")} stored`;

// The outcome of each prediction, as a word in a frame.
function Outcomes({ study }) {
  if (study.state === "running") return html`<span class="strong">${running(study)}</span>`;
  if (study.state === "failed") return html`<span class="bad">failed</span>`;
  if (study.state !== "done") return html`<span class="muted">not run here yet</span>`;
  return study.predictions.map((prediction) => html`<span class=${`outcome ${STYLES[prediction.outcome] ?? "muted"}`} title=${prediction.statement}>${prediction.outcome}</span>`);
}

async function act(path, body, onChange) {
  try {
    await post(`studio/studies/${path}`, body);
    onChange();
  } catch (error) { toast(error.message); }
}

function Study({ study, onChange }) {
  const [report, setReport] = useState(null), [error, setError] = useState(null);
  useEffect(() => {
    if (study.state === "done") get(`studio/studies/${study.name}`).then(setReport, setError);
  }, [study.name, study.state, study.trials]);
  const isRunning = study.state === "running";
  return html`<${Card} title=${`${study.name}: ${study.question}`} tools=${html`<span class="row">${isRunning
      ? html`<button class="button" onClick=${() => act(`${study.name}/stop`, {}, onChange)}>Stop and keep</button>`
      : html`<button class="button main" onClick=${() => act(`${study.name}/run`, { quick: true }, onChange)}>Run quickly</button>
        <button class="button" onClick=${() => act(`${study.name}/run`, { quick: false }, onChange)}>Run in full</button>`}
      ${report && html`<${Exports} name=${`study-${study.name}`} values=${report} />`}<button class="icon-button" aria-label="Close" onClick=${() => patch({ study: null })}>✕</button></span>`}>
    ${isRunning && html`<p class="small muted" aria-live="polite">${running(study)}</p><progress aria-label="The study is running"></progress>`}
    <h3>Predictions, written before the first result</h3>
    <ol class="predicted">${study.predictions.map((prediction) => html`<li>${prediction.statement} ${prediction.outcome && html`<span class=${`outcome ${STYLES[prediction.outcome] ?? "muted"}`}>${prediction.outcome}</span>`}</li>`)}</ol>
    ${study.message && html`<p class="error" role="alert">${study.message}</p>`}<${Failure} error=${error} />
    ${report && html`<${Report} report=${report} />`}<//>`;
}

const Report = ({ report }) => html`<div class="stack tight report"><h3>Answer</h3>${report.answer.map((sentence) => html`<p>${sentence}</p>`)}
  ${report.picture && html`<img class="study-picture" src=${`data:image/png;base64,${report.picture}`} alt=${`Measurements: ${report.heads.join(", ")}`} />`}
  <h3>Measured</h3><div class="scroll"><table class="plain broad"><thead><tr>${report.heads.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
    <tbody>${report.rows.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody></table></div>
  <h3>Set-up</h3><p>${report.setup}</p><h3>What would change this answer</h3><p>${report.would_change}</p><p class="small muted">${report.size} run. ${report.facts}</p></div>`;
