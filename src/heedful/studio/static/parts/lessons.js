// Five first steps, each completed by doing it, and the lesson that is open.
import { html, useState, useEffect } from "../core/html.js";
import { useAddress, address, open, patch } from "../core/address.js";
import { useModel } from "../core/session.js";
import { LESSONS, KEYS } from "../core/lessons.js";

const FIRST = [
  ["use", "Type a text of your own and read the answer.", (params) => Boolean(params.text)],
  ["look", "Point at an output word to see which words it attends to, then click it.", (params) => params.pick !== undefined],
  ["look", "Open another head: each small picture is one head.", (params) => params.part !== undefined],
  ["switch", "Switch a head off and compare the two answers.", (params) => Boolean(params.off && params.off !== "[]")],
  ["steps", "Follow one token through the softmax: press Next.", (params) => params.phase !== undefined],
];

// Open a lesson in its view. With `keep`, parameters that the link sets take precedence.
export function openLesson(key, { keep = false } = {}) {
  const { view, state } = LESSONS[key], { params } = address();
  const missing = Object.fromEntries(Object.entries(state).filter(([name]) => !keep || params[name] === undefined));
  open(view, { ...missing, lesson: key });
}

export function Lesson({ name, view }) {
  const lesson = LESSONS[name], at = KEYS.indexOf(name);
  useEffect(() => {
    const { params } = address();
    if (lesson && (lesson.view !== view || Object.keys(lesson.state).some((key) => lesson.state[key] !== null && params[key] === undefined))) openLesson(name, { keep: true });
  }, [name]);
  return html`<aside class="guide" aria-label="Lesson">
    <span class="lesson-key">${name}</span>
    ${lesson ? html`<div class="grow"><b>${lesson.title}</b>${lesson.equation && html`<code class="equation">${lesson.equation}</code>`}<p>${lesson.text}</p></div>` : html`<p class="grow">There is no lesson of this name.</p>`}
    <span class="row"><a class="button" href="#/lessons" onClick=${(event) => { event.preventDefault(); open("lessons", { lesson: null }); }}>All lessons</a>
      ${lesson && at < KEYS.length - 1 && html`<button class="button" onClick=${() => openLesson(KEYS[at + 1])}>Next: ${KEYS[at + 1]}</button>`}
      <button class="icon-button" aria-label="Close the lesson" onClick=${() => patch({ lesson: null })}>✕</button></span></aside>`;
}

export function FirstSteps({ view }) {
  const { params } = useAddress(), model = useModel();
  const [hidden, setHidden] = useState(() => sessionStorage.getItem("lessons") === "hidden");
  const [done, setDone] = useState(() => Number(sessionStorage.getItem("lesson") ?? 0));
  useEffect(() => {
    if (done < FIRST.length && FIRST[done][2](params)) {
      sessionStorage.setItem("lesson", String(done + 1));
      setDone(done + 1);
    }
  }, [params, done]);
  if (hidden || done >= FIRST.length || !model || ["train", "lab", "lessons"].includes(view)) return null;
  const [where, text] = FIRST[done];
  return html`<aside class="guide" aria-label="First steps"><ol class="dots" aria-label=${`Step ${done + 1} of ${FIRST.length}`}>${FIRST.map((_, index) => html`<li data-state=${index < done ? "done" : index === done ? "now" : "later"}>${index < done ? "✓" : index + 1}</li>`)}</ol><p class="grow">${text}</p>
    <span class="row">${where !== view && html`<button class="button" onClick=${() => open(where)}>Go there</button>`}
    <button class="button" onClick=${() => { sessionStorage.setItem("lessons", "hidden"); setHidden(true); }}>Skip</button></span></aside>`;
}
