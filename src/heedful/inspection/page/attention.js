"use strict";
// What every page draws attention with. The data is the JSON of heedful's Look.to_json; text becomes textContent only.

const $ = (id) => document.getElementById(id);

// ---- data

function floats(map) {
  if (!map.weights) {
    const bytes = Uint8Array.from(atob(map.data), (c) => c.charCodeAt(0));
    map.weights = new Float32Array(bytes.buffer);
  }
  return map.weights;
}

const rowOf = (look, axis) => (axis === "inputs" || !look.target ? look.inputs : look.target);

function visible(text) {
  const label = text.replace(/^ +| +$/g, "") || text;
  if (!label.replace(/ /g, "")) return label ? "␣".repeat(label.length) : "∅";
  const alone = [...label].length === 1;
  return [...label].map((c) => {
    const code = c.codePointAt(0);
    if (c === "\n") return "⏎";
    if (c === "\t") return "⇥";
    if ((code === 0x200c || code === 0x200d) && !alone) return c;
    return /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/u.test(c) ? coded(code) : c;
  }).join("");
}

const hex = (code, digits) => code.toString(16).padStart(digits, "0");
const coded = (code) => (code < 256 ? `\\x${hex(code, 2)}` : code < 65536 ? `\\u${hex(code, 4)}` : `\\U${hex(code, 8)}`);
const rightToLeft = (text) => /^[^\p{L}]*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(text);

// Neighbors that share a word are one group; special tokens stand alone.
function groups(items, row, words) {
  const result = [];
  let joined = new Set();
  items.forEach((item, index) => {
    if (words && result.length && item.words.some((word) => joined.has(word))) {
      result.at(-1).members.push(index);
      item.words.forEach((word) => joined.add(word));
    } else {
      joined = new Set(item.words);
      result.push({ members: [index], words: joined, special: !item.words.length });
    }
  });
  for (const group of result) {
    const numbers = [...group.words].sort((a, b) => a - b);
    const text = words && numbers.length ? numbers.map((word) => row.words[word]).join(" ") : group.members.map((i) => items[i].text).join("");
    group.label = visible(text);
  }
  return result;
}

// Attention of a map as a table of words or tokens: labels and weights, rows sum to 1. Head null: the mean of all.
function tableOf(look, map, head, words) {
  const source = rowOf(look, map.columns), reader = rowOf(look, map.rows);
  const predicts = map.kind === "cross" && look.target !== null;
  const items = predicts ? look.outputs : reader.tokens;
  const rows = groups(items, predicts ? look.target : reader, words);
  const columns = groups(source.tokens, source, words);
  const positions = predicts ? look.outputs.map((output) => output.position) : items.map((_, index) => index);
  const outputsOf = (row) => (predicts ? row.members : look.target ? [] : look.outputs.flatMap((output, index) => (row.members.includes(output.position) ? [index] : [])));
  const [heads, height, width] = map.shape, data = floats(map);
  const chosen = head === null ? [...Array(heads).keys()] : [head];
  const weights = rows.map((row) => columns.map((column) => {
    let sum = 0;
    for (const h of chosen) for (const i of row.members) for (const j of column.members) sum += data[(h * height + positions[i]) * width + j];
    return sum / (row.members.length * chosen.length);
  }));
  return {
    rows: rows.map((row) => ({ label: row.label, special: row.special, outputs: outputsOf(row) })),
    columns: columns.map((column) => ({ label: column.label, special: column.special })),
    weights, predicts, rowsRight: rightToLeft(reader.text), columnsRight: rightToLeft(source.text),
    title: `${map.name} · ${head === null ? (heads === 1 ? "its one head" : `mean of ${heads} heads`) : `head ${head}`}`,
    note: predicts ? "Each output below attends to the input above it." : "Each token below attends to the tokens above it.",
  };
}

const isAligned = (look) => look.alignment !== null && look.target.words.length > 0;

function alignedTable(look) {
  const { head, weights, method } = look.alignment;
  const outputs = (word) => look.outputs.flatMap((output, index) => (output.words.includes(word) ? [index] : []));
  return {
    rows: look.target.words.map((word, index) => ({ label: visible(word), outputs: outputs(index) })),
    columns: [...look.inputs.words.map((word) => ({ label: visible(word) })), { label: "∅", special: true }],
    weights, predicts: true, rowsRight: rightToLeft(look.target.text), columnsRight: rightToLeft(look.inputs.text),
    title: `Which input words each word attends to · ${head.part}, ${head.head === null ? "mean of its heads" : `head ${head.head}`}`,
    note: `Chosen to align: ${method}. ∅ is the end of the input.`,
  };
}

// ---- colors

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);
let ramp = [];
function color(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}
function readColors() { ramp = [...Array(8).keys()].map((step) => color(`w${step}`)); }
const number = (value) => (value === 0 ? "0" : value < 0.001 ? "<0.001" : value.toPrecision(value < 0.0995 ? 2 : 3).slice(0, 6));
const percent = (value) => (value < 0.001 ? "<0.1%" : value < 0.01 ? `${(100 * value).toFixed(1)}%` : `${Math.round(100 * value)}%`);

// ---- elements

function make(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function chip(label, { special = false, pressed = false, share } = {}) {
  const button = make("button", undefined, { type: "button", class: special ? "chip special" : "chip", "aria-pressed": pressed, title: label });
  button.append(make("bdi", label));
  if (share !== undefined) {
    const line = make("span", undefined, { class: "share" });
    line.style.width = `${100 * share}%`;
    button.append(line);
  }
  return button;
}

const isolate = (text) => `\u2068${text}\u2069`;

// ---- curves and canvas

function fit(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 8192 / Math.max(width, height));
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

const curve = (from, to, height) => `M${from},0 C${from},${height * 0.5} ${to},${height * 0.5} ${to},${height}`;

function clip(pen, label, width) {
  if (pen.measureText(label).width <= width) return label;
  let kept = [...label];
  while (kept.length && pen.measureText(`${kept.join("")}…`).width > width) kept.pop();
  return `${kept.join("")}…`;
}
