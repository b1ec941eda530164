// Lessons: every concept of the notes with a link to the view that shows it on the model in use.
import { html } from "../core/html.js";
import { SECTIONS } from "../core/lessons.js";
import { openLesson } from "../parts/lessons.js";
import { Card } from "../parts/basics.js";

const VIEW_NAMES = { use: "Use", look: "Look", switch: "Switch off", steps: "Step through", train: "Train", compare: "Compare", vectors: "Vectors", lab: "Lab" };

export default function Lessons() {
  return html`<div class="stack"><h1>Lessons</h1><p class="muted">Every concept of the notes, on your own model. Each lesson opens the view that shows its concept, with instructions; its address can be shared.</p>
    ${SECTIONS.map(([title, lessons]) => html`<${Card} title=${title}><div class="lessons">${Object.entries(lessons).map(([key, lesson]) => html`
      <a class="lesson" href=${`#/${lesson.view}?lesson=${key}`} onClick=${(event) => { event.preventDefault(); openLesson(key); }}><span class="lesson-key">${key}</span>
        <span><b>${lesson.title}</b>${lesson.equation && html`<code class="equation">${lesson.equation}</code>`}<span class="small muted">${VIEW_NAMES[lesson.view]}${lesson.state.study ? `, study ${lesson.state.study}` : ""}</span></span></a>`)}</div><//>`)}</div>`;
}
