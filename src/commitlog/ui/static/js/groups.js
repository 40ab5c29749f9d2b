// Consumer groups and their lag.

import { resetDialog } from "./actions.js";
import { get } from "./api.js";
import { empty, h, Keyed, replace, setText, table } from "./dom.js";
import { count, plural, short } from "./format.js";
import { pager, search } from "./pages.js";
import { Stats } from "./stats.js";
import { visible } from "./text.js";

const KIND = { Stable: "good", Rebalancing: "warn", Empty: "" };
const chip = (state) => h("span", { class: `chip ${KIND[state] ?? ""}` }, state);

function groupRow(group) {
  const cells = {
    state: h("td"),
    members: h("td", { class: "number" }),
    topics: h("td", { class: "small-hidden" }),
    partitions: h("td", { class: "number small-hidden" }),
  };
  const lag = h("span");
  const share = h("i");
  const link = h("a", { href: `#/g/${encodeURIComponent(group.group_id)}` }, visible(group.group_id));
  return {
    element: h(
      "tr",
      {},
      h("td", { class: "name" }, link),
      cells.state,
      cells.members,
      cells.topics,
      cells.partitions,
      h("td", { class: "number" }, lag, h("span", { class: "share lag" }, share)),
    ),
    update(now) {
      replace(cells.state, chip(now.state));
      setText(cells.members, count(now.members));
      setText(
        cells.topics,
        now.topics.slice(0, 4).join(", ") +
          (now.topics.length > 4 ? ` and ${now.topics.length - 4} more` : ""),
      );
      setText(cells.partitions, count(now.partitions));
      setText(lag, count(now.lag));
      share.style.width = `${(100 * now.lag) / (now.worst || 1)}%`;
    },
  };
}

export function groupsView({ query, go }) {
  const { element: listing, body } = table([
    ["Group"],
    ["State"],
    ["Members", "number"],
    ["Topics", "small-hidden"],
    ["Partitions", "number small-hidden"],
    ["Lag", "number"],
  ]);
  const rows = new Keyed(body, (group) => group.group_id, groupRow);
  const title = h("h1", {}, "Consumer groups");
  const none = h("div");
  const pages = pager((from) => go({ ...query, from }));
  const find = search("Find a group", query.search, (text) => go({ search: text, from: null }));
  return {
    title: "Groups",
    every: 3000,
    element: [
      h("div", { class: "head" }, title, find),
      h("section", { class: "panel" }, listing, none, pages.element),
    ],
    async refresh(signal) {
      const found = await get(["groups"], { search: query.search, from: query.from }, signal);
      const worst = Math.max(...found.groups.map((one) => one.lag), 1);
      setText(title, plural(found.total, "consumer group"));
      rows.update(found.groups.map((one) => ({ ...one, worst })));
      listing.hidden = !found.groups.length;
      if (found.groups.length) none.replaceChildren();
      else if (!none.firstChild)
        none.append(
          query.search
            ? empty("Nothing found", "No group has this in its name.")
            : empty(
                "No consumer groups",
                "A group appears here when a consumer joins it or commits an offset.",
              ),
        );
      pages.update(found.from, found.groups.length, found.total);
    },
  };
}

function progressRow(one) {
  const cells = {
    committed: h("td", { class: "number" }),
    end: h("td", { class: "number small-hidden" }),
    member: h("td", { class: "mono small-hidden" }),
  };
  const lag = h("span");
  const share = h("i");
  const link = h(
    "a",
    { href: `#/t/${encodeURIComponent(one.topic)}/${one.partition}` },
    `${one.topic}-${one.partition}`,
  );
  return {
    element: h(
      "tr",
      {},
      h("td", { class: "name" }, link),
      cells.committed,
      cells.end,
      h("td", { class: "number" }, lag, h("span", { class: "share lag" }, share)),
      cells.member,
    ),
    update(now) {
      setText(cells.committed, now.committed === null ? "–" : count(now.committed));
      setText(cells.end, count(now.end_offset));
      setText(lag, now.lag === null ? "–" : count(now.lag));
      share.style.width = `${(100 * (now.lag ?? 0)) / (now.worst || 1)}%`;
      setText(cells.member, now.member_id ?? "–");
    },
  };
}

function memberRow() {
  const cells = [
    h("td", { class: "name mono" }),
    h("td"),
    h("td", { class: "mono small-hidden" }),
    h("td", { class: "number" }),
  ];
  return {
    element: h("tr", {}, cells),
    update(now) {
      [now.member_id, now.client_id || "–", now.process, count(now.partitions.length)].forEach(
        (text, index) => setText(cells[index], text),
      );
    },
  };
}

export function groupView({ parts: [name], query, go, about, refresh }) {
  const stats = new Stats(["State", "Lag", "Members", "Partitions", "Generation", "Strategy"]);
  const { element: listing, body } = table([
    ["Partition"],
    ["Committed", "number"],
    ["End", "number small-hidden"],
    ["Lag", "number"],
    ["Read by", "small-hidden"],
  ]);
  const rows = new Keyed(body, (one) => `${one.topic}-${one.partition}`, progressRow);
  const { element: people, body: peopleBody } = table([
    ["Member"],
    ["Client"],
    ["Process", "small-hidden"],
    ["Partitions", "number"],
  ]);
  const members = new Keyed(peopleBody, (one) => one.member_id, memberRow);
  const nobody = h("div", { class: "pad muted" }, "The group has no members at the moment.");
  const pages = pager((from) => go({ from }), 100);
  const reset = about.writable
    ? h("button", { onclick: () => resetDialog(name, refresh) }, "Reset offsets")
    : null;
  const head = h(
    "div",
    { class: "head" },
    h(
      "div",
      {},
      h("div", { class: "crumbs" }, h("a", { href: "#/groups" }, "Groups"), "/"),
      h("h1", {}, visible(name)),
    ),
    h("div", { class: "buttons" }, reset),
  );
  return {
    title: name,
    element: [
      head,
      h("section", { class: "panel" }, stats.element),
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Partitions")), listing, pages.element),
      h("section", { class: "panel" }, h("header", {}, h("h2", {}, "Members")), people, nobody),
    ],
    async refresh(signal) {
      const found = await get(["group"], { group_id: name, from: query.from }, signal);
      stats.update({
        State: found.state,
        Lag: short(found.lag),
        Members: count(found.members),
        Partitions: count(found.partitions),
        Generation: count(found.generation),
        Strategy: found.strategy ?? "–",
      });
      rows.update(found.listed.map((one) => ({ ...one, worst: found.worst_lag })));
      members.update(found.listed_members);
      people.hidden = !found.members;
      nobody.hidden = found.members > 0;
      pages.update(found.from, found.listed.length, found.partitions);
    },
  };
}
