// Transactions: which are open, for how long, and where.

import { abortDialog } from "./actions.js";
import { get } from "./api.js";
import { empty, h, Keyed, replace, setText, table } from "./dom.js";
import { age, count, plural } from "./format.js";
import { pager, search } from "./pages.js";
import { visible } from "./text.js";

const KIND = { Ongoing: "warn", PrepareCommit: "warn", CompleteCommit: "good" };

function place({ topic, partition }) {
  const name = `${topic}-${partition}`;
  if (topic.startsWith("__")) return h("span", { class: "muted" }, name);
  return h("a", { href: `#/t/${encodeURIComponent(topic)}/${partition}` }, name);
}

function row(one, writable, refresh) {
  const cells = {
    state: h("td"),
    age: h("td", { class: "number" }),
    timeout: h("td", { class: "number small-hidden" }),
    places: h("td"),
    process: h("td", { class: "mono small-hidden" }),
  };
  let now = one;
  const abort = h("button", { class: "danger", onclick: () => abortDialog(now, refresh) }, "Abort");
  return {
    element: h(
      "tr",
      {},
      h("td", { class: "name" }, visible(one.transactional_id)),
      cells.state,
      cells.age,
      cells.timeout,
      cells.places,
      cells.process,
      writable ? h("td", {}, abort) : null,
    ),
    update(found) {
      now = found;
      replace(cells.state, h("span", { class: `chip ${KIND[found.state] ?? ""}` }, found.state));
      setText(cells.age, found.age_ms === null ? "–" : age(found.age_ms));
      setText(cells.timeout, age(found.timeout_ms));
      const more = found.partitions - found.listed.length;
      const links = found.listed.flatMap((name, index) => [index ? ", " : "", place(name)]);
      if (cells.places.dataset.shown !== JSON.stringify(found.listed)) {
        cells.places.dataset.shown = JSON.stringify(found.listed);
        replace(cells.places, links.length ? links : "–", more > 0 ? ` and ${count(more)} more` : "");
      }
      setText(cells.process, found.process || "–");
      abort.hidden = found.state !== "Ongoing";
    },
  };
}

export function transactionsView({ query, go, about, refresh }) {
  const columns = [
    ["Transactional id"],
    ["State"],
    ["Age", "number"],
    ["Timeout", "number small-hidden"],
    ["Partitions"],
    ["Process", "small-hidden"],
  ];
  const { element: listing, body } = table(about.writable ? [...columns, [""]] : columns);
  const rows = new Keyed(
    body,
    (one) => one.transactional_id,
    (one) => row(one, about.writable, refresh),
  );
  const title = h("h1", {}, "Transactions");
  const none = h("div");
  const pages = pager((from) => go({ ...query, from }));
  const find = search("Find a transactional id", query.search, (text) => go({ search: text, from: null }));
  return {
    title: "Transactions",
    element: [
      h("div", { class: "head" }, title, find),
      h("section", { class: "panel" }, listing, none, pages.element),
    ],
    async refresh(signal) {
      const found = await get(["transactions"], { search: query.search, from: query.from }, signal);
      setText(title, plural(found.total, "transactional id"));
      rows.update(found.transactions);
      listing.hidden = !found.transactions.length;
      if (found.transactions.length) none.replaceChildren();
      else if (!none.firstChild)
        none.append(
          query.search
            ? empty("Nothing found", "No transactional id has this in it.")
            : empty(
                "No transactions",
                "A transactional id appears here when a producer takes it, others while they are open.",
              ),
        );
      pages.update(found.from, found.transactions.length, found.total);
    },
  };
}
