// The ribbons of a text of any length: a long text as a window with a map of the whole, a wide one with upright rows.
import { html, useMemo, useRef } from "../core/html.js";
import { address, whole } from "../core/address.js";
import { breadth } from "../core/text.js";
import { useWidth } from "./basics.js";
import { Minimap, windowOf, cutWeights } from "./long_text.js";
import { Ribbons } from "./ribbons.js";

const NARROW = 520, PLAIN = [22, 7.6], COMPACT = [15, 6.7];

// The approximate width of a row of words in pixels, from a width per word and per letter.
const rowWidth = (groups, [word, letter]) => groups.reduce((sum, group) => sum + word + letter * Math.min(20, breadth(group.label)), 0);

// layers: pinned heads; sure: the probability of each row's word. `picked` and `focused` count from the text's start.
export function WindowedRibbons({ rows, columns, weights, layers = [], sure, picked, onPick, focused, onHover }) {
  const box = useRef(null), width = useWidth(box), { around } = address().params;
  const window = windowOf(rows, columns, weights, whole(around, picked?.side === "below" ? picked.index : 0));
  const [firstRow, endRow] = window?.rows ?? [0, rows.length], [firstColumn, endColumn] = window?.columns ?? [0, columns.length];
  const above = useMemo(() => columns.slice(firstColumn, endColumn), [columns, firstColumn, endColumn]), below = useMemo(() => rows.slice(firstRow, endRow), [rows, firstRow, endRow]);
  const cut = (values) => (window ? cutWeights(values, columns.length, window) : values);
  const near = useMemo(() => cut(weights), [weights, firstRow, firstColumn]), pinned = useMemo(() => layers.map((layer) => ({ ...layer, weights: cut(layer.weights) })), [layers, firstRow, firstColumn]);
  const moved = (focus, direction) => focus && { ...focus, index: focus.index + direction * (focus.side === "below" ? firstRow : firstColumn) };
  const [plain, compact] = useMemo(() => [PLAIN, COMPACT].map((sizes) => Math.max(rowWidth(above, sizes), rowWidth(below, sizes))), [above, below]);
  const upright = width < NARROW || compact > 1.1 * width;
  return html`<div ref=${box} class="stack tight">${width > 0 && html`${window && html`<${Minimap} rows=${rows} columns=${columns} weights=${weights} shown=${window} />`}
    <${Ribbons} above=${above} below=${below} weights=${near} layers=${pinned} picked=${moved(picked, -1)} onPick=${(pick) => onPick(moved(pick, 1))}
      focused=${onHover ? moved(focused, -1) : undefined} onHover=${onHover && ((focus) => onHover(moved(focus, 1)))} sure=${sure?.slice(firstRow, endRow)} upright=${upright} compact=${!upright && plain > width} />`}</div>`;
}
