// Builds the page. Strings only ever become text nodes: nothing here can turn one into HTML.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  fill(element, ...children);
  return element;
}

// h("td", {class: "number"}, 12, " records")
export function h(tag, attributes, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  fill(element, ...children);
  return element;
}

export function setText(element, text) {
  if (element.textContent !== String(text)) element.textContent = String(text);
}

// Keeps one child per item, created once and then updated, so that focus and selection stay.
export class Keyed {
  constructor(parent, keyOf, make) {
    this.parent = parent;
    this.keyOf = keyOf;
    this.make = make;
    this.rows = new Map();
  }

  update(items) {
    const rows = new Map();
    let place = this.parent.firstChild;
    for (const item of items) {
      const key = this.keyOf(item);
      const row = this.rows.get(key) ?? this.make(item);
      row.update(item);
      rows.set(key, row);
      if (row.element === place) place = place.nextSibling;
      else this.parent.insertBefore(row.element, place);
    }
    for (const [key, row] of this.rows) if (!rows.has(key)) row.element.remove();
    this.rows = rows;
  }
}

export function table(columns) {
  const body = h("tbody");
  const head = columns.map(([title, kind]) => h("th", { scope: "col", class: kind ?? "" }, title));
  return {
    element: h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), body)),
    body,
  };
}

export function empty(title, text) {
  return h("div", { class: "empty" }, h("strong", {}, title), text);
}
