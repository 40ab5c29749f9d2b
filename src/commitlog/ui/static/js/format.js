// Numbers, sizes and times as people read them.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export const count = (number) => WHOLE.format(number);
export const short = (number) => (Math.abs(number) < 10000 ? WHOLE.format(number) : SHORT.format(number));
export const plural = (number, one, many) => `${count(number)} ${number === 1 ? one : (many ?? one + "s")}`;

export function bytes(size) {
  let unit = 0;
  while (size >= 1024 && unit < UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${UNITS[unit]}`;
}

export const rate = (perSecond) =>
  `${perSecond < 10 && perSecond > 0 ? perSecond.toFixed(1) : short(Math.round(perSecond))}/s`;
export const byteRate = (perSecond) => `${bytes(perSecond)}/s`;
export const percent = (part) => `${Math.round(part * 100)} %`;

const two = (number) => String(number).padStart(2, "0");

// Local time, to the millisecond; a timestamp that is not a date stays a number.
export function time(timestamp) {
  const date = new Date(timestamp);
  if (Number.isNaN(date.getTime()) || date.getFullYear() > 9999) return String(timestamp);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  const seconds = `${two(date.getSeconds())}.${String(date.getMilliseconds()).padStart(3, "0")}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${seconds}`;
}

export function utc(timestamp) {
  const date = new Date(timestamp);
  return Number.isNaN(date.getTime()) ? `${timestamp} ms` : `${date.toISOString()} (${timestamp} ms)`;
}

// Where compaction or transactions leave offsets without a record, offsets are counted: counting records would
// take too long.
export const upTo = (topic) => (topic.has_gaps ? "≤ " : "");

// A duration in milliseconds, in its two largest units.
export function age(milliseconds) {
  if (milliseconds < 10000) return `${(milliseconds / 1000).toFixed(1)} s`;
  const seconds = Math.floor(milliseconds / 1000);
  const both = (whole, large, rest, small) => `${whole} ${large}${rest ? ` ${rest} ${small}` : ""}`;
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return both(Math.floor(seconds / 60), "min", seconds % 60, "s");
  return both(Math.floor(seconds / 3600), "h", Math.floor((seconds % 3600) / 60), "min");
}

export const range = (start, end) => `[${count(start)}, ${count(end)})`;
