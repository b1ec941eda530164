// Vectors: neighbors, analogies, a map of words or sentences, and one word in two sentences.
import { html, useState, useRef, useLayoutEffect } from "../core/html.js";
import { useAddress, patch } from "../core/address.js";
import { useModel } from "../core/session.js";
import { useAnswer } from "../core/api.js";
import { palette } from "../core/color.js";
import { number, percent, plural } from "../core/format.js";
import { Card, Failure, Empty, Choice, TextField, Bars, Word, shadeStyle, useTheme, useWidth } from "../parts/basics.js";
import { Exports } from "../parts/export.js";

const MODES = [["words", "words"], ["sentences", "sentences"], ["occurrences", "one word, several sentences"]];
const SENTENCES = "The river rose after the rain.\nHe sat on the bank of the river.\nShe works at a bank in the city.\nThe bank lends money.";

export default function Vectors() {
  const { params } = useAddress(), model = useModel();
  if (!model) return null;
  const mode = params.mode ?? "words";
  return html`<div class="stack"><${Choice} label="What to compare" options=${MODES} value=${mode} onChange=${(value) => patch({ mode: value === "words" ? null : value })} />
    ${mode === "words" ? html`<${Words} model=${model} params=${params} />` : mode === "sentences" ? html`<${Sentences} model=${model} params=${params} />` : html`<${Occurrences} model=${model} params=${params} />`}</div>`;
}

// "king - man + woman" as lists of words to add and to subtract. If the signs have spaces around them, other hyphens
// belong to words.
function parseSum(text) {
  const plus = [], minus = [], marked = text.replaceAll("−", "-");
  const pattern = /\s[+-]\s/.test(marked) ? /(^-?|\s[+-]\s)\s*(\S.*?)\s*(?=$|\s[+-](?:\s|$))/g : /(^|[+-])\s*([^\s+-][^+-]*?)\s*(?=$|[+-])/g;
  for (const [, sign, word] of marked.matchAll(pattern)) (sign.trim() === "-" ? minus : plus).push(word.trim());
  return { plus, minus };
}

const SLOTS = [["a", ""], ["b", "−"], ["c", "+"]];

// The targets for dropped words: a − b + c. A click selects the slot for the next word.
function Slots({ words, chosen, onChoose, onDrop }) {
  const [over, setOver] = useState(null);
  return html`<div class="row" role="group" aria-label="a − b + c: drag words here, or choose a slot and then a word">${SLOTS.map(([label, sign], index) => html`${sign && html`<span class="big muted" aria-hidden="true">${sign}</span>`}
    <button class="drop" aria-pressed=${chosen === index} data-over=${over === index} aria-label=${`${sign === "−" ? "minus " : sign === "+" ? "plus " : ""}${label}: ${words[index] || "empty"}`} onClick=${() => onChoose(chosen === index ? null : index)}
      onDragOver=${(event) => { event.preventDefault(); setOver(index); }} onDragLeave=${() => setOver(null)} onDrop=${(event) => { event.preventDefault(); setOver(null); onDrop(index, event.dataTransfer.getData("text/plain")); }}>
      ${words[index] ? html`<${Word}>${words[index]}<//>` : html`<span class="muted">${label}</span>`}</button>`)}</div>`;
}

function Words({ model, params }) {
  const query = params.q ?? "", { plus, minus } = parseSum(query), [slot, setSlot] = useState(null);
  const near = useAnswer("studio/neighbors", plus.length ? { model: model.name, plus, minus } : null, { wait: 200 });
  const map = useAnswer("studio/word-map", { model: model.name, words: near.answer ? [...plus, ...minus, ...near.answer.neighbors.map((neighbor) => neighbor.word)] : [] });
  const words = [plus[0] ?? "", minus[0] ?? "", plus[1] ?? ""];
  const put = (index, word) => {
    const [a, b, c] = words.map((other, at) => (at === index ? word : other));
    patch({ q: [a, b && `- ${b}`, c && `+ ${c}`].filter(Boolean).join(" ") });
    const empty = [a, b, c].findIndex((entry) => !entry);
    setSlot(slot === null || empty < 0 ? null : empty);
  };
  const onPick = (word) => (slot === null ? patch({ q: word }) : put(slot, word));
  return html`<div class="halves"><div class="stack">
      <${Card} title="Nearest words" tools=${near.answer && html`<${Exports} name="neighbors" values=${near.answer} />`}>
        <${TextField} id="text" single label="A word, or a sum: king - man + woman" value=${query} onInput=${(q) => patch({ q })} placeholder="king - man + woman" />
        <${Slots} words=${words} chosen=${slot} onChoose=${setSlot} onDrop=${put} />
        <${Failure} error=${near.error} />
        ${near.answer ? html`<${Bars} items=${near.answer.neighbors.map((neighbor) => ({ label: neighbor.word, value: Math.max(0, neighbor.cosine), text: number(neighbor.cosine), isDraggable: true, onClick: () => onPick(neighbor.word) }))} /><p class="small muted">Cosine, among ${plural(near.answer.words, "word")} of the vocabulary.</p>`
          : !near.error && html`<${Empty}>${slot === null ? "Type a word, or drag words from the map into a − b + c." : "Now click a word in the map."}<//>`}<//></div>
    <${Card} title="Map" busy=${map.busy} tools=${html`<${Exports} name="word-map" values=${map.answer} />`}><${Failure} error=${map.error} />
      ${map.answer && html`<${WordMap} map=${map.answer} marked=${[...plus, ...minus]} onPick=${onPick} />`}<//></div>`;
}

function WordMap({ map, marked, onPick }) {
  const box = useRef(null), canvas = useRef(null), width = useWidth(box), theme = useTheme();
  const [over, setOver] = useState(null), places = useRef([]);
  useLayoutEffect(() => {
    if (!width) return;
    const height = width * 0.75, ratio = devicePixelRatio || 1, element = canvas.current, pen = element.getContext("2d"), colors = palette();
    element.width = width * ratio;
    element.height = height * ratio;
    pen.scale(ratio, ratio);
    pen.clearRect(0, 0, width, height);
    const [xs, ys] = [0, 1].map((axis) => map.points.map((point) => point[axis]));
    const place = (all, at, size) => 30 + ((at - Math.min(...all)) / (Math.max(...all) - Math.min(...all) || 1)) * (size - 90);
    places.current = map.points.map(([x, y]) => ({ x: place(xs, x, width), y: height - place(ys, y, height) - 20 }));
    pen.font = "12px system-ui, 'Noto Sans CJK JP', sans-serif";
    const taken = [];
    map.labels.forEach((label, index) => {
      const { x, y } = places.current[index], special = marked.includes(label) || over === index;
      pen.fillStyle = special ? colors.pick : colors.ribbon;
      pen.beginPath();
      pen.arc(x, y, special ? 5 : 3, 0, 7);
      pen.fill();
      const text = label.length > 26 ? `${label.slice(0, 25)}…` : label, wide = pen.measureText(text).width, spot = [x + 7, y - 7, x + 7 + wide, y + 7];
      const left = spot[2] > width ? x - 7 - wide : x + 7;
      if (special || !taken.some((other) => left < other[2] && left + wide > other[0] && spot[1] < other[3] && spot[3] > other[1])) {
        taken.push([left, spot[1], left + wide, spot[3]]);
        pen.fillStyle = special ? colors.pick : colors.text;
        pen.fillText(text, left, y + 4);
      }
    });
  }, [map, width, theme, over, marked.join()]);
  const nearest = (event) => {
    const bounds = canvas.current.getBoundingClientRect(), x = event.clientX - bounds.left, y = event.clientY - bounds.top;
    const distances = places.current.map((place) => Math.hypot(place.x - x, place.y - y)), best = distances.indexOf(Math.min(...distances));
    return distances[best] < 30 ? best : null;
  };
  return html`<div ref=${box}><canvas class="map-canvas" ref=${canvas} role="img" aria-label=${`Map of ${map.labels.length} points: ${map.labels.slice(0, 20).join(", ")}`} draggable="true"
      onMouseMove=${(event) => setOver(nearest(event))} onMouseLeave=${() => setOver(null)} onClick=${(event) => { const hit = nearest(event); if (hit !== null) onPick?.(map.labels[hit]); }}
      onDragStart=${(event) => { const hit = nearest(event); if (hit === null) event.preventDefault(); else event.dataTransfer.setData("text/plain", map.labels[hit]); }}></canvas></div>
    <p class="small muted">First two principal components: ${percent(map.variance[0] + map.variance[1])} of the variance. ${over !== null ? map.labels[over] : ""}</p>`;
}

function Sentences({ model, params }) {
  const texts = (params.texts ?? SENTENCES).split("\n").map((line) => line.trim()).filter(Boolean).slice(0, 40);
  const { answer, error, busy } = useAnswer("studio/sentence-map", texts.length ? { model: model.name, texts } : null, { wait: 300 });
  useTheme();
  return html`<div class="halves"><${Card} title="Sentences"><${TextField} id="text" label="One per line" rows="6" value=${params.texts ?? SENTENCES} onInput=${(value) => patch({ texts: value })} />
      <${Failure} error=${error} />${answer && html`<div class="scroll"><table class="matrix">${answer.cosines.map((row, index) => html`<tr><th title=${texts[index]}>${index + 1}. ${texts[index]?.slice(0, 28)}</th>${row.map((cosine) => html`<td style=${shadeStyle(Math.max(0, cosine), true)}>${number(cosine, 2)}</td>`)}</tr>`)}</table></div><p class="small muted">Cosine of each pair.</p>`}<//>
    <${Card} title="Map" busy=${busy} tools=${html`<${Exports} name="sentence-map" values=${answer} />`}>${answer?.points ? html`<${WordMap} map=${answer} marked=${[]} />` : html`<${Empty}>A map needs three sentences.<//>`}<//></div>`;
}

// The same word in several sentences: one vector for each occurrence.
function Occurrences({ model, params }) {
  const texts = (params.texts ?? SENTENCES).split("\n").map((line) => line.trim()).filter(Boolean).slice(0, 12);
  const word = params.word ?? "bank";
  const { answer, error, busy } = useAnswer("studio/occurrences", texts.length && word.trim() ? { model: model.name, texts, word, layer: Number(params.layer ?? -1) } : null, { wait: 300 });
  useTheme();
  return html`<div class="halves"><${Card} title="A word in its sentences"><${TextField} single label="Word" value=${word} onInput=${(value) => patch({ word: value })} /><${TextField} id="text" label="Sentences, one per line" rows="6" value=${params.texts ?? SENTENCES} onInput=${(value) => patch({ texts: value })} /><//>
    <${Card} title=${`“${word}”: ${answer ? plural(answer.occurrences.length, "occurrence") : ""}`} busy=${busy} tools=${html`<${Exports} name="occurrences" values=${answer} />`}><${Failure} error=${error} />
      ${answer && html`<div class="scroll"><table class="matrix">${answer.occurrences.map((occurrence, index) => html`<tr><th>${occurrence.before.slice(-18)}<b>${occurrence.word}</b>${occurrence.after.slice(0, 18)}</th>${answer.cosines[index].map((cosine) => html`<td style=${shadeStyle(Math.max(0, cosine), true)}>${number(cosine, 2)}</td>`)}</tr>`)}</table></div>
        <p class="small muted">Cosines of the states after ${answer.layer < 0 ? "the last layer" : `layer ${answer.layer}`}. In the embedding matrix they share one vector (cosine 1); the layers make it depend on the context.</p>`}<//></div>`;
}
