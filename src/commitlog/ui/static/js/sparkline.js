// The last minutes of a rate as a small line; where something was removed there is a gap.

import { svg } from "./dom.js";
import { h } from "./dom.js";

const LOOKS = 60;

export function sparkline(values, width = 84, height = 20) {
  const known = values.filter((value) => value !== null);
  const most = Math.max(...known, 0);
  const quiet = most === 0;
  const step = width / (LOOKS - 1);
  const x = (index) => width - (values.length - 1 - index) * step;
  const y = (value) => height - 1 - (quiet ? 0 : (value / most) * (height - 3));
  let line = "";
  let under = "";
  let start = null;
  values.forEach((value, index) => {
    const at = `${x(index).toFixed(1)},${value === null ? 0 : y(value).toFixed(1)}`;
    if (value !== null) line += `${start === null ? "M" : "L"}${at}`;
    if (value !== null && start === null) {
      start = index;
      under += `M${x(index).toFixed(1)},${height}`;
    }
    if (value !== null) under += `L${at}`;
    const ends = start !== null && (value === null || index === values.length - 1);
    if (ends) {
      under += `L${x(value === null ? index - 1 : index).toFixed(1)},${height}Z`;
      start = null;
    }
  });
  const drawing = quiet || known.length < 2 ? [svg("path", { d: `M0,${height - 1}H${width}` })] : [svg("path", { class: "under", d: under }), svg("path", { d: line })];
  return svg("svg", { class: quiet || known.length < 2 ? "spark quiet" : "spark", width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, drawing);
}

export const latest = (values) => (values.length ? values[values.length - 1] : null);

// A cell with the latest rate and its line.
export class RateView {
  constructor(format) {
    this.format = format;
    this.text = h("span", {}, "–");
    this.element = h("span", { class: "rate" }, this.text);
  }

  update(values) {
    const now = latest(values);
    this.text.textContent = now === null || now === undefined ? "–" : this.format(now);
    this.line?.remove();
    this.line = sparkline(values);
    this.element.append(this.line);
  }
}
