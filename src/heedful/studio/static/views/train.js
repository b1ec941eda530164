// Train: choose text, check it, plan, start a run and follow it.
import { html, useState, useEffect, useRef, useMemo } from "../core/html.js";
import { useAddress, patch, open, whole } from "../core/address.js";
import { useSession, refreshModels, toast } from "../core/session.js";
import { get, post } from "../core/api.js";
import { number, count, duration, plural } from "../core/format.js";
import { Card, Failure, Empty, Choice, TextField, Toggle } from "../parts/basics.js";
import { HeatMap } from "../parts/heat_map.js";
import { LineChart } from "../parts/line_chart.js";
import { Exports } from "../parts/export.js";

const TASKS = [["translate", "translate"], ["generate", "generate"], ["classify", "classify"], ["fill", "fill in"], ["answer", "answer"], ["embed", "embed"]];
const POLL = 1500;

export default function Train() {
  const { params } = useAddress(), { canTrain, folder, models } = useSession();
  const [runs, setRuns] = useState(null), [error, setError] = useState(null);
  const refresh = () => get("studio/runs").then((answer) => { setRuns(answer.runs); setError(null); }, setError);
  useEffect(() => {
    if (!canTrain) return undefined;
    refresh();
    const timer = setInterval(refresh, 2 * POLL);
    return () => clearInterval(timer);
  }, [canTrain]);
  if (!canTrain) return html`<${Card} title="Train"><${Empty}>This server does not train. Start heedful studio on your own machine.<//><//>`;
  return html`<div class="stack">
    ${models?.length === 0 && !runs?.length && html`<${Card} title="No model yet"><p>The demo translates dates of 17 languages to ISO form: “9 stycznia 1923” to 1923-01-09. It needs no files and takes about two minutes.</p>
      <div><button class="button main" onClick=${() => begin({ demo: true }, refresh)}>Train the demo</button></div><//>`}
    <${params.run ? Run : Plain} key=${params.run} name=${params.run} params=${params} onChange=${refresh}><div class="halves roomy"><${NewRun} params=${params} onStart=${refresh} />
      <${Card} title=${`Runs in ${folder}`}><${Failure} error=${error} />
        ${runs?.length === 0 && html`<${Empty}>No runs yet. Those started from the shell in this folder appear here too.<//>`}
        ${runs?.length > 0 && html`<${Runs} runs=${runs} params=${params} onChange=${refresh} />`}<//></div>
    ${params.curves && html`<${Curves} names=${params.curves.split(",").filter(Boolean).slice(0, 4)} />`}<//>
  </div>`;
}

const Plain = ({ children }) => children;

async function begin(body, refresh) {
  try {
    const run = await post("studio/runs", body);
    patch({ run: run.name });
    refresh();
  } catch (error) { toast(error.message); }
}

async function act(path, refresh, message) {
  try {
    await post(path, {});
    refresh();
    if (message) toast(message);
    return true;
  } catch (error) { toast(error.message); return false; }
}

// An unused name for pasted text, without an ending.
function freeName(files) {
  const taken = new Set(files.map((file) => file.name.split("/").at(-1).replace(/\.[^.]*$/, "")));
  return Array.from({ length: files.length + 1 }, (_, index) => `pasted-${index + 1}`).find((name) => !taken.has(name));
}

// The files that pasted text is saved in, as [ending, text]: two parallel files, one of pairs, or one of another kind.
function filesOf(task, { text, other }) {
  if (task === "translate" && other.trim()) return [[".source", text], [".target", other]];
  return [[{ translate: ".tsv", classify: ".tsv", answer: ".json" }[task] ?? ".txt", text]];
}

const PASTED = {
  translate: "The texts to translate, one per line", classify: "Text: a first line “label, tab, text”, then one example per line", answer: "Questions with passages, as JSON",
};

const HINTS = {
  translate: "Two files, line by line, or one table of pairs.", classify: "A table with texts and labels.", answer: "Questions with passages, as JSON.",
};

// The settings of a new run. They are kept in the address, so that a link restores them.
function NewRun({ params, onStart }) {
  const task = params.task ?? "translate", time = params.time ?? "2m", architecture = params.kind ?? "transformer";
  const chosen = (params.files ?? "").split("|").filter(Boolean), valid = (params.valid ?? "").split("|").filter(Boolean);
  const [files, setFiles] = useState(null), [pasted, setPasted] = useState(null), [report, setReport] = useState(null), [plan, setPlan] = useState(null), [error, setError] = useState(null), [busy, setBusy] = useState("");
  const list = () => get("studio/files").then((answer) => setFiles(answer.files), setError);
  useEffect(() => { list(); }, []);
  const body = { task, files: chosen, valid, time, architecture };
  const change = (changes) => { setReport(null); setPlan(null); setError(null); patch(changes); };
  const ask = async (path, store, label) => {
    setBusy(label);
    setError(null);
    try { store(await post(path, body)); } catch (failure) { setError(failure); }
    setBusy("");
  };
  // Save the pasted text as a file and select it; returns the names of all selected files, or null on failure.
  const keep = async () => {
    try {
      const saved = [];
      for (const [ending, text] of filesOf(task, pasted)) saved.push((await post("studio/files", { name: `${pasted.name}${ending}`, text })).name);
      await list();
      const names = [...new Set([...chosen, ...saved])];
      change({ files: names.join("|") });
      setPasted(null);
      return names;
    } catch (failure) { setError(failure); return null; }
  };
  const isReady = chosen.length > 0 || Boolean(pasted?.text.trim());
  const start = async () => {
    const names = pasted?.text.trim() ? await keep() : chosen;
    if (names) begin({ ...body, files: names }, onStart);
  };
  const toggled = (names, name) => (names.includes(name) ? names.filter((other) => other !== name) : [...names, name]).join("|") || null;
  const toggle = (name) => change({ files: toggled(chosen, name), valid: valid.filter((other) => other !== name).join("|") || null });
  return html`<${Card} title="A new model" busy=${Boolean(busy)}>
    <${Choice} label="Task" options=${TASKS} value=${task} onChange=${(choice) => change({ task: choice })} />
    <p class="small muted">${HINTS[task] ?? "Running text."} Select files in the order in which they are to be read.</p>
    <div class="files" role="group" aria-label="Files">${files?.map((file) => html`<div class="row between"><label class="row"><input type="checkbox" checked=${chosen.includes(file.name)} onChange=${() => toggle(file.name)} />
      <span>${file.name.split("/").slice(1).join("/")}</span><span class="muted small">${count(file.bytes)} bytes${chosen.includes(file.name) ? `, number ${chosen.indexOf(file.name) + 1}` : ""}</span></label>
      ${chosen.length > 0 && !chosen.includes(file.name) && html`<button class="chip-button small" aria-pressed=${valid.includes(file.name)} aria-label=${`validation: ${file.name}`} onClick=${() => change({ valid: toggled(valid, file.name) })}>validation${valid.includes(file.name) && valid.length > 1 ? ` ${valid.indexOf(file.name) + 1}` : ""}</button>`}</div>`)}
      ${files?.length === 0 && html`<p class="muted">No text files in the studio's folders. Paste some, or start with --data DIR.</p>`}</div>
    ${pasted ? html`<${TextField} single label="Name" value=${pasted.name} onInput=${(name) => setPasted((before) => ({ ...before, name }))} /><${TextField} label=${PASTED[task] ?? "Text"} rows="5" value=${pasted.text} onInput=${(text) => setPasted((before) => ({ ...before, text }))} />
        ${task === "translate" && html`<${TextField} label="Their translations, line by line (empty if each line above is a pair with a tab between)" rows="5" value=${pasted.other} onInput=${(other) => setPasted((before) => ({ ...before, other }))} />`}
        <div class="row"><button class="button" disabled=${!pasted.text.trim()} onClick=${keep}>Keep as a file</button><button class="button" onClick=${() => setPasted(null)}>Cancel</button></div>`
      : html`<div><button class="button" onClick=${() => setPasted({ name: freeName(files ?? []), text: "", other: "" })}>Paste text</button></div>`}
    <div class="row"><${Choice} label="Architecture" options=${[["transformer", "transformer"], ["recurrent", "recurrent"]]} value=${architecture} onChange=${(choice) => change({ kind: choice })} /></div>
    <div class="row"><span class="small muted">time</span><${Choice} label="Time" options=${["1m", "2m", "10m", "1h"].map((choice) => [choice, choice])} value=${time} onChange=${(choice) => change({ time: choice })} /></div>
    <${Failure} error=${error} />
    <div class="row"><button class="button main" disabled=${!isReady || busy} onClick=${start}>Start training</button>
      <button class="button" disabled=${!chosen.length || busy} onClick=${() => ask("studio/doctor", setReport, "doctor")}>${busy === "doctor" ? "Reading …" : "Check the text"}</button>
      <button class="button" disabled=${!chosen.length || busy} onClick=${() => ask("studio/plan", setPlan, "plan")}>${busy === "plan" ? "Planning …" : "Plan"}</button></div>
    ${!isReady && html`<p class="small muted">Select a file above, or paste text, to start.</p>`}
    ${report && html`<${Findings} report=${report} />`}${plan && html`<${Plan} plan=${plan} />`}<//>`;
}

function Findings({ report }) {
  const findings = report.findings.filter((finding) => finding.count);
  return html`<div class="stack tight"><h3>The doctor read ${plural(report.rows, "row")}, ${count(report.usable)} usable</h3>
    ${!findings.length && html`<p class="good">No problems found.</p>`}
    ${findings.map((finding) => html`<p><b>${count(finding.count)}</b> ${finding.description}${finding.locations?.length > 0 && html` <span class="muted small">${finding.locations.slice(0, 3).map((place) => place.location ?? `${(place.file ?? "").split("/").at(-1)}:${place.line ?? ""}`).join(", ")}</span>`}</p>`)}</div>`;
}

function Plan({ plan }) {
  const parameters = Object.values(plan.parameters).reduce((sum, size) => sum + size, 0);
  const rows = [["parameters", count(parameters)], ["steps", count(plan.steps)], ["memory", `${(plan.peak_memory / 2 ** 20).toFixed(0)} MiB${plan.fits ? "" : ", which does not fit"}`], ["total time", duration(plan.seconds)], ["training time", duration(plan.phases?.training)]];
  return html`<div class="stack tight"><h3>The plan</h3><table class="plain">${rows.map(([name, value]) => html`<tr><td>${name}</td><td class="number">${value}</td></tr>`)}</table></div>`;
}

function Runs({ runs, params, onChange }) {
  const curves = (params.curves ?? "").split(",").filter(Boolean);
  const serve = async (name) => {
    if (!await act(`studio/runs/${name}/serve`, onChange)) return;
    await refreshModels();
    open("use", { model: name });
  };
  return html`<div class="scroll"><table class="plain stacked"><tr><th>run</th><th>state</th><th>result</th><td></td></tr>${runs.map((run) => html`<tr>
    <td><button class="link" onClick=${() => patch({ run: run.name, frame: null, layer: null })}>${run.name}</button></td><td>${run.state}</td><td>${run.result}${run.is_useful === false ? html` <span class="bad">not usable</span>` : ""}</td>
    <td><span class="row">${run.state === "finished" && html`<button class="button" onClick=${() => serve(run.name)}>${run.served ? "Use" : "Serve"}</button>`}
      ${run.state === "unfinished" && html`<button class="button" onClick=${() => act(`studio/runs/${run.name}/resume`, onChange, "Resumed")}>Resume</button>`}
      ${run.steps > 0 && html`<${Toggle} on=${curves.includes(run.name)} onChange=${() => patch({ curves: (curves.includes(run.name) ? curves.filter((other) => other !== run.name) : [...curves, run.name].slice(-4)).join(",") || null })}>curve<//>`}</span></td></tr>`)}</table></div>`;
}

// The events of a run, polled while it is running.
function useRun(name, round) {
  const [run, setRun] = useState(null), [error, setError] = useState(null), events = useRef([]);
  useEffect(() => {
    let gone = false, timer = 0;
    const ask = async () => {
      try {
        const answer = await get(`studio/runs/${encodeURIComponent(name)}?after=${events.current.length}`);
        if (gone) return;
        events.current = [...events.current, ...answer.events];
        setRun({ ...answer, events: events.current });
        if (["running", "starting"].includes(answer.state)) timer = setTimeout(ask, POLL);
      } catch (failure) { if (!gone) setError(failure); }
    };
    ask();
    return () => { gone = true; clearTimeout(timer); };
  }, [name, round]);
  return { run, error };
}

const kindOf = (events, kind) => events.filter((event) => event.kind === kind);

// A run, and below it `children`, which appear together with it, so that nothing on the page moves.
function Run({ name, params, onChange, children }) {
  const [round, setRound] = useState(0), { run, error } = useRun(name, round);
  const box = useRef(null), shown = Boolean(run);
  useEffect(() => { if (run?.state === "finished") onChange(); }, [run?.state]);
  useEffect(() => { if (shown) box.current?.scrollIntoView({ block: "nearest" }); }, [shown]);
  if (!run) return html`<${Card} title=${name}><${Failure} error=${error} />${!error && html`<div class="skeleton"></div>`}<//>${error && children}`;
  const steps = kindOf(run.events, "step"), evaluations = kindOf(run.events, "evaluation"), last = steps.at(-1), done = kindOf(run.events, "done").at(-1);
  const live = ["running", "starting"].includes(run.state);
  const serve = async () => { if (!await act(`studio/runs/${name}/serve`, onChange)) return; await refreshModels(); open("use", { model: name, text: null }); };
  return html`<div ref=${box} class="anchor"><${Card} title=${`${name}: ${run.state}`} tools=${html`<span class="row"><${Exports} name=${name} values=${run.events} />
      ${live && run.can_stop && html`<button class="button" onClick=${() => act(`studio/runs/${name}/stop`, onChange, "Stopping after this step. The run can be resumed.")}>Stop and keep</button>`}
      ${run.state === "unfinished" && html`<button class="button main" onClick=${async () => { await act(`studio/runs/${name}/resume`, onChange, "Resumed"); setRound(round + 1); }}>Resume</button>`}
      ${run.state === "finished" && html`<button class="button main" onClick=${serve}>Use it</button>`}<button class="icon-button" aria-label="Close" onClick=${() => patch({ run: null, frame: null, layer: null })}>✕</button></span>`}>
    <${Failure} error=${error} />
    ${last && html`<p aria-live="off">step ${count(last.step)} of ${count(last.steps)} · loss ${number(last.loss)} · ${count(last.tokens_per_second)} ${last.unit ?? "tokens"}/s · gradient norm ${number(last.gradient)}${live ? ` · ${duration(last.seconds_left)} left` : ""}</p>
      <progress max=${last.steps} value=${last.step} aria-label="Steps done"></progress>`}
    ${!last && live && html`<p class="muted">${run.output.at(-1) ?? "Reading the text, learning a vocabulary, timing a step …"}</p>`}
    ${run.state === "failed" && html`<p class="error" role="alert">${run.output.at(-1) ?? "The run ended before its first step."}</p>`}
    ${done && html`<p><b>${done.headline}</b>. ${[done.verdict?.finding, ...(done.verdict?.reasons ?? [])].filter(Boolean).join("; ")}</p>`}
    <div class=${evaluations.some((event) => event.attention) ? "halves" : "stack"}>
      ${steps.length > 1 && html`<${LineChart} label="Loss" curves=${[{ label: "training loss", points: steps.map((event) => [event.step, event.loss]) }, { label: "validation loss", points: evaluations.map((event) => [event.step, event.scores.valid_loss]).filter(([, value]) => value !== undefined) }]} />`}
      ${evaluations.some((event) => event.attention) && html`<${Film} evaluations=${evaluations.filter((event) => event.attention)} params=${params} />`}
    </div>
    ${evaluations.length > 0 && html`<div class="scroll"><table class="plain stacked"><tr><th>step</th><th>scores</th><th>sample</th></tr>${evaluations.slice(-5).reverse().map((event) => html`<tr><td data-label="step">${count(event.step)}</td>
      <td>${Object.entries(event.scores).map(([key, value]) => `${key.replaceAll("_", " ")} ${number(value)}`).join(", ")}${event.best ? " (best)" : ""}</td><td dir="auto">${(event.sample ?? []).map((line) => html`<div>${line}</div>`)}</td></tr>`)}</table></div>`}
  <//></div>${children}`;
}

// The cross-attention of one validation pair at every evaluation.
function Film({ evaluations, params }) {
  const [playing, setPlaying] = useState(false), end = evaluations.length - 1;
  const frame = Math.min(end, whole(params.frame, end)), still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const show = (index) => patch({ frame: index >= end ? null : index });
  useEffect(() => {
    if (!playing) return undefined;
    if (frame >= end) { setPlaying(false); return undefined; }
    const timer = setTimeout(() => show(frame + 1), 400);
    return () => clearTimeout(timer);
  }, [playing, frame, end]);
  const { attention, step } = evaluations[frame], names = Object.keys(attention.layers), chosen = names.includes(params.layer) ? params.layer : sharpest(evaluations.at(-1).attention);
  const drawn = useMemo(() => ({ rows: attention.target.map((label) => ({ label })), columns: attention.source.map((label) => ({ label })), weights: Float32Array.from(attention.layers[chosen].flat()) }), [attention, chosen]);
  return html`<div class="stack tight"><h3>How attention formed: step ${count(step)}</h3>
    <div class="film">${still ? html`<button class="button" onClick=${() => show((frame + 1) % (end + 1))}>Step</button>` : html`<button class="button" onClick=${() => { if (!playing) show(0); setPlaying(!playing); }}>${playing ? "Pause" : "Play"}</button>`}
      <input type="range" aria-label="Evaluation" min="0" max=${end} value=${frame} onInput=${(event) => { setPlaying(false); show(Number(event.target.value)); }} /></div>
    ${names.length > 1 && html`<${Choice} label="Layer" options=${names.map((layer) => [layer, layer])} value=${chosen} onChange=${(layer) => patch({ layer })} />`}
    <${HeatMap} ...${drawn} whole caption="Mean of the layer's heads, for one pair of the validation text." /></div>`;
}

// The layer whose rows have the largest maximum weights at the end.
function sharpest(attention) {
  const certainty = (rows) => rows.reduce((sum, row) => sum + Math.max(...row), 0) / rows.length;
  return Object.keys(attention.layers).sort((a, b) => certainty(attention.layers[b]) - certainty(attention.layers[a]))[0];
}

function Curves({ names }) {
  const [runs, setRuns] = useState({});
  useEffect(() => { names.forEach((name) => get(`studio/runs/${encodeURIComponent(name)}`).then((run) => setRuns((before) => ({ ...before, [name]: run })), () => {})); }, [names.join()]);
  const curves = names.filter((name) => runs[name]).map((name) => ({ label: name, points: kindOf(runs[name].events, "evaluation").map((event) => [event.step, event.scores.valid_loss]) }));
  return html`<${Card} title="Validation loss of several runs" tools=${html`<span class="row"><${Exports} name="curves" values=${curves} /><button class="icon-button" aria-label="Close" onClick=${() => patch({ curves: null })}>✕</button></span>`}><${LineChart} label="Validation loss" curves=${curves} /><//>`;
}
