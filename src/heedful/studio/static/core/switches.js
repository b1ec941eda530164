// The parts that are switched off, as a list of interventions in the form of the API:
// { kind: "ablate", part: "decoder.2.cross", heads: [3] }.
import { setInterventions } from "./session.js";

const same = (a, b) => a.kind === b.kind && a.part === b.part && JSON.stringify(a.heads ?? null) === JSON.stringify(b.heads ?? null);
const headOff = (part, head) => ({ kind: "ablate", part, heads: [head] });

export const isOff = (list, part, kind = "ablate") => list.some((change) => change.kind === kind && change.part === part && !change.heads);
export const isHeadOff = (list, part, head) => isOff(list, part) || list.some((change) => change.kind === "ablate" && change.part === part && change.heads?.includes(head));

export function toggled(list, item, name) {
  const before = list.find((change) => same(change, item));
  setInterventions(before ? list.filter((change) => change !== before) : [...list, item], before ? `${name} on` : `${name} off`);
}

export const toggledHead = (list, part, head) => toggled(list, headOff(part, head), `${part}, head ${head}`);
export const toggledPart = (list, part, name = part) => toggled(list, { kind: "ablate", part }, name);

// The factor of a part: 1 as trained, 0 off.
export const factorOf = (list, part) => list.find((change) => change.kind === "scale" && change.part === part && !change.heads)?.factor ?? (isOff(list, part) ? 0 : 1);

export function scaled(list, part, factor) {
  const rest = list.filter((change) => change.part !== part || change.heads || !["scale", "ablate"].includes(change.kind));
  if (factor === 1) setInterventions(rest);
  else if (factor === 0) setInterventions([...rest, { kind: "ablate", part }]);
  else setInterventions([...rest, { kind: "scale", part, factor }]);
}
