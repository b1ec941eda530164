// The equation of a part with this model's sizes in it, and the file that implements it.
import { html } from "../core/html.js";
import { count } from "../core/format.js";
import { Card } from "./basics.js";
import { Formula, fraction, root, sub, sup, name, operator as op, value, row } from "./formula.js";

// The computation of a part: { of: the equation, text: sizes in words, file }.
function described(part, config) {
  const pieces = part.split("."), last = pieces.at(-1), keyWidth = config.head_width ?? Math.floor((config.width ?? 0) / (config.heads || 1));
  if (last === "skip") return SKIP(config);
  if (last === "norm") return norm(config);
  if (last === "mask") return MASK;
  if (last === "positions" || part === "positions") return positions(config);
  if (last === "tokens") return embedding(config, part);
  if (pieces.length > 3) return described(pieces.slice(0, 3).join("."), config);
  if (last === "feed_forward") return feedForward(config);
  if (last === "attention" || last === "cross") return config.cell || config.family?.startsWith("recurrent") ? context(config) : attention(config, last, keyWidth);
  if (["context", "weights", "scores", "mixture"].includes(last)) return context(config);
  return config.cell || config.family?.startsWith("recurrent") ? recurrence(config) : null;
}

const call = (f, ...inside) => [f, op("("), ...inside, op(")")];
const W = (index) => sub(name("W"), name(index));

function scores(config, keyWidth) {
  const product = [name("Q"), sup(name("K"), name("T"))];
  if (config.score === "scaled_dot" || config.score === undefined) return [fraction(product, root(value(keyWidth)))];
  if (config.score === "dot") return product;
  return call(name(`${config.score}`), name("Q"), op(","), name("K"));
}

function attention(config, kind, keyWidth) {
  const from = kind === "cross" ? "Q is computed from the decoder's states, K and V from the encoder's" : "Q, K and V are computed from the same tokens";
  return {
    of: [name("A"), op("="), ...(config.softmax === false ? scores(config, keyWidth) : call(name("softmax"), ...scores(config, keyWidth))), name("V")],
    text: `${from}. Each of ${config.heads} heads reads ${keyWidth} dimensions of ${config.width}; their outputs are concatenated and multiplied by W_o (${count(config.width * config.heads * keyWidth)} weights).`,
    file: "layers/attention.py",
  };
}

function feedForward(config) {
  const hidden = config.feed_forward ?? 4 * config.width, f = name(config.activation ?? "relu");
  const inner = config.gated ? [...call(f, name("x"), W("g")), op("⊙"), name("x"), W("1")] : call(f, name("x"), W("1"), op("+"), sub(name("b"), value(1)));
  return {
    of: [...call(name("f"), name("x")), op("="), ...(config.gated ? [op("("), ...inner, op(")")] : inner), W("2"), op("+"), sub(name("b"), value(2))],
    text: `From ${config.width} to ${hidden} and back, for each token separately: ${count((config.gated ? 3 : 2) * config.width * hidden)} weights.`,
    file: "layers/feed_forward.py",
  };
}

const SKIP = (config) => ({
  of: config.norm_order === "post" ? [name("x"), op("←"), ...call(name("norm"), name("x"), op("+"), ...call(name("f"), name("x")))] : [name("x"), op("←"), name("x"), op("+"), ...call(name("f"), ...call(name("norm"), name("x")))],
  text: `The skip-connection adds the part's input (${config.width} numbers) to its output. Off: only the output is passed on.`,
  file: "layers/residual.py",
});

function norm(config) {
  const rms = config.norm === "rms";
  return {
    of: [...call(name("norm"), name("x")), op("="), name("γ"), op("⊙"), fraction(rms ? [name("x")] : [name("x"), op("−"), name("μ")], root(row([sup(name(rms ? "RMS" : "σ"), value(2)), op("+"), name("ε")]))), ...(rms || config.bias === false ? [] : [op("+"), name("β")])],
    text: `Over the ${config.width} numbers of each token, ${config.norm_order === "post" ? "after the sum" : "before the part"}. Off: the input of the part is zero.`,
    file: "layers/norms.py",
  };
}

const MASK = {
  of: [sub(name("B"), name("ij")), op("="), value(0), op("if"), name("j"), op("≤"), name("i"), op(", else"), op("−∞")],
  text: "Added to the scores before the softmax: each token attends to itself and to earlier tokens. Off: it attends to later tokens too, which it never could in training.",
  file: "layers/masks.py",
};

function positions(config) {
  const angle = fraction([name("i")], sup(value(config.rotary_base && config.positions === "rotary" ? config.rotary_base : 10000), name("2j/d")));
  const kinds = {
    sinusoidal: { of: [sub(name("PE"), name("i,2j")), op("="), name("sin"), op("("), angle, op("),"), sub(name("PE"), name("i,2j+1")), op("="), name("cos"), op("("), angle, op(")")], text: `${config.width} numbers for each position, added to the embedding.` },
    rotary: { of: [sub(name("q"), name("i")), op("←"), sub(name("R"), name("i")), sub(name("q"), name("i")), op(","), sub(name("θ"), name("i,j")), op("="), angle], text: "Pairs of numbers of every query and key are rotated by an angle proportional to the position, so that products depend on relative distances only." },
    learned: { of: [name("x"), op("←"), name("x"), op("+"), sub(name("P"), name("i"))], text: `A learned table of ${count(config.max_length ?? 0)} × ${config.width}: it has no row beyond its last.` },
    alibi: { of: [sub(name("s"), name("ij")), op("←"), sub(name("s"), name("ij")), op("−"), sub(name("m"), name("h")), op("|"), name("i"), op("−"), name("j"), op("|")], text: "Each head subtracts from its scores in proportion to the distance." },
  };
  return { ...(kinds[config.positions] ?? { of: [name(String(config.positions))], text: "" }), file: "layers/positions.py" };
}

const embedding = (config, part) => ({
  of: [sub(name("x"), name("i")), op("="), ...(config.embedding_scale ? [root(value(config.width))] : []), name("E"), op("["), sub(name("t"), name("i")), op("]")],
  text: `One learned vector of ${config.width} numbers for each of ${count((part.startsWith("target") && config.target_vocabulary) || config.vocabulary)} tokens. Off: every token is the same.`,
  file: "layers/embedding.py",
});

const context = (config) => ({
  of: [sub(name("c"), name("i")), op("="), sub(op("Σ"), name("j")), sub(name("α"), name("ij")), sub(name("h"), name("j")), op(","), name("α"), op("="), ...call(name(config.softmax === false ? "identity" : "softmax"), ...call(name(`${config.attention ?? "score"}`.replaceAll("_", " ")), name("s"), op(","), name("h")))],
  text: `The decoder's state s is compared with every state h of the encoder; their weighted sum c is combined with s to predict the next token.`,
  file: "models/recurrent.py",
});

const recurrence = (config) => ({
  of: [sub(name("h"), name("t")), op("="), ...call(name((config.cell ?? "gru").toUpperCase()), sub(name("x"), name("t")), op(","), sub(name("h"), name("t−1")))],
  text: `A state of ${config.width} numbers is updated at each token; gates determine how much of it is kept.`,
  file: "models/recurrent.py",
});

export function Equation({ part, parts }) {
  const shown = part ? described(part, parts.config) : null;
  if (!shown) return html`<${Card} place="later" title="Equation of a part"><p class="muted">Click the name of a part to see its equation.</p><//>`;
  return html`<${Card} place="later" title=${`${part}: equation`}><${Formula} of=${shown.of} /><p class="small">${shown.text}</p><p class="small muted">Implemented in <code>heedful/${shown.file}</code>.</p><//>`;
}
