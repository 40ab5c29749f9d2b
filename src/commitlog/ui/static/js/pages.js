// Lists longer than a page: next, back, and search by name.

import { h, setText } from "./dom.js";
import { count } from "./format.js";

export function pager(go, size = 50) {
  const text = h("span");
  let first = 0;
  const back = h("button", { onclick: () => go(Math.max(first - size, 0) || null) }, "Back");
  const on = h("button", { onclick: () => go(first + size) }, "Next");
  const element = h("div", { class: "pages", hidden: true }, text, back, on);
  return {
    element,
    update(from, listed, total) {
      first = from;
      element.hidden = from === 0 && listed >= total;
      setText(text, `${count(Math.min(from + 1, total))} to ${count(from + listed)} of ${count(total)}`);
      back.disabled = from === 0;
      on.disabled = from + listed >= total;
    },
  };
}

export function search(label, text, go) {
  const input = h("input", { type: "search", placeholder: label, "aria-label": label, value: text ?? "" });
  return h(
    "form",
    {
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        go(input.value || null);
      },
    },
    input,
  );
}
