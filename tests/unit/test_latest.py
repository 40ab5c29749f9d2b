from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import CommitLog, Latest, Partition, tasks
from commitlog.partitions.latest import LatestBuilder

CONFIG = {"cleanup_policy": "compact", "flush_ms": -1, "file_delete_delay_ms": 0}


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks.Task, "start", lambda self: None)


def between(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Act once, after the compacted view has read what it saw at first and before it looks again."""
    real, pending = LatestBuilder.add, [act]

    def add(self: LatestBuilder, batches: Any) -> None:
        real(self, batches)
        while pending:
            pending.pop()()

    monkeypatch.setattr(LatestBuilder, "add", add)


def test_a_view_has_the_last_value_of_each_key_and_says_where_to_read_on(partition: Partition) -> None:
    partition.append_many([b"1", b"2", b"3", b""], keys=[b"a", b"b", b"a", b""])
    partition.append(b"no key")
    view = partition.latest()
    assert view == {b"a": b"3", b"b": b"2", b"": b""}
    assert (len(view), view[b"a"], view.get(b"z"), view.next_offset) == (3, b"3", None, 5)
    assert repr(view) == "<Latest 3 keys at 5>"


def test_a_deleted_key_is_not_in_it_and_may_come_back(partition: Partition) -> None:
    partition.append(b"1", key=b"a")
    partition.append(None, key=b"a")
    partition.append(None, key=b"never there")
    assert partition.latest() == {}
    partition.append(b"2", key=b"a")
    assert partition.latest() == {b"a": b"2"}


def test_an_empty_partition_has_an_empty_view(partition: Partition) -> None:
    assert (dict(partition.latest()), partition.latest().next_offset) == ({}, 0)


def test_what_was_trimmed_or_truncated_does_not_count(partition: Partition) -> None:
    for number in range(6):
        partition.append(b"%d" % number, key=b"k%d" % (number % 3))
    partition.truncate_from(5)
    partition.trim_before(3)
    assert partition.latest() == {b"k0": b"3", b"k1": b"4"}


def test_a_pass_changes_nothing_in_a_view(log: CommitLog) -> None:
    partition = log.create_topic("c", config={**CONFIG, "delete_retention_ms": 0}).partition(0)
    for number in range(60):
        partition.append(None if number % 7 == 0 else b"%d" % number, key=b"k%d" % (number % 11))
        if number % 10 == 9:
            partition.roll()
    view = dict(partition.latest())
    for now in (1 << 50, 1 << 51):
        partition.compact(now)
        assert partition.latest() == view


def test_records_that_come_while_a_view_is_made_are_in_it_if_a_pass_needs_them(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass may remove what the view is about to read, for a later record that came after it began."""
    partition = log.create_topic("c", config=CONFIG).partition(0)
    partition.append(b"1", key=b"a")

    def act() -> None:
        partition.append(b"2", key=b"a")
        partition.append(b"3", key=b"b")
        partition.roll()
        partition.compact()

    between(monkeypatch, act)
    view = partition.latest()
    assert (dict(view), view.next_offset) == ({b"a": b"2", b"b": b"3"}, 3)


def test_a_view_is_made_again_when_what_it_reads_is_trimmed(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = log.create_topic("c", config=CONFIG).partition(0)
    partition.append(b"1", key=b"a")
    partition.append(b"2", key=b"b")
    partition.roll()

    def act() -> None:
        partition.append(b"3", key=b"c")
        partition.roll()
        partition.append(b"4", key=b"d")
        partition.trim_before(3)

    between(monkeypatch, act)
    assert partition.latest() == {b"d": b"4"}


@pytest.mark.parametrize("side", ["writer", "reader"])
def test_a_view_has_nothing_that_was_truncated_while_it_was_made(
    log: CommitLog, log_path: Path, monkeypatch: pytest.MonkeyPatch, side: str
) -> None:
    partition = log.create_topic("c", config=CONFIG).partition(0)
    partition.append(b"1", key=b"a")
    partition.append(b"truncated", key=b"a")
    partition.append(b"truncated", key=b"b")

    def act() -> None:
        partition.truncate_from(1)
        for number in range(4):
            partition.append(b"new %d" % number, key=b"c")

    with commitlog.open(log_path, mode="r") as reading:
        seen = partition if side == "writer" else reading.topic("c").partition(0)
        between(monkeypatch, act)
        assert seen.latest() == {b"a": b"1", b"c": b"new 3"}


def test_a_topics_view_is_that_of_all_partitions(log: CommitLog, log_path: Path) -> None:
    topic = log.create_topic("c", 3, CONFIG)
    topic.append_many([b"%d" % number for number in range(30)], keys=[b"k%d" % (n % 10) for n in range(30)])
    expected = {b"k%d" % number: b"%d" % (20 + number) for number in range(10)}
    with commitlog.open(log_path, mode="r") as reading:
        for one in (topic, reading.topic("c")):
            view = one.latest()
            assert view == expected
            assert view.next_offsets == tuple(partition.next_offset for partition in topic.partitions)
            with pytest.raises(ValueError):
                _ = view.next_offset


def test_a_view_as_an_arrow_table() -> None:
    pytest.importorskip("pyarrow")
    table = Latest({b"a": b"1", b"b": b""}, (2,)).to_arrow()
    assert table.to_pydict() == {"key": [b"a", b"b"], "value": [b"1", b""]}
    assert Latest({}, (0,)).to_arrow().num_rows == 0
