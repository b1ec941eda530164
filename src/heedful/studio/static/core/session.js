// State shared by all views: the models that are served, the one in use, and toasts.
import { useState, useEffect } from "./html.js";
import { get, forget } from "./api.js";
import { address, patch, useAddress } from "./address.js";

const listeners = new Set();
let session = { models: null, error: null, toast: null, canTrain: false };

function update(changes) {
  session = { ...session, ...changes };
  listeners.forEach((listener) => listener(session));
}

export function useSession() {
  const [value, setValue] = useState(session);
  useEffect(() => {
    listeners.add(setValue);
    setValue(session);
    return () => listeners.delete(setValue);
  }, []);
  return value;
}

export async function refreshModels() {
  try {
    const [models, studio] = await Promise.all([get("models"), get("studio").catch(() => ({}))]);
    forget();
    const examples = studio.examples ?? {};
    update({ ...studio, models: models.models.map((model) => ({ ...model, examples: examples[model.name] })), error: null });
  } catch (error) {
    update({ error });
  }
}

// The model in use: the one in the address, else the first that fits.
export function useModel(accepts = () => true, param = "model") {
  const { models } = useSession(), { params } = useAddress();
  const fitting = (models ?? []).filter(accepts);
  return fitting.find((model) => model.name === params[param]) ?? fitting[0] ?? null;
}

let timer = 0;
export function toast(text, action, onAction) {
  clearTimeout(timer);
  update({ toast: { text, action, onAction } });
  timer = setTimeout(() => update({ toast: null }), action ? 8000 : 4000);
}
export const closeToast = () => update({ toast: null });

export const interventionsOf = (params = address().params) => {
  try {
    const value = JSON.parse(params.off ?? "[]");
    return Array.isArray(value) ? value.filter((change) => typeof change?.part === "string") : [];
  } catch {
    return [];
  }
};

// Replace the list of interventions, with Undo.
export function setInterventions(next, sentence) {
  const before = address().params.off ?? "";
  patch({ off: next.length ? JSON.stringify(next) : null });
  if (!sentence) closeToast();
  else toast(sentence, "Undo", () => { patch({ off: before || null }); closeToast(); });
}
