// The server's API. Requests that are no longer wanted are aborted; answers to equal requests are kept.
import { useState, useEffect } from "./html.js";

const KEPT = 60;
const answers = new Map();
let token = null;
let askForToken = null;

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The token is entered once and kept in memory only.
const setToken = (value) => { token = value; };
export const onTokenNeeded = (ask) => { askForToken = ask; };

// One dialog serves all requests that wait for a token.
let asking = null;

async function answered(method, path, body, signal) {
  const headers = { Accept: "application/json" }, used = token;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    response = await fetch(`/api/v1/${path}`, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is heedful still running?", 0);
  }
  if (response.status === 401 && askForToken) {
    if (token === used) setToken(await (asking ??= askForToken(Boolean(used)).finally(() => { asking = null; })));
    return answered(method, path, body, signal);
  }
  return response;
}

async function request(method, path, body, signal) {
  const response = await answered(method, path, body, signal);
  if (!response.ok) throw new ApiError(message(await response.json().catch(() => ({})), response), response.status);
  return response.json();  // aborted while it is read: an error like any other, never an empty answer
}

function message(content, response) {
  const detail = content.error?.message ?? content.error ?? content.detail ?? content.message;
  if (typeof detail === "string") return detail;
  if (Array.isArray(detail)) return detail.map((problem) => problem.msg).join("; ");
  return `The server answered ${response.status} ${response.statusText}`;
}

export const get = (path, signal) => request("GET", path, undefined, signal);
export const post = (path, body, signal) => request("POST", path, body, signal);

export function forget() {
  answers.clear();
}

async function cached(path, body, signal) {
  const key = `${path} ${JSON.stringify(body)}`;
  if (answers.has(key)) return answers.get(key);
  const answer = await (body === undefined ? get(path, signal) : post(path, body, signal));
  answers.set(key, answer);
  if (answers.size > KEPT) answers.delete(answers.keys().next().value);
  return answer;
}

// The answer to a request, which is sent again when it changes, after `wait` milliseconds without a further change.
// The last answer stays until the next one arrives. A null body sends nothing.
export function useAnswer(path, body, { wait = 0 } = {}) {
  const [state, setState] = useState({ answer: null, error: null, busy: false, of: null });
  const key = body === null ? null : `${path} ${JSON.stringify(body)}`;
  useEffect(() => {
    if (key === null) {
      setState({ answer: null, error: null, busy: false, of: null });
      return undefined;
    }
    const controller = new AbortController();
    setState((before) => ({ ...before, busy: true }));
    const timer = setTimeout(() => cached(path, body, controller.signal).then(
      (answer) => setState({ answer, error: null, busy: false, of: key }),
      (error) => error.name !== "AbortError" && setState((before) => ({ ...before, error, busy: false, of: key })),
    ), wait);
    return () => { clearTimeout(timer); controller.abort(); };
  }, [key]);
  return state;
}

// Server-sent events of a request: `onEvent(name, data)` until the stream ends or the signal aborts it.
export async function stream(path, body, onEvent, signal) {
  const headers = { "Content-Type": "application/json", Accept: "text/event-stream" };
  if (token) headers.Authorization = `Bearer ${token}`;
  const response = await fetch(`/api/v1/${path}`, { method: "POST", headers, body: JSON.stringify(body), signal });
  if (!response.ok) throw new ApiError(message(await response.json().catch(() => ({})), response), response.status);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const lines = block.split("\n");
      const field = (name) => lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).trim()).join("\n");
      const data = field("data");
      if (data && data !== "[DONE]") onEvent(field("event") || "message", JSON.parse(data));
    }
  }
}
