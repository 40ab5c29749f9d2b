// The last two minutes of a rate as a small line; an unknown rate leaves a gap.

import { h, svg } from "./dom.js";

const LEAST_LOOKS = 20; // the width stands for at least this many looks
const WIDTH = 84;
const HEIGHT = 20;

// Runs of values that are known: [[index, value], ...]
function runs(values) {
  const found = [[]];
  values.forEach((value, index) => {
    if (value === null) found.push([]);
    else found[found.length - 1].push([index, value]);
  });
  return found.filter((run) => run.length);
}

function sparkline(values) {
  const most = Math.max(...values, 0);
  const step = WIDTH / (Math.max(values.length, LEAST_LOOKS) - 1);
  const x = (index) => (WIDTH - (values.length - 1 - index) * step).toFixed(1);
  const y = (value) => (HEIGHT - 1 - (value / most) * (HEIGHT - 3)).toFixed(1);
  const quiet = most === 0 || values.length < 2;
  const lines = quiet
    ? []
    : runs(values).map((run) => run.map(([index, value]) => `${x(index)},${y(value)}`).join("L"));
  const areas = quiet
    ? []
    : runs(values).map(
        (run, number) =>
          `M${x(run[0][0])},${HEIGHT}L${lines[number]}L${x(run[run.length - 1][0])},${HEIGHT}Z`,
      );
  const drawing = quiet
    ? [svg("path", { d: `M0,${HEIGHT - 1}H${WIDTH}` })]
    : [
        svg("path", { class: "under", d: areas.join("") }),
        svg("path", { d: lines.map((line) => `M${line}`).join("") }),
      ];
  const attributes = {
    class: quiet ? "spark quiet" : "spark",
    width: WIDTH,
    height: HEIGHT,
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  };
  return svg("svg", attributes, drawing);
}

// The latest rate, and its line.
export class RateView {
  constructor(format) {
    this.format = format;
    this.text = h("span", {}, "–");
    this.element = h("span", { class: "rate" }, this.text);
  }

  update(values) {
    const now = values.length ? values[values.length - 1] : null;
    this.text.textContent = now === null ? "–" : this.format(now);
    this.line?.remove();
    this.line = sparkline(values);
    this.element.append(this.line);
  }
}
