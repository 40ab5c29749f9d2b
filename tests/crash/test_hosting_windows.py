"""A kill in each window of what a node does with the topics it hosts. Each docstring quotes the comment."""

from __future__ import annotations

from pathlib import Path

import pytest

import commitlog
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, PartitionState, TopicState
from commitlog.replication.hosting import Hosting

pytestmark = pytest.mark.usefixtures("quick_disk")

ORDERS = TopicPartition("orders", 0)


class KilledError(Exception):
    """Stands for the end of the process."""


def topic(topic_id: int) -> TopicState:
    return TopicState(topic_id, {}, (PartitionState((1,), (1,), 1, 0, topic_id),))


def hosting(log: commitlog.CommitLog, orders: TopicState | None = None) -> Hosting:
    state = ClusterState(topics={} if orders is None else {"orders": orders})
    return Hosting(log, lambda: state)


def test_killed_after_an_earlier_topic_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """crash: the earlier topic is gone, its id is still listed -> the next start stores the new id"""
    with commitlog.open(tmp_path) as log:
        first = hosting(log, topic(1))
        partition = first.open(ORDERS, topic(1))
        partition.lead(0)
        partition.append(b"of the earlier topic")

        def killed(*_: object) -> None:
            raise KilledError

        with monkeypatch.context() as patch, pytest.raises(KilledError):
            patch.setattr(first, "_store", killed)
            first.open(ORDERS, topic(2))
    with commitlog.open(tmp_path) as log:
        assert log.topics() == []
        assert hosting(log, topic(2)).open(ORDERS, topic(2)).next_offset == 0
    with commitlog.open(tmp_path) as log:
        assert hosting(log, topic(2)).open(ORDERS, topic(2)).next_offset == 0


def test_killed_before_a_listed_topic_was_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """crash: the id is listed, the topic is not there -> the next start creates it"""
    with commitlog.open(tmp_path) as log, monkeypatch.context() as patch, pytest.raises(KilledError):

        def killed(*_: object) -> None:
            raise KilledError

        patch.setattr(log, "create_topic", killed)
        hosting(log, topic(1)).open(ORDERS, topic(1))
    with commitlog.open(tmp_path) as log:
        assert log.topics() == []
        partition = hosting(log, topic(1)).open(ORDERS, topic(1))
        with pytest.raises(commitlog.NotLeaderError):
            partition.append(b"nobody leads yet")


def test_killed_after_a_topic_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """crash: the topic is gone, its id is still listed -> nothing is asked of a topic not there"""
    with commitlog.open(tmp_path) as log:
        first = hosting(log)
        first.open(ORDERS, topic(1))
        with monkeypatch.context() as patch, pytest.raises(KilledError):

            def killed(*_: object) -> None:
                raise KilledError

            patch.setattr(first, "_store", killed)
            first.remove(ORDERS)
    with commitlog.open(tmp_path) as log:
        again = hosting(log)
        assert not again.clean, "the topic may have been lost as well"
        assert again.partitions() == []
        again.remove(ORDERS)
        with pytest.raises(commitlog.UnknownTopicError):
            again.partition(ORDERS)


def test_a_topic_of_the_application_is_never_taken_over(tmp_path: Path) -> None:
    with commitlog.open(tmp_path) as log:
        log.create_topic("orders").append(b"mine")
        with pytest.raises(commitlog.TopicExistsError):
            hosting(log, topic(1)).open(ORDERS, topic(1))
        hosting(log).remove(ORDERS)
        assert [record.value for record in log.topic("orders").partition(0).records()] == [b"mine"]
