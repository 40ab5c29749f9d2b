"""Streaming queries in a real Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import wait_until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from commitlog import CommitLog, Topic
from commitlog.spark.planning import dump, load

from .conftest import VERSION, needs_admission
from .queries import refusal, stream


class Run:
    """Streaming queries into Parquet, with one checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._sink, self._checkpoint = str(folder / "sink"), str(folder / "checkpoint")

    def available(self, frame: DataFrame) -> StreamingQuery:
        """Read what there is, and end."""
        query = self._start(frame, availableNow=True)
        query.awaitTermination(120)
        return query

    def on(self, frame: DataFrame) -> StreamingQuery:
        """Go on until it is stopped."""
        return self._start(frame, processingTime="0 seconds")

    def _start(self, frame: DataFrame, **trigger: Any) -> StreamingQuery:
        writer = frame.select("topic", "partition", "offset").writeStream.format("parquet")
        return writer.option("checkpointLocation", self._checkpoint).trigger(**trigger).start(self._sink)

    def found(self) -> list[tuple[str, int, int]]:
        """Everything that all queries wrote."""
        schema = "topic STRING, partition INT, offset BIGINT"
        return sorted(tuple(row) for row in self._spark.read.schema(schema).parquet(self._sink).collect())

    def stored(self) -> list[Any]:
        """The offsets of each micro-batch, as the checkpoint has them, without ids."""
        files = sorted(Path(self._checkpoint, "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
        return [dump(load(json.loads(path.read_text().splitlines()[-1]))) for path in files]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Iterator[Run]:
    yield Run(spark, tmp_path)
    for query in spark.streams.active:
        query.stop()


@pytest.fixture
def topic(log: CommitLog) -> Topic:
    found = log.create_topic("t", partitions=2)
    add(found, 0, 100)
    add(found, 1, 100)
    return found


def add(topic: Topic, partition: int, count: int) -> None:
    """Append records in batches of ten."""
    for _ in range(count // 10):
        topic.append_many([bytes(100)] * 10, partition=partition)


def rows(query: StreamingQuery) -> list[int]:
    """How many rows each micro-batch had that had any."""
    return [count for count in (progress["numInputRows"] for progress in query.recentProgress) if count]


def test_a_query_goes_on_from_its_checkpoint(
    spark: SparkSession, run: Run, topic: Topic, log_path: Path
) -> None:
    frame = stream(spark, log_path, startingOffsets="earliest")
    run.available(frame)
    assert run.found() == [("t", partition, offset) for partition in (0, 1) for offset in range(100)]
    add(topic, 1, 50)
    add(topic, 0, 20)
    run.available(frame)
    ends = ((0, 120), (1, 150))
    assert run.found() == [("t", partition, offset) for partition, end in ends for offset in range(end)]
    assert run.stored()[-1] == {"t": {"0": 120, "1": 150}}
    assert run.available(frame).recentProgress[-1]["numInputRows"] == 0


def test_a_topic_that_was_deleted_and_made_again_is_data_loss_even_if_it_has_grown_longer(
    spark: SparkSession, run: Run, topic: Topic, log: CommitLog, log_path: Path
) -> None:
    frame = stream(spark, log_path, startingOffsets="earliest")
    run.available(frame)
    log.delete_topic("t")
    again = log.create_topic("t", partitions=2)
    add(again, 0, 200)
    add(again, 1, 200)
    assert "t: the topic was deleted and created again" in refusal(lambda: run.available(frame))
    run.available(stream(spark, log_path, startingOffsets="earliest", failOnDataLoss="false"))
    new = [("t", partition, offset) for partition in (0, 1) for offset in range(200)]
    assert run.found() == sorted([*new, *(place for place in new if place[2] < 100)])


def test_a_query_starts_at_the_end_unless_told_otherwise(
    spark: SparkSession, run: Run, topic: Topic, log_path: Path
) -> None:
    query = run.on(stream(spark, log_path))
    wait_until(lambda: run.stored() == [{"t": {"0": 100, "1": 100}}], 120)  # pinned by an empty batch
    add(topic, 0, 10)
    query.processAllAvailable()
    assert run.found() == [("t", 0, offset) for offset in range(100, 110)]


@needs_admission
def test_a_cap_of_offsets_makes_several_batches_split_by_lag(
    spark: SparkSession, run: Run, topic: Topic, log_path: Path
) -> None:
    add(topic, 1, 200)
    query = run.available(stream(spark, log_path, startingOffsets="earliest", maxOffsetsPerTrigger="150"))
    assert rows(query) == [150, 150, 100]
    assert run.stored()[0] == {"t": {"0": 37, "1": 113}}
    assert len(run.found()) == len(set(run.found())) == 400


def test_a_cap_holds_without_spark_telling_of_it(
    spark: SparkSession, run: Run, topic: Topic, log_path: Path
) -> None:
    query = run.on(stream(spark, log_path, startingOffsets="earliest", maxOffsetsPerTrigger="60"))
    query.processAllAvailable()
    assert max(rows(query)) == 60
    assert len(run.found()) == len(set(run.found())) == 200


@needs_admission
def test_a_cap_of_bytes_ends_batches_where_stored_ones_do(
    spark: SparkSession, run: Run, topic: Topic, log_path: Path
) -> None:
    query = run.available(stream(spark, log_path, startingOffsets="earliest", maxBytesPerTrigger="6000"))
    assert len(rows(query)) >= 4
    assert all(count % 10 == 0 for count in rows(query))
    assert len(run.found()) == len(set(run.found())) == 200


@needs_admission
def test_available_now_ends_at_what_there_was_when_it_began(
    spark: SparkSession, run: Run, topic: Topic, log_path: Path
) -> None:
    query = run._start(
        stream(spark, log_path, startingOffsets="earliest", maxOffsetsPerTrigger="50"), availableNow=True
    )
    while query.isActive:
        add(topic, 0, 10)
        query.awaitTermination(0.05)
    found = run.found()
    assert len(found) == len(set(found))
    assert (
        topic.partition(0).next_offset > max(offset for _, partition, offset in found if partition == 0) + 1
    )


def test_too_little_waits_for_more(spark: SparkSession, run: Run, topic: Topic, log_path: Path) -> None:
    frame = stream(
        spark, log_path, startingOffsets="earliest", minOffsetsPerTrigger="30", maxTriggerDelay="1h"
    )
    query = run.on(frame)
    wait_until(lambda: rows(query) == [200], 120)  # the first batch does not wait
    add(topic, 0, 20)
    before = query.lastProgress["timestamp"]
    wait_until(lambda: query.lastProgress["timestamp"] != before, 120)
    assert rows(query) == [200]
    add(topic, 1, 10)
    wait_until(lambda: rows(query) == [200, 30], 120)


def test_new_partitions_and_topics_are_picked_up(
    spark: SparkSession, run: Run, topic: Topic, log: CommitLog, log_path: Path
) -> None:
    query = run.on(stream(spark, log_path, subscribePattern="t.*", startingOffsets="latest"))
    query.processAllAvailable()
    topic.add_partitions(3)
    add(topic, 2, 10)
    log.create_topic("t-new").append(b"v")
    log.create_topic("other").append(b"v")
    query.processAllAvailable()
    assert run.found() == [*(("t", 2, offset) for offset in range(10)), ("t-new", 0, 0)]


@needs_admission
def test_lag_is_reported_to_spark(spark: SparkSession, run: Run, topic: Topic, log_path: Path) -> None:
    frame = stream(spark, log_path, startingOffsets="earliest", maxOffsetsPerTrigger="150")
    (source,) = run.available(frame).recentProgress[0]["sources"]
    assert dump(load(json.loads(source["endOffset"]))) == {"t": {"0": 75, "1": 75}}
    assert dump(load(json.loads(source["latestOffset"]))) == {"t": {"0": 100, "1": 100}}


def test_progress_shows_as_a_consumer_group(
    spark: SparkSession, run: Run, topic: Topic, log: CommitLog, log_path: Path
) -> None:
    frame = stream(spark, log_path, startingOffsets="earliest", groupId="dashboard")
    if VERSION >= (4, 2):
        run.available(frame)
    else:  # only the next batch tells that one is done
        query = run.on(frame)
        query.processAllAvailable()
        add(topic, 0, 10)
        query.processAllAvailable()
        query.stop()
    behind = sum(part.lag or 0 for part in log.describe_group("dashboard").partitions)
    add(topic, 1, 30)
    described = log.describe_group("dashboard")
    assert described.state == "Empty"
    assert described.members == ()
    assert sum(part.lag or 0 for part in described.partitions) == behind + 30
    if VERSION >= (4, 2):
        assert [(part.committed, part.lag) for part in described.partitions] == [(100, 0), (100, 30)]


def lose(topic: Topic, log: CommitLog) -> None:
    topic.partition(0).trim_before(50)


def cut_off(topic: Topic, log: CommitLog) -> None:
    topic.partition(0).truncate_from(5)
    add(topic, 0, 10)


def delete(topic: Topic, log: CommitLog) -> None:
    log.delete_topic("t")
    log.create_topic("u").append(b"v")


@pytest.mark.parametrize(
    ("happens", "said", "after"),
    [
        (lose, "t-0: offsets [10, 50) were removed", [("t", 0, offset) for offset in range(50, 100)]),
        (delete, "t-0: it was deleted", [("u", 0, 0)]),
    ],
)
def test_what_is_lost_ends_the_query_or_is_passed_over(
    spark: SparkSession,
    run: Run,
    log: CommitLog,
    log_path: Path,
    happens: Callable[[Topic, CommitLog], None],
    said: str,
    after: list[tuple[str, int, int]],
) -> None:
    topic = log.create_topic("t")
    add(topic, 0, 10)
    run.available(stream(spark, log_path, startingOffsets="earliest"))
    add(topic, 0, 90)
    happens(topic, log)
    assert said in refusal(lambda: run.available(stream(spark, log_path)))
    run.available(stream(spark, log_path, failOnDataLoss="false"))
    assert run.found() == sorted([*(("t", 0, offset) for offset in range(10)), *after])


def test_an_end_that_went_back_is_noticed(
    spark: SparkSession, run: Run, topic: Topic, log: CommitLog, log_path: Path
) -> None:
    run.available(stream(spark, log_path, startingOffsets="earliest"))
    cut_off(topic, log)
    said = "t-0: its end moved back from 100 to 15"
    assert said in refusal(lambda: run.available(stream(spark, log_path)))
    run.available(stream(spark, log_path, failOnDataLoss="false"))
    add(topic, 0, 10)
    run.available(stream(spark, log_path, failOnDataLoss="false"))
    assert len(run.found()) == 210


def test_a_topic_that_vanishes_and_comes_back_is_passed_over_and_read_anew(
    spark: SparkSession, run: Run, topic: Topic, log: CommitLog, log_path: Path
) -> None:
    log.create_topic("u").append(b"v")
    both = {"subscribe": "t,u", "groupId": "g"}
    run.available(stream(spark, log_path, **both, startingOffsets="earliest"))
    log.delete_topic("t")
    log.topic("u").append(b"v")
    assert "t-0: it was deleted" in refusal(lambda: run.available(stream(spark, log_path, **both)))
    run.available(stream(spark, log_path, **both, failOnDataLoss="false"))
    assert run.found()[200:] == [("u", 0, 0), ("u", 0, 1)]
    add(log.create_topic("t"), 0, 10)
    run.available(stream(spark, log_path, **both, failOnDataLoss="false"))
    assert sorted(run.found())[:2] == [("t", 0, 0), ("t", 0, 0)]  # of the old topic, and of the new one
    assert len(run.found()) == 212


def test_an_end_is_refused_for_a_query_without_one(
    spark: SparkSession, run: Run, topic: Topic, log_path: Path
) -> None:
    said = refusal(lambda: run.available(stream(spark, log_path, endingOffsets="latest")))
    assert "endingOffsets" in said and "a streaming query has no end" in said
