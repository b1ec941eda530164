// The model's own architecture as a drawing, bottom to top, in which every part is a switch.
import { html, useRef, useLayoutEffect, useState } from "../core/html.js";
import { patch } from "../core/address.js";
import { interventionsOf } from "../core/session.js";
import { number, percent, plural, count } from "../core/format.js";
import { shade, isStrong } from "../core/color.js";
import { isOff, isHeadOff, toggled, toggledHead, toggledPart, factorOf, scaled } from "../core/switches.js";
import { Card, Legend, useTheme, useWidth } from "./basics.js";
import { Exports } from "./export.js";

const NAMES = { attention: "self-attention", cross: "cross-attention", feed_forward: "feed-forward" };
const EMBEDDINGS = { encoder: ["source.tokens", "embedding.tokens"], decoder: ["target.tokens", "embedding.tokens"] };

// The layers of each stack, from the names of the parts: { encoder: [[{ name, title, heads, has }, …], …], … }.
function stacksOf(parts) {
  const stacks = {}, names = new Set(parts.parts.map((part) => part.name));
  for (const part of parts.parts) {
    const [, stack, layer, sublayer] = /^(\w+)\.(\d+)\.(\w+)$/.exec(part.name) ?? [];
    if (!stack || part.head !== null || !["attention", "cross-attention", "feed-forward"].includes(part.kind)) continue;
    ((stacks[stack] ??= [])[Number(layer)] ??= []).push({ name: part.name, kind: sublayer, title: NAMES[sublayer] ?? sublayer, heads: part.heads, hasSkip: names.has(`${part.name}.skip`), hasNorm: names.has(`${part.name}.norm`) });
  }
  return { stacks, names };
}

function sizesOf(config) {
  const layers = config.decoder_layers ?? config.layers;
  const depth = config.family === "encoder_decoder" ? `${config.layers} encoder and ${layers} decoder layers` : plural(config.layers, "layer");
  return [depth, `width ${config.width}`, config.heads && plural(config.heads, "head"), config.positions && `${config.positions} positions`, `${config.norm_order}-norm`].filter(Boolean).join(", ");
}

// The output of the model: the classes of a classifier, the ends of an answer, or the tokens of a vocabulary.
function outputOf({ task, config }) {
  if (task === "answer") return "two scores for each word: the answer begins here, it ends here";
  return task === "classify" ? `one score for each of ${count(config.classes)} classes` : `one score for each of ${count(config.target_vocabulary ?? config.vocabulary)} tokens`;
}

export function Architecture({ parts, importance, params, measuring, onMeasure }) {
  useTheme();
  const off = interventionsOf(params), { stacks, names } = stacksOf(parts), config = parts.config, isPre = config.norm_order !== "post";
  return html`<${Card} title=${`This model: ${sizesOf(config)}`} tools=${html`<span class="row">${!importance && html`<button class="button" disabled=${measuring} onClick=${onMeasure}>${measuring ? "Measuring every part …" : "Which parts matter?"}</button>`}<${Exports} name="switches" values=${off} /></span>`}>
    <p class="small muted">Click a part to switch it off; click its name for its equation and a scale slider. N: norm; arc: skip-connection.${importance ? " Color: rise of the loss without the part, as a share of the largest rise of its kind." : ""}</p>
    <${Wires}>${Object.entries(stacks).map(([stack, layers]) => html`<div class="stack-drawing" role="group" aria-label=${stack}>
      <h3>${stack[0].toUpperCase() + stack.slice(1)}</h3>
      ${stack === "decoder" || !stacks.decoder ? html`<div class="fixed-part small muted">${isPre && config.norm !== "none" ? "final norm, then " : ""}output: ${outputOf(parts)}</div>` : ""}
      ${layers.map((sublayers, layer) => [sublayers, layer]).reverse().map(([sublayers, layer]) => html`<div class="layer" role="group" aria-label=${`layer ${layer}`}><span class="layer-name">layer ${layer}</span>
        ${[...sublayers].reverse().map((sublayer) => html`<${Sublayer} key=${sublayer.name} sublayer=${sublayer} off=${off} importance=${importance} params=${params} isPre=${isPre} config=${config} />`)}</div>`)}
      <div class="layer foot">
        ${stack === "decoder" && config.decoder_causal !== false && html`<${Row} name="decoder.mask" title="causal mask" params=${params}><${Switch} wide on=${!isOff(off, "decoder", "unmask")} label="causal mask of the decoder" text="no access to later tokens" onChange=${() => toggled(off, { kind: "unmask", part: "decoder" }, "Causal mask")} /><//>`}
        ${names.has(`${stack}.positions`) && html`<${Row} name=${`${stack}.positions`} title="positions" params=${params}><${Switch} wide on=${!isOff(off, `${stack}.positions`) && !isOff(off, "positions")} label=${`positions of the ${stack}`} text=${config.positions} onChange=${() => toggledPart(off, `${stack}.positions`, `Positions of the ${stack}`)} /><//>`}
        ${EMBEDDINGS[stack]?.filter((name) => names.has(name)).slice(0, 1).map((name) => html`<${Row} name=${name} title="embedding" params=${params}><${Switch} wide on=${!isOff(off, name)} label=${`token embedding of the ${stack}`} text=${`${count((stack === "decoder" && config.target_vocabulary) || config.vocabulary)} × ${config.width}`} onChange=${() => toggledPart(off, name, `Token embedding of the ${stack}`)} /><//>`)}
      </div></div>`)}<//>
    ${importance && html`<${Legend} />`}
    ${params.part && names.has(params.part) && html`<${Scaler} part=${params.part} off=${off} />`}<//>`;
}

export const Row = ({ name, title, params, children }) => html`<div class="sublayer"><button class="name" aria-pressed=${params.part === name} onClick=${() => patch({ part: name })}>${title}</button>${children}</div>`;

function Sublayer({ sublayer, off, importance, params, isPre, config }) {
  const { name, kind, title, heads, hasSkip, hasNorm } = sublayer;
  const norm = hasNorm && config.norm !== "none" && html`<${Switch} round on=${!isOff(off, `${name}.norm`)} label=${`norm ${isPre ? "before" : "after"} ${name}`} text="N" onChange=${() => toggledPart(off, `${name}.norm`, `Norm ${isPre ? "before" : "after"} ${name}`)} />`;
  return html`<div class="sublayer" data-kind=${kind}>
    <button class="name" aria-pressed=${params.part === name} onClick=${() => patch({ part: name })}>${title}</button>
    <div class="heads">${isPre && norm}
      ${heads > 0 ? Array.from({ length: heads }, (_, head) => html`<${Switch} on=${!isHeadOff(off, name, head)} text=${head} matters=${importance?.[`${name}.head.${head}`]}
        label=${`${name}, head ${head}${explained(importance, `${name}.head.${head}`)}`} onChange=${() => toggledHead(off, name, head)} />`)
      : html`<${Switch} wide on=${!isOff(off, name)} matters=${importance?.[name]} label=${`${name}${explained(importance, name)}`} text=${config.feed_forward ?? `${config.width} → ${4 * config.width}`} onChange=${() => toggledPart(off, name)} />`}
      ${heads > 1 && html`<${Switch} on=${!isOff(off, name)} label=${`all of ${name}`} text="all" matters=${importance?.[name]} onChange=${() => toggledPart(off, name)} />`}${!isPre && norm}</div>
    ${hasSkip ? html`<${Skip} on=${!isOff(off, `${name}.skip`)} label=${`skip-connection around ${name}`} onChange=${() => toggledPart(off, `${name}.skip`, `Skip-connection around ${name}`)} />` : html`<span></span>`}
  </div>`;
}

const explained = (importance, name) => (importance?.[name] !== undefined ? `, matters ${percent(importance[name])} of the most important of its kind` : "");

export function Switch({ on, label, text, onChange, wide, round, matters }) {
  const strong = matters !== undefined && isStrong(matters);
  return html`<button role="switch" aria-checked=${on} aria-label=${label} title=${`${label}: ${on ? "on" : "off"}`} data-strong=${strong} class=${`switch ${wide ? "wide" : ""} ${round ? "round" : ""}`}
    style=${on && matters !== undefined ? { background: shade(matters) } : {}} onClick=${onChange}>${on ? text : "✕"}</button>`;
}

// A skip-connection: an arc around its sub-layer that is cut when it is off.
const Skip = ({ on, label, onChange }) => html`<button role="switch" class="skip" aria-checked=${on} aria-label=${label} title=${`${label}: ${on ? "on" : "off"}`} onClick=${onChange}>
  <svg width="26" height="32" viewBox="0 0 26 32" aria-hidden="true"><path d="M2 3C20 3 22 9 22 16S20 29 2 29" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray=${on ? null : "3 4"} />
    ${on ? html`<circle cx="22" cy="16" r="4" fill="currentColor" />` : html`<path d="M16 10l10 12M26 10L16 22" stroke="currentColor" stroke-width="2" />`}</svg></button>`;

// The stacks side by side, with the encoder's output drawn into every cross-attention.
export function Wires({ children }) {
  const box = useRef(null), width = useWidth(box), [paths, setPaths] = useState([]);
  useLayoutEffect(() => {
    const frame = box.current.getBoundingClientRect(), top = box.current.querySelector('[aria-label="encoder"] .layer');
    const readers = [...box.current.querySelectorAll('[data-kind="cross"]')].map((reader) => reader.getBoundingClientRect()), from = top?.getBoundingClientRect();
    if (!from || !readers.length || readers[0].left <= from.right) return setPaths([]);
    const x = from.right - frame.left, y = from.top + 14 - frame.top;
    setPaths(readers.map((reader) => { const [right, middle] = [reader.left - frame.left - 6, (reader.top + reader.bottom) / 2 - frame.top]; return `M${x},${y}C${x + 20},${y} ${right - 26},${middle} ${right},${middle}`; }));
    return undefined;
  }, [width, children]);
  return html`<div class="drawing" ref=${box}>${children}<svg class="wires" aria-hidden="true">${paths.map((path) => html`<path d=${path} />`)}</svg></div>`;
}

export function Scaler({ part, off }) {
  const factor = factorOf(off, part);
  return html`<label class="row"><span class="small">${part} × ${number(factor, 2)}</span><input type="range" min="0" max="2" step="0.1" value=${factor} style=${{ flex: "1", minWidth: "120px" }} onInput=${(event) => scaled(off, part, Number(event.target.value))} />
    <button class="button" onClick=${() => scaled(off, part, 1)} disabled=${factor === 1}>Reset</button></label>`;
}
