// Colors of weights, resolved from the style sheet so that canvases follow the theme.
const STEPS = 8;
let ramp = null;
const listeners = new Set();

function resolve(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

function forget() {
  ramp = null;
  listeners.forEach((listener) => listener());
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);
new MutationObserver(forget).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });

export const onThemeChange = (listener) => { listeners.add(listener); return () => listeners.delete(listener); };

export function palette() {
  ramp ??= {
    weights: Array.from({ length: STEPS }, (_, step) => resolve(`--w${step}`)),
    ribbon: resolve("--w5"), accent: resolve("--accent"), pick: resolve("--pick"), text: resolve("--text"), muted: resolve("--muted"),
    line: resolve("--line"), panel: resolve("--panel"), up: resolve("--up"), down: resolve("--down"),
  };
  return ramp;
}

// The step of the color scale for a weight in 0 … 1: by its square root, so that small weights can be seen, or linear.
export const step = (weight, linear) => Math.min(STEPS - 1, Math.floor((linear ? weight : Math.sqrt(Math.max(0, weight))) * STEPS));

export const shade = (weight, linear) => palette().weights[step(weight, linear)];

// Whether text on this step must be light (in the light theme the last steps are dark; in the dark theme the first are).
export const isStrong = (weight, linear) => step(weight, linear) >= 5;
