// The shell: header, tabs, keys, toast. Every view is a module of its own, loaded when it is opened.
import { html, render, useState, useEffect, useLayoutEffect, useRef, useErrorBoundary } from "./core/html.js";
import { useAddress, open, link, patch, address, isOfOtherVersion } from "./core/address.js";
import { refreshModels, useSession, useModel, toast, closeToast } from "./core/session.js";
import { onTokenNeeded, ApiError } from "./core/api.js";
import { followScrolling } from "./core/scroll_focus.js";
import { rough } from "./core/format.js";
import { Failure, Empty } from "./parts/basics.js";
import { FirstSteps, Lesson } from "./parts/lessons.js";

const VIEWS = [
  ["use", "Use", () => import("./views/use.js")],
  ["look", "Look", () => import("./views/look.js")],
  ["switch", "Switch off", () => import("./views/switch_off.js")],
  ["steps", "Step through", () => import("./views/steps.js")],
  ["train", "Train", () => import("./views/train.js")],
  ["compare", "Compare", () => import("./views/compare.js")],
  ["vectors", "Vectors", () => import("./views/vectors.js")],
  ["lab", "Lab", () => import("./views/lab.js")],
];

const LESSONS = ["lessons", "Lessons", () => import("./views/lessons.js")];

function App() {
  const { view, params } = useAddress();
  const { models, error, toast: message } = useSession();
  const [modules, setModules] = useState({});
  const [failure, setFailure] = useState(null);
  const entry = [...VIEWS, LESSONS].find(([name]) => name === view) ?? VIEWS[0];
  const View = modules[entry[0]];
  useEffect(() => {
    document.title = `${entry[1]} · heedful studio`;
    if (!View) entry[2]().then((module) => setModules((before) => ({ ...before, [entry[0]]: module.default })), setFailure);
  }, [entry[0]]);
  useEffect(() => closeToast, [entry[0]]);
  useEffect(() => { if (isOfOtherVersion()) toast("This link was made by another version of the studio: some of its settings may be ignored."); }, []);
  useEffect(() => document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [entry[0]]);
  useEffect(() => { if (models?.length === 0 && location.hash.length < 3) open("train"); }, [models]);
  return html`
    <a class="skip-link" href="#content" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>Skip to content</a>
    <header class="head">
      <a class="brand" href="#/use">heedful</a>
      <nav class="tabs" aria-label="Views">${VIEWS.map(([name, title]) => html`
        <a href=${`#/${name}`} aria-current=${name === entry[0] ? "page" : null} onClick=${(event) => { event.preventDefault(); open(name, { lesson: null }); }}>${title}</a>`)}</nav>
      <div class="head-tools"><${ModelChoice} /><${LessonsLink} /><${Share} /><${Theme} /><${Help} /></div>
    </header>
    <main id="content" tabindex="-1">
      ${entry[0] !== "lessons" && html`<h1 class="visually-hidden">${entry[1]}</h1>`}
      <${Failure} error=${error ?? failure} />
      ${params.lesson ? html`<${Lesson} name=${params.lesson} view=${entry[0]} />` : html`<${FirstSteps} view=${entry[0]} />`}
      ${View && models ? html`<${Guarded} key=${entry[0]} view=${View} />` : !error && html`<div aria-busy="true"></div>`}
      ${models?.length === 0 && !["train", "lab", "lessons"].includes(entry[0]) && html`<${Empty} action="Train one" onAction=${() => open("train")}>No model is served yet.<//>`}
    </main>
    <div aria-live="polite" role="status">${message && html`<div class="toast"><span>${message.text}</span>
      ${message.action && html`<button id=${message.action === "Undo" ? "undo" : null} onClick=${message.onAction}>${message.action}</button>`}<button aria-label="Close" onClick=${closeToast}>✕</button></div>`}</div>
    <${TokenDialog} />`;
}

// A view. If it fails, an error is shown in its place and the rest of the page keeps working.
function Guarded({ view: View }) {
  const [failure, again] = useErrorBoundary();
  if (failure) return html`<${Failure} error=${new Error(`This view could not be drawn: ${failure.message}`)} /><div><button class="button" onClick=${() => { open(address().view, { ...Object.fromEntries(Object.keys(address().params).map((name) => [name, null])), model: address().params.model }); again(); }}>Reset this view</button></div>`;
  return html`<${View} />`;
}

function ModelChoice() {
  const { models } = useSession(), model = useModel();
  if (!models) return html`<span class="model-choice"></span>`;
  if (!models.length) return null;
  return html`<label><span class="visually-hidden">Model</span><select class="pill model-choice" value=${model?.name} onChange=${(event) => { closeToast(); patch({ model: event.target.value, target: null, off: null, part: null }); }}>
    ${models.map((model) => html`<option value=${model.name}>${model.name} · ${rough(model.parameters)}</option>`)}</select></label>`;
}

function LessonsLink() {
  return html`<a class="icon-button" href="#/lessons" aria-label="Lessons" title="Lessons: every concept of the notes" onClick=${(event) => { event.preventDefault(); open("lessons", { lesson: null }); }}>
    <svg width="18" height="18" viewBox="0 0 18 18" fill="none" stroke="currentColor" stroke-width="1.6" stroke-linejoin="round" aria-hidden="true"><path d="M9 4.500C7.500 3 5 2.600 2 2.800v11.400c3-.2 5.500.2 7 1.800 1.500-1.600 4-2 7-1.800V2.800c-3-.2-5.500.2-7 1.700zM9 4.500V16" /></svg></a>`;
}

function Share() {
  const model = useModel();
  const copy = async (withText) => {
    const address = link({ withText, model: model?.name });
    try {
      await navigator.clipboard.writeText(address);
      toast(withText ? "Link copied, including the text." : "Link copied, without the text.", withText ? "Without the text" : null, () => copy(false));
    } catch {  // browsers allow it on https and on this machine only
      toast(`The browser did not allow copying. The link: ${address}`);
    }
  };
  return html`<button class="icon-button" aria-label="Copy a link to this view" title="Copy a link (S)" id="share" onClick=${() => copy(true)}>
    <svg width="18" height="18" viewBox="0 0 18 18" fill="none" stroke="currentColor" stroke-width="1.6" aria-hidden="true"><path d="M7.5 10.5a3 3 0 0 0 4.3 0l3-3a3 3 0 0 0-4.3-4.3l-1 1M10.500 7.500a3 3 0 0 0-4.300 0l-3 3a3 3 0 0 0 4.300 4.300l1-1" /></svg></button>`;
}

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "");
  const next = { "": "dark", dark: "light", light: "" }[theme];
  const choose = () => {
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    setTheme(next);
  };
  return html`<button class="icon-button" aria-label=${`Colors: ${theme || "as the system"}. Change`} title="Light, dark, or as the system" onClick=${choose}>
    <svg width="18" height="18" viewBox="0 0 18 18" aria-hidden="true"><circle cx="9" cy="9" r="6.5" fill="none" stroke="currentColor" stroke-width="1.6" /><path d="M9 2.500a6.500 6.500 0 0 1 0 13z" fill="currentColor" /></svg></button>`;
}

const KEYS = [["1 – 8", "open a view"], ["/", "go to the text"], ["S", "copy a link"], ["W", "switch between words and tokens"], ["← →", "token, in Look and Step through"], ["↑ ↓", "layer, in Look"], ["Shift ← →", "head, in Look"], ["P", "pin the head, in Look"], ["X", "switch the head off or on, in Look"],
  ["Z", "undo the last switch"], ["Space or .", "next step, in Step through"], [",", "step back"], ["B (hold)", "swap the models, in Compare"], ["Esc", "clear the selection"], ["?", "this list"]];

function Help() {
  const dialog = useRef(null);
  return html`<button class="icon-button" id="help" aria-label="Keys" title="Keys (?)" onClick=${() => dialog.current.showModal()}>?</button>
    <dialog ref=${dialog} aria-label="Keys"><div class="stack"><h1>Keys</h1>
      <table class="plain">${KEYS.map(([key, what]) => html`<tr><td><kbd>${key}</kbd></td><td>${what}</td></tr>`)}</table>
      <p class="muted small">Everything runs on this machine. Attention weights show which tokens a head read, not why the model gave an answer. Every attribution method is shown with its measured faithfulness.</p>
      <form method="dialog"><button class="button">Close</button></form></div></dialog>`;
}

function TokenDialog() {
  const dialog = useRef(null), answer = useRef(null), [refused, setRefused] = useState(false);
  useLayoutEffect(() => onTokenNeeded((again) => new Promise((resolve, reject) => { answer.current = { resolve, reject }; setRefused(again); dialog.current.showModal(); })), []);
  const close = () => answer.current?.reject(new ApiError("This server asks for a token. Load the page again to enter it.", 401));
  return html`<dialog ref=${dialog} aria-label="Token" onClose=${close}><form method="dialog" class="stack" onSubmit=${(event) => { answer.current?.resolve(new FormData(event.target).get("token")); event.target.reset(); }}>
    <h1>This server asks for a token</h1>${refused && html`<p class="bad" role="alert">The server refused this token.</p>`}<label><span class="label">Token (kept in memory until the page is closed)</span><input class="field" type="password" name="token" autocomplete="off" required /></label>
    <button class="button main">Use it</button></form></dialog>`;
}

addEventListener("keydown", (event) => {
  if (event.target.closest?.("input, textarea, select, dialog") || event.metaKey || event.ctrlKey || event.altKey) {
    if (event.key === "Escape") event.target.blur?.();
    return;
  }
  const view = VIEWS[Number(event.key) - 1];
  if (view) open(view[0], { lesson: null });
  else if (event.key === "/") { event.preventDefault(); document.querySelector("#text, .field")?.focus(); }
  else if (event.key === "?") document.querySelector("#help").click();
  else if (event.key === "s" || event.key === "S") document.querySelector("#share").click();
  else if (event.key === "z" || event.key === "Z") document.querySelector("#undo")?.click();
  else if (event.key === "w" || event.key === "W") patch({ unit: address().params.unit === "tokens" ? null : "tokens" });
});

const page = document.querySelector("#app");
page.replaceChildren();
render(html`<${App} />`, page);
followScrolling(page);
refreshModels();
