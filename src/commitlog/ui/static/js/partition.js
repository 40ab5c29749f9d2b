// One partition: its segments and its records.

import { appendDialog, compactDialog, rollDialog, trimDialog } from "./actions.js";
import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { age, byteRate, bytes, count, percent, plural, range, rate, time } from "./format.js";
import { Browser } from "./browser.js";
import { RateView } from "./sparkline.js";
import { Stats } from "./stats.js";
import { legend, marksOf, statesOf, Strip } from "./strip.js";
import { visible } from "./text.js";

// Facts about the selected bar: what the page knows, then what the server adds.
class Facts {
  constructor(topic, number, show) {
    this.where = ["topics", topic, "partitions", number, "details"];
    this.show = show;
    this.element = h(
      "dl",
      { class: "facts", "aria-live": "polite" },
      h("div", { class: "muted" }, "Select a segment to see what is in it."),
    );
  }

  // Whether the bar is the one shown, and has not grown or changed its state since.
  shows(bar) {
    return JSON.stringify(bar) === JSON.stringify(this.bar);
  }

  async update(bar) {
    const grown = bar.base_offset === this.bar?.base_offset;
    this.bar = bar;
    const known = [
      ["State", bar.segments === 1 ? bar.state : `${plural(bar.segments, "segment")}, ${bar.state}`],
      ["Offsets", range(bar.base_offset, bar.end_offset)],
      ["Size", bytes(bar.bytes)],
    ];
    if (!grown) this.draw(known);
    try {
      const more = await get(this.where, { base_offset: bar.base_offset, end_offset: bar.end_offset });
      if (this.bar !== bar) return;
      this.draw([...known, ...this.asked(bar, more)]);
    } catch (problem) {
      this.draw([...known, ["Problem", problem.message]]);
    }
  }

  asked(bar, more) {
    if (more.problem) return [["Problem", more.problem]];
    const files = more.files.join(" … ");
    const times =
      more.first_timestamp === null
        ? "no records"
        : `${time(more.first_timestamp)} to ${time(more.last_timestamp)}`;
    const counted =
      more.records === null
        ? `up to ${count(bar.end_offset - bar.base_offset)}`
        : `${count(more.records)} in ${plural(more.batches, "batch", "batches")}${more.markers ? `, ${plural(more.markers, "marker")}` : ""}`;
    const trimmed = more.trimmed ? [["Below start_offset", plural(more.trimmed, "offset")]] : [];
    return [
      ["Records", counted],
      ["Timestamps", times],
      ...trimmed,
      [more.files.length > 1 ? "Files" : "File", files],
    ];
  }

  draw(facts) {
    const pairs = facts.map(([name, value]) =>
      h("div", {}, h("dt", {}, name), h("dd", { class: name.startsWith("File") ? "mono" : "" }, value)),
    );
    const show = h("button", { onclick: () => this.show(this.bar) }, "Show its records");
    replace(this.element, pairs, h("div", { class: "end" }, show));
  }
}

// The notes below the segments.
function notes(now) {
  const said = [`offset ${count(now.bars[0].base_offset)}`];
  if (now.bars.length < now.segments) {
    said.push(`${count(now.segments)} segments drawn as ${count(now.bars.length)} bars`);
  }
  if (now.dirty_ratio !== null) {
    said.push(`dirty ratio ${percent(now.dirty_ratio)}, clean_offset ${count(now.clean_offset)}`);
  }
  if (now.high_watermark !== now.next_offset) said.push(`high_watermark ${count(now.high_watermark)}`);
  if (now.last_stable_offset < now.next_offset)
    said.push(`readers stop at last_stable_offset ${count(now.last_stable_offset)}`);
  return [...said, count(now.next_offset)].map((text) => h("span", {}, text));
}

// The transactions that are open here, the one that began first before the others.
function openOnes(now) {
  return now.open_transactions.map((one) => {
    const id = one.transactional_id;
    const link = id
      ? h("a", { href: `#/transactions?${new URLSearchParams({ search: id })}` }, visible(id))
      : "unknown";
    const old = one.age_ms === null ? "" : `, for ${age(one.age_ms)}`;
    return h("li", {}, "Open transaction ", link, ` from offset ${count(one.first_offset)}${old}`);
  });
}

export function partitionView({ parts: [topic, number], query, go, about, refresh }) {
  const stats = new Stats([
    "start_offset",
    "next_offset",
    "last_stable_offset",
    "durable_offset",
    "Size",
    "Segments",
    "Records/s",
    "Bytes/s",
  ]);
  const records = new RateView(rate);
  const written = new RateView(byteRate);
  const browser = new Browser(topic, number, query, go);
  const showRecords = (bar) => browser.show({ order: "oldest", from: bar.base_offset, isolation_level: query.isolation_level });
  const facts = new Facts(topic, number, showRecords);
  const choose = (bar, how) => {
    strip.select(bar.base_offset);
    facts.update(bar);
    if (how === "enter") showRecords(bar);
  };
  const strip = new Strip({ height: 54, big: true, choose });
  const axis = h("div", { class: "axis" });
  const opened = h("ul", { class: "opened", "aria-label": "Open transactions" });
  const key = h("div", { class: "end" });
  const crumbs = h(
    "div",
    { class: "crumbs" },
    h("a", { href: "#/" }, "Topics"),
    "/",
    h("a", { href: `#/t/${encodeURIComponent(topic)}` }, topic),
    "/",
  );
  const buttons = h("div", { class: "buttons" });
  const head = h("div", { class: "head" }, h("div", {}, crumbs, h("h1", {}, `${topic}-${number}`)), buttons);
  const segments = h(
    "section",
    { class: "panel" },
    h("header", {}, h("h2", {}, "Segments"), key),
    h("div", { class: "pad" }, strip.element, axis, opened, facts.element),
  );
  let first = true;
  let now = null;

  const actions = (compacts) => {
    const live = h(
      "a",
      { class: "button", href: `#/live/${encodeURIComponent(topic)}/${number}` },
      "Live tail",
    );
    if (!about.writable) return [live];
    return [
      h("button", { onclick: () => appendDialog(topic, Number(number), refresh) }, "Append"),
      h("button", { onclick: () => rollDialog(topic, number, refresh) }, "Roll"),
      h("button", { onclick: () => trimDialog(topic, number, now, refresh) }, "Trim"),
      compacts ? h("button", { onclick: () => compactDialog(topic, number, refresh) }, "Compact") : null,
      live,
    ];
  };

  return {
    title: `${topic}-${number}`,
    element: [head, h("section", { class: "panel" }, stats.element), segments, browser.element],
    async refresh(signal) {
      now = await get(["topics", topic, "partitions", number], browser.since, signal);
      records.update(now.rates.records);
      written.update(now.rates.bytes);
      stats.update({
        start_offset: count(now.start_offset),
        next_offset: count(now.next_offset),
        last_stable_offset: count(now.last_stable_offset),
        durable_offset: count(now.durable_offset),
        Size: bytes(now.bytes),
        Segments: count(now.segments),
        "Records/s": records.element,
        "Bytes/s": written.element,
      });
      strip.update(now.bars, now.bytes || 1, { hasGaps: now.has_gaps, marks: marksOf(now) });
      replace(key, legend(statesOf([now])));
      replace(axis, notes(now));
      replace(opened, openOnes(now));
      opened.hidden = !now.open_transactions.length;
      browser.seen(now.newer);
      if (first) {
        first = false;
        replace(buttons, actions(now.compacts));
        browser.load();
      }
      const chosen = now.bars.find((bar) => bar.base_offset === (strip.selected ?? Number(query.at)));
      if (chosen && !facts.shows(chosen)) choose(chosen);
    },
    stop: () => browser.stop(),
  };
}
