// One topic: its partitions, with segments on a common scale.

import { appendDialog } from "./actions.js";
import { get } from "./api.js";
import { h, Keyed, replace, setText, table } from "./dom.js";
import { byteRate, bytes, count, rate, short, upTo } from "./format.js";
import { pager, search } from "./pages.js";
import { RateView } from "./sparkline.js";
import { Stats } from "./stats.js";
import { hideTip, legend, marksOf, statesOf, Strip } from "./strip.js";

function row(topic, partition) {
  const address = `#/t/${encodeURIComponent(topic)}/${partition.partition}`;
  const cells = {
    start: h("td", { class: "number small-hidden" }),
    next: h("td", { class: "number" }),
    size: h("td", { class: "number" }),
  };
  const records = new RateView(rate);
  const choose = (bar) => {
    hideTip();
    location.hash = `${address}?at=${bar.base_offset}`;
  };
  const strip = new Strip({ choose });
  const link = h("a", { href: address }, `${topic}-${partition.partition}`);
  const element = h(
    "tr",
    {},
    h("td", { class: "name" }, link),
    cells.start,
    cells.next,
    cells.size,
    h("td", { class: "number small-hidden" }, records.element),
    h("td", { class: "wide" }, strip.element),
  );
  return {
    element,
    update(now) {
      setText(cells.start, count(now.start_offset));
      setText(cells.next, count(now.next_offset));
      setText(cells.size, bytes(now.bytes));
      records.update(now.rates.records);
      strip.update(now.bars, now.largest, { hasGaps: now.has_gaps, marks: marksOf(now) });
    },
  };
}

export function topicView({ parts: [name], query, go, about }) {
  const stats = new Stats(["Records", "Size", "Partitions", "Segments", "Records/s", "Bytes/s"]);
  const records = new RateView(rate);
  const written = new RateView(byteRate);
  const settings = h("div", { class: "settings" });
  const { element: listing, body } = table([
    ["Partition"],
    ["start_offset", "number small-hidden"],
    ["next_offset", "number"],
    ["Size", "number"],
    ["Records/s", "number small-hidden"],
    ["Segments, oldest first, on a common scale", "wide"],
  ]);
  const rows = new Keyed(
    body,
    (one) => one.partition,
    (one) => row(name, one),
  );
  const pages = pager((from) => go({ from }));
  const key = h("div", { class: "end" });
  const live = h("a", { class: "button", href: `#/live/${encodeURIComponent(name)}` }, "Live tail");
  const append = about.writable
    ? h("button", { onclick: () => appendDialog(name, null) }, "Append a record")
    : null;
  const find = search("Find a key", null, async (text) => {
    try {
      const { partition } = await get(["topics", name, "place"], { key: text });
      location.hash = `#/t/${encodeURIComponent(name)}/${partition}?${new URLSearchParams({ key: text })}`;
    } catch (problem) {
      head.after(h("div", { class: "notice bad", role: "alert" }, problem.message));
    }
  });
  const head = h(
    "div",
    { class: "head" },
    h("div", {}, h("div", { class: "crumbs" }, h("a", { href: "#/" }, "Topics"), "/"), h("h1", {}, name)),
    h("div", { class: "buttons" }, find, append, live),
  );
  const partitions = h(
    "section",
    { class: "panel" },
    h("header", {}, h("h2", {}, "Partitions"), key),
    listing,
    pages.element,
  );
  return {
    title: name,
    element: [
      head,
      h("section", { class: "panel" }, stats.element, h("div", { class: "pad" }, settings)),
      partitions,
    ],
    async refresh(signal) {
      const found = await get(["topics", name], { from: query.from }, signal);
      records.update(found.rates.records);
      written.update(found.rates.bytes);
      stats.update({
        Records: upTo(found) + short(found.records),
        Size: bytes(found.bytes),
        Partitions: count(found.partitions),
        Segments: count(found.segments),
        "Records/s": records.element,
        "Bytes/s": written.element,
      });
      const chosen = { cleanup_policy: found.cleanup_policy, ...found.config };
      replace(
        settings,
        Object.entries(chosen).map(([setting, value]) =>
          h("span", { class: "chip mono" }, `${setting} = ${value}`),
        ),
      );
      const largest = Math.max(...found.listed.map((one) => one.bytes), 1);
      rows.update(found.listed.map((one) => ({ ...one, largest })));
      replace(key, legend(statesOf(found.listed)));
      pages.update(found.from, found.listed.length, found.partitions);
    },
  };
}
