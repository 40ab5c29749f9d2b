// One record: a line that unfolds on a click.

import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { bytes, count, time, utc } from "./format.js";
import { jsonView } from "./json.js";
import { hexDump, visible } from "./text.js";

const LINE = 300;

// A key, a value or a header on one line. A null value is a tombstone; an empty one is not.
function line(content, kind) {
  if (content.kind === "null")
    return h(
      "span",
      { class: kind === "value" ? "what tombstone" : "what" },
      kind === "value" ? "null (tombstone)" : "null",
    );
  if (content.bytes === 0) return h("span", { class: "what" }, "empty");
  if (content.kind === "binary") return `0x${content.hex.slice(0, 80)}${content.bytes > 40 ? "…" : ""}`;
  const text = content.text.slice(0, LINE).replaceAll(/\s+/g, " ");
  return [visible(text), content.bytes > LINE ? "…" : ""];
}

function whole(content, kind) {
  if (content.kind === "null" || content.bytes === 0) return h("div", {}, line(content, kind));
  if (content.kind === "binary")
    return h("pre", { class: "content hex", tabindex: "0" }, hexDump(content.hex));
  const tree = content.kind === "json" ? jsonView(content.text) : null;
  return tree ?? h("pre", { class: "content", tabindex: "0" }, visible(content.text));
}

function titled(title, content, kind, showAll) {
  const cut = content.kind !== "null" && content.shown < content.bytes;
  const size =
    content.kind === "null"
      ? ""
      : `${bytes(content.bytes)}${content.kind === "text" ? "" : `, ${content.kind}`}`;
  const note = cut ? `showing the first ${bytes(content.shown)}` : null;
  const more = cut && showAll ? h("button", { class: "plain", onclick: showAll }, "Show all") : null;
  return h(
    "section",
    {},
    h("h3", {}, title, size ? h("span", {}, size) : null, note, more),
    whole(content, kind),
  );
}

function headers(record) {
  if (!record.headers.length) return null;
  const pairs = record.headers.flatMap((one) => [
    h("dt", {}, visible(one.name)),
    h("dd", {}, line(one.value, "header")),
  ]);
  const more = record.more_headers
    ? h("p", { class: "what" }, `and ${count(record.more_headers)} more`)
    : null;
  return h("section", {}, h("h3", {}, `Headers`), h("dl", { class: "headers" }, pairs), more);
}

function details(body, topic, partition, record, level, isWhole) {
  const showAll = isWhole
    ? null
    : async () => {
        try {
          const where = ["topics", topic, "partitions", partition, "records", record.offset];
          const found = await get(where, { isolation_level: level });
          details(body, topic, partition, found, level, true);
        } catch (problem) {
          body.append(h("div", { class: "notice bad" }, problem.message));
        }
      };
  const about = h(
    "section",
    {},
    h("h3", {}, "Timestamp"),
    h("div", { class: "mono" }, utc(record.timestamp)),
  );
  replace(
    body,
    titled("Key", record.key, "key", showAll),
    titled("Value", record.value, "value", showAll),
    headers(record),
    about,
  );
}

export function recordView(topic, partition, record, { tailed = false, level = null } = {}) {
  const body = h("div", { class: "more", hidden: true });
  const size = record.value.kind === "null" ? "" : bytes(record.value.bytes);
  const toggle = () => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    body.hidden = !open;
    if (open && !body.firstChild) details(body, topic, partition, record, level, false);
  };
  const button = h(
    "button",
    { "aria-expanded": "false", onclick: toggle },
    tailed ? h("span", { class: "part muted", title: "partition" }, `p${partition}`) : null,
    h("span", { class: "offset mono" }, count(record.offset)),
    h("span", { class: "time mono", title: utc(record.timestamp) }, time(record.timestamp)),
    h("span", { class: "line key" }, line(record.key, "key")),
    h("span", { class: "line value" }, line(record.value, "value")),
    h(
      "span",
      { class: "size" },
      record.transaction ? h("span", { class: "chip warn" }, record.transaction) : null,
      size,
    ),
  );
  return h("article", { class: tailed ? "record tailed new" : "record" }, button, body);
}
