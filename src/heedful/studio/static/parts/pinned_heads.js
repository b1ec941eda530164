// Up to four heads pinned beside the chosen one: each has a color, a line style and a number.
import { html } from "../core/html.js";
import { patch } from "../core/address.js";

const MOST = 4;
export const DASHES = [null, "7 3", "2 3", "10 3 2 3"];

// "decoder.1.cross:3,decoder.0.cross:mean" as [{ part, head }, …].
export function pinsOf(params) {
  return (params.pins ?? "").split(",").filter(Boolean).slice(0, MOST).map((pin) => {
    const [part, head] = pin.split(":");
    return { part, head: head === "mean" ? null : Number(head) };
  });
}

const written = (pins) => pins.map(({ part, head }) => `${part}:${head ?? "mean"}`).join(",") || null;
export const pinIndex = (pins, part, head) => pins.findIndex((pin) => pin.part === part && pin.head === head);

// Pin a head, or release it; a fifth replaces the first.
export function togglePin(pins, part, head) {
  const at = pinIndex(pins, part, head);
  patch({ pins: written(at < 0 ? [...pins, { part, head }].slice(-MOST) : pins.filter((_, index) => index !== at)) });
}

export const PinLegend = ({ pins }) => pins.length > 0 && html`<div class="row small" role="group" aria-label="Pinned heads">${pins.map(({ part, head }, index) => html`
  <button class="chip-button small" title="Release" aria-label=${`Release pinned head ${index + 1}: ${part}, ${head === null ? "mean of its heads" : `head ${head}`}`} onClick=${() => togglePin(pins, part, head)}>
    <svg width="28" height="8" aria-hidden="true"><path d="M1 4H27" stroke=${`var(--h${index})`} stroke-width="3" stroke-dasharray=${DASHES[index]} /></svg>
    <b>${index + 1}</b> ${part}, ${head === null ? "mean" : `head ${head}`} ✕</button>`)}</div>`;
