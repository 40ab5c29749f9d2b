// Segments drawn to scale: the width of a bar is its size, the colour its state.

import { h, replace, svg } from "./dom.js";
import { bytes, count, plural, range } from "./format.js";

const LEAST_PIXELS = 2;
const STATES = {
  sealed: "sealed",
  compacted: "compacted",
  dirty: "dirty: not compacted yet",
  active: "active",
};

export function legend(states) {
  const shown = Object.entries(STATES).filter(([state]) => states.has(state));
  if (states.has("unstable")) shown.push(["unstable", "not readable yet"]);
  return h(
    "div",
    { class: "legend", "aria-label": "Legend" },
    shown.map(([state, text]) => h("span", { class: state }, text)),
  );
}

export const statesOf = (partitions) =>
  new Set(
    partitions.flatMap((one) => [
      ...one.bars.map((bar) => bar.state),
      ...(one.last_stable_offset < one.next_offset ? ["unstable"] : []),
    ]),
  );

// The lines in a strip: where readers stop, if that is before the end, and where open transactions begin.
export const marksOf = (partition) =>
  partition.last_stable_offset < partition.next_offset
    ? [partition.last_stable_offset, ...(partition.open_transactions ?? []).map((one) => one.first_offset)]
    : [];

export function describe(bar) {
  const what = bar.segments === 1 ? `${bar.state} segment` : `${count(bar.segments)} ${bar.state} segments`;
  return `${what}, offsets ${range(bar.base_offset, bar.end_offset)}, ${bytes(bar.bytes)}`;
}

// --- the tip beside the pointer

const tip = document.getElementById("tip");

function showTip(event, bar, hasGaps) {
  const what =
    bar.segments === 1 ? `${bar.state} segment` : `${plural(bar.segments, "segment")}, ${bar.state}`;
  replace(
    tip,
    h("div", {}, h("b", {}, what)),
    h("div", {}, `offsets ${range(bar.base_offset, bar.end_offset)}`),
    h(
      "div",
      {},
      `${bytes(bar.bytes)}${bar.state === "compacted" ? "" : `, ${hasGaps ? "≤ " : ""}${plural(bar.end_offset - bar.base_offset, "record")}`}`,
    ),
  );
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(Math.max(event.clientX - box.width / 2, 8), innerWidth - box.width - 8);
  const above = event.clientY - box.height - 14;
  tip.style.left = `${left}px`;
  tip.style.top = `${above < 8 ? event.clientY + 18 : above}px`;
}

export function hideTip() {
  tip.hidden = true;
}

// --- a strip

export class Strip {
  // choose(bar): called on a click; fullBytes in update(): the bytes that the whole width stands for
  constructor({ height = 18, big = false, choose = null } = {}) {
    this.height = height;
    this.big = big;
    this.choose = choose;
    this.bars = [];
    this.signature = "";
    this.selected = null;
    this.element = svg("svg", { class: big ? "strip big" : "strip", height });
    if (big) {
      this.element.setAttribute("role", "listbox");
      this.element.setAttribute(
        "aria-label",
        "Segments, oldest first; arrow keys move, Enter shows the records",
      );
      this.element.setAttribute("tabindex", "0");
      this.element.addEventListener("keydown", (event) => this.onKey(event));
    } else {
      this.element.setAttribute("role", "img");
    }
    this.element.addEventListener("pointermove", (event) => this.onPointer(event));
    this.element.addEventListener("pointerleave", hideTip);
    this.element.addEventListener("click", (event) => this.onClick(event));
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  // marks: offsets to draw lines at; the first is where readers stop
  update(bars, fullBytes, { hasGaps = false, marks = [] } = {}) {
    this.bars = bars;
    this.fullBytes = fullBytes;
    this.hasGaps = hasGaps;
    this.marks = marks;
    if (!this.big)
      this.element.setAttribute(
        "aria-label",
        `${plural(bars.length, "bar")}; the last is an ${describe(bars[bars.length - 1])}`,
      );
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    const signature = JSON.stringify([width, this.fullBytes, this.bars, this.selected, this.marks]);
    if (!width || signature === this.signature) return;
    this.signature = signature;
    const gap = this.bars.length > width / 4 ? 0 : 1;
    const total = this.bars.reduce((sum, bar) => sum + bar.bytes, 0);
    const room = Math.max(width * (this.fullBytes ? total / this.fullBytes : 0), 0);
    const spare = Math.max(room - this.bars.length * (LEAST_PIXELS + gap), 0);
    let x = 0;
    const edges = [];
    const shapes = [svg("rect", { class: "track", x: 0, y: 0, width, height: this.height, rx: 4 })];
    this.bars.forEach((bar, index) => {
      const wide = LEAST_PIXELS + (total ? (spare * bar.bytes) / total : 0);
      shapes.push(this.shape(bar, index, x, wide));
      edges.push([bar, x, wide]);
      x += wide + gap;
    });
    replace(this.element, shapes, this.lines(edges));
  }

  // What readers cannot read yet is shaded; a line marks each offset.
  lines(edges) {
    if (!this.marks?.length) return [];
    const last = edges[edges.length - 1];
    const end = last[1] + last[2];
    const places = this.marks.map((offset) => {
      const [bar, x, wide] = edges.findLast(([one]) => one.base_offset <= offset) ?? edges[0];
      const part = (offset - bar.base_offset) / Math.max(bar.end_offset - bar.base_offset, 1);
      return Math.round(x + wide * Math.min(Math.max(part, 0), 1));
    });
    const height = this.height;
    return [
      svg("rect", { class: "unstable", x: places[0], y: 0, width: Math.max(end - places[0], 2), height }),
      svg("rect", { class: "stable", x: places[0] - 1, y: -4, width: 2, height: height + 8 }),
      places
        .slice(1)
        .map((x) => svg("rect", { class: "begins", x: x - 1, y: height / 2, width: 2, height: height / 2 })),
    ];
  }

  shape(bar, index, x, width) {
    const left = Math.round(x); // whole pixels, or neighbouring colours would blend
    const wide = Math.max(Math.round(x + width) - left, 1);
    const attributes = {
      class: `bar ${bar.state}`,
      x: left,
      y: 0,
      width: wide,
      height: this.height,
      rx: wide < 8 ? 0 : 3,
      "data-index": index,
    };
    if (this.big) {
      Object.assign(attributes, {
        id: `bar-${index}`,
        role: "option",
        "aria-label": describe(bar),
        "aria-selected": String(bar.base_offset === this.selected),
      });
    }
    return svg("rect", attributes);
  }

  barOf(event) {
    const index = event.target.getAttribute?.("data-index");
    return index === null || index === undefined ? null : this.bars[Number(index)];
  }

  onPointer(event) {
    const bar = this.barOf(event);
    if (bar) showTip(event, bar, this.hasGaps);
    else hideTip();
  }

  onClick(event) {
    const bar = this.barOf(event);
    if (bar && this.choose) this.choose(bar, "click");
  }

  onKey(event) {
    const at = this.bars.findIndex((bar) => bar.base_offset === this.selected);
    const moves = {
      ArrowLeft: Math.max(at - 1, 0),
      ArrowRight: Math.min(at + 1, this.bars.length - 1),
      Home: 0,
      End: this.bars.length - 1,
    };
    if (event.key in moves) {
      event.preventDefault();
      this.choose?.(this.bars[moves[event.key]], "key");
    } else if (event.key === "Enter" && at >= 0) {
      this.choose?.(this.bars[at], "enter");
    }
  }

  select(baseOffset) {
    this.selected = baseOffset;
    const index = this.bars.findIndex((bar) => bar.base_offset === baseOffset);
    if (index >= 0) this.element.setAttribute("aria-activedescendant", `bar-${index}`);
    this.draw();
  }
}
