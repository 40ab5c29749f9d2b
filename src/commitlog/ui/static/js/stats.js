// The numbers at the top of a page.

import { h } from "./dom.js";

export class Stats {
  constructor(names) {
    this.cells = new Map(names.map((name) => [name, h("dd")]));
    const boxes = names.map((name) => h("div", {}, h("dt", {}, name), this.cells.get(name)));
    this.element = h("dl", { class: "stats" }, boxes);
  }

  update(values) {
    for (const [name, value] of Object.entries(values)) {
      const cell = this.cells.get(name);
      if (value instanceof Node) {
        if (cell.firstChild !== value) cell.replaceChildren(value);
      } else if (cell.textContent !== String(value)) {
        cell.textContent = String(value);
      }
    }
  }
}
