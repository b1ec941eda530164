// A word or token as a button: hover previews, a click pins.
import { html } from "../core/html.js";
import { Word } from "./basics.js";

export const Token = ({ group, on, pinned, mass, onHover, onPick, reference, isReachable = true, children }) => html`
  <button class=${`token ${group.special ? "special" : ""}`} data-on=${Boolean(on)} aria-pressed=${Boolean(pinned)} tabindex=${isReachable ? 0 : -1} ref=${reference} title=${group.label}
    onMouseEnter=${() => onHover?.(true)} onMouseLeave=${() => onHover?.(false)} onFocus=${() => onHover?.(true)} onBlur=${() => onHover?.(false)}
    onClick=${onPick}><${Word}>${group.label}<//>${mass > 0.005 && html`<span class="mass" style=${{ transform: `scaleX(${mass})` }}></span>`}${children}</button>`;
