// The page: shows the view that the address names, and refreshes it every two seconds.

import { get, NoConnectionError } from "./api.js";
import { h, replace, setText } from "./dom.js";
import { groupsView, groupView } from "./groups.js";
import { partitionView } from "./partition.js";
import { hideTip } from "./strip.js";
import { tailView } from "./tail.js";
import { topicsView } from "./topics.js";
import { topicView } from "./topic.js";
import { transactionsView } from "./transactions.js";

const EVERY = 2000;
const main = document.getElementById("main");
const pulse = document.getElementById("pulse");

// Patterns of addresses, such as #/t/orders/0?order=oldest, and the view for each.
const ROUTES = [
  [/^\/?$/, topicsView, "topics"],
  [/^\/t\/([^/]+)$/, topicView, "topics"],
  [/^\/t\/([^/]+)\/(\d+)$/, partitionView, "topics"],
  [/^\/live\/([^/]+)(?:\/(\d+))?$/, tailView, "topics"],
  [/^\/groups$/, groupsView, "groups"],
  [/^\/g\/([^/]*)$/, groupView, "groups"],
  [/^\/transactions$/, transactionsView, "transactions"],
];

let about = null;
let current = null;

function route() {
  const [path, text] = location.hash.slice(1).split("?");
  for (const [pattern, view, section] of ROUTES) {
    const parts = decoded(pattern.exec(path));
    if (parts)
      return { path, parts, view, section, query: Object.fromEntries(new URLSearchParams(text ?? "")) };
  }
  return { path: "/", parts: [], view: topicsView, section: "topics", query: {} };
}

function decoded(match) {
  try {
    return match?.slice(1).map((part) => (part === undefined ? undefined : decodeURIComponent(part)));
  } catch {
    return null; // a mistyped address
  }
}

function go(path, query) {
  const given = Object.entries(query).filter(
    ([, value]) => value !== null && value !== undefined && value !== "",
  );
  const hash = given.length ? `#${path}?${new URLSearchParams(given)}` : `#${path}`;
  if (location.hash === hash) show();
  else location.hash = hash;
}

function show() {
  stop();
  hideTip();
  const { path, parts, view, section, query } = route();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const place = { control: new AbortController(), timer: null, view: null };
  current = place;
  place.view = view({ parts, query, about, go: (changed) => go(path, changed), refresh: () => look(place) });
  document.title = `${place.view.title} · commitlog`;
  const sameView = main.dataset.path === path;
  main.dataset.path = path;
  replace(main, place.view.element);
  if (!sameView) scrollTo(0, 0);
  look(place);
}

function stop() {
  if (!current) return;
  clearTimeout(current.timer);
  current.control.abort();
  current.view?.stop?.();
}

async function look(place) {
  clearTimeout(place.timer);
  if (!place.view.refresh || place !== current) return;
  try {
    if (!document.hidden) await place.view.refresh(place.control.signal);
    if (place === current) report(null);
  } catch (problem) {
    if (problem.name === "AbortError" || place !== current) return;
    report(problem);
  }
  clearTimeout(place.timer);
  place.timer = setTimeout(() => look(place), place.view.every ?? EVERY);
}

function report(problem) {
  const lost = problem instanceof NoConnectionError;
  setText(pulse, lost ? "no connection" : "");
  pulse.className = lost ? "pulse bad" : "pulse";
  const known = document.getElementById("problem");
  if (!problem || lost) return known?.remove();
  const text = problem.message;
  if (known) return setText(known, text);
  main.prepend(h("div", { class: "notice bad", id: "problem", role: "alert" }, text));
}

async function begin() {
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  try {
    about = await get(["about"]);
  } catch (problem) {
    replace(main, h("div", { class: "notice bad" }, problem.message));
    return;
  }
  const path = document.getElementById("path");
  setText(path, about.path);
  path.title = about.path;
  const mode = document.getElementById("mode");
  setText(mode, about.writable ? "writable" : "read-only");
  mode.className = about.writable ? "chip warn" : "chip";
  addEventListener("hashchange", show);
  show();
}

begin();
