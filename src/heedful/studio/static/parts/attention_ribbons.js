// The ribbons of one look: of its alignment head, or of the mean over the last layer's heads.
import { html, useMemo, useState } from "../core/html.js";
import { axes, pooled } from "../core/rows.js";
import { WindowedRibbons } from "./windowed_ribbons.js";

// link: the word chosen in another picture of the same text, { side, label, word }; onLink reports one chosen here.
export function AttentionRibbons({ look, part, link, onLink }) {
  const [own, setOwn] = useState(null);
  const map = look.attention.find((candidate) => candidate.name === (part ?? look.alignment?.head.part)) ?? look.attention.filter((candidate) => candidate.kind === "cross").at(-1) ?? look.attention.at(-1);
  const head = look.alignment && map?.name === look.alignment.head.part ? look.alignment.head.head : null;
  const grouped = useMemo(() => (map ? axes(look, map, "words") : null), [look, map]);
  const weights = useMemo(() => (map ? pooled(map, head, grouped.rows, grouped.columns) : null), [grouped, head]);
  if (!map) return html`<p class="muted">This model has no attention.</p>`;
  const sideOf = (side) => (side === "above" ? grouped.columns : grouped.rows);
  const linked = link ? sideOf(link.side).findIndex((group) => group.label === link.label && (link.side === "below" || group.word === link.word)) : -1;
  const picked = onLink ? (linked < 0 ? null : { side: link.side, index: linked }) : own;
  const setPicked = (pick) => { if (!onLink) return setOwn(pick); const group = pick && sideOf(pick.side)[pick.index]; return onLink(group ? { side: pick.side, label: group.label, word: group.word } : null); };
  return html`<${WindowedRibbons} rows=${grouped.rows} columns=${grouped.columns} weights=${weights} picked=${picked} onPick=${setPicked} />`;
}
