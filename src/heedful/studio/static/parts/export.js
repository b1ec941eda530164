// Save a card as a picture, or its values as JSON.
import { html } from "../core/html.js";
import { toast } from "../core/session.js";

function save(blob, name) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10000);
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };
const escaped = (text) => String(text).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "").replace(/[&<>"]/g, (character) => ENTITIES[character]);
const LEFT_OUT = ".exports, .button, .visually-hidden, script, [aria-label='Close']";

// An element as XML with its computed colors and sizes in style attributes, and its canvases as images. It is written as
// text, since the page's policy allows no element with a style attribute of its own.
function markup(node, space) {
  if (node.nodeType === Node.TEXT_NODE) return escaped(node.data);
  if (node.nodeType !== Node.ELEMENT_NODE || node.matches(LEFT_OUT)) return "";
  const computed = getComputedStyle(node), fixed = computed.display.endsWith("flex") && isOneLine(node) ? { "flex-wrap": "nowrap" } : {};
  const style = [...computed].filter((name) => KEPT.has(name)).map((name) => `${name}:${fixed[name] ?? computed.getPropertyValue(name)}`).join(";");
  if (computed.display === "none") return "";
  if (node instanceof HTMLCanvasElement) return `<img src="${node.toDataURL()}" style="${escaped(style)};image-rendering:pixelated" />`;
  if (node.matches("input, textarea, select")) return `<span style="${escaped(style)}">${node.type === "range" || node.type === "checkbox" ? "" : escaped(node.value)}</span>`;
  const isDrawing = node.namespaceURI !== HTML, names = [...node.attributes].filter(({ name }) => (isDrawing ? name !== "class" && name !== "style" : ["dir", "colspan"].includes(name)));
  const attributes = names.map(({ name, value }) => ` ${name}="${escaped(value)}"`).join(""), opening = node.namespaceURI === space ? "" : ` xmlns="${node.namespaceURI}"`;
  return `<${node.localName}${opening}${attributes} style="${escaped(style)}">${[...node.childNodes].map((child) => markup(child, node.namespaceURI)).join("")}</${node.localName}>`;
}

// Whether a row of boxes has one line, which rounding must not break in the picture.
const isOneLine = (row) => row.clientHeight < 1.5 * Math.max(...[...row.children].map((child) => child.offsetHeight ?? 0));

const HTML = "http://www.w3.org/1999/xhtml";

// A card as a drawing: { source, width, height }. Content that scrolls in the page has its full width in the picture.
function drawingOf(element) {
  const hidden = Math.max(0, ...[...element.querySelectorAll(".scroll")].map((place) => place.scrollWidth - place.clientWidth));
  element.classList.add("drawn");
  element.style.width = `${element.getBoundingClientRect().width + hidden}px`;
  try {
    const [width, height] = [element.getBoundingClientRect().width, element.getBoundingClientRect().height].map(Math.ceil);
    return { width, height, source: `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}"><foreignObject width="100%" height="100%">${markup(element, "")}</foreignObject></svg>` };
  } finally {
    element.classList.remove("drawn");
    element.style.width = "";
  }
}

const KEPT = new Set(["color", "background-color", "font-family", "font-size", "font-weight", "line-height", "display", "grid-template-columns", "grid-template-rows", "gap", "row-gap", "column-gap",
  "padding-top", "padding-right", "padding-bottom", "padding-left", "margin-top", "margin-bottom", "width", "height", "min-height", "border-top-width", "border-right-width", "border-bottom-width",
  "border-left-width", "border-top-style", "border-right-style", "border-bottom-style", "border-left-style", "border-top-color", "border-right-color", "border-bottom-color", "border-left-color",
  "border-top-left-radius", "border-top-right-radius", "border-bottom-left-radius", "border-bottom-right-radius", "position", "left", "top", "right", "bottom", "align-items", "justify-content", "flex-wrap",
  "flex-direction", "text-align", "white-space", "transform", "transform-origin", "fill", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "paint-order", "background-image", "border-collapse", "border-spacing", "opacity", "box-sizing", "overflow-x", "overflow-y", "text-decoration-line", "text-decoration-color", "text-decoration-style", "margin-left", "margin-right"]);

async function pngOf(element) {
  const { source, width, height } = drawingOf(element), ratio = 2;
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.fillStyle = getComputedStyle(element).backgroundColor;
  pen.fillRect(0, 0, width, height);
  pen.drawImage(picture, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

// Buttons that save the card they stand in, and `values` as JSON.
export function Exports({ name, values }) {
  const card = (event) => event.target.closest(".card");
  const guard = (action) => async (event) => {
    try {
      await action(card(event));
    } catch (error) {
      toast(`This could not be saved: ${error.message}`);
    }
  };
  return html`<span class="exports" role="group" aria-label=${`Save ${name}`}>
    <button class="icon-button" onClick=${guard(async (element) => save(await pngOf(element), `${name}.png`))}>PNG</button>
    <button class="icon-button" onClick=${guard((element) => save(new Blob([drawingOf(element).source], { type: "image/svg+xml" }), `${name}.svg`))}>SVG</button>
    <button class="icon-button" disabled=${!values} onClick=${guard(() => save(new Blob([JSON.stringify(values, null, 1)], { type: "application/json" }), `${name}.json`))}>JSON</button>
  </span>`;
}
