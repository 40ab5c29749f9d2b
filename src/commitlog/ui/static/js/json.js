// JSON as a tree to fold, made from its text: every number and every field stays as it was written.

import { h } from "./dom.js";
import { visible } from "./text.js";

const TOKEN = /[ \t\r\n]*(?:("(?:[^"\\]|\\.)*")|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(true|false|null)|([{}[\],:]))/y;
const MOST_TOKENS = 20000;
const MOST_DEPTH = 100;
const OPEN_CHILDREN = 60;

class TooLarge extends Error {}

function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  for (let match = TOKEN.exec(text); match; match = TOKEN.exec(text)) {
    const [, string, number, literal, mark] = match;
    if (mark) found.push({ kind: mark, text: mark });
    else found.push({ kind: string ? "string" : number ? "number" : "literal", text: string ?? number ?? literal });
    if (found.length > MOST_TOKENS) throw new TooLarge();
  }
  return found;
}

// The tree of a text that the server found to be JSON; null where it is too large to fold.
export function jsonView(text) {
  try {
    const reader = { tokens: tokens(text), at: 0 };
    return h("div", { class: "content json" }, value(reader, null, 0, true));
  } catch (problem) {
    if (problem instanceof TooLarge) return null;
    throw problem;
  }
}

function value(reader, name, depth, last) {
  if (depth > MOST_DEPTH) throw new TooLarge();
  const token = reader.tokens[reader.at++];
  const comma = last ? null : mark(",");
  if (token.kind === "{") return nested(reader, name, depth, comma, "}");
  if (token.kind === "[") return nested(reader, name, depth, comma, "]");
  return h("div", {}, named(name), h("span", { class: token.kind }, visible(token.text)), comma);
}

function nested(reader, name, depth, comma, close) {
  const children = [];
  const open = reader.tokens[reader.at - 1].text;
  while (reader.tokens[reader.at].kind !== close) {
    let inner = null;
    if (close === "}") {
      inner = reader.tokens[reader.at].text;
      reader.at += 2; // the name and its colon
    }
    const place = reader.at;
    const child = value(reader, inner, depth + 1, true);
    const more = reader.tokens[reader.at].kind === ",";
    if (more) reader.at += 1;
    children.push(more ? withComma(child, place) : child);
  }
  reader.at += 1;
  if (!children.length) return h("div", {}, named(name), mark(open + close), comma);
  const counted = `${children.length} ${close === "}" ? "field" : "item"}${children.length === 1 ? "" : "s"}`;
  const summary = h("summary", {}, named(name), mark(open), h("span", { class: "count" }, ` ${counted} `, mark(close)));
  const shown = depth < 2 && children.length <= OPEN_CHILDREN;
  return h("details", { open: shown }, summary, h("div", { class: "inside" }, children), h("div", {}, mark(close), comma));
}

function withComma(child) {
  const end = child.tagName === "DETAILS" ? child.lastElementChild : child;
  end.append(mark(","));
  return child;
}

const mark = (text) => h("span", { class: "mark" }, text);
const named = (name) => (name === null ? null : [h("span", { class: "name" }, visible(name)), mark(": ")]);
