// The live tail of a topic or a partition, newest first.

import { address } from "./api.js";
import { empty, h, replace, setText } from "./dom.js";
import { count, plural } from "./format.js";
import { recordView } from "./record.js";

const MOST_SHOWN = 500;

// Merge partitions by time, keeping the order within each.
function inOrder(partitions) {
  const queues = partitions
    .map((one) => ({ partition: one.partition, records: [...one.records] }))
    .filter((one) => one.records.length);
  const merged = [];
  while (queues.length) {
    const first = queues.reduce((one, other) =>
      other.records[0].timestamp < one.records[0].timestamp ? other : one,
    );
    merged.push([first.partition, first.records.shift()]);
    if (!first.records.length) queues.splice(queues.indexOf(first), 1);
  }
  return merged;
}

export function tailView({ parts: [topic, number], query, go }) {
  const name = number === undefined ? topic : `${topic}-${number}`;
  const level = query.isolation_level;
  const levels = h(
    "select",
    {
      "aria-label": "Isolation",
      onchange: () => go({ isolation_level: levels.value === "read_committed" ? null : levels.value }),
    },
    h("option", { value: "read_committed" }, "Committed"),
    h("option", { value: "read_uncommitted", selected: level === "read_uncommitted" }, "Also uncommitted"),
  );
  const list = h("div", {
    class: "live",
    tabindex: "0",
    role: "log",
    "aria-label": "New records",
    "aria-live": "off",
  });
  const dot = h("span", { class: "dot" });
  const state = h("span", {}, "connecting");
  const total = h("span", { class: "end muted" });
  const pause = h("button", { onclick: () => setPaused(!paused) }, "Pause");
  const clear = h("button", { onclick: () => clearList() }, "Clear");
  let paused = false;
  let held = [];
  let seen = 0;

  function clearList() {
    replace(list, empty("Waiting", "Records appear here as they are appended."));
  }

  function setPaused(value) {
    paused = value;
    setText(pause, paused ? "Resume" : "Pause");
    if (!paused) held.splice(0).forEach(show);
    report();
  }

  function report() {
    const waiting = held.reduce((sum, one) => sum + one.records.length + one.skipped, 0);
    setText(
      total,
      `${plural(seen, "record")} since this page was opened${paused ? `, ${count(waiting)} held back` : ""}`,
    );
  }

  function show(news) {
    if (list.querySelector(".empty")) replace(list);
    if (news.skipped)
      list.prepend(h("div", { class: "gap" }, `${plural(news.skipped, "record")} arrived too fast to be shown`));
    for (const [partition, record] of news.records)
      list.prepend(recordView(topic, partition, record, { tailed: true, level }));
    while (list.childElementCount > MOST_SHOWN) list.lastElementChild.remove();
  }

  function arrived(partitions) {
    const news = {
      records: inOrder(partitions),
      skipped: partitions.reduce((sum, one) => sum + one.skipped, 0),
    };
    seen += news.records.length + news.skipped;
    if (!paused) return show(news);
    held.push(news);
    const count = held.reduce((sum, one) => sum + one.records.length, 0);
    if (count > MOST_SHOWN && held.length > 1) {
      const gone = held.shift();
      held[0].skipped += gone.skipped + gone.records.length;
    }
  }

  const source = new EventSource(address(["topics", topic, "tail"], { partition: number, isolation_level: level }));
  const connected = (on, text) => {
    dot.className = on ? "dot on" : "dot off";
    setText(state, text);
  };
  source.addEventListener("ready", (event) =>
    connected(true, `live, ${plural(JSON.parse(event.data).partitions, "partition")}`),
  );
  source.addEventListener("records", (event) => {
    arrived(JSON.parse(event.data).partitions);
    report();
  });
  source.addEventListener("problem", (event) => {
    source.close();
    connected(false, JSON.parse(event.data).error);
  });
  source.onerror = () =>
    connected(
      false,
      source.readyState === EventSource.CLOSED
        ? "the server refused the request"
        : "connection lost; reconnecting, then showing new records only",
    );

  clearList();
  report();
  const crumbs = [
    h("a", { href: "#/" }, "Topics"),
    "/",
    h("a", { href: `#/t/${encodeURIComponent(topic)}` }, topic),
    "/",
  ];
  if (number !== undefined)
    crumbs.push(h("a", { href: `#/t/${encodeURIComponent(topic)}/${number}` }, name), "/");
  const head = h(
    "div",
    { class: "head" },
    h("div", {}, h("div", { class: "crumbs" }, crumbs), h("h1", {}, `${name}, live`)),
    h("div", { class: "buttons" }, levels, pause, clear),
  );
  const panel = h(
    "section",
    { class: "panel" },
    h("header", {}, h("span", { role: "status" }, dot, state), total),
    list,
  );
  return { title: `${name}, live`, element: [head, panel], stop: () => source.close() };
}
