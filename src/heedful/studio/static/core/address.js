// The state of the page is its address, #/view?key=value: a link restores a view exactly.
import { useReducer, useEffect } from "./html.js";

const listeners = new Set();

function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "use", params: Object.fromEntries(new URLSearchParams(query)) };
}

let current = read();

export const address = () => current;

// A parameter that counts: 0, 1, 2, …; `otherwise` where it is missing or is no such number.
export const whole = (text, otherwise) => (/^\d+$/.test(text ?? "") ? Number(text) : otherwise);

function write({ view, params }, { push = false } = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== "" && value != null)).toString();
  history[push ? "pushState" : "replaceState"](null, "", `#/${view}${query ? `?${query}` : ""}`);
  current = read();
  listeners.forEach((listener) => listener());
}

// Change some parameters of the view that is open; null removes one.
export const patch = (changes) => write({ view: current.view, params: { ...current.params, ...changes } });

// Open another view with the same model and text.
export const open = (view, changes = {}) => write({ view, params: { ...current.params, ...changes } }, { push: true });

export function useAddress() {
  const [, refresh] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    listeners.add(refresh);
    return () => listeners.delete(refresh);
  }, []);
  return current;
}

// Parameters that hold what the user wrote.
const TEXTS = ["text", "target", "texts", "passage", "prefix", "glossary", "pairs", "q", "word", "pick", "chosen", "edits"];

// A link to the page as it is, with the text or without it.
export function link({ withText = true } = {}) {
  if (withText) return location.href;
  const params = new URLSearchParams(location.hash.split("?")[1] ?? "");
  for (const name of TEXTS) params.delete(name);
  return `${location.origin}${location.pathname}#/${current.view}?${params}`;
}

addEventListener("popstate", () => { current = read(); listeners.forEach((listener) => listener()); });
addEventListener("hashchange", () => { current = read(); listeners.forEach((listener) => listener()); });
