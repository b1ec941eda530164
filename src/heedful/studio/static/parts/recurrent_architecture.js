// A recurrent model as a drawing, bottom to top: embeddings, gates and states of each layer, the attention between them.
import { html } from "../core/html.js";
import { interventionsOf } from "../core/session.js";
import { plural, count } from "../core/format.js";
import { isOff, toggledPart } from "../core/switches.js";
import { Card } from "./basics.js";
import { Row, Switch, Scaler, Wires } from "./architecture.js";
import { Exports } from "./export.js";

// A short description of each part, by the last piece of its name.
const HOLDS = {
  input: "share of the candidate that is added", forget: "share of the cell that is kept", output: "share of the cell that is output", candidate: "proposed content", cell: "cell state", hidden: "hidden state",
  reset: "share of the past in the candidate", update: "share of the state that is replaced", states: "states of all tokens", mask: "excludes padding", scores: "one score per source token",
  weights: "softmax of the scores", cross: "weighted sum of the states", context: "vector passed to the decoder", initial_state: "first state of the decoder",
};

// Modules bottom to top: [{ name, title, parts }]. A part between the stacks belongs to the decoder.
function modulesOf(parts, stack) {
  const modules = {};
  for (const part of parts) {
    const pieces = part.name.split("."), last = pieces.at(-1), inside = pieces.slice(0, -1).join(".");
    if (part.head !== null || ["tokens", "logits"].includes(last) || part.name.startsWith("encoder.") !== (stack === "encoder")) continue;
    const name = inside || (last === "cross" ? "cross" : "between");
    (modules[name] ??= { name, title: titleOf(name), parts: [] }).parts.push(part.name);
  }
  return Object.values(modules).sort((a, b) => heightOf(a.name) - heightOf(b.name));
}

const heightOf = (name) => (name === "between" ? 0 : name === "cross" ? 3 : /\d/.test(name) ? 1 : 2);

function titleOf(name) {
  const [, layer, backward] = /\.(\d+)(\.backward)?$/.exec(name) ?? [];
  if (layer !== undefined) return `layer ${layer}${backward ? ", right to left" : ", left to right"}`;
  return { cross: "attention", between: "from the encoder" }[name] ?? "";
}

export function RecurrentArchitecture({ parts, params }) {
  const off = interventionsOf(params), { config } = parts, names = parts.parts.map((part) => part.name);
  const stacks = names.some((name) => name.startsWith("encoder.")) ? ["encoder", "decoder"] : ["decoder"];
  const switched = (name, title, text) => html`<${Row} name=${name} title=${title} params=${params}><${Switch} wide on=${!isOff(off, name)} label=${name} text=${text} onChange=${() => toggledPart(off, name)} /><//>`;
  return html`<${Card} title=${`This model: recurrent, ${plural(config.layers ?? 1, "layer")} of ${config.cell ?? "gru"} cells, width ${config.width}`} tools=${html`<${Exports} name="switches" values=${off} />`}>
    <p class="small muted">Click a part to switch it off; click its name for its equation and a scale slider. A gate that is off passes nothing.</p>
    <${Wires}>${stacks.map((stack) => html`<div class="stack-drawing" role="group" aria-label=${stack}><h3>${stacks.length > 1 ? stack[0].toUpperCase() + stack.slice(1) : "Network"}</h3>
      ${stack === "decoder" && html`<div class="fixed-part small muted">output: one score for each of ${count(config.target_vocabulary ?? config.vocabulary)} tokens</div>`}
      ${modulesOf(parts.parts, stack).reverse().map((module) => html`<div class="layer" data-kind=${module.name === "cross" ? "cross" : null}>${module.title && html`<span class="layer-name">${module.title}</span>`}
        ${module.parts.map((name) => { const last = name.split(".").at(-1); return switched(name, last.replaceAll("_", " "), HOLDS[last] ?? `${config.width} numbers`); })}</div>`)}
      <div class="layer foot">${names.filter((name) => name === (stack === "encoder" ? "source.tokens" : stacks.length > 1 ? "target.tokens" : "embedding.tokens")).map((name) => switched(name, "embedding", `${count((stack === "decoder" && config.target_vocabulary) || config.vocabulary)} × ${config.width}`))}</div></div>`)}<//>
    ${names.includes(params.part) && html`<${Scaler} part=${params.part} off=${off} />`}<//>`;
}
