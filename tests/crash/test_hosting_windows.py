"""A kill in each window of what a node does with the topics it hosts. Each docstring quotes the comment."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import commitlog
from commitlog import files
from commitlog.errors import FencedEpochError, TopicReplacedError
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, Deletion, PartitionState, TopicState
from commitlog.replication.local_topics import LocalTopics

pytestmark = pytest.mark.usefixtures("quick_disk")

ORDERS = TopicPartition("orders", 0)


class KilledError(Exception):
    """Stands for the end of the process."""


FIRST, SECOND = "1111111111111111111111", "2222222222222222222222"


def topic(topic_id: str, *replicas: int) -> TopicState:
    return TopicState(topic_id, {}, (PartitionState(replicas or (1,), replicas or (1,), None, 1, 1),))


def with_topic(orders: TopicState) -> ClusterState:
    return ClusterState(topics={"orders": orders})


def with_deletion(topic_id: str) -> ClusterState:
    return ClusterState(deleted={topic_id: Deletion("orders", 1)})


def killed(*_: object) -> None:
    raise KilledError


def with_a_record(log: commitlog.CommitLog) -> LocalTopics:
    made = LocalTopics(log, 1)
    partition = made.open(ORDERS, topic(FIRST))
    partition.lead(0)
    partition.append(b"of the earlier topic")
    return made


def set_aside(path: Path) -> list[Path]:
    return sorted((path / "set-aside").iterdir())


def test_killed_before_a_listed_topic_was_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """crash: the id is listed, the topic is not there -> the next start creates it"""
    with commitlog.open(tmp_path) as log, monkeypatch.context() as patch, pytest.raises(KilledError):
        patch.setattr(log._topics, "create", killed)
        LocalTopics(log, 1).open(ORDERS, topic(FIRST))
    with commitlog.open(tmp_path) as log:
        assert log.topics() == []
        partition = LocalTopics(log, 1).open(ORDERS, topic(FIRST))
        assert log.topic("orders").topic_id == FIRST
        with pytest.raises(commitlog.NotLeaderError):
            partition.append(b"nobody leads yet")


def test_killed_after_a_topic_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """crash: the topic is gone, its id is still listed -> nothing is asked of a topic not there"""
    with commitlog.open(tmp_path) as log:
        first = with_a_record(log)
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(first, "_store", killed)
            first.tidy(with_deletion(FIRST))
    with commitlog.open(tmp_path) as log:
        again = LocalTopics(log, 1)
        assert not again.clean, "the topic may have been lost as well"
        assert again.partitions() == []
        again.tidy(with_deletion(FIRST))
        with pytest.raises(commitlog.UnknownTopicError):
            again.partition(ORDERS)


def test_killed_while_files_were_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """crash: some of the files, under a name that ends in .new -> empty() removes them; it is done again"""
    with commitlog.open(tmp_path) as log:
        first = with_a_record(log)
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(files, "replace", killed)
            first.tidy(with_deletion(FIRST))
    assert [path.suffix for path in set_aside(tmp_path)] == [".new"]
    with commitlog.open(tmp_path) as log:
        again = LocalTopics(log, 1)
        again.empty_set_aside()
        assert set_aside(tmp_path) == []
        again.tidy(with_deletion(FIRST))
        assert log.topics() == []
    assert len(set_aside(tmp_path)) == 1


def test_killed_between_setting_aside_and_removing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """crash: the files are set aside, the replica is still there -> it is set aside again and removed"""
    with commitlog.open(tmp_path) as log:
        first = with_a_record(log)
        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(log, "delete_topic", killed)
            first.tidy(with_deletion(FIRST))
        assert [record.value for record in first.partition(ORDERS).records(end=1)] == []
    with commitlog.open(tmp_path) as log:
        LocalTopics(log, 1).tidy(with_deletion(FIRST))
        assert log.topics() == []
    assert len(set_aside(tmp_path)) in (1, 2)


def test_what_was_set_aside_has_the_records_and_goes_when_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with commitlog.open(tmp_path / "node") as log:
        hosting = with_a_record(log)
        hosting.tidy(with_topic(topic(FIRST, 2, 3)))  # it is on other nodes now
        assert log.topics() == []
    (kept,) = set_aside(tmp_path / "node")
    with commitlog.open(tmp_path / "rescue") as rescue:
        rescue.create_topic("orders")
    shutil.rmtree(tmp_path / "rescue" / "orders-0")
    shutil.copytree(kept, tmp_path / "rescue" / "orders-0", ignore=lambda *_: ["leader-epoch-checkpoint"])
    with commitlog.open(tmp_path / "rescue") as rescue:
        values = [record.value for record in rescue.topic("orders").partition(0).records()]
    assert values == [b"of the earlier topic"]
    with commitlog.open(tmp_path / "node") as log:
        again = LocalTopics(log, 1)
        again.empty_set_aside()
        assert set_aside(tmp_path / "node") == [kept], "across restarts"
        due_ms = int(kept.name.rpartition(".")[2])
        monkeypatch.setattr(time, "time_ns", lambda: due_ms * 1_000_000)
        again.empty_set_aside()
    assert set_aside(tmp_path / "node") == []


def test_a_topic_that_is_absent_or_has_another_id_is_left_alone_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with commitlog.open(tmp_path) as log:
        hosting = with_a_record(log)
        for state in (ClusterState(), with_topic(topic(SECOND)), with_deletion(SECOND)):
            hosting.tidy(state)
            assert log.topic("orders").partition(0).next_offset == 1
            assert list(hosting.unknown()) == ["orders"]
        with pytest.raises(TopicReplacedError):
            hosting.open(ORDERS, topic(SECOND))
        hosting.tidy(with_topic(topic(FIRST)))
        assert hosting.unknown() == {}
    assert caplog.text.count("which the cluster does not know") == 1


def test_a_replica_is_not_removed_by_a_state_that_is_older_than_its_records(tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        hosting = with_a_record(log)
        hosting.partition(ORDERS).lead(7)
        hosting.partition(ORDERS).append(b"of a later epoch")
        with pytest.raises(FencedEpochError):
            hosting.tidy(with_topic(topic(FIRST, 2, 3)))
        assert log.topic("orders").partition(0).next_offset == 2


def test_a_topic_of_the_application_is_never_taken_over(tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        log.create_topic("orders").append(b"mine")
        hosting = LocalTopics(log, 1)
        with pytest.raises(commitlog.TopicExistsError):
            hosting.open(ORDERS, topic(FIRST))
        hosting.tidy(ClusterState())
        assert [record.value for record in log.topic("orders").partition(0).records()] == [b"mine"]
