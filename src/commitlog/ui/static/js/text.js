// Text with invisible characters, and those that change the direction of text, shown as escapes.

import { h } from "./dom.js";

const HIDDEN =
  /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200c\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

export function visible(text) {
  const parts = [];
  let from = 0;
  for (const match of text.matchAll(HIDDEN)) {
    if (match.index > from) parts.push(text.slice(from, match.index));
    const number = match[0].codePointAt(0).toString(16).padStart(4, "0");
    parts.push(h("span", { class: "escape", title: "an invisible character" }, `\\u${number}`));
    from = match.index + match[0].length;
  }
  if (from < text.length) parts.push(text.slice(from));
  return parts;
}

// Lines of 16 bytes: position, hex and ASCII.
export function hexDump(hex) {
  const lines = [];
  for (let at = 0; at < hex.length; at += 32) {
    const bytes = hex.slice(at, at + 32).match(/../g);
    const ascii = bytes.map((byte) => {
      const code = parseInt(byte, 16);
      return code >= 32 && code < 127 ? String.fromCharCode(code) : "·";
    });
    const left = bytes.slice(0, 8).join(" ").padEnd(23);
    const right = bytes.slice(8).join(" ").padEnd(23);
    lines.push(`${(at / 2).toString(16).padStart(8, "0")}  ${left}  ${right}  ${ascii.join("")}`);
  }
  return lines.join("\n");
}
