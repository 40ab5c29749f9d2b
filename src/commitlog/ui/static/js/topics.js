// All topics.

import { get } from "./api.js";
import { empty, h, Keyed, setText, table } from "./dom.js";
import { byteRate, bytes, count, plural, rate, short, upTo } from "./format.js";
import { pager, search } from "./pages.js";
import { RateView } from "./sparkline.js";

function row(topic) {
  const cells = {
    partitions: h("td", { class: "number" }),
    records: h("td", { class: "number" }),
    segments: h("td", { class: "number small-hidden" }),
  };
  const size = h("span");
  const share = h("i");
  const policy = h("span", { class: "chip" });
  const records = new RateView(rate);
  const written = new RateView(byteRate);
  const element = h(
    "tr",
    {},
    h("td", { class: "name" }, h("a", { href: `#/t/${encodeURIComponent(topic.name)}` }, topic.name)),
    cells.partitions,
    cells.records,
    h("td", { class: "number" }, size, h("span", { class: "share" }, share)),
    cells.segments,
    h("td", { class: "number" }, records.element),
    h("td", { class: "number small-hidden" }, written.element),
    h("td", { class: "small-hidden" }, policy),
  );
  return {
    element,
    update(now) {
      setText(cells.partitions, count(now.partitions));
      setText(cells.records, upTo(now) + short(now.records));
      cells.records.title = upTo(now) + count(now.records);
      setText(cells.segments, count(now.segments));
      setText(size, bytes(now.bytes));
      share.style.width = `${(100 * now.bytes) / (now.largest || 1)}%`;
      setText(policy, now.cleanup_policy);
      records.update(now.rates.records);
      written.update(now.rates.bytes);
    },
  };
}

export function topicsView({ query, go }) {
  const { element: listing, body } = table([
    ["Topic"],
    ["Partitions", "number"],
    ["Records", "number"],
    ["Size", "number"],
    ["Segments", "number small-hidden"],
    ["Records/s", "number"],
    ["Bytes/s", "number small-hidden"],
    ["Cleanup", "small-hidden"],
  ]);
  const rows = new Keyed(body, (topic) => topic.name, row);
  const title = h("h1", {}, "Topics");
  const none = h("div");
  const pages = pager((from) => go({ ...query, from }));
  const find = search("Find a topic", query.search, (text) => go({ search: text, from: null }));
  const panel = h("section", { class: "panel" }, listing, none, pages.element);
  return {
    title: "Topics",
    element: [h("div", { class: "head" }, title, find), panel],
    async refresh(signal) {
      const found = await get(["topics"], { search: query.search, from: query.from }, signal);
      const largest = Math.max(...found.topics.map((one) => one.bytes), 1);
      setText(title, query.search ? plural(found.total, "topic") + " found" : plural(found.total, "topic"));
      rows.update(found.topics.map((one) => ({ ...one, largest })));
      listing.hidden = !found.topics.length;
      if (found.topics.length) none.replaceChildren();
      else if (!none.firstChild)
        none.append(
          query.search
            ? empty("Nothing found", "No topic has this in its name.")
            : empty("No topics yet", "A topic appears here when an application creates it."),
        );
      pages.update(found.from, found.topics.length, found.total);
    },
  };
}
