"""Blocks of lines on their way into a topic."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from commitlog.batches.encode import Rules
from commitlog.cli.json_records import parse_record
from commitlog.cli.lines import encode_lines
from commitlog.errors import InvalidRecordError, RecordTooLargeError
from commitlog.record import Header
from commitlog.topics.topic import Topic


@dataclass(frozen=True, slots=True)
class LineFormat:
    """What a line is: a value, a key and a value, or a record as JSON."""

    json: bool = False
    key_separator: bytes | None = None
    null_marker: bytes | None = None
    headers: tuple[Header, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether every line is a value as it stands, and nothing else belongs to it."""
        return not self.json and self.key_separator is None and self.null_marker is None and not self.headers


class Feed:
    """Appends blocks of lines to a topic. What it has counted is appended."""

    def __init__(self, topic: Topic, form: LineFormat, partition: int | None, *, sync: bool) -> None:
        self.records = 0
        self.offsets: dict[int, range] = {}  # by partition, from the first record to the last
        self._topic = topic
        self._form = form
        only = len(topic.partitions) == 1  # then no key need be looked at
        self._partition = 0 if only and partition is None else partition
        self._sync = sync
        self._rules = Rules(topic.config)
        self._turn = 0

    def append(self, block: bytes) -> None:
        """Append a record for each line of a block, which ends with one."""
        if self._form.plain:
            self._append_plain(block)
        elif self._form.json:
            self._append_json(block[:-1].split(b"\n"))
        else:
            self._append_text(block[:-1].split(b"\n"))

    def _append_plain(self, block: bytes) -> None:
        number = self._partition
        if number is None:  # in turn, as the partitioner does with records without a key
            number, self._turn = self._turn % len(self._topic.partitions), self._turn + 1
        target = self._topic.partition(number)
        batch, count = encode_lines(block, self._rules, _now_ms(), self.records)
        self._note({number: target.append_encoded((batch,), sync=self._sync)}, count)

    def _append_text(self, lines: Sequence[bytes]) -> None:
        keys: Sequence[bytes | None] | None = None
        values: Sequence[bytes | None] = lines
        if self._form.key_separator is not None:
            separator = self._form.key_separator
            keys, signs, values = zip(*(line.partition(separator) for line in lines), strict=True)
            if b"" in signs:
                number = self.records + signs.index(b"")
                raise InvalidRecordError(number, f"there is no {separator.decode()!r} behind its key")
        if self._form.null_marker is not None:
            values = [None if value == self._form.null_marker else value for value in values]
        self._append_many(values, keys, [self._form.headers] * len(lines), None, self._partition)

    def _append_json(self, lines: Sequence[bytes]) -> None:
        filled = [line for line in lines if line.strip()]
        given = [parse_record(line, self.records + number) for number, line in enumerate(filled)]
        for chosen, run in groupby(given, key=lambda record: record.partition):
            keys, values, headers, times, _ = zip(*run, strict=True)
            now = _now_ms()
            self._append_many(
                values,
                keys,
                [(*self._form.headers, *own) for own in headers],
                [now if one is None else one for one in times],
                chosen if self._partition is None else self._partition,
            )

    def _append_many(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[tuple[Header, ...]],
        timestamps: Sequence[int] | None,
        partition: int | None,
    ) -> None:
        try:
            offsets = self._topic.append_many(
                values,
                keys=keys,
                headers=headers if any(headers) else None,
                timestamps=timestamps,
                partition=partition,
                sync=self._sync,
            )
        except (InvalidRecordError, RecordTooLargeError) as error:
            raise type(error)(self.records + error.args[0], *error.args[1:]) from None
        self._note(offsets, len(values))

    def _note(self, offsets: dict[int, range], count: int) -> None:
        self.records += count
        for number, taken in offsets.items():
            first = self.offsets[number].start if number in self.offsets else taken.start
            self.offsets[number] = range(first, taken.stop)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
