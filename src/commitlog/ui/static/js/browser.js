// Browse and search the records of a partition, by offset, time, key and content.

import { get } from "./api.js";
import { empty, h, replace } from "./dom.js";
import { count, plural, range } from "./format.js";
import { recordView } from "./record.js";

const MOST_SHOWN = 1000;

export class Browser {
  constructor(topic, number, query, go) {
    this.topic = topic;
    this.number = number;
    this.go = go;
    this.query = {
      order: query.order ?? "newest",
      from: query.from,
      time: query.time,
      key: query.key,
      key_format: query.key_format,
      contains: query.contains,
      isolation_level: query.isolation_level,
    };
    this.list = h("div", { class: "records" });
    this.progress = h("div", { class: "progress", role: "status" });
    this.more = h("button", { onclick: () => this.load() }, "More");
    this.newer = h("button", { class: "plain", hidden: true, onclick: () => this.again() });
    this.foot = h("div", { class: "pages", hidden: true }, this.more);
    this.form = this.makeForm();
    this.element = h(
      "section",
      { class: "panel", "aria-label": "Records" },
      h("header", {}, h("h2", {}, "Records"), h("span", { class: "end" }, this.newer)),
      this.form,
      this.progress,
      this.list,
      this.foot,
    );
    this.next = undefined;
    this.shown = 0;
  }

  makeForm() {
    const query = this.query;
    const option = (value, text, chosen) => h("option", { value, selected: value === chosen }, text);
    this.fields = {
      order: h(
        "select",
        { name: "order" },
        option("newest", "Newest first", query.order),
        option("oldest", "Oldest first", query.order),
      ),
      from: h("input", {
        name: "from",
        inputmode: "numeric",
        pattern: "[0-9]*",
        placeholder: "any",
        value: query.from ?? "",
      }),
      time: h("input", { name: "time", type: "datetime-local", step: "0.001", value: localTime(query.time) }),
      key: h("input", { name: "key", "aria-label": "Key", placeholder: "exact match", value: query.key ?? "" }),
      key_format: h(
        "select",
        { name: "key_format", "aria-label": "Key is given as" },
        option("text", "text", query.key_format),
        option("hex", "hex", query.key_format),
      ),
      isolation_level: h(
        "select",
        { name: "isolation_level" },
        option("read_committed", "Committed", query.isolation_level),
        option("read_uncommitted", "Also uncommitted", query.isolation_level),
      ),
      contains: h("input", { name: "part", placeholder: "any part of the value", value: query.contains ?? "" }),
    };
    const { order, from, time, key, key_format, contains, isolation_level } = this.fields;
    return h(
      "form",
      { class: "find", role: "search", onsubmit: (event) => this.submit(event) },
      h("label", {}, "Order", order),
      h("label", {}, "From offset", from),
      h("label", {}, "From time", time),
      h("label", {}, "Key", h("span", { class: "key" }, key, key_format)),
      h("label", {}, "Value contains", contains),
      h("label", { title: "Also records of open and aborted transactions" }, "Isolation", isolation_level),
      h(
        "div",
        { class: "buttons" },
        h("button", { class: "primary" }, "Show"),
        h("button", { type: "button", onclick: () => this.show({}) }, "Clear"),
      ),
    );
  }

  submit(event) {
    event.preventDefault();
    const { order, from, time, key, key_format, contains, isolation_level } = this.fields;
    const moment = time.value ? String(new Date(time.value).getTime()) : null;
    const format = key.value && key_format.value === "hex" ? "hex" : null;
    this.show({
      order: order.value,
      from: moment ? null : from.value,
      time: moment,
      key: key.value || null,
      key_format: format,
      contains: contains.value || null,
      isolation_level: isolation_level.value,
    });
  }

  show(query) {
    const { order, isolation_level: level } = query;
    this.go({
      ...query,
      order: order === "newest" ? null : order,
      isolation_level: level === "read_committed" ? null : level,
    });
  }

  again() {
    this.stop();
    replace(this.list);
    this.next = undefined;
    this.mark = undefined;
    this.shown = 0;
    this.load();
  }

  // Load a page; a search sends requests until it has a page of results, or is stopped.
  async load() {
    this.stop();
    const control = (this.control = new AbortController());
    const filtered = Boolean(this.query.key || this.query.contains);
    const stop = h("button", { onclick: () => this.stop() }, "Stop");
    let found = 0;
    let looked = 0;
    this.more.disabled = true;
    try {
      do {
        const page = await this.page(control.signal);
        found += page.records.length;
        looked += page.looked_at[1] - page.looked_at[0];
        this.add(page);
        if (filtered)
          replace(this.progress, `Searched ${plural(looked, "offset")}, found ${count(found)} …`, stop);
      } while (filtered && found < 50 && this.next !== null);
      this.report(filtered, looked, found);
    } catch (problem) {
      if (problem.name !== "AbortError")
        replace(this.progress, h("span", { class: "notice bad" }, problem.message));
      else replace(this.progress, `Stopped after ${plural(looked, "offset")}.`);
    }
    this.foot.hidden = this.next === null;
    this.more.disabled = false;
    replace(
      this.more,
      filtered ? "Continue searching" : this.query.order === "newest" ? "Older records" : "Later records",
    );
  }

  page(signal) {
    const start =
      this.next === undefined ? { from: this.query.from, time: this.query.time } : { from: this.next };
    return get(
      ["topics", this.topic, "partitions", this.number, "records"],
      { ...this.query, time: null, ...start },
      signal,
    );
  }

  add(page) {
    this.next = page.next;
    this.bounds = [page.start_offset, page.end_offset];
    this.mark ??= page.end_offset;
    const level = this.query.isolation_level;
    for (const record of page.records)
      this.list.append(recordView(this.topic, this.number, record, { level }));
    this.shown += page.records.length;
    while (this.shown > MOST_SHOWN) {
      this.list.firstChild.remove();
      this.shown -= 1;
    }
  }

  report(filtered, looked, found) {
    const all = range(...this.bounds);
    if (filtered)
      replace(
        this.progress,
        `Found ${count(found)} in ${plural(looked, "offset")}${this.next === null ? "; there are no more" : ""}.`,
      );
    else
      replace(
        this.progress,
        this.bounds[0] === this.bounds[1] ? "There are no records." : `Offsets ${all} can be read.`,
      );
    if (!this.shown)
      replace(
        this.list,
        this.bounds[0] === this.bounds[1]
          ? empty("No records", "The partition is empty. New records appear in the live tail.")
          : empty(
              "Nothing here",
              filtered ? "No record matches." : "There are no records in this direction.",
            ),
      );
  }

  // Offer to show the records that were appended since the list was made.
  seen(newer) {
    const plain = this.query.order === "newest" && !this.query.from && !this.query.time;
    this.newer.hidden = !plain || !newer;
    replace(this.newer, `${plural(newer, "newer record")}: show`);
  }

  // What to ask the server, so that it counts these records.
  get since() {
    return { since: this.mark, isolation_level: this.query.isolation_level };
  }

  stop() {
    this.control?.abort();
    this.control = null;
  }
}

function localTime(milliseconds) {
  if (!milliseconds) return "";
  const date = new Date(Number(milliseconds));
  if (Number.isNaN(date.getTime())) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60000).toISOString().slice(0, 23);
}
