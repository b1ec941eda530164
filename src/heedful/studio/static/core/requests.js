// The bodies of requests to the server.
import { isReady } from "./tasks.js";

// A look inside; null while there is nothing to look at. `extra`: interventions, lens, top.
export function lookRequest(model, params, extra) {
  if (!isReady(model, params)) return null;
  const body = { model: model.name, text: model.task === "answer" ? `${params.text}\t${params.passage}` : params.text, ...extra };
  if (params.target) body.target = params.target;
  if (!body.interventions?.length) delete body.interventions;
  return body;
}
