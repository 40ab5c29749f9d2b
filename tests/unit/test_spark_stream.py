from __future__ import annotations

import json
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import commitlog
from commitlog import CommitLog, Topic, UnknownTopicError
from commitlog.errors import DataLossError, GroupNotEmptyError, WrongLogError
from commitlog.spark import planning, worker
from commitlog.spark import stream as stream_module
from commitlog.spark.planning import dump, load
from commitlog.spark.schema import full_schema
from commitlog.spark.stream import StreamReader


@pytest.fixture
def topic(log: CommitLog) -> Topic:
    """Two partitions of 100 records, in batches of ten."""
    found = log.create_topic("t", partitions=2)
    for number in (0, 1):
        add(found, number, 100)
    return found


@pytest.fixture(autouse=True)
def leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a worker process may keep for good, a test must not."""
    monkeypatch.setattr(worker, "settle_down", lambda: None)
    yield
    for path in list(worker._handles):
        worker.forget_log(path)


def add(topic: Topic, number: int, count: int) -> None:
    for _ in range(count // 10):
        topic.append_many([bytes(100)] * 10, partition=number)


def reader(path: Path, **options: Any) -> StreamReader:
    texts = {name: one if isinstance(one, str) else json.dumps(one) for name, one in options.items()}
    return StreamReader(full_schema(headers=False), {"path": str(path), **texts})


def at(*ends: int) -> dict[str, dict[str, int]]:
    return {"t": {str(number): end for number, end in enumerate(ends)}}


def plain(stored: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Stored offsets without ids."""
    return dump(load(stored))


def planned(found: StreamReader, start: Any, end: Any) -> list[list[tuple[Any, ...]]]:
    return [[tuple(one)[:4] for one in task.ranges] for task in found.partitions(start, end)]


def test_the_first_batch_of_a_query_from_the_end_is_empty_and_pins_where_that_was(
    topic: Topic, log_path: Path
) -> None:
    stream = reader(log_path)
    assert plain(stream.initialOffset()) == at(100, 100)
    add(topic, 0, 10)
    assert plain(stream.initialOffset()) == at(100, 100)
    assert plain(stream.latestOffset(at(100, 100))) == at(100, 100)
    assert plain(stream.latestOffset(at(100, 100))) == at(110, 100)


def test_a_query_from_the_start_begins_at_once(topic: Topic, log_path: Path) -> None:
    stream = reader(log_path, startingOffsets="earliest")
    assert plain(stream.initialOffset()) == at(0, 0)
    assert plain(stream.latestOffset(at(0, 0))) == at(100, 100)


def test_a_start_by_time_that_may_be_the_end_is_pinned_too(topic: Topic, log_path: Path) -> None:
    late = {"startingTimestamp": str(1 << 50)}
    stream = reader(log_path, **late, startingOffsetsByTimestampStrategy="latest")
    assert plain(stream.initialOffset()) == at(100, 100)
    add(topic, 0, 10)
    assert plain(stream.latestOffset(at(100, 100))) == at(100, 100)
    assert plain(stream.latestOffset(at(100, 100))) == at(110, 100)


def test_a_query_that_goes_on_is_not_held_up(topic: Topic, log_path: Path) -> None:
    assert plain(reader(log_path).latestOffset(at(50, 60))) == at(100, 100)


def test_before_spark_4_2_the_position_is_that_of_the_last_batch(topic: Topic, log_path: Path) -> None:
    stream = reader(log_path, startingOffsets="earliest", maxOffsetsPerTrigger="50")
    stream.initialOffset()
    assert plain(stream.latestOffset()) == at(25, 25)
    assert plain(stream.latestOffset()) == at(25, 25)
    stream.partitions(at(0, 0), at(25, 25))
    assert plain(stream.latestOffset()) == at(50, 50)
    again = reader(log_path, maxOffsetsPerTrigger="50")
    again.partitions(at(50, 50), at(50, 50))  # what Spark asks for when it starts again
    assert plain(again.latestOffset()) == at(75, 75)


def test_before_spark_4_2_a_new_query_is_asked_how_far_it_goes_before_from_where(
    topic: Topic, log_path: Path
) -> None:
    stream = reader(log_path, startingOffsets=at(60, 80), maxOffsetsPerTrigger="30")
    assert plain(stream.latestOffset()) == at(80, 90)  # counted from where it starts
    assert plain(stream.initialOffset()) == at(60, 80)
    latest = reader(log_path)
    assert plain(latest.latestOffset()) == at(100, 100)
    add(topic, 0, 10)
    assert plain(latest.initialOffset()) == at(100, 100)
    latest.partitions(at(100, 100), at(100, 100))
    assert plain(latest.latestOffset()) == at(110, 100)  # at once: the first batch was the empty one


def test_available_now_stops_where_the_log_ended_when_it_began(topic: Topic, log_path: Path) -> None:
    stream = reader(log_path, maxOffsetsPerTrigger="150", minOffsetsPerTrigger="100")
    stream.prepareForTriggerAvailableNow()
    add(topic, 0, 50)
    topic.add_partitions(3)
    assert plain(stream.latestOffset(at(0, 0))) == at(75, 75)
    assert plain(stream.latestOffset(at(75, 75))) == at(
        100, 100
    )  # fewer than minOffsetsPerTrigger, and no wait
    assert plain(stream.latestOffset(at(100, 100))) == at(100, 100)


def test_available_now_never_goes_back_to_what_was_there_before_the_query_began(
    topic: Topic, log_path: Path
) -> None:
    stream = reader(log_path)
    stream.prepareForTriggerAvailableNow()
    add(topic, 0, 10)  # before the query learns what "latest" is
    assert plain(stream.initialOffset()) == at(110, 100)
    assert plain(stream.latestOffset(at(110, 100))) == at(110, 100)
    assert plain(stream.latestOffset(at(110, 100))) == at(110, 100)


@pytest.mark.parametrize("lenient", [True, False])
def test_a_topic_that_is_deleted_while_the_query_looks_is_lost_like_any_other(
    topic: Topic, log: CommitLog, log_path: Path, monkeypatch: pytest.MonkeyPatch, lenient: bool
) -> None:
    log.create_topic("u").append(b"v")
    subscribed = planning.subscribed

    def and_then_delete(*args: Any, **named: Any) -> Any:
        found = subscribed(*args, **named)
        if "t" in log.topics():
            log.delete_topic("t")
        return found

    monkeypatch.setattr(planning, "subscribed", and_then_delete)
    stream = reader(log_path, failOnDataLoss=str(not lenient).lower(), maxOffsetsPerTrigger="1000")
    if lenient:
        assert plain(stream.latestOffset({"t": {"0": 50}})) == {"u": {"0": 1}}
    else:
        with pytest.raises(DataLossError, match="t-0: it was deleted"):
            stream.latestOffset({"t": {"0": 50}})


def test_too_little_waits(topic: Topic, log_path: Path) -> None:
    stream = reader(log_path, minOffsetsPerTrigger="30")
    assert plain(stream.latestOffset(at(90, 90))) == at(100, 100)
    add(topic, 0, 20)
    assert plain(stream.latestOffset(at(100, 100))) == at(100, 100)
    add(topic, 1, 10)
    assert plain(stream.latestOffset(at(100, 100))) == at(120, 110)


def test_what_was_trimmed_counts_for_no_cap(topic: Topic, log_path: Path) -> None:
    topic.partition(0).trim_before(80)
    stream = reader(log_path, maxOffsetsPerTrigger="40", failOnDataLoss="false")
    assert plain(stream.latestOffset(at(0, 80))) == at(100, 100)
    assert planned(stream, at(0, 80), at(100, 100)) == [[("t", 0, 80, 100), ("t", 1, 80, 100)]]
    with pytest.raises(DataLossError, match=r"t-0: offsets \[0, 80\) were removed"):
        reader(log_path).partitions(at(0, 80), at(100, 100))


def test_bytes_are_capped_in_whole_stored_batches(topic: Topic, log_path: Path) -> None:
    stream = reader(log_path, maxBytesPerTrigger="5000")
    first = stream.latestOffset(at(0, 0))["t"]
    assert 0 < first["0"] < 100
    assert first["0"] % 10 == first["1"] % 10 == 0


def test_new_partitions_are_read_from_their_beginning(topic: Topic, log: CommitLog, log_path: Path) -> None:
    stream = reader(log_path)
    topic.add_partitions(3)
    add(topic, 2, 20)
    log.create_topic("a").append(b"v")
    end = stream.latestOffset(at(100, 100))
    assert json.dumps(plain(end)) == '{"a": {"0": 1}, "t": {"0": 100, "1": 100, "2": 20}}'
    assert planned(stream, at(100, 100), end) == [[("a", 0, 0, 1), ("t", 2, 0, 20)]]


def test_tasks_are_shared_unless_their_number_is_asked_for(topic: Topic, log_path: Path) -> None:
    assert len(planned(reader(log_path), at(0, 0), at(100, 100))) == 1
    assert len(planned(reader(log_path, minPartitions="4"), at(0, 0), at(100, 100))) == 4
    assert len(planned(reader(log_path, maxRecordsPerPartition="50"), at(0, 0), at(100, 100))) == 4
    assert planned(reader(log_path), at(100, 100), at(100, 100)) == [[]]


def test_lag_is_reported(topic: Topic, log_path: Path) -> None:
    assert plain(reader(log_path).reportLatestOffset()) == at(100, 100)


def test_progress_is_committed_for_the_group_once_it_moved(
    topic: Topic, log: CommitLog, log_path: Path
) -> None:
    stream = reader(log_path, groupId="g")
    stream.commit(at(30, 40))
    assert [part.lag for part in log.describe_group("g").partitions] == [70, 60]
    stream.latestOffset(at(100, 40))
    assert [part.lag for part in log.describe_group("g").partitions] == [0, 60]


def test_a_group_with_members_is_not_committed_for(topic: Topic, log: CommitLog, log_path: Path) -> None:
    with log.consumer("t", group_id="g") as consumer:
        consumer.poll(1)
        with pytest.raises(GroupNotEmptyError):
            reader(log_path, groupId="g").commit(at(1, 1))


def test_what_is_subscribed_to_must_be_there_when_a_query_begins(topic: Topic, log_path: Path) -> None:
    with pytest.raises(UnknownTopicError):
        reader(log_path, subscribe="t,u").initialOffset()


def test_a_topic_that_was_deleted_or_cut_back_is_lost(topic: Topic, log: CommitLog, log_path: Path) -> None:
    strict, lenient = reader(log_path), reader(log_path, failOnDataLoss="false")
    topic.partition(1).truncate_from(50)
    with pytest.raises(DataLossError, match="t-1: its end moved back from 100 to 50"):
        strict.latestOffset(at(100, 100))
    assert plain(lenient.latestOffset(at(100, 100))) == at(100, 50)
    log.delete_topic("t")
    with pytest.raises(DataLossError, match="t-0: it was deleted"):
        strict.latestOffset(at(100, 50))
    assert plain(lenient.latestOffset(at(100, 50))) == {}


def test_a_topic_that_a_cluster_does_not_show_keeps_its_offsets_and_its_id(
    topic: Topic, log: CommitLog, log_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "is_remote", lambda path: True)
    log.create_topic("u").append(b"v")
    strict = reader(log_path, subscribe="t,u")
    before = strict.latestOffset({**at(50, 50), "u": {"0": 0}})
    log.delete_topic("t")
    with pytest.raises(DataLossError, match="t-0: it was deleted"):
        strict.latestOffset(before)
    lenient = reader(log_path, subscribe="t,u", failOnDataLoss="false")
    assert lenient.latestOffset(before) == before
    assert planned(lenient, before, before) == [[]]


def test_a_reader_travels_to_workers(topic: Topic, log_path: Path) -> None:
    stream = reader(log_path, startingOffsets="earliest")
    task = pickle.loads(pickle.dumps(stream.partitions(at(0, 0), at(100, 100))[0]))
    sent = pickle.loads(pickle.dumps(reader(log_path)))
    assert sum(batch.num_rows for batch in sent.read(task)) == 200


def test_offsets_in_a_checkpoint_name_the_log_and_the_topics(
    topic: Topic, log: CommitLog, log_path: Path
) -> None:
    stored = reader(log_path).latestOffset(at(50, 50))
    assert stored == {
        "t": {"0": 100, "1": 100, "topic_id": topic.topic_id},
        "@log_id": log.log_id,
    }
    again = reader(log_path, startingOffsets=stored)  # as a progress report shows them
    assert plain(again.initialOffset()) == at(100, 100)


def test_a_topic_that_was_deleted_and_made_again_is_lost_however_long_it_has_grown(
    topic: Topic, log: CommitLog, log_path: Path
) -> None:
    strict, lenient = reader(log_path), reader(log_path, failOnDataLoss="false")
    before = strict.latestOffset(at(50, 50))
    log.delete_topic("t")
    made_again = log.create_topic("t", partitions=2)
    for number in (0, 1):
        add(made_again, number, 200)
    after = lenient.latestOffset(before)
    assert plain(after) == at(200, 200)
    for start, end in ((before, after), (before, before), (after, before)):
        with pytest.raises(DataLossError, match="t: the topic was deleted and created again"):
            strict.partitions(start, end)
    with pytest.raises(DataLossError, match="t: the topic was deleted and created again"):
        strict.latestOffset(before)
    assert planned(lenient, before, after) == [[("t", 0, 0, 200), ("t", 1, 0, 200)]]
    assert planned(lenient, before, before) == [[]]


def test_another_log_at_the_same_path_is_lost_for_a_query(
    topic: Topic, log: CommitLog, log_path: Path, tmp_path: Path
) -> None:
    before = reader(log_path).latestOffset(at(50, 50))
    log.close()
    log_path.rename(tmp_path / "elsewhere")
    with commitlog.open(log_path) as other:
        add(other.create_topic("t"), 0, 300)
        with pytest.raises(DataLossError, match=f"it is log {other.log_id}, but the query has read log"):
            reader(log_path).latestOffset(before)
        lenient = reader(log_path, failOnDataLoss="false")
        end = lenient.latestOffset(before)
        assert planned(lenient, before, end) == [[("t", 0, 0, 300)]]


def test_a_task_reads_no_other_log_and_no_other_topic_than_the_plan_was_made_for(
    topic: Topic, log: CommitLog, log_path: Path, tmp_path: Path
) -> None:
    stream = reader(log_path)
    (task,) = stream.partitions(at(0, 0), at(100, 100))
    before = topic.topic_id
    log.delete_topic("t")
    again = log.create_topic("t", partitions=2)
    for number in (0, 1):
        add(again, number, 100)
    with pytest.raises(DataLossError) as lost:
        list(stream.read(task))
    said = f"created again: it has the id {again.topic_id}, the query has read {before}; "
    assert f"t-0 on host {socket.gethostname()}: the topic was deleted and {said}" in str(lost.value)
    assert list(reader(log_path, failOnDataLoss="false").read(task)) == []
    log_id = log.log_id
    log.close()
    log_path.rename(tmp_path / "elsewhere")
    with commitlog.open(log_path) as other:
        with pytest.raises(WrongLogError) as caught:
            list(stream.read(task))
        assert caught.value.args == (str(log_path), socket.gethostname(), log_id, other.log_id)


def forget_ids(path: Path) -> None:
    """Make a closed log one that is older than ids."""
    (path / "commitlog.json").write_text(json.dumps({"format": 1}))
    topic = path / "topics" / "t.json"
    topic.write_text(json.dumps(json.loads(topic.read_text()) | {"topic_id": None}))


def test_a_log_without_an_id_is_not_the_log_that_had_one(
    topic: Topic, log: CommitLog, log_path: Path
) -> None:
    stream = reader(log_path)
    before = stream.latestOffset(at(50, 50))
    (task,) = stream.partitions(at(0, 0), at(100, 100))
    log_id, topic_id = log.log_id, topic.topic_id
    log.close()
    forget_ids(log_path)
    with pytest.raises(WrongLogError, match=f"is a log without an id, not {log_id}; mount the same log"):
        list(stream.read(task))
    with pytest.raises(
        DataLossError, match=f"it is a log without an id, but the query has read log {log_id}"
    ):
        reader(log_path).latestOffset(before)
    only_topic = before | {"@log_id": None}
    with pytest.raises(DataLossError, match=f"it has the id None, the query has read {topic_id}"):
        reader(log_path).latestOffset(only_topic)


def test_an_old_log_that_gets_its_ids_stays_the_same_log(
    topic: Topic, log: CommitLog, log_path: Path
) -> None:
    log.close()
    forget_ids(log_path)
    stream = reader(log_path)
    before = stream.latestOffset(at(50, 50))
    (task,) = stream.partitions(at(0, 0), at(100, 100))
    assert before["@log_id"] is before["t"]["topic_id"] is None
    commitlog.open(log_path).close()
    assert sum(batch.num_rows for batch in stream.read(task)) == 200
    assert plain(reader(log_path).latestOffset(before)) == at(100, 100)
