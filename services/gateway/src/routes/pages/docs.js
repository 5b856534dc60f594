"use strict";
const make = (tag, text, kind) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
};
const nameOf = (schema) => {
  if (!schema) return "any";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.type === "array" || (Array.isArray(schema.type) && schema.type.includes("array"))) return "list of " + nameOf(schema.items);
  for (const word of ["oneOf", "anyOf", "allOf"]) {
    if (schema[word]) return schema[word].map(nameOf).filter((n) => n !== "null").join(" or ");
  }
  const kinds = [].concat(schema.type || "any").filter((kind) => kind !== "null");
  return kinds.join(" or ") || "any";
};
const table = (rows, heads) => {
  const grid = make("table");
  const head = grid.insertRow();
  heads.forEach((text) => head.append(make("th", text)));
  rows.forEach((row) => {
    const line = grid.insertRow();
    row.forEach((text, i) => {
      const cell = line.insertCell();
      cell.append(i === 0 ? make("code", text) : document.createTextNode(text));
    });
  });
  return grid;
};
const schemaTable = (name, schemas) => {
  const schema = schemas[name];
  if (!schema || !schema.properties) return null;
  const needed = schema.required || [];
  return table(Object.entries(schema.properties).map(([field, of]) =>
    [field, nameOf(of) + (needed.includes(field) ? ", required" : ""), of.description || ""]), ["field", "type", ""]);
};
const operation = (method, path, op, schemas) => {
  const box = make("details");
  const head = make("summary");
  head.append(make("span", method.toUpperCase(), "method"), make("code", path));
  head.append(make("span", "  " + ((op.summary || "").split("\n")[0]), "quiet"));
  box.append(head);
  if (op.description) box.append(make("p", op.description));
  if (op.parameters) box.append(table(op.parameters.map((p) =>
    [p.name, p.in + (p.required ? ", required" : ""), p.description || ""]), ["parameter", "in", ""]));
  const body = op.requestBody && op.requestBody.content && Object.values(op.requestBody.content)[0];
  if (body) {
    const name = nameOf(body.schema);
    box.append(make("h4", "Body: " + name));
    const fields = schemaTable(name, schemas);
    if (fields) box.append(fields);
  }
  box.append(make("h4", "Answers"));
  box.append(table(Object.entries(op.responses || {}).map(([status, of]) => {
    const content = of.content && Object.values(of.content)[0];
    return [status, content && content.schema ? nameOf(content.schema) : "", of.description || ""];
  }), ["status", "body", ""]));
  return box;
};
fetch("/openapi.json").then((answer) => answer.json()).then((api) => {
  const main = document.getElementById("main");
  main.replaceChildren(make("p", (api.info && api.info.description) || ""));
  const schemas = (api.components && api.components.schemas) || {};
  const groups = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, op] of Object.entries(methods)) {
      const tag = (op.tags && op.tags[0]) || "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operation(method, path, op, schemas));
    }
  }
  for (const [tag, boxes] of groups) main.append(make("h2", tag), ...boxes);
  main.append(make("h2", "schemas"));
  for (const name of Object.keys(schemas).sort()) {
    const fields = schemaTable(name, schemas);
    if (!fields) continue;
    const box = make("details");
    box.append(make("summary", name));
    if (schemas[name].description) box.append(make("p", schemas[name].description));
    box.append(fields);
    main.append(box);
  }
}).catch((fault) => { document.getElementById("main").textContent = "Cannot load the document: " + fault; });
