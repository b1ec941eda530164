// Tokens grouped into words, and attention pooled over the groups.
import { cut, wordStarts } from "./text.js";

// The groups along an axis: one per word and special token (unit "words"), one per word with adjacent punctuation
// ("spaces", as the server counts words), or one per token ("tokens"). In scripts without spaces, unit "words" begins a
// group at each word of the browser's dictionary.
// group = { label, tokens, special, word, span }. A token that covers several words puts them into one group.
export function groups(row, unit) {
  const tokens = row.tokens.map((token, index) => ({ ...token, tokens: [index], outputs: [] }));
  return grouped(row, tokens, unit);
}

// The groups of the outputs: rows of cross-attention are the states that predict them.
export function outputGroups(look, unit) {
  const row = look.target ?? look.inputs;
  const tokens = look.outputs.map((output, index) => ({ text: output.text, words: output.words, span: output.words.length ? row.tokens[output.position + 1]?.span ?? null : null, tokens: [output.position], outputs: [index] }));
  return grouped(row, tokens, unit);
}

const isPunctuation = (text) => /^\s*\p{P}[\p{P}\s]*$/u.test(text);

// Whether a token begins a group of its own: another word, or (unit "words") the marks before or after a word.
function begins(token, last, unit, rest, starts) {
  if (!last?.words.some((word) => token.words.includes(word))) return true;
  if (unit !== "words") return false;
  if (token.span && starts.has(token.span[0])) return true;
  const following = rest.filter((next) => next.words.some((word) => token.words.includes(word)));
  const closes = following.every((next) => isPunctuation(next.text)), opened = isPunctuation(last.text);
  return closes !== opened;
}

function grouped(row, tokens, unit) {
  const result = [], starts = unit === "words" ? wordStarts(row.text) : null;
  for (const [index, token] of tokens.entries()) {
    const last = result.at(-1), isWord = token.words.length > 0;
    if (unit !== "tokens" && isWord && !begins(token, last, unit, tokens.slice(index, index + 12), starts)) {
      last.tokens.push(...token.tokens);
      last.outputs.push(...token.outputs);
      last.words = [...new Set([...last.words, ...token.words])];
      last.text += token.text;
      if (last.span && token.span) last.span = [last.span[0], token.span[1]];
    } else if (unit === "tokens" || isWord || token.span === null) {
      result.push({ text: token.text, words: [...token.words], tokens: [...token.tokens], outputs: [...token.outputs], span: token.span && [...token.span] });
    }
  }
  return result.map((group) => {
    const label = unit !== "tokens" && group.span ? cut(row.text, ...group.span).trim() : group.text;
    return { label: label || [...group.text].slice(0, 6).join("") || " ", tokens: group.tokens, outputs: group.outputs, special: group.words.length === 0, word: group.words[0] ?? null, span: group.span };
  });
}

// The answer that the outputs of a look spell; for a question, the passage from its first token to its last.
export function answerOf(look) {
  if (look.target) return look.target.text;
  const [first, last] = look.outputs.map((output) => look.inputs.tokens[output.label]?.span);
  if (look.task === "answer") return first && last && first[0] < last[1] ? cut(look.inputs.text, first[0], last[1]).trim() : "no answer";
  return look.outputs.map((output) => output.text).join("").trim();
}

// The probability of a group of outputs: the product of its tokens'.
export const groupProbability = (look, group) => group.outputs.reduce((product, index) => product * look.outputs[index].probability, 1);

const decoded = new WeakMap();

// Browsers before 2025 have no Uint8Array.fromBase64.
function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let index = 0; index < text.length; index++) bytes[index] = text.charCodeAt(index);
  return bytes;
}

// The weights of an attention map: heads × rows × columns in one array.
export function weightsOf(map) {
  if (!decoded.has(map)) {
    decoded.set(map, new Float32Array(bytesOf(map.data).buffer));
  }
  return decoded.get(map);
}

// One head's weights, or the mean over heads (head null), pooled: mean over a group's queries, sum over a group's keys.
export function pooled(map, head, rows, columns) {
  const [heads, height, width] = map.shape;
  const all = weightsOf(map);
  const chosen = head === null ? Array.from({ length: heads }, (_, index) => index) : [head];
  const values = new Float32Array(rows.length * columns.length);
  rows.forEach((row, y) => columns.forEach((column, x) => {
    let sum = 0;
    for (const index of chosen)
      for (const query of row.tokens)
        for (const key of column.tokens) sum += all[(index * height + query) * width + key];
    values[y * columns.length + x] = sum / (row.tokens.length * chosen.length || 1);
  }));
  return values;
}

// The weight that gets the strongest color and the widest ribbon: 1, or the largest weight where all are small, as in
// long texts.
export function scaleOf(weights) {
  let largest = 0;
  for (const weight of weights) if (weight > largest) largest = weight;
  return largest > 0 && largest < 0.3 ? largest : 1;
}

// The share of each row's weight that falls on columns that are hidden.
export const hiddenShares = (weights, rows, columns) => Array.from({ length: rows }, (_, row) => Math.max(0, 1 - weights.subarray(row * columns, (row + 1) * columns).reduce((sum, weight) => sum + weight, 0)));

// Labels of a map's axes: rows of cross-attention are the outputs, all others the tokens that are read.
export function axes(look, map, unit) {
  const rowOf = (axis) => (axis === "inputs" || !look.target ? look.inputs : look.target);
  return {
    rows: map.kind === "cross" ? outputGroups(look, unit) : groups(rowOf(map.rows), unit),
    columns: groups(rowOf(map.columns), unit),
  };
}

const focused = new WeakMap();

// The focus of a head: 1 − the mean entropy of its rows / the largest possible entropy.
export function focus(map, head) {
  if (!focused.has(map)) focused.set(map, Array.from({ length: map.heads }, (_, index) => meanFocus(map, index)));
  return focused.get(map)[head];
}

function meanFocus(map, head) {
  const [, height, width] = map.shape;
  const all = weightsOf(map);
  let total = 0;
  for (let row = 0; row < height; row++) {
    let entropy = 0;
    for (let column = 0; column < width; column++) {
      const weight = all[(head * height + row) * width + column];
      if (weight > 0) entropy -= weight * Math.log(weight);
    }
    total += entropy / Math.log(Math.max(2, width));
  }
  return 1 - total / height;
}

// Words that differ between two texts, by their longest common subsequence.
// Pieces: { text, kind: "same" | "old" | "new" }
export function difference(before, after) {
  const split = (text) => text.match(/\s+|[\p{L}\p{N}\p{M}]+|[^\s]/gu) ?? [];
  const [a, b] = [split(before), split(after)];
  const table = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      table[i][j] = a[i] === b[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
  const pieces = [];
  const add = (text, kind) => {
    const last = pieces.at(-1);
    if (last?.kind === kind) last.text += text;
    else pieces.push({ text, kind });
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { add(a[i], "same"); i++; j++; }
    else if (i < a.length && (j >= b.length || table[i + 1][j] >= table[i][j + 1])) add(a[i++], "old");
    else add(b[j++], "new");
  }
  return pieces;
}
