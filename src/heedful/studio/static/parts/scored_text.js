// The answer as it is written, its words underlined by their probability.
import { html } from "../core/html.js";
import { answerOf, outputGroups, groupProbability } from "../core/rows.js";
import { cut, size } from "../core/text.js";
import { Confidence } from "./basics.js";

export function ScoredText({ look, picked, onPick }) {
  const row = look.target ?? look.inputs, words = outputGroups(look, "words").filter((group) => !group.special && group.span && group.label.trim());
  if (!words.length) return answerOf(look) || html`<span class="muted">only spaces and line breaks</span>`;
  const pieces = [];
  let at = look.target ? 0 : words[0].span[0];
  words.forEach((group, index) => {
    const covered = cut(row.text, ...group.span), start = group.span[0] + size(covered) - size(covered.trimStart());
    if (start > at) pieces.push(cut(row.text, at, start));
    pieces.push(html`<${Confidence} key=${index} label=${group.label} probability=${groupProbability(look, group)} pressed=${picked === index} onClick=${() => onPick?.(index)} />`);
    at = Math.max(at, start + size(group.label));
  });
  return [...pieces, look.target ? cut(row.text, at) : ""];
}
