// The changes that a writable page offers. Each dialog says what will happen, and asks first.

import { post } from "./api.js";
import { h, replace } from "./dom.js";
import { bytes, count, plural, range } from "./format.js";

function ask({ title, text, fields = [], confirm, danger = false, act, done }) {
  const told = h("div", { role: "status" });
  const go = h("button", { class: danger ? "danger" : "primary" }, confirm);
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const submit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    try {
      const sentence = await act();
      replace(told, h("div", { class: "notice good" }, sentence));
      replace(cancel, "Close");
      go.hidden = true;
      done?.();
    } catch (problem) {
      replace(told, h("div", { class: "notice bad" }, problem.message));
      go.disabled = false;
    }
  };
  const form = h(
    "form",
    { onsubmit: submit },
    h("h2", {}, title),
    h("p", {}, text),
    fields,
    told,
    h("div", { class: "buttons" }, cancel, go),
  );
  const dialog = h("dialog", { "aria-label": title, onclose: () => dialog.remove() }, form);
  document.body.append(dialog);
  dialog.showModal();
}

const where = (topic, number, what) => ["topics", topic, "partitions", number, what];

function typed(label, name, multiline) {
  const input = h(multiline ? "textarea" : "input", {
    name,
    autocomplete: "off",
    rows: multiline ? 5 : null,
  });
  const kind = h(
    "select",
    { name: `${name}-kind`, "aria-label": `${label} is` },
    ["text", "hex", "null"].map((one) => h("option", { value: one }, one)),
  );
  input.addEventListener("input", () => (kind.value = kind.value === "null" ? "text" : kind.value));
  kind.addEventListener("change", () => (input.value = kind.value === "null" ? "" : input.value));
  const read = () =>
    kind.value === "null"
      ? { [name]: null }
      : kind.value === "hex"
        ? { [`${name}_hex`]: input.value }
        : { [name]: input.value };
  return { element: h("div", { class: "row" }, h("label", {}, label, input), kind), read, kind };
}

export function appendDialog(topic, number, done) {
  const key = typed("Key", "key", false);
  key.kind.value = "null";
  const value = typed("Value", "value", true);
  const headers = h("textarea", { name: "headers", placeholder: "trace: 7f3a", rows: 2 });
  const place = number === null ? "the partition of its key" : `partition ${number}`;
  ask({
    title: "Append a record",
    text: `The record goes to ${place} of ${topic}, and is synced. A null value is a tombstone.`,
    fields: [key.element, value.element, h("label", {}, "Headers, one per line, as name: value", headers)],
    confirm: "Append",
    async act() {
      const pairs = headers.value.split("\n").filter((line) => line.trim());
      const listed = pairs.map((line) => {
        const [name, ...rest] = line.split(":");
        return { name: name.trim(), value: rest.join(":").trim() };
      });
      const made = await post(["topics", topic, "append"], {
        ...key.read(),
        ...value.read(),
        headers: listed,
        partition: number,
      });
      return `Appended at offset ${count(made.offset)} of partition ${made.partition}.`;
    },
    done,
  });
}

export function rollDialog(topic, number, done) {
  ask({
    title: "Roll the active segment",
    text: `Seals the active segment of ${topic}-${number} and starts a new one. No record changes.`,
    confirm: "Roll",
    async act() {
      const made = await post(where(topic, number, "roll"), {});
      return `The partition now has ${plural(made.segments, "segment")}.`;
    },
    done,
  });
}

export function trimDialog(topic, number, now, done) {
  const input = h("input", { name: "before", inputmode: "numeric", pattern: "[0-9]+", required: true });
  ask({
    title: "Trim records from the front",
    text: `Removes the records of ${topic}-${number} below an offset, permanently. It has the offsets ${range(now.start_offset, now.next_offset)}.`,
    fields: [h("label", {}, "Remove records below offset", input)],
    confirm: "Remove",
    danger: true,
    async act() {
      const made = await post(where(topic, number, "trim"), { before: input.value });
      return `start_offset is now ${count(made.start_offset)}.`;
    },
    done,
  });
}

export function compactDialog(topic, number, done) {
  ask({
    title: "Compact",
    text: `Keeps only the latest record of each key below the active segment of ${topic}-${number}; the others are removed permanently.`,
    confirm: "Compact",
    danger: true,
    async act() {
      const made = await post(where(topic, number, "compact"), {});
      if (made.stopped_by && !made.records_before) return `Nothing was done: ${made.stopped_by}.`;
      return `${plural(made.records_before, "record")} became ${count(made.records_after)}, ${bytes(made.bytes_before)} became ${bytes(made.bytes_after)}.`;
    },
    done,
  });
}

export function resetDialog(group, done) {
  const to = h(
    "select",
    { name: "to" },
    [
      ["earliest", "the earliest record"],
      ["latest", "the end"],
      ["offset", "an offset"],
      ["timestamp", "a time"],
    ].map(([value, text]) => h("option", { value }, text)),
  );
  const offset = h("input", {
    name: "offset",
    inputmode: "numeric",
    pattern: "[0-9]+",
    placeholder: "offset",
    "aria-label": "Offset",
    hidden: true,
  });
  const time = h("input", {
    name: "timestamp",
    type: "datetime-local",
    step: "0.001",
    "aria-label": "Time",
    hidden: true,
  });
  to.addEventListener("change", () => {
    offset.hidden = to.value !== "offset";
    time.hidden = to.value !== "timestamp";
  });
  ask({
    title: "Reset the group's offsets",
    text: `Sets the committed offsets of all partitions of the group; its consumers continue from there. The group must have no members.`,
    fields: [h("label", {}, "Continue from", to), offset, time],
    confirm: "Reset",
    danger: true,
    async act() {
      const timestamp = time.value ? new Date(time.value).getTime() : null;
      const made = await post(["group", "reset"], {
        group_id: group,
        to: to.value,
        offset: offset.value,
        timestamp,
      });
      return `${plural(Object.keys(made.offsets).length, "partition")} reset.`;
    },
    done,
  });
}

export function abortDialog(one, done) {
  ask({
    title: "Abort the transaction",
    text: `Discards what the open transaction of ${one.transactional_id} has written to ${plural(one.partitions, "partition")}. The next call of its owner fails.`,
    confirm: "Abort",
    danger: true,
    async act() {
      await post(["transaction", "abort"], { transactional_id: one.transactional_id });
      return "The transaction is aborted.";
    },
    done,
  });
}
