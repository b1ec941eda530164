// The logit lens: the prediction that the output layer makes from the state after each layer.
import { html } from "../core/html.js";
import { patch } from "../core/address.js";
import { interventionsOf } from "../core/session.js";
import { useAnswer } from "../core/api.js";
import { lookRequest } from "../core/requests.js";
import { percent } from "../core/format.js";
import { Card, Failure, Toggle, Word, shadeStyle, useTheme } from "./basics.js";
import { Exports } from "./export.js";

export function LogitLens({ model, params }) {
  useTheme();
  const shown = params.lens === "1";
  const { answer: look, error, busy } = useAnswer("look", shown ? lookRequest(model, params, { interventions: interventionsOf(), lens: true }) : null);
  return html`<${Card} place="later" title="Logit lens: the prediction after each layer" busy=${busy} tools=${html`<span class="row"><${Toggle} on=${shown} onChange=${(on) => patch({ lens: on ? "1" : null })}>show<//>${shown && look && html`<${Exports} name="logit-lens" values=${look.lens} />`}</span>`}>
    <${Failure} error=${error} />
    ${shown && look?.lens && html`<div class="scroll"><table class="lens"><tr><td></td>${look.outputs.map((output) => html`<th><${Word}>${output.text}<//></th>`)}</tr>
      ${look.lens.layers.map((layer) => html`<tr><th>${layer.name}</th>${layer.positions.map((position, index) => html`
        <td style=${shadeStyle(position.probability)} title=${`${position.top.map((prediction) => `${prediction.text} ${percent(prediction.probability)}`).join(", ")} · the answer has rank ${position.rank + 1}`}>
          <${Word}>${position.top[0].text}<//>${position.top[0].id === look.outputs[index].label ? " ✓" : ""}</td>`)}</tr>`)}</table></div>
      <p class="small muted">The state after each layer, passed through the final norm and the output layer. Color: the probability of the final answer at that layer; ✓: the layer already predicts it.</p>`}<//>`;
}
