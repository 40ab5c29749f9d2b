from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import copy_as_if_killed

import commitlog
from commitlog import CommitLog, Partition
from commitlog.errors import CorruptionError, RecordTooLargeError
from commitlog.groups import offsets as offsets_module
from commitlog.groups.offsets import TOPIC, GroupOffsets, OffsetAndMetadata
from commitlog.record import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def offsets_of(log: CommitLog) -> GroupOffsets:
    return log._groups.offsets()


@pytest.fixture
def offsets(log: CommitLog) -> GroupOffsets:
    return offsets_of(log)


def partition_of(log: CommitLog) -> Partition:
    partition: Partition = log._topics.find(TOPIC).partition(0)
    return partition


def commit(offsets: GroupOffsets, group_id: str, *places: tuple[TopicPartition, int]) -> None:
    offsets.commit(group_id, {name: OffsetAndMetadata(offset) for name, offset in places})


def committed(offsets: GroupOffsets, group_id: str) -> dict[TopicPartition, int]:
    return {name: value.offset for name, value in offsets.committed(group_id).items()}


def test_nothing_is_committed_at_first(offsets: GroupOffsets) -> None:
    assert offsets.groups() == set()
    assert offsets.committed("g") == {}
    assert offsets.groups() == set()  # to ask for a group does not make one


def test_what_was_committed_last_counts(offsets: GroupOffsets) -> None:
    commit(offsets, "g", (T0, 5), (T1, 7))
    commit(offsets, "g", (T0, 6))
    assert committed(offsets, "g") == {T0: 6, T1: 7}
    commit(offsets, "g", (T0, 2))  # a group may go back
    assert committed(offsets, "g") == {T0: 2, T1: 7}


def test_groups_do_not_mix(offsets: GroupOffsets) -> None:
    commit(offsets, "g", (T0, 5))
    commit(offsets, "h", (T0, 9), (U0, 1))
    assert offsets.groups() == {"g", "h"}
    assert committed(offsets, "g") == {T0: 5}
    assert committed(offsets, "h") == {T0: 9, U0: 1}


def test_a_note_is_kept_with_its_offset(offsets: GroupOffsets) -> None:
    offsets.commit("g", {T0: OffsetAndMetadata(3, 'a "note" ☃\n')})
    assert offsets.committed("g") == {T0: OffsetAndMetadata(3, 'a "note" ☃\n')}
    commit(offsets, "g", (T0, 4))
    assert offsets.committed("g")[T0].metadata == ""


@pytest.mark.parametrize("group_id", ["Ünïcode ☃", "a/b", '["g"', "", "\0"])
def test_groups_may_have_odd_names(offsets: GroupOffsets, group_id: str) -> None:
    commit(offsets, group_id, (T0, 1))
    assert offsets.groups() == {group_id}
    assert committed(offsets, group_id) == {T0: 1}


def test_the_answer_is_the_callers_own(offsets: GroupOffsets) -> None:
    commit(offsets, "g", (T0, 1))
    offsets.committed("g").clear()
    assert committed(offsets, "g") == {T0: 1}


def test_forgotten_offsets_are_gone_and_a_group_with_its_last(offsets: GroupOffsets) -> None:
    commit(offsets, "g", (T0, 1), (T1, 2))
    offsets.forget("g", [T0])
    assert committed(offsets, "g") == {T1: 2}
    offsets.forget("g", [T1])
    assert offsets.groups() == set()
    commit(offsets, "g", (T0, 3))
    assert committed(offsets, "g") == {T0: 3}


def test_to_forget_what_is_not_there_is_fine(offsets: GroupOffsets) -> None:
    offsets.forget("g", [T0])
    assert offsets.groups() == set()
    commit(offsets, "g", (T0, 1))
    offsets.forget("g", [T1])
    assert committed(offsets, "g") == {T0: 1}


def test_a_commit_of_several_partitions_is_one_batch(log: CommitLog, offsets: GroupOffsets) -> None:
    many = {TopicPartition("t" * 200, number): OffsetAndMetadata(number) for number in range(9_999)}
    offsets.commit("g", many)
    assert len(list(partition_of(log).batches())) == 1
    offsets.forget("g", many)
    assert len(list(partition_of(log).batches())) == 2
    assert offsets.groups() == set()


def test_an_empty_commit_writes_nothing(log: CommitLog, offsets: GroupOffsets) -> None:
    offsets.commit("g", {})
    offsets.forget("g", [])
    assert partition_of(log).next_offset == 0


def test_a_note_that_is_too_long_refuses_the_whole_commit(offsets: GroupOffsets) -> None:
    commit(offsets, "g", (T0, 1))
    with pytest.raises(RecordTooLargeError):
        offsets.commit("g", {T0: OffsetAndMetadata(2), T1: OffsetAndMetadata(2, "x" * 2_000_000)})
    assert committed(offsets, "g") == {T0: 1}


def test_a_commit_is_synced_only_if_asked_and_forgetting_always(
    log: CommitLog, offsets: GroupOffsets
) -> None:
    offsets.commit("g", {T0: OffsetAndMetadata(1)}, sync=True)
    assert partition_of(log).durable_offset == 1
    offsets.forget("g", [T0])
    assert partition_of(log).durable_offset == 2


# --- others commit, too


@pytest.fixture
def reader(log: CommitLog) -> Iterator[CommitLog]:
    """The same log, opened for reading, as in another process."""
    with commitlog.open(log.path, mode="r") as opened:
        yield opened


def test_what_others_commit_is_seen(log: CommitLog, reader: CommitLog) -> None:
    here, there = offsets_of(log), offsets_of(reader)
    for number in range(10):
        commit(here, "g", (T0, number))
        assert committed(there, "g") == {T0: number}
        commit(there, "g", (T0, number + 100))
        assert committed(here, "g") == {T0: number + 100}


def test_what_others_forget_is_seen(log: CommitLog, reader: CommitLog) -> None:
    here, there = offsets_of(log), offsets_of(reader)
    commit(here, "g", (T0, 1), (T1, 1))
    assert there.groups() == {"g"}
    here.forget("g", [T0])
    assert committed(there, "g") == {T1: 1}
    there.forget("g", [T1])
    assert here.groups() == set()


def test_a_reader_may_be_the_first_to_commit(log: CommitLog, reader: CommitLog) -> None:
    commit(offsets_of(reader), "g", (T0, 1))
    assert committed(offsets_of(log), "g") == {T0: 1}
    assert log.topics() == reader.topics() == []


def test_the_writer_may_come_after_the_reader_has_committed(log_path: Path) -> None:
    commitlog.open(log_path).close()
    with commitlog.open(log_path, mode="r") as reader:
        commit(offsets_of(reader), "g", (T0, 1))
        with commitlog.open(log_path) as log:
            assert committed(offsets_of(log), "g") == {T0: 1}
            commit(offsets_of(log), "g", (T0, 2))
        assert committed(offsets_of(reader), "g") == {T0: 2}
        commit(offsets_of(reader), "g", (T0, 3))
        assert committed(offsets_of(reader), "g") == {T0: 3}
    with commitlog.open(log_path) as log:
        assert committed(offsets_of(log), "g") == {T0: 3}


def test_commits_survive_a_clean_end(log_path: Path) -> None:
    with commitlog.open(log_path) as log:
        commit(offsets_of(log), "g", (T0, 1), (T1, 2))
    with commitlog.open(log_path) as log:
        assert committed(offsets_of(log), "g") == {T0: 1, T1: 2}


def test_commits_survive_a_kill(log: CommitLog, tmp_path: Path) -> None:
    commit(offsets_of(log), "g", (T0, 1), (T1, 2))
    with commitlog.open(copy_as_if_killed(log, tmp_path / "killed")) as again:
        assert committed(offsets_of(again), "g") == {T0: 1, T1: 2}


# --- compaction


def compact(log: CommitLog) -> None:
    partition_of(log).roll()
    partition_of(log).compact()


def test_compaction_keeps_the_latest(log: CommitLog, offsets: GroupOffsets) -> None:
    for number in range(100):
        commit(offsets, "g", (T0, number), (T1, 2 * number))
        commit(offsets, "h", (T0, 3 * number))
    compact(log)
    assert len(list(partition_of(log).records())) == 3
    for seen in (offsets, GroupOffsets(partition_of(log))):
        assert committed(seen, "g") == {T0: 99, T1: 198}
        assert committed(seen, "h") == {T0: 297}


def test_compaction_between_two_looks_of_another_process(log: CommitLog, reader: CommitLog) -> None:
    here, there = offsets_of(log), offsets_of(reader)
    commit(here, "g", (T0, 1), (T1, 1))
    assert committed(there, "g") == {T0: 1, T1: 1}
    commit(here, "g", (T0, 2))
    here.forget("g", [T1])
    compact(log)
    commit(here, "h", (U0, 5))
    compact(log)
    assert committed(there, "g") == {T0: 2}
    assert committed(there, "h") == {U0: 5}


def test_one_who_has_not_looked_for_long_reads_everything_anew(
    log: CommitLog, reader: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile compaction may have removed the tombstones themselves."""
    here, there = offsets_of(log), offsets_of(reader)
    commit(here, "g", (T0, 1), (T1, 1))
    assert committed(there, "g") == {T0: 1, T1: 1}
    here.forget("g", [T1])
    now = time.time_ns() // 1_000_000
    for later in (0, 2 * partition_of(log).config.delete_retention_ms):
        partition_of(log).roll()
        partition_of(log).compact(now + later)
    assert [record.value is None for record in partition_of(log).records()] == [False]
    monkeypatch.setattr(offsets_module, "_TRUST_SECONDS", -1.0)
    assert committed(there, "g") == {T0: 1}


def test_the_topic_is_compacted(log: CommitLog, offsets: GroupOffsets) -> None:
    config = log.topic(TOPIC).config
    assert config.cleanup_policy == "compact"
    assert config.delete_retention_ms / 1000 >= 2 * offsets_module._TRUST_SECONDS


@pytest.mark.parametrize("key", [b"", b"{}", b'["g"]', b'["g", ["t"], 0]', b'["g", "t", "0"]', b"\xff"])
def test_a_record_that_no_commit_wrote_is_an_error_that_names_the_topic(
    log: CommitLog, offsets: GroupOffsets, key: bytes
) -> None:
    log._open_offsets().append(b'{"offset": 1, "metadata": ""}', key=key)
    with pytest.raises(
        CorruptionError, match=rf"{TOPIC}-0, byte 0: the record at offset 0 is not what a commit"
    ):
        offsets.groups()
