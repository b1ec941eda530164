// The page of two models side by side: the JSON of heedful's Comparison.to_json.
const comparison = JSON.parse($("data").textContent);
const state = { words: true, input: null };

class Side {
  constructor(model) {
    this.model = model;
    this.look = model.look;
    this.row = null;
    this.card = make("section", undefined, { class: "card", "aria-label": model.name });
    this.title = make("h2", model.name);
    this.answer = make("p", undefined, { class: "answer", dir: "auto" });
    model.words.forEach((word, index) => {
      const differs = model.differing_words.includes(index);
      this.answer.append(make(differs ? "mark" : "span", visible(word)), " ");
    });
    this.sure = make("p", this.confidence(), { class: "muted" });
    this.note = make("h3");
    this.scroll = make("div", undefined, { class: "scroll", tabindex: "0", role: "group", "aria-label": `Ribbons of ${model.name}` });
    this.ribbons = make("div", undefined, { class: "ribbons" });
    this.columns = make("div", undefined, { class: "row" });
    this.rows = make("div", undefined, { class: "row" });
    this.bands = make("div", undefined, { class: "bands" });
    this.rest = make("canvas");
    this.lit = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.bands.append(this.rest, this.lit);
    this.ribbons.append(this.columns, this.bands, this.rows);
    this.scroll.append(this.ribbons);
    this.predictions = make("div");
    this.card.append(this.title, this.answer, this.sure, this.note, this.scroll, this.predictions);
  }

  confidence() {
    const own = this.model.log_probability.toFixed(2), other = this.model.log_probability_of_other;
    if (!this.look.outputs.length) return "";
    return `log-probability ${own}${other === null || comparison.same_answer ? "" : `, of the other’s answer ${other.toFixed(2)}`}`;
  }

  table() {
    if (isAligned(this.look) && state.words) return alignedTable(this.look);
    const maps = this.look.attention, map = maps.filter((each) => each.kind === "cross").at(-1) ?? maps.at(-1);
    if (!map) return null;
    const aligned = this.look.alignment?.head;
    if (aligned) return tableOf(this.look, maps.find((each) => each.name === aligned.part), aligned.head, state.words);
    return tableOf(this.look, map, null, state.words);
  }

  draw() {
    this.current = this.table();
    this.note.textContent = this.current ? this.current.title : "This model has no attention.";
    this.scroll.hidden = !this.current;
    if (this.current) this.drawRows();
    this.predict(0);
  }

  drawRows() {
    const { columns, rows, columnsRight, rowsRight } = this.current;
    for (const [box, items, right] of [[this.columns, columns, columnsRight], [this.rows, rows, rowsRight]]) {
      box.dir = right ? "rtl" : "ltr";
      box.replaceChildren(...items.map((item, index) => {
        const output = this.look.outputs[item.outputs?.[0]];
        const node = chip(item.label, { special: item.special, share: output?.probability });
        if (box === this.rows) {
          for (const event of ["mouseenter", "focus", "click"]) node.addEventListener(event, () => this.select(index));
        } else node.tabIndex = -1;
        return node;
      }));
    }
    const left = this.bands.getBoundingClientRect().left;
    const centers = (box) => [...box.children].map((node) => { const { left: x, width } = node.getBoundingClientRect(); return x + width / 2 - left; });
    this.from = centers(this.columns);
    this.to = centers(this.rows);
    const { width, height } = this.bands.getBoundingClientRect();
    const context = fit(this.rest, width, height);
    context.strokeStyle = ramp[4];
    context.globalAlpha = 0.3;
    this.each((row, column, weight) => {
      if (weight < 0.03) return;
      context.lineWidth = Math.max(0.5, weight * 8);
      context.stroke(new Path2D(curve(this.from[column], this.to[row], height)));
    });
    this.light([]);
  }

  each(visit) { this.current.weights.forEach((weights, row) => weights.forEach((weight, column) => visit(row, column, weight))); }

  select(row) {
    this.row = row;
    this.light(this.current.weights[row].map((weight, column) => [row, column, weight]));
    this.predict(this.current.rows[row].outputs[0]);
  }

  // What reads an input word: its column in this model, whose tokens may be others than the other model's.
  read(column) {
    if (this.current && column < this.current.columns.length) this.light(this.current.weights.map((weights, row) => [row, column, weights[column]]));
  }

  light(pairs) {
    const shown = pairs.filter(([, , weight]) => weight >= 0.02).sort((a, b) => b[2] - a[2]).slice(0, 100);
    const strong = (index, place) => shown.some((pair) => pair[place] === index && pair[2] >= 0.3);
    [...this.rows.children].forEach((node, index) => node.setAttribute("aria-pressed", strong(index, 0)));
    [...this.columns.children].forEach((node, index) => node.setAttribute("aria-pressed", strong(index, 1)));
    this.lit.replaceChildren(...shown.map(([row, column, weight]) => {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", curve(this.from[column], this.to[row], this.bands.clientHeight));
      path.setAttribute("stroke-width", Math.max(0.75, weight * 12));
      return path;
    }));
  }

  predict(index) {
    const output = this.look.outputs[index];
    if (!output) { this.predictions.replaceChildren(); return; }
    this.predictions.replaceChildren(make("h3", `${isolate(visible(output.text))} ${percent(output.probability)}: what else it could have said`), ...output.top.map((each) => {
      const bar = make("div", undefined, { class: each.id === output.label ? "bar chosen" : "bar" });
      const name = make("span"), box = make("div"), line = make("i");
      name.append(make("bdi", visible(each.text)));
      line.style.width = `${100 * each.probability}%`;
      box.append(line);
      bar.append(name, box, make("b", percent(each.probability)));
      return bar;
    }));
  }
}

const sides = comparison.models.map((model) => new Side(model));

function drawInputs() {
  const { words, text } = sides[0].look.inputs;
  $("inputs").dir = rightToLeft(text) ? "rtl" : "ltr";
  $("inputs").replaceChildren(...words.map((word, index) => {
    const node = chip(visible(word));
    for (const event of ["mouseenter", "focus", "click"]) node.addEventListener(event, () => chooseInput(index));
    return node;
  }));
}

function chooseInput(index) {
  state.input = index;
  [...$("inputs").children].forEach((node, each) => node.setAttribute("aria-pressed", each === index));
  if (state.words) for (const side of sides) side.read(index + leading(side));
}

// Special tokens before the first word, in tables of a head.
function leading(side) {
  if (!side.current || isAligned(side.look)) return 0;
  return Math.max(0, side.current.columns.findIndex((column) => !column.special));
}

function draw() {
  readColors();
  $("unit").textContent = state.words ? "words" : "tokens";
  for (const side of sides) side.draw();
  if (state.input !== null) chooseInput(state.input);
}

function toggleTheme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark" || (document.documentElement.style.colorScheme === "" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.style.colorScheme = dark ? "light" : "dark";
  draw();
}

function moveInput(step) {
  const last = $("inputs").childElementCount - 1;
  chooseInput(state.input === null ? (step > 0 ? 0 : last) : Math.max(0, Math.min(last, state.input + step)));
}

const actions = {
  ArrowLeft: () => moveInput(-1),
  ArrowRight: () => moveInput(1),
  w: () => { state.words = !state.words; draw(); },
  t: toggleTheme,
};
document.addEventListener("keydown", (event) => {
  const action = event.ctrlKey || event.metaKey || event.altKey ? null : actions[event.key] ?? actions[event.key.toLowerCase()];
  if (!action) return;
  event.preventDefault();
  action();
});
$("unit").addEventListener("click", actions.w);
$("theme").addEventListener("click", toggleTheme);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

$("title").textContent = `${comparison.models.map((model) => model.name).join(" · ")} (${comparison.task})`;
$("verdict").textContent = comparison.same_answer ? "The same answer." : "Marked: words that the other answer does not have. Underline: probability.";
$("sides").append(...sides.map((side) => side.card));
drawInputs();
draw();
new ResizeObserver(() => { for (const side of sides) if (side.current) side.drawRows(); }).observe($("sides"));
