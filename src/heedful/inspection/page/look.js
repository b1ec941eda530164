// The page of one look.
const look = JSON.parse($("data").textContent);
const state = { map: null, head: null, aligned: false, words: true, root: true, values: false, row: null, locked: false, output: 0 };
const maps = look.attention;
const scaled = (weight) => (state.root ? Math.sqrt(weight) : weight);
const shade = (weight) => Math.min(7, Math.floor(scaled(weight) * 8));

function currentTable() {
  if (state.aligned) return alignedTable(look);
  return state.map && tableOf(look, state.map, state.head, state.words);
}

let table = null;
let centers = { rows: [], columns: [] };

function draw() {
  table = currentTable();
  $("reading").hidden = $("map").hidden = !table;
  if (table) {
    if (state.row !== null && state.row >= table.rows.length) state.row = null;
    drawRows();
    drawHeat();
    $("reading-title").textContent = table.title;
    $("map-title").textContent = `Heat map · ${state.aligned ? "aligned head, in words" : `${state.map.name}, ${state.words ? "words" : "tokens"}`} · rows attend to columns`;
    $("reading-note").textContent = table.note;
  }
  drawOutputs();
  drawLens();
  markHeads();
  $("unit").textContent = state.words ? "words" : "tokens";
  $("scale").textContent = state.root ? "√ scale" : "linear scale";
  $("values").setAttribute("aria-pressed", state.values);
}

function drawRows() {
  for (const [id, items, right] of [["columns", table.columns, table.columnsRight], ["rows", table.rows, table.rowsRight]]) {
    $(id).dir = right ? "rtl" : "ltr";
    $(id).replaceChildren(...items.map((item, index) => {
      const node = chip(item.label, item);
      if (id === "rows") {
        node.addEventListener("click", () => { select(index, state.row !== index || !state.locked); });
        node.addEventListener("mouseenter", () => { if (!state.locked) preview(index); });
        node.addEventListener("focus", () => { if (!state.locked) preview(index); });
      } else {
        node.tabIndex = -1;
        node.addEventListener("mouseenter", () => lightColumn(index));
        node.addEventListener("mouseleave", lightRow);
      }
      return node;
    }));
  }
  measure();
  drawRest();
  lightRow();
}

function measure() {
  const left = $("bands").getBoundingClientRect().left;
  for (const id of ["columns", "rows"]) {
    centers[id] = [...$(id).children].map((node) => { const box = node.getBoundingClientRect(); return box.left + box.width / 2 - left; });
  }
}

function drawRest() {
  const { width, height } = $("bands").getBoundingClientRect();
  const context = fit($("rest"), width, height);
  context.clearRect(0, 0, width, height);
  context.strokeStyle = ramp[4];
  context.globalAlpha = 0.3;
  table.weights.forEach((weights, row) => weights.forEach((weight, column) => {
    if (weight < 0.03) return;
    context.lineWidth = Math.max(0.5, weight * 8);
    context.stroke(new Path2D(curve(centers.columns[column], centers.rows[row], height)));
  }));
}

function light(pairs) {
  const height = $("bands").clientHeight;
  $("lit").replaceChildren(...pairs.slice(0, 100).map(([row, column, weight]) => {
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    path.setAttribute("d", curve(centers.columns[column], centers.rows[row], height));
    path.setAttribute("stroke-width", Math.max(0.75, weight * 12));
    return path;
  }));
}

function lightRow() {
  const row = state.row;
  [...$("rows").children].forEach((node, index) => node.setAttribute("aria-pressed", index === row));
  const weights = row === null ? [] : table.weights[row];
  const most = weights.map((weight, column) => [row, column, weight]).filter(([, , weight]) => weight >= 0.01).sort((a, b) => b[2] - a[2]);
  [...$("columns").children].forEach((node, index) => {
    node.setAttribute("aria-pressed", row !== null && weights[index] >= 0.3);
    node.style.setProperty("background", row === null ? "" : `color-mix(in srgb, var(--w5) ${Math.round(70 * scaled(weights[index]))}%, var(--chip))`);
  });
  light(most);
  if (row === null) {
    $("readout").textContent = "Hover a word below to see what it attends to; click to lock it.";
    return;
  }
  const shown = most.slice(0, 6), rest = 1 - shown.reduce((sum, [, , weight]) => sum + weight, 0), others = weights.length - shown.length;
  const list = shown.map(([, column, weight]) => `${isolate(table.columns[column].label)} ${number(weight)}`).join(" · ");
  $("readout").textContent = `${isolate(table.rows[row].label)} → ${list}${others > 0 ? ` · ${others} others ${number(Math.max(0, rest))}` : ""}`;
}

function lightColumn(column) {
  light(table.weights.map((weights, row) => [row, column, weights[column]]).filter(([, , weight]) => weight >= 0.02).sort((a, b) => b[2] - a[2]));
}

function preview(row) {
  state.row = row;
  const outputs = row === null ? [] : table.rows[row].outputs;
  if (outputs.length && !outputs.includes(state.output)) state.output = outputs[0];
  lightRow();
  drawHeat();
  drawOutputs();
  drawLens();
}

function select(row, lock) {
  state.locked = lock;
  preview(row);
  if (row !== null) scrollTo(row);
}

function scrollTo(row) {
  const box = $("ribbons").parentElement;
  const best = table.weights[row].indexOf(Math.max(...table.weights[row]));
  const middle = (centers.rows[row] + centers.columns[best]) / 2;
  if (box.scrollWidth > box.clientWidth) box.scrollLeft = middle - box.clientWidth / 2;
}

// ---- heat map

let heatLayout = null;

function drawHeat() {
  const rows = table.rows.length, columns = table.columns.length;
  const context = $("heat").getContext("2d");
  context.font = "12px system-ui, sans-serif";
  const room = $("map").clientWidth - 104;
  const upright = !state.values && room / columns < 26;
  const measureText = (items) => Math.min(130, Math.max(...items.map((item) => context.measureText(item.label).width), 10));
  const label = measureText(table.rows) + 10, head = Math.min(130, measureText(table.columns) * (upright ? 1 : 0.75) + 16);
  const cell = state.values ? 44 : Math.max(12, Math.min(44, Math.floor((room - label) / columns)));
  const high = Math.min(cell, state.values ? 30 : 28);
  const width = label + columns * cell + 70, height = head + rows * high + 4;
  const x = (column) => label + (table.columnsRight ? columns - 1 - column : column) * cell;
  heatLayout = { label, head, cell, high, rows, columns, columnAt: (px) => { const c = Math.floor((px - label) / cell); return table.columnsRight ? columns - 1 - c : c; } };
  const pen = fit($("heat"), width, height);
  pen.font = "12px system-ui, sans-serif";
  const [text, muted, accent] = [color("text"), color("muted"), color("accent")];
  table.columns.forEach((item, column) => {
    pen.save();
    pen.translate(x(column) + cell / 2 + (upright ? 4 : 3), head - 6);
    pen.rotate(upright ? -Math.PI / 2 : -Math.PI / 4);
    pen.fillStyle = item.special ? muted : text;
    pen.fillText(clip(pen, item.label, 120), 0, 0);
    pen.restore();
  });
  const gap = cell > 15 ? 1 : 0.5;
  table.rows.forEach((item, row) => {
    const y = head + row * high;
    pen.textAlign = "end";
    pen.fillStyle = row === state.row ? accent : item.special ? muted : text;
    pen.fillText(clip(pen, item.label, 130), label - 6, y + high / 2 + 4);
    table.weights[row].forEach((weight, column) => {
      if (weight === 0) return; // masked: not a small weight, so no cell
      const step = shade(weight);
      pen.fillStyle = ramp[step];
      pen.fillRect(x(column) + gap / 2, y + gap / 2, cell - gap, high - gap);
      if (cell >= 32) {
        pen.fillStyle = step > 4 ? color("background") : text;
        pen.textAlign = "center";
        pen.font = "11px system-ui, sans-serif";
        pen.fillText(weight < 0.005 ? "·" : weight.toFixed(2).replace(/^0/, ""), x(column) + cell / 2, y + high / 2 + 4);
        pen.font = "12px system-ui, sans-serif";
      }
    });
  });
  pen.textAlign = "start";
  if (state.row !== null) {
    pen.strokeStyle = accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(label - 1, head + state.row * high, columns * cell + 2, high);
  }
  $("heat").setAttribute("role", "img");
  $("heat").setAttribute("aria-label", `${table.title}: ${rows} rows attend to ${columns} columns`);
}

function cellAt(event) {
  const box = $("heat").getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top - heatLayout.head) / heatLayout.high), column = heatLayout.columnAt(event.clientX - box.left);
  return row >= 0 && row < heatLayout.rows && column >= 0 && column < heatLayout.columns ? [row, column] : null;
}

$("heat").addEventListener("mousemove", (event) => {
  const cell = cellAt(event);
  $("cell").textContent = cell ? `${isolate(table.rows[cell[0]].label)} → ${isolate(table.columns[cell[1]].label)}: ${number(table.weights[cell[0]][cell[1]])}` : "";
  if (cell && !state.locked && cell[0] !== state.row) preview(cell[0]);
});
$("heat").addEventListener("click", (event) => {
  const cell = cellAt(event);
  if (cell) select(cell[0], state.row !== cell[0] || !state.locked);
});

// ---- answer and lens

function drawOutputs() {
  const { outputs } = look;
  $("answer").hidden = !outputs.length;
  if (!outputs.length) return;
  const output = outputs[state.output];
  $("answer-title").textContent = "Answer · underline: probability";
  $("outputs").replaceChildren(...outputs.map((each, index) => {
    const node = chip(visible(each.text), { special: look.target && !each.words.length, pressed: index === state.output, share: each.probability });
    node.addEventListener("click", () => chooseOutput(index));
    return node;
  }));
  $("output-title").textContent = `${isolate(visible(output.text))} ${percent(output.probability)}: what else it could have said`;
  $("predictions").replaceChildren(...output.top.map((each) => {
    const bar = make("div", undefined, { class: each.id === output.label ? "bar chosen" : "bar" });
    const name = make("span"), line = make("i");
    name.append(make("bdi", visible(each.text)));
    line.style.width = `${100 * each.probability}%`;
    const box = make("div");
    box.append(line);
    bar.append(name, box, make("b", percent(each.probability), { title: String(each.probability) }));
    return bar;
  }));
}

function chooseOutput(index) {
  state.output = index;
  const row = table ? table.rows.findIndex((each) => each.outputs.includes(index)) : -1;
  if (row >= 0) select(row, true);
  else { drawOutputs(); drawLens(); }
}

function drawLens() {
  $("lens").hidden = !look.lens;
  if (!look.lens) return;
  const { layers } = look.lens;
  if (!$("layers").childElementCount) {
    const headRow = make("tr");
    headRow.append(make("th", ""), ...look.outputs.map((output) => { const th = make("th"); th.append(make("bdi", visible(output.text))); return th; }));
    const body = make("tbody"), head = make("thead");
    head.append(headRow);
    layers.forEach((layer) => {
      const row = make("tr");
      row.append(make("th", layer.name));
      layer.positions.forEach((position, index) => {
        const cell = make("td");
        cell.append(make("bdi", visible(position.top[0].text)));
        cell.title = position.top.map((each) => `${visible(each.text)} ${percent(each.probability)}`).join(", ");
        cell.dataset.output = index;
        cell.dataset.weight = position.top[0].probability;
        if (position.top[0].id === look.outputs[index].label) cell.className = "right";
        cell.addEventListener("click", () => chooseOutput(index));
        row.append(cell);
      });
      body.append(row);
    });
    $("layers").append(head, body);
  }
  for (const cell of $("layers").querySelectorAll("td")) {
    const step = shade(Number(cell.dataset.weight));
    cell.style.background = `var(--w${step})`;
    cell.style.color = step > 4 ? "var(--background)" : "var(--text)";
    cell.classList.toggle("selected", Number(cell.dataset.output) === state.output);
  }
  $("layer-tops").replaceChildren(...layers.map((layer) => {
    const { top, probability, rank } = layer.positions[state.output];
    const said = top.map((each) => `${isolate(visible(each.text))} ${percent(each.probability)}`).join("  ");
    return make("div", `${layer.name}: ${said}   (the answer: ${percent(probability)}, rank ${rank + 1})`);
  }));
}

// ---- thumbnails

const KINDS = { cross: "Cross-attention", self: "Self-attention", encoder: "Self-attention of the encoder" };
const thumbs = [];

function entropy(map, head) {
  const [, height, width] = map.shape, data = floats(map);
  let sum = 0;
  for (let i = 0; i < height * width; i++) { const p = data[head * height * width + i]; if (p > 0) sum -= p * Math.log2(p); }
  return sum / height;
}

function drawHeads() {
  const cards = [];
  for (const kind of ["cross", "encoder", "self"]) {
    const layers = maps.filter((map) => map.kind === kind);
    if (!layers.length) continue;
    const heads = Math.max(...layers.map((map) => map.shape[0]));
    const card = make("section", undefined, { class: "card" });
    card.append(make("h2", `${kind === "self" && !look.target ? "Self-attention" : KINDS[kind]} · ${layers.length} layer${layers.length > 1 ? "s" : ""} × ${heads} head${heads > 1 ? "s" : ""}`));
    if (kind === "cross" && isAligned(look)) {
      const button = make("button", "aligned head", { type: "button" });
      button.addEventListener("click", () => { choose({ aligned: true }); });
      thumbs.push({ button, aligned: true });
      card.append(button);
    }
    const grid = make("div", undefined, { class: "grid" });
    grid.style.gridTemplateColumns = `28px repeat(${heads}, minmax(32px, 56px))`;
    grid.style.marginTop = "8px";
    for (const map of layers) {
      const mean = make("button", map.layer === null ? "·" : String(map.layer), { type: "button", class: "thumb layer", "aria-label": `${map.name}, mean of its heads`, title: `${map.name}, mean of its heads` });
      mean.addEventListener("click", () => choose({ map, head: null }));
      thumbs.push({ button: mean, map, head: null });
      grid.append(mean);
      for (let head = 0; head < heads; head++) {
        if (head >= map.shape[0]) { grid.append(make("span")); continue; }
        const name = `${map.name}, head ${head}, entropy ${entropy(map, head).toFixed(1)} bits`;
        const button = make("button", undefined, { type: "button", class: "thumb", "aria-label": name, title: name });
        const canvas = make("canvas");
        button.append(canvas);
        button.addEventListener("click", () => choose({ map, head }));
        thumbs.push({ button, map, head, canvas });
        grid.append(button);
      }
    }
    card.append(grid);
    cards.push(card);
  }
  $("heads").replaceChildren(...cards);
  if (!cards.length) {
    const card = make("section", undefined, { class: "card" });
    card.append(make("h2", "Attention"), make("p", "This model has no attention."));
    $("heads").append(card);
  }
}

// Long texts: each pixel is the largest weight of its cells.
function drawThumbs() {
  const colors = ramp.map((each) => each.match(/[\d.]+/g).map(Number));
  for (const { canvas, map, head } of thumbs) {
    if (!canvas) continue;
    const [, height, width] = map.shape, data = floats(map), step = Math.ceil(Math.max(height, width) / 64);
    canvas.width = Math.ceil(width / step);
    canvas.height = Math.ceil(height / step);
    const pooled = new Float32Array(canvas.width * canvas.height);
    const right = rightToLeft(rowOf(look, map.columns).text);
    for (let i = 0; i < height; i++) for (let j = 0; j < width; j++) {
      const column = Math.floor((right ? width - 1 - j : j) / step), k = Math.floor(i / step) * canvas.width + column;
      pooled[k] = Math.max(pooled[k], data[(head * height + i) * width + j]);
    }
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
    pooled.forEach((weight, k) => { const [r, g, b] = colors[shade(weight)]; image.data.set([r, g, b, 255], 4 * k); });
    context.putImageData(image, 0, 0);
  }
}

function markHeads() {
  for (const { button, map, head, aligned } of thumbs) {
    button.setAttribute("aria-pressed", aligned ? state.aligned : !state.aligned && state.map === map && state.head === head);
  }
}

function choose({ map = state.map, head = null, aligned = false }) {
  Object.assign(state, { map, head, aligned });
  draw();
}

// ---- keys and controls

function moveRow(step) {
  if (!table) return;
  const backward = table.rowsRight ? -step : step, last = table.rows.length - 1;
  select(state.row === null ? (backward > 0 ? 0 : last) : Math.max(0, Math.min(last, state.row + backward)), true);
}

function moveLayer(step) {
  const same = maps.filter((map) => map.kind === state.map.kind), index = same.indexOf(state.map) + step;
  const all = maps.indexOf(state.map) + step;
  const map = same[index] ?? maps[all];
  if (map) choose({ map, head: state.head === null ? null : Math.min(state.head, map.shape[0] - 1) });
}

function moveHead(step) {
  const heads = state.map.shape[0], head = state.head === null ? (step > 0 ? 0 : heads - 1) : (state.head + step + heads) % heads;
  choose({ head });
}

function toggleTheme() {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark" || (document.documentElement.style.colorScheme === "" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.style.colorScheme = dark ? "light" : "dark";
  repaint();
}

function toggleKeys(open = $("keys").hidden) {
  $("keys").hidden = !open;
  $("help").setAttribute("aria-expanded", open);
}

const actions = {
  ArrowLeft: (event) => (event.shiftKey ? maps.length && moveHead(-1) : moveRow(-1)),
  ArrowRight: (event) => (event.shiftKey ? maps.length && moveHead(1) : moveRow(1)),
  ArrowUp: () => maps.length && moveLayer(-1),
  ArrowDown: () => maps.length && moveLayer(1),
  m: () => maps.length && choose({ head: null }),
  a: () => isAligned(look) && choose({ aligned: true }),
  w: () => { state.words = !state.words; state.row = null; state.locked = false; if (state.aligned && !state.words) state.aligned = false; draw(); },
  q: () => { state.root = !state.root; repaint(); },
  n: () => { state.values = !state.values; draw(); },
  t: toggleTheme,
  "?": () => toggleKeys(),
  Escape: () => { toggleKeys(false); state.locked = false; if (table) preview(null); },
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const action = actions[event.key] ?? actions[event.key.toLowerCase()];
  if (!action) return;
  event.preventDefault();
  action(event);
});
$("unit").addEventListener("click", actions.w);
$("scale").addEventListener("click", actions.q);
$("values").addEventListener("click", actions.n);
$("theme").addEventListener("click", toggleTheme);
$("help").addEventListener("click", () => toggleKeys());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
new ResizeObserver(() => { if (table) { measure(); drawRest(); lightRow(); drawHeat(); } }).observe(document.querySelector(".stage"));

function repaint() {
  readColors();
  drawThumbs();
  draw();
}

// ---- start

$("title").textContent = `${look.model} · ${look.task}`;
if (look.interventions.length) {
  $("changes").hidden = false;
  $("changes").textContent = `with ${look.interventions.join("; ")}`;
}
const crosses = maps.filter((map) => map.kind === "cross");
state.map = crosses.at(-1) ?? maps.at(-1) ?? null;
if (look.opened) {
  state.map = maps.find((map) => map.name === look.opened.part);
  state.head = look.opened.head;
} else if (isAligned(look)) {
  state.aligned = true;
  state.map = maps.find((map) => map.name === look.alignment.head.part) ?? state.map;
  state.head = look.alignment.head.head;
}
drawHeads();
repaint();
