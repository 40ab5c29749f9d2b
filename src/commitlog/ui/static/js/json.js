// JSON as a tree that folds, built from its text: every number and field stays as it was written.

import { h } from "./dom.js";
import { visible } from "./text.js";

const TOKEN =
  /[ \t\r\n]*(?:("(?:[^"\\]|\\.)*")|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(true|false|null)|([{}[\],:]))/y;
const MOST_TOKENS = 20000;
const MOST_DEPTH = 100;
const ALL_OPEN = 400; // tokens in a tree that is shown unfolded
const OPEN_CHILDREN = 60;

class TooLarge extends Error {}

function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  for (let match = TOKEN.exec(text); match; match = TOKEN.exec(text)) {
    const [, string, number, literal, mark] = match;
    if (mark) found.push({ kind: mark, text: mark });
    else
      found.push({
        kind: string ? "string" : number ? "number" : "literal",
        text: string ?? number ?? literal,
      });
    if (found.length > MOST_TOKENS) throw new TooLarge();
  }
  return found;
}

// The tree of a text that the server recognized as JSON; null if it is too large.
export function jsonView(text) {
  try {
    const reader = { tokens: tokens(text), at: 0 };
    return h("div", { class: "content json" }, value(reader, null, 0));
  } catch (problem) {
    if (problem instanceof TooLarge) return null;
    throw problem;
  }
}

function value(reader, name, depth) {
  if (depth > MOST_DEPTH) throw new TooLarge();
  const token = reader.tokens[reader.at++];
  if (token.kind === "{") return nested(reader, name, depth, "}");
  if (token.kind === "[") return nested(reader, name, depth, "]");
  return h("div", {}, named(name), h("span", { class: token.kind }, visible(token.text)));
}

function nested(reader, name, depth, close) {
  const children = [];
  const open = reader.tokens[reader.at - 1].text;
  while (reader.tokens[reader.at].kind !== close) {
    let inner = null;
    if (close === "}") {
      inner = reader.tokens[reader.at].text;
      reader.at += 2; // the name and its colon
    }
    const child = value(reader, inner, depth + 1);
    if (reader.tokens[reader.at].kind === ",") {
      reader.at += 1;
      addComma(child);
    }
    children.push(child);
  }
  reader.at += 1;
  if (!children.length) return h("div", {}, named(name), mark(open + close));
  const counted = `${children.length} ${close === "}" ? "field" : "item"}${children.length === 1 ? "" : "s"}`;
  const summary = h(
    "summary",
    {},
    named(name),
    mark(open),
    h("span", { class: "count" }, ` ${counted} `, mark(close)),
  );
  const shown = reader.tokens.length <= ALL_OPEN || (depth < 2 && children.length <= OPEN_CHILDREN);
  return h(
    "details",
    { open: shown },
    summary,
    h("div", { class: "inside" }, children),
    h("div", {}, mark(close)),
  );
}

function addComma(child) {
  (child.tagName === "DETAILS" ? child.lastElementChild : child).append(mark(","));
}

const mark = (text) => h("span", { class: "mark" }, text);
const named = (name) => (name === null ? null : [h("span", { class: "name" }, visible(name)), mark(": ")]);
