// Look: the attention between words, in every head of every layer.
import { html, useMemo, useEffect, useRef, useState } from "../core/html.js";
import { useAddress, address, patch, open, whole } from "../core/address.js";
import { useModel, interventionsOf, setInterventions } from "../core/session.js";
import { useAnswer } from "../core/api.js";
import { answerOf, axes, pooled, outputGroups, groupProbability, hiddenShares, scaleOf } from "../core/rows.js";
import { number, percent, plural } from "../core/format.js";
import { examplesFor, isReady, ANSWER } from "../core/tasks.js";
import { lookRequest } from "../core/requests.js";
import { Card, Failure, Empty, Toggle, Choice, Bars, Legend, Word } from "../parts/basics.js";
import { WindowedRibbons } from "../parts/windowed_ribbons.js";
import { HeatMap } from "../parts/heat_map.js";
import { Heads } from "../parts/heads.js";
import { PinLegend, pinsOf, pinIndex, togglePin, DASHES } from "../parts/pinned_heads.js";
import { FocusReadout } from "../parts/focus_readout.js";
import { Explanations } from "../parts/explanations.js";
import { LogitLens } from "../parts/logit_lens.js";
import { Exports } from "../parts/export.js";
import { InputFields } from "../parts/input_fields.js";
import { toggledHead, isHeadOff } from "../core/switches.js";

const KINDS = { cross: "Cross-attention", self: "Self-attention", encoder: "Encoder self-attention" };
const SHORT = { cross: "cross-attention", self: "decoder", encoder: "encoder" };

export default function Look() {
  const { params } = useAddress(), model = useModel();
  const lines = model?.task === "answer" ? [] : (params.text ?? "").split("\n").filter((line) => line.trim());
  const line = Math.min(whole(params.line, 0), Math.max(0, lines.length - 1));
  if (!model) return null;
  const shown = lines.length ? { ...params, text: lines[line] } : params;
  return html`<div class="stack">
    <${Card} label="Text"><${InputFields} model=${model} params=${params} hint="one per line; several are shown side by side" />
      ${isReady(model, params) || html`<${Empty} action=${`Try “${examplesFor(model)[0]}”`} onAction=${() => patch({ text: examplesFor(model)[0] })}>Type a text to see the model's attention weights.<//>`}
    <//>
    ${isReady(model, params) && html`<${Sentence} key=${model.name} model=${model} params=${shown} />`}
    ${lines.length > 1 && html`<div class="halves">${lines.map((text, index) => index !== line && html`<${SideBySide} key=${index} model=${model} params=${{ ...params, text }} onOpen=${() => patch({ line: index, pick: null })} />`)}</div>`}
  </div>`;
}

// The look at a text; with `by=value` its attention is weight × ‖value‖, which is another request. The last look stays
// until both answers are of one text.
function useLook(model, params) {
  const body = lookRequest(model, params, { interventions: interventionsOf() }), asked = params.by === "value" && hasValues(model), last = useRef({ answer: null, isValued: false });
  const plain = useAnswer("look", body, { wait: 200 }), valued = useAnswer("studio/value-weighted", asked ? body : null, { wait: 200 });
  const isValued = asked && !valued.error && valued.answer !== null, areOfOneText = plain.of?.slice(plain.of.indexOf(" ")) === valued.of?.slice(valued.of.indexOf(" "));
  const merged = useMemo(() => (plain.answer && isValued && areOfOneText ? { ...plain.answer, attention: valued.answer.attention } : null), [plain.answer, valued.answer, isValued, areOfOneText]);
  if (merged) last.current = { answer: merged, isValued: true };
  else if (!asked || valued.error) last.current = { answer: plain.answer, isValued: false };
  return { ...last.current, error: plain.error ?? valued.error, busy: plain.busy || valued.busy };
}

// Recurrent models attend to states; they have no value vectors.
const hasValues = (model) => !/recurrent/.test(model.family);

// The attention map that is shown: the selected one, else that of the measured alignment head, else the last one of the
// first kind.
function chosenMap(look, params) {
  const maps = look.attention;
  const kinds = Object.keys(KINDS).filter((kind) => maps.some((map) => map.kind === kind));
  const asked = maps.find((map) => map.name === params.part);
  const measured = look.alignment && maps.find((map) => map.name === look.alignment.head.part);
  const map = asked ?? (params.kind ? null : measured) ?? maps.filter((candidate) => candidate.kind === (params.kind ?? kinds[0])).at(-1) ?? maps.at(-1);
  const head = params.head === "mean" ? null : params.head !== undefined && asked ? Math.min(whole(params.head, 0), map.heads - 1) : map === measured ? look.alignment.head.head : asked ? 0 : null;
  return { kinds, map, head };
}

// Everything that is drawn of one look: the groups of both axes, the pooled weights, and the heads that are pinned.
function useDrawn(look, params) {
  const unit = params.unit ?? "words", bare = params.bare === "1", pins = pinsOf(params);
  const { kinds, map, head } = look?.attention.length ? chosenMap(look, params) : {};
  const drawn = useMemo(() => {
    if (!map) return null;
    const all = axes(look, map, unit), columns = bare ? all.columns.filter((group) => !group.special) : all.columns;
    const weights = pooled(map, head, all.rows, columns);
    return { rows: all.rows, columns, weights, scale: scaleOf(weights), hasSpecial: all.columns.some((group) => group.special), hidden: bare ? hiddenShares(weights, all.rows.length, columns.length) : null };
  }, [look, map, head, unit, bare]);
  const layers = useMemo(() => (drawn ? pins.map((pin, index) => {
    const other = look.attention.find((candidate) => candidate.name === pin.part && candidate.shape[1] === map.shape[1] && candidate.shape[2] === map.shape[2]);
    return other && { weights: pooled(other, pin.head, drawn.rows, drawn.columns), color: `var(--h${index})`, dash: DASHES[index] };
  }).filter(Boolean) : []), [drawn, params.pins]);
  return drawn && { ...drawn, kinds, map, head, layers, pins, unit };
}

function SideBySide({ model, params, onOpen }) {
  const { answer: look, error } = useLook(model, params);
  const drawn = useDrawn(look, params);
  if (!look) return html`<${Card} title=${params.text}><${Failure} error=${error} />${!error && html`<div class="skeleton"></div>`}<//>`;
  return html`<${Card} title=${params.text} tools=${html`<button class="button" onClick=${onOpen}>Open</button>`}>
    ${drawn ? html`<${RibbonsOf} look=${look} drawn=${drawn} picked=${null} onPick=${onOpen} />` : html`<p class="answer" dir="auto">${answerOf(look)}</p>`}<//>`;
}

// The ribbons of a look; under each word of the answer, its probability.
function RibbonsOf({ look, drawn, ...handlers }) {
  const sure = useMemo(() => drawn.rows.map((row) => (row.outputs.length ? groupProbability(look, row) : null)), [look, drawn.rows]);
  return html`<${WindowedRibbons} rows=${drawn.rows} columns=${drawn.columns} weights=${drawn.weights} layers=${drawn.layers} sure=${sure} ...${handlers} />`;
}

function Sentence({ model, params }) {
  const { answer: look, error, busy, isValued } = useLook(model, params);
  const [hovered, setHovered] = useState(null);
  const drawn = useDrawn(look, params);
  const picked = pickedOf(params);
  useKeys(look, drawn, onPick);
  const outputs = useMemo(() => (drawn ? outputGroups(look, drawn.unit) : []), [look, drawn?.unit]);
  const chosen = drawn && chosenOutput(outputs, drawn.rows, picked), maps = useMemo(() => look?.attention.filter((candidate) => candidate.kind === drawn?.map.kind), [look, drawn?.map.kind]);
  // These cards do not depend on the pointer: they are kept while it moves.
  const details = useMemo(() => drawn && html`<div class="halves later"><${Alternatives} look=${look} outputs=${outputs} index=${chosen} />
      ${outputs.length > 0 && html`<${Explanations} model=${model} params=${params} group=${outputs[chosen ?? 0]} />`}</div>
    <${LogitLens} model=${model} params=${params} />`, [look, outputs, chosen, model, params]);
  if (!look) return html`<${Failure} error=${error} />${!error && html`<div class="skeleton" aria-busy=${busy}></div>`}`;
  const off = interventionsOf();
  if (!drawn) return html`<${Failure} error=${error} /><${Card} title=${ANSWER[model.task]} tools=${model.task === "embed" && html`<button class="button" onClick=${() => open("vectors", { q: params.text })}>See its vectors</button>`}><p class="answer" dir="auto">${answerOf(look)}</p><p class="muted">This model has no attention: there is nothing to draw between its words.</p><//>`;
  const { kinds, map, head, rows, columns, weights, pins, unit } = drawn, focus = hovered ?? picked;
  const translated = model.task === "translate" && map.kind === "cross", isLinear = params.linear === "1";
  return html`<${Failure} error=${error} />
    ${params.target && html`<div class="notice row"><span>Given answer: <bdi>“${params.target.length > 60 ? `${params.target.slice(0, 59)}…` : params.target}”</bdi></span><button class="button" onClick=${() => patch({ target: null, pick: null })}>Use the model's own answer</button></div>`}
    ${off.length > 0 && html`<div class="notice row"><span>With ${look.interventions.join("; ")}.</span><button class="button" onClick=${() => setInterventions([])}>Switch everything on</button></div>`}
    <div class="split">
      <div class="stack">
        <${Card} title=${translated ? "Attention to source" : map.kind === "cross" ? "Cross-attention" : "Self-attention"} busy=${busy} tools=${html`<span class="row">
            <${Choice} label="Unit" options=${[["words", "words"], ["tokens", "tokens"]]} value=${unit} onChange=${(value) => patch({ unit: value === "words" ? null : value, pick: null })} />
            ${drawn.hasSpecial && html`<${Toggle} on=${params.bare === "1"} onChange=${(on) => patch({ bare: on ? "1" : null, pick: null })}>hide special tokens<//>`}
            ${hasValues(model) && html`<${Toggle} on=${params.by === "value"} onChange=${(on) => patch({ by: on ? "value" : null })}>weight × ‖value‖<//>`}<${Exports} name="ribbons" values=${look} /></span>`}>
          <div><${RibbonsOf} look=${look} drawn=${drawn} picked=${picked} onPick=${onPick} focused=${hovered} onHover=${setHovered} />
            <${FocusReadout} focus=${focus} rows=${rows} columns=${columns} weights=${weights} hidden=${drawn.hidden} /></div>
          <${PinLegend} pins=${pins} />
          <p class="small muted">${describe(look, map, head)}. ${isValued && "Shown: attention weight × length of the value vector, each row scaled to sum to 1. "}${drawn.scale < 1 && `The largest weight is ${number(drawn.scale, 2)}; widths and colors are relative to it. `}Attention shows which tokens a head read, not why the model gave this answer: switch the head off to see its effect.</p>
        <//>
        ${details}
      </div>
      <div class="stack">
        <${Card} title=${`${KINDS[map.kind]}, ${plural(maps.length, "layer")} × ${plural(map.heads, "head")}`} busy=${busy}
          tools=${kinds.length > 1 && html`<${Choice} label="Kind of attention" options=${kinds.map((kind) => [kind, SHORT[kind]])} value=${map.kind} onChange=${(kind) => patch({ kind, part: null, head: null, pick: null, pins: null })} />`}>
          <${Heads} maps=${maps} version=${`${params.off} ${params.pins}`} selected=${{ part: map.name, head }} measured=${look.alignment?.head} band=${bandOf(focus, rows, columns)}
            off=${(part, index) => isHeadOff(off, part, index)} pinned=${(part, index) => pinIndex(pins, part, index)} onSelect=${(choice) => patch({ part: choice.part, head: choice.head, kind: null })} />
          <div class="row"><${Toggle} on=${head === null} onChange=${() => patch({ part: map.name, head: head === null ? 0 : "mean" })}>mean of all heads<//>
            <${Toggle} on=${pinIndex(pins, map.name, head) >= 0} onChange=${() => togglePin(pins, map.name, head)}>pin${head === null ? "" : " this head"}<//>
            ${head !== null && html`<button class="button" onClick=${() => toggledHead(off, map.name, head)}>${isHeadOff(off, map.name, head) ? "Switch this head on" : "Switch this head off"}</button>`}
            ${(params.part || params.head) && look.alignment && html`<button class="button" onClick=${() => patch({ part: null, head: null, kind: null })}>★ best-aligned head</button>`}
            <button class="button" onClick=${() => open("switch", { measure: "1" })}>Which head matters most?</button></div>
        <//>
        <${Card} title=${`${layerName(map)}, ${head === null ? "mean of all heads" : `head ${head}`}`} tools=${html`<${Exports} name=${`attention-${map.name}`} values=${{ part: map.name, head, rows: rows.map((row) => row.label), columns: columns.map((column) => column.label), weights: [...weights] }} />`}>
          <${HeatMap} rows=${rows} columns=${columns} weights=${weights} scale=${drawn.scale} linear=${isLinear} picked=${focus} onPick=${onPick} masked=${(row, column) => isMasked(map, rows[row], columns[column])} />
          <${Legend} most=${drawn.scale} linear=${isLinear} onLinear=${(on) => patch({ linear: on ? "1" : null })} masked=${map.kind === "self"} />
        <//>
      </div></div>`;
}

const onPick = (pick) => patch({ pick: pick ? `${pick.side[0]}${pick.index}` : null });

const layerName = (map) => (map.layer === null ? map.name : `${KINDS[map.kind]}, layer ${map.layer}`);

// Whether the causal mask excludes a column from a row, which is not the same as a weight of 0.
const isMasked = (map, row, column) => map.kind === "self" && Math.min(...column.tokens) > Math.max(...row.tokens);

// The tokens in focus, to mark them in the small pictures.
function bandOf(focus, rows, columns) {
  const group = focus && (focus.side === "below" ? rows : columns)[focus.index];
  return group ? { side: focus.side, first: Math.min(...group.tokens), last: Math.max(...group.tokens) } : null;
}

function describe(look, map, head) {
  const name = `${map.name}, ${head === null ? "mean of its heads" : `head ${head}`}`;
  const measured = look.alignment && look.alignment.head.part === map.name && look.alignment.head.head === head;
  return measured ? `★ ${look.alignment.method.replace(/^[\w.]+\.weights, [^:]*: /, `${name}: `)}` : name;
}

// The word that the address pins: "b3" is the fourth of the lower row, "a0" the first of the upper row.
const pickedOf = ({ pick = "" }) => (/^[ab]\d+$/.test(pick) ? { side: pick[0] === "a" ? "above" : "below", index: Number(pick.slice(1)) } : null);

// Keys are applied to the current address, so that none is lost while the page is drawn.
function useKeys(look, drawn, onPick) {
  useEffect(() => {
    if (!drawn) return undefined;
    const { rows, columns } = drawn;
    const listen = (event) => {
      const { params } = address(), { map, head } = chosenMap(look, params), picked = pickedOf(params), pins = pinsOf(params);
      if (event.target.closest("input, textarea, select, canvas, dialog, [role=radiogroup]") || event.ctrlKey || event.metaKey || event.altKey) return;
      const same = look.attention.filter((candidate) => candidate.kind === map.kind), at = same.indexOf(map);
      const side = picked?.side ?? "below", size = (side === "below" ? rows : columns).length;
      if (event.key === "ArrowUp" && at > 0) patch({ part: same[at - 1].name, head: head ?? "mean" });
      else if (event.key === "ArrowDown" && at < same.length - 1) patch({ part: same[at + 1].name, head: head ?? "mean" });
      else if (event.shiftKey && event.key === "ArrowLeft") patch({ part: map.name, head: Math.max(0, (head ?? 1) - 1) });
      else if (event.shiftKey && event.key === "ArrowRight") patch({ part: map.name, head: Math.min(map.heads - 1, (head ?? -1) + 1) });
      else if (event.key === "ArrowLeft") onPick({ side, index: Math.max(0, (picked?.index ?? 1) - 1) });
      else if (event.key === "ArrowRight") onPick({ side, index: Math.min(size - 1, (picked?.index ?? -1) + 1) });
      else if (event.key === "p" || event.key === "P") togglePin(pins, map.name, head);
      else if ((event.key === "x" || event.key === "X") && head !== null) toggledHead(interventionsOf(), map.name, head);
      else if (event.key === "Escape") onPick(null);
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [look, drawn]);
}

// The output that the picked row predicts or belongs to; null if there is none.
function chosenOutput(outputs, rows, picked) {
  if (picked?.side !== "below" || !rows[picked.index]) return null;
  if (rows[picked.index].outputs.length) return picked.index;
  const { word, span } = rows[picked.index], of = outputs.map((group, index) => ({ group, index })).filter(({ group }) => group.word !== null && group.word === word);
  return (of.find(({ group }) => group.span?.[0] === span?.[0]) ?? of[0])?.index ?? null;
}

// The most probable tokens at the picked word.
function Alternatives({ look, outputs, index }) {
  const group = outputs[index ?? 0];
  if (!group) return null;
  const output = look.outputs[group.outputs[0]];
  return html`<${Card} title=${html`“<${Word}>${group.label}<//>”: most probable tokens`}>
    <${Bars} items=${output.top.map((prediction) => ({ label: prediction.text.trim() || prediction.text || " ", value: prediction.probability }))} />
    ${group.outputs.length > 1 && html`<p class="small muted">The word has ${group.outputs.length} tokens; this is the first. Probability of the whole word: ${percent(groupProbability(look, group))}.</p>`}
    ${index === null && outputs.length > 1 && html`<p class="small muted">Click an output word above to see those of another word.</p>`}<//>`;
}
