// Renders openapi.json: every route with its fields, and a form to try it. All text is set as text, never as HTML.

const element = (tag, text = "", className = "") => {
  const created = document.createElement(tag);
  created.textContent = text;
  if (className) created.className = className;
  return created;
};

const resolve = (schema, api) => {
  const name = schema?.$ref?.split("/").pop();
  return name ? api.components.schemas[name] : schema ?? {};
};

const typeName = (schema, api) => {
  if (schema.$ref) return schema.$ref.split("/").pop();
  const options = schema.anyOf ?? schema.oneOf;
  if (options) return options.map((each) => typeName(each, api)).join(" or ");
  if (schema.enum) return schema.enum.map((each) => JSON.stringify(each)).join(" or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.type === "array") return `list of ${schema.items ? typeName(schema.items, api) : "values"}`;
  return schema.type ?? "any value";
};

const limits = (schema) => {
  const words = { minimum: "≥", maximum: "≤", exclusiveMinimum: ">", maxLength: "length ≤", maxItems: "items ≤" };
  return Object.entries(words).filter(([key]) => schema[key] !== undefined).map(([key, sign]) => `${sign} ${schema[key]}`);
};

const fields = (schema, api) => {
  const table = element("table");
  for (const [name, field] of Object.entries(schema.properties ?? {})) {
    const row = table.insertRow();
    const cell = row.insertCell();
    cell.append(element("code", name));
    if (schema.required?.includes(name)) cell.append(" *");
    row.insertCell().textContent = typeName(field, api);
    const fallback = field.default === undefined || field.default === null ? [] : [`default ${JSON.stringify(field.default)}`];
    const options = field.anyOf ?? [];
    row.insertCell().textContent = [
      field.description, ...fallback, ...limits(field), ...options.flatMap(limits),
    ].filter(Boolean).map((each) => each.replace(/\.$/, "")).join("; ");
  }
  return table;
};

const references = (schema) => [...JSON.stringify(schema).matchAll(/"#\/components\/schemas\/(\w+)"/g)].map((each) => each[1]);

// The fields of a schema and, below them, of the schemas that it refers to.
const described = (schema, api) => {
  const names = new Set(references(schema));
  for (const name of names) references(api.components.schemas[name]).forEach((each) => names.add(each));
  const parts = [fields(schema, api)];
  for (const name of names) {
    const part = api.components.schemas[name];
    if (part.properties) parts.push(element("h4", name), fields(part, api));
  }
  return parts;
};

const example = (schema) => {
  const texts = { text: "A dog runs.", prompt: "Once upon a time", q: "A dog runs.", input: "A dog runs.", source: "en",
    target: "de", question: "Who runs?", passage: "A dog runs.", model: "" };
  const names = [...new Set([...(schema.required ?? []), ...Object.keys(schema.properties ?? {}).filter((name) =>
    ["text", "prompt"].includes(name))])];
  return JSON.stringify(Object.fromEntries(names.map((name) => [name, texts[name] ?? ""])), null, 2);
};

const send = async (method, path, body, output) => {
  output.textContent = "…";
  const headers = body === null ? {} : { "content-type": "application/json" };
  const token = document.getElementById("token").value;
  if (token) headers.authorization = `Bearer ${token}`;
  try {
    const answer = await fetch(`..${path}`, { method, headers, body });
    const text = await answer.text();
    let shown = text;
    try {
      shown = JSON.stringify(JSON.parse(text), null, 2);
    } catch { /* not JSON: shown as it is */ }
    output.textContent = `${answer.status} ${answer.statusText}\n\n${shown.slice(0, 20000)}`;
  } catch (error) {
    output.textContent = `No answer: ${error.message}`;
  }
};

const route = (path, method, operation, api) => {
  const box = element("details");
  const head = element("summary");
  head.append(element("span", method.toUpperCase(), "method"), element("code", path),
    element("span", (operation.description ?? "").split("\n")[0], "what"));
  const rest = (operation.description ?? "").split("\n").slice(1).join(" ").trim();
  box.append(head, ...(rest ? [element("p", rest)] : []));
  const content = operation.requestBody?.content ?? {};
  const json = content["application/json"];
  const schema = json ? resolve(json.schema, api) : null;
  if (schema) box.append(element("h3", "Request"), ...described(schema, api));
  const answer = resolve(operation.responses?.["200"]?.content?.["application/json"]?.schema, api);
  if (answer.properties) box.append(element("h3", "Answer"), ...described(answer, api));
  if (schema || method === "get") {
    const address = element("input");
    address.value = path;
    address.setAttribute("aria-label", "Path");
    const body = element("textarea", schema ? example(schema) : "");
    body.setAttribute("aria-label", "Request body");
    const button = element("button", "Send");
    const output = element("pre");
    output.setAttribute("aria-live", "polite");
    button.addEventListener("click", () => send(method.toUpperCase(), address.value, schema ? body.value : null, output));
    if (path.includes("{")) box.append(address);
    if (schema) box.append(body);
    box.append(button, output);
  }
  return box;
};

const render = (api) => {
  const routes = document.getElementById("routes");
  routes.replaceChildren();
  document.getElementById("about").textContent = `${api.info.title} ${api.info.version}. ${api.info.description}`;
  const groups = new Map();
  for (const [path, operations] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(operations)) {
      const group = operation.tags?.[0] ?? "other";
      groups.set(group, [...(groups.get(group) ?? []), route(path, method, operation, api)]);
    }
  }
  for (const [group, boxes] of groups) routes.append(element("h2", group), ...boxes);
};

try {
  render(await (await fetch("../openapi.json")).json());
} catch (error) {
  document.getElementById("loading").textContent = `openapi.json cannot be read: ${error.message}`;
}
