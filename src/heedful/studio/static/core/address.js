// The state of the page is its address, #/view?key=value: a link restores a view exactly. It names the version of its
// parameters, v; one without it is read as the present version.
import { useReducer, useEffect } from "./html.js";

const VERSION = "1";
const listeners = new Set();

function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const { v = VERSION, ...params } = Object.fromEntries(new URLSearchParams(query));
  return { view: path || "use", params, version: v };
}

let current = read();

export const address = () => current;

// Whether the address was written by another version of the page, whose parameters may mean something else.
export const isOfOtherVersion = () => current.version !== VERSION;

// A parameter as a whole number; `otherwise` if it is missing or is none.
export const whole = (text, otherwise) => (/^\d+$/.test(text ?? "") ? Number(text) : otherwise);

function write({ view, params }, { push = false } = {}) {
  const query = new URLSearchParams([...Object.entries(params).filter(([, value]) => value !== "" && value != null), ["v", VERSION]]);
  history[push ? "pushState" : "replaceState"](null, "", `#/${view}?${query}`);
  current = read();
  listeners.forEach((listener) => listener());
}

// Change some parameters of the view that is open; null removes one.
export const patch = (changes) => write({ view: current.view, params: { ...current.params, ...changes } });

// Open another view, from its top, with the same model and text.
export function open(view, changes = {}) {
  const isOther = view !== current.view;
  write({ view, params: { ...current.params, ...changes } }, { push: true });
  if (isOther) scrollTo(0, 0);
}

export function useAddress() {
  const [, refresh] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    listeners.add(refresh);
    return () => listeners.delete(refresh);
  }, []);
  return current;
}

// Parameters that hold text of the user.
const TEXTS = ["text", "target", "texts", "passage", "prefix", "glossary", "pairs", "q", "word", "pick", "chosen", "edits"];

// A link to the page in its present state, with the text or without it. It names the model: another server may list
// another one first.
export function link({ withText = true, model } = {}) {
  const params = new URLSearchParams(location.hash.split("?")[1] ?? "");
  if (!withText) for (const name of TEXTS) params.delete(name);
  if (model) params.set("model", model);
  params.set("v", VERSION);
  return `${location.origin}${location.pathname}#/${current.view}?${params}`;
}

addEventListener("popstate", () => { current = read(); listeners.forEach((listener) => listener()); });
addEventListener("hashchange", () => { current = read(); listeners.forEach((listener) => listener()); });
