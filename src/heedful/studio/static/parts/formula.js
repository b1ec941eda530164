// Equations as MathML. Preact makes HTML elements, so the nodes are made here in the namespace of MathML.
import { html, useRef, useLayoutEffect } from "../core/html.js";

const SPACE = "http://www.w3.org/1998/Math/MathML";

function node(tag, ...children) {
  const element = document.createElementNS(SPACE, tag);
  element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return element;
}

export const name = (text) => () => node("mi", text);
export const operator = (text) => () => node("mo", text);
export const value = (number) => () => node("mn", number);
export const row = (parts) => () => node("mrow", ...parts.map((part) => part()));
export const sub = (base, index) => () => node("msub", base(), index());
export const sup = (base, power) => () => node("msup", base(), power());
export const root = (part) => () => node("msqrt", part());
export const fraction = (above, below) => () => node("mfrac", row(above)(), below());

export function Formula({ of }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    const math = node("math", row(of)());
    math.setAttribute("display", "block");
    place.current.replaceChildren(math);
  });
  return html`<div class="scroll" ref=${place}></div>`;
}
