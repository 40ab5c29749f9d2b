"""A consumer against a list for each partition: it hands out what is there from its position on, and once."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import commitlog
from commitlog import CommitLog, Consumer, LogConfig, TopicPartition

COUNT = 3
LATER = 10**15  # when a tombstone's time is over
ALONE = LogConfig(cleaner_enable=False)  # records disappear only when the model knows it

numbers = st.integers(0, COUNT - 1)
fractions = st.floats(0, 1)
kinds = st.sampled_from(["alone", "group", "reader"])


class ConsumerMachine(RuleBasedStateMachine):
    """`model[number]` has the values by offset, None where compaction took the record away.

    `position[number]` is where the consumer has to go on, `committed[number]` where one after it has to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="commitlog-consumer-"))
        self.model: list[list[bytes | None]] = [[] for _ in range(COUNT)]
        self.start = [0] * COUNT
        self.position = [0] * COUNT
        self.committed: list[int | None] = [None] * COUNT
        self.paused: set[int] = set()
        self.written = 0

    @initialize(kind=kinds, compacted=st.booleans(), many=st.integers(1, 9))
    def create(self, kind: str, compacted: bool, many: int) -> None:
        self.kind, self.many = kind, many
        self.compacted = compacted
        self.log: CommitLog = commitlog.open(self.home / "log", config=ALONE)
        policy = "compact" if compacted else "delete"
        self.log.create_topic(
            "t",
            partitions=COUNT,
            config={
                "cleanup_policy": policy,
                "segment_bytes": 700,
                "index_interval_bytes": 100,
                "flush_ms": -1,
                "file_delete_delay_ms": 0,
                "delete_retention_ms": 0,
            },
        )
        self.source: CommitLog | None = None
        self.begin()

    def begin(self) -> None:
        """Make the next consumer."""
        if self.kind == "reader":
            self.source = commitlog.open(self.home / "log", mode="r")
        log = self.source or self.log
        group: dict[str, Any] = {} if self.kind == "alone" else {"group_id": "g", "enable_auto_commit": False}
        self.consumer: Consumer = log.consumer(
            "t", max_poll_records=self.many, consumer_timeout_ms=0, fetch_max_bytes=300, **group
        )
        self.consumer._poll(0, dict)  # a group shares out in poll()
        self.position = [
            start if committed is None or committed < start else committed
            for start, committed in zip(self.start, self.committed, strict=True)
        ]
        self.paused = set()

    def end(self) -> None:
        self.consumer.close()
        if self.source is not None:
            self.source.close()
            self.source = None

    def teardown(self) -> None:
        if hasattr(self, "consumer"):
            self.end()
            self.log.close()
        shutil.rmtree(self.home)

    # --- what changes the log

    def partition(self, number: int) -> Any:
        return self.log.topic("t").partition(number)

    @rule(number=numbers, key=st.integers(0, 5))
    def append(self, number: int, key: int) -> None:
        value = b"value %d" % self.written
        self.written += 1
        assert self.partition(number).append(value, key=b"%d" % key) == len(self.model[number])
        self.model[number].append(value)

    @rule(number=numbers, keys=st.lists(st.integers(0, 5), min_size=1, max_size=20))
    def append_many(self, number: int, keys: list[int]) -> None:
        values = [b"value %d" % (self.written + place) for place in range(len(keys))]
        self.written += len(keys)
        self.partition(number).append_many(values, keys=[b"%d" % key for key in keys])
        self.model[number] += values

    @precondition(lambda self: self.compacted)
    @rule(number=numbers)
    def compact(self, number: int) -> None:
        partition = self.partition(number)
        partition.roll()
        partition.compact(LATER)
        left = {record.offset: record.value for record in partition.records()}
        self.model[number] = [left.get(offset) for offset in range(partition.next_offset)]
        # what was decoded before the pass may still be handed out: let the consumer read anew
        self.seek_to(number, self.position[number])

    @rule(number=numbers, fraction=fractions)
    def trim(self, number: int, fraction: float) -> None:
        start = self.start[number]
        offset = start + round(fraction * (len(self.model[number]) - start))
        self.partition(number).trim_before(offset)
        self.start[number] = max(start, offset)

    # --- what the consumer does

    def name(self, number: int) -> TopicPartition:
        return TopicPartition("t", number)

    def place(self, number: int) -> int:
        """Where reading goes on: not below what was trimmed."""
        return max(self.position[number], self.start[number])

    def expected(self, number: int) -> list[tuple[int, bytes]]:
        rows = enumerate(self.model[number])
        return [
            (offset, value) for offset, value in rows if offset >= self.place(number) and value is not None
        ]

    def check(self, number: int, found: list[tuple[int, bytes | None]]) -> None:
        """What was handed out is what comes next; then the position is behind it."""
        assert number not in self.paused
        assert found == self.expected(number)[: len(found)]
        if found:
            self.position[number] = found[-1][0] + 1

    @rule(many=st.none() | st.integers(1, 30))
    def poll(self, many: int | None) -> None:
        found = self.consumer.poll(max_records=many)
        assert sum(map(len, found.values())) <= (many or self.many)
        for name, records in found.items():
            assert records
            self.check(name.partition, [(one.offset, one.value) for one in records])
        self.nothing_is_left_if(not found)

    @rule(max_bytes=st.none() | st.integers(1, 2_000))
    def poll_batches(self, max_bytes: int | None) -> None:
        found = self.consumer.poll_batches(max_bytes=max_bytes)
        for name, batches in found.items():
            rows = [(one.offset, one.value) for batch in batches for one in batch.records()]
            assert rows
            self.check(name.partition, rows)
        self.nothing_is_left_if(not found)

    def nothing_is_left_if(self, nothing: bool) -> None:
        if nothing:
            for number in set(range(COUNT)) - self.paused:
                assert self.expected(number) == []

    @rule(stop=st.integers(1, 25), commits=st.booleans())
    def iterate(self, stop: int, commits: bool) -> None:
        for count, record in enumerate(self.consumer, 1):
            self.check(record.partition, [(record.offset, record.value)])
            assert self.consumer.position(self.name(record.partition)) == record.offset + 1
            if commits and self.kind != "alone":
                self.commit()
            if count == stop:
                return
        self.nothing_is_left_if(True)

    @rule(stop=st.integers(0, 6), number=numbers, fraction=fractions)
    def seek_within_an_iteration(self, stop: int, number: int, fraction: float) -> None:
        for count, record in enumerate(self.consumer):
            self.check(record.partition, [(record.offset, record.value)])
            if count == stop:
                self.seek(number, fraction)
            if count == stop + 5:
                return

    @rule(stop=st.integers(0, 6), number=numbers)
    def pause_within_an_iteration(self, stop: int, number: int) -> None:
        for count, record in enumerate(self.consumer):
            self.check(record.partition, [(record.offset, record.value)])
            if count == stop:
                self.pause(number)
            if count == stop + 5:
                return

    @rule(number=numbers, fraction=fractions)
    def seek(self, number: int, fraction: float) -> None:
        start = self.start[number]
        self.seek_to(number, start + round(fraction * (len(self.model[number]) - start)))

    def seek_to(self, number: int, offset: int) -> None:
        self.consumer.seek(self.name(number), offset)
        self.position[number] = offset

    @rule(number=numbers)
    def seek_to_the_ends(self, number: int) -> None:
        self.consumer.seek_to_end(self.name(number))
        assert self.consumer.position(self.name(number)) == len(self.model[number])
        self.consumer.seek_to_beginning(self.name(number))
        self.position[number] = self.start[number]

    @rule(number=numbers)
    def pause(self, number: int) -> None:
        self.consumer.pause(self.name(number))
        self.paused.add(number)

    @rule(number=numbers)
    def resume(self, number: int) -> None:
        self.consumer.resume(self.name(number))
        self.paused.discard(number)

    @precondition(lambda self: self.kind != "alone")
    @rule()
    def commit(self) -> None:
        self.consumer.commit()
        for number in range(COUNT):
            committed = self.consumer.committed(self.name(number))
            assert committed == self.consumer.position(self.name(number))
            self.committed[number] = committed

    @rule()
    def come_back(self) -> None:
        self.end()
        self.begin()

    @rule()
    def reopen(self) -> None:
        self.end()
        self.log.close()
        self.log = commitlog.open(self.home / "log", config=ALONE)
        self.begin()

    @invariant()
    def nothing_is_skipped(self) -> None:
        """Between what was handed out last and the position lie gaps only, and records that were trimmed."""
        if not hasattr(self, "consumer"):
            return
        for number in range(COUNT):
            position = self.consumer.position(self.name(number))
            assert position >= min(self.position[number], len(self.model[number]))
            first, last = self.place(number), max(self.place(number), position)
            assert set(self.model[number][first:last]) <= {None}
            self.position[number] = max(self.position[number], position)


TestConsumer = ConsumerMachine.TestCase
TestConsumer.settings = settings(stateful_step_count=40)
