// Small parts that every view uses.
import { html, useState, useEffect, useLayoutEffect, useRef } from "../core/html.js";
import { number, percent } from "../core/format.js";
import { palette, shade, isStrong, onThemeChange } from "../core/color.js";

// place: where the card stands on a narrow screen (see .split in style.css).
export const Card = ({ title, tools, children, busy, label, place = "" }) => html`
  <section class=${`card ${place}`} aria-label=${label ?? title} aria-busy=${Boolean(busy)}>
    ${(title || tools) && html`<header><h2>${title}</h2>${tools}</header>`}
    <div class=${`stack tight ${busy ? "busy" : ""}`}>${children}</div>
  </section>`;

export const Failure = ({ error }) => error && html`<p class="error" role="alert">${error.message}</p>`;

export const Empty = ({ children, action, onAction }) => html`
  <div class="empty"><p>${children}</p>${action && html`<button class="button" onClick=${onAction}>${action}</button>`}</div>`;

// A text in a bidirectional isolate, so that a right-to-left word does not reorder its neighbors. The space that a
// token begins with is left out; a token of spaces alone shows as one.
export const Word = ({ children }) => html`<bdi>${visible([children].flat().join("")).replace(/^ +(?=.)/, "").replace(/^ *$/, "␣")}</bdi>`;

// Control characters as pictures, so that nothing is invisible.
export const visible = (text) => String(text ?? "").replace(/[\u0000-\u001f\u007f]/g, (character) =>
  character === "\n" ? "⏎" : character === "\t" ? "⇥" : String.fromCodePoint(0x2400 + (character.codePointAt(0) & 0x1f)));

// One of several options. One of them takes the keyboard's focus; arrow keys choose another.
export function Choice({ label, options, value, onChange }) {
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const next = (options.findIndex(([key]) => key === value) + step + options.length) % options.length;
    event.currentTarget.children[next].focus();
    onChange(options[next][0]);
  };
  const focused = options.some(([key]) => key === value) ? value : options[0]?.[0];
  return html`<div class="row" role="radiogroup" aria-label=${label} onKeyDown=${move}>
    ${options.map(([key, text]) => html`<button key=${key} class="chip-button" role="radio" aria-checked=${key === value} tabindex=${key === focused ? 0 : -1} onClick=${() => onChange(key)}>${text}</button>`)}</div>`;
}

export const Toggle = ({ on, onChange, children }) => html`
  <button class="chip-button" aria-pressed=${Boolean(on)} onClick=${() => onChange(!on)}>${children}</button>`;

// Labeled bars in 0 … 1. items: { label, value, text, onClick, isDraggable }
export const Bars = ({ items, of = 1 }) => html`
  <div class="bars">${items.map((item) => html`
    ${item.onClick ? html`<button class="link" draggable=${item.isDraggable ? "true" : null} onDragStart=${(event) => event.dataTransfer.setData("text/plain", item.label)} onClick=${item.onClick}><${Word}>${item.label}<//></button>` : html`<span><${Word}>${item.label}<//></span>`}
    <span class="track"><span class="bar" style=${{ display: "block", width: `${Math.max(0, Math.min(1, item.value / of)) * 100}%` }}></span></span>
    <span class="number">${item.text ?? percent(item.value)}</span>`)}
  </div>`;

// A word of the answer with its probability, as one of three kinds of underline and in its title.
export const Confidence = ({ label, probability, pressed, onClick }) => html`
  <button class=${`confidence ${probability < 0.5 ? "low" : probability < 0.9 ? "middle" : "high"}`} aria-pressed=${Boolean(pressed)}
    title=${`probability ${number(probability)}`} onClick=${onClick}><${Word}>${label}<//></button>`;

// The color scale from 0 to `most`.
export function Legend({ linear, onLinear, masked, most = 1 }) {
  useTheme();
  return html`<span class="legend"><span>0</span>${palette().weights.map((color) => html`<i style=${{ background: color }}></i>`)}<span>${most === 1 ? "1" : number(most, 2)}</span>${masked && html`<i class="hatched"></i><span>masked</span>`}
    ${onLinear && html`<button class="chip-button small" aria-pressed=${Boolean(linear)} onClick=${() => onLinear(!linear)}>linear scale</button>`}</span>`;
}

// Redraw when the theme changes; returns a number that changes with it.
export function useTheme() {
  const [version, setVersion] = useState(0);
  useEffect(() => onThemeChange(() => setVersion((count) => count + 1)), []);
  return version;
}

// The width of an element, updated when it changes. The first value is known before the first paint.
export function useWidth(reference) {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    if (!reference.current) return undefined;
    setWidth(reference.current.clientWidth);
    const observer = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width));
    observer.observe(reference.current);
    return () => observer.disconnect();
  }, [reference.current]);
  return width;
}

// A text field that reports its value as it is typed and follows changes from outside.
export function TextField({ label, value, onInput, rows, placeholder, id, single }) {
  const field = useRef(null);
  useEffect(() => {
    if (field.current && document.activeElement !== field.current) field.current.value = value ?? "";
  }, [value]);
  const tag = single ? "input" : "textarea";
  return html`<label><span class="label">${label}</span>
    <${tag} class="field" ref=${field} id=${id} rows=${rows} dir="auto" placeholder=${placeholder} spellcheck="false"
      defaultValue=${value ?? ""} onInput=${(event) => onInput(event.target.value)}></${tag}></label>`;
}

export const shadeStyle = (weight, linear) => ({ background: shade(weight, linear), color: isStrong(weight, linear) ? "var(--panel)" : "var(--text)" });
