"""A scrape over real HTTP, read by prometheus_client's own parser."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest
from helpers import fill
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import commitlog
from commitlog import CommitLog, Partition, PartitionFailedError, TopicPartition, files
from commitlog.prometheus import Exporter, LogCollector, serve

CONFIG = {"segment_bytes": 1_000, "flush_ms": -1, "file_delete_delay_ms": 0, "cleanup_policy": "compact"}

LABELS = ("group", "topic", "partition", "task", "le")


@pytest.fixture
def partition(log: CommitLog) -> Partition:
    found: Partition = log.create_topic("orders", config=CONFIG).partition(0)
    fill(found, 50)
    found.sync()
    return found


@pytest.fixture
def exporter(log: CommitLog, partition: Partition) -> Iterator[Exporter]:
    with serve(log, port=0) as opened:
        yield opened


def scrape(exporter: Exporter) -> dict[tuple[str, tuple[str, ...]], float]:
    """Every sample, by its name and the values of its labels."""
    with urlopen(f"http://127.0.0.1:{exporter.port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        (sample.name, tuple(sample.labels[one] for one in LABELS if one in sample.labels)): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_scrape_tells_where_partitions_stand(exporter: Exporter, partition: Partition) -> None:
    partition.append(b"not durable", key=b"k")
    found, place = scrape(exporter), ("orders", "0")
    assert found["commitlog_partition_start_offset", place] == 0
    assert found["commitlog_partition_next_offset", place] == 51
    assert found["commitlog_partition_durable_offset", place] == 50
    assert found["commitlog_partition_high_watermark", place] == 51
    assert found["commitlog_partition_last_stable_offset", place] == 51
    assert found["commitlog_partition_segments", place] == len(partition.segments)
    assert found["commitlog_partition_bytes", place] == partition.size_bytes


def test_a_scrape_tells_of_transactions(exporter: Exporter, log: CommitLog, partition: Partition) -> None:
    producer = log.producer(transactional_id="billing")
    for commit in (True, False, None):
        producer.begin_transaction()
        producer.send("orders", b"x", key=b"k")
        producer.flush()
        if commit is not None:
            (producer.commit_transaction if commit else producer.abort_transaction)()
    found = scrape(exporter)
    assert found["commitlog_transactions_open", ()] == 1
    assert found["commitlog_transactions_oldest_seconds", ()] >= 0
    assert found["commitlog_transactions_committed_total", ()] == 1
    assert found["commitlog_transactions_aborted_total", ()] == 1
    assert found["commitlog_transactions_timed_out_total", ()] == 0
    assert found["commitlog_partition_last_stable_offset", ("orders", "0")] == 54
    assert found["commitlog_partition_high_watermark", ("orders", "0")] == 55
    with commitlog.open(log.path, mode="r") as reading, serve(reading, port=0) as other:
        seen = scrape(other)
    assert seen["commitlog_transactions_open", ()] == 1
    assert ("commitlog_transactions_committed_total", ()) not in seen


def test_counters_end_in_total_and_grow(exporter: Exporter, partition: Partition) -> None:
    place = ("orders", "0")
    before = scrape(exporter)
    partition.append_many([b"one", b"two"], keys=[b"a", b"b"])
    after = scrape(exporter)
    assert after["commitlog_appends_total", place] == before["commitlog_appends_total", place] + 1 == 51
    assert after["commitlog_appended_records_total", place] == 52
    assert after["commitlog_appended_bytes_total", place] == partition.size_bytes
    assert after["commitlog_rolls_total", place] == len(partition.segments) - 1
    assert after["commitlog_trimmed_segments_total", place] == 0


def test_syncs_are_a_histogram(exporter: Exporter, partition: Partition) -> None:
    partition.append(b"one", key=b"a", sync=True)
    found = scrape(exporter)
    assert found["commitlog_sync_seconds_count", ("orders", "0")] == 2
    assert found["commitlog_sync_seconds_bucket", ("orders", "0", "+Inf")] == 2
    assert found["commitlog_sync_seconds_sum", ("orders", "0")] > 0
    assert ("commitlog_sync_seconds_bucket", ("orders", "0", "0.0005")) in found


def test_compaction_is_told_of_topics_that_have_it(
    exporter: Exporter, log: CommitLog, partition: Partition
) -> None:
    log.create_topic("plain")
    partition.compact()
    found, place = scrape(exporter), ("orders", "0")
    assert found["commitlog_compaction_passes_total", place] == 1
    assert found["commitlog_compaction_removed_records_total", place] > 0
    smaller = found["commitlog_compaction_output_bytes_total", place]
    assert 0 < smaller < found["commitlog_compaction_input_bytes_total", place]
    assert found["commitlog_partition_dirty_ratio", place] == 0
    assert ("commitlog_compaction_passes_total", ("plain", "0")) not in found


def test_groups_tell_their_lag(exporter: Exporter, log: CommitLog) -> None:
    log.commit_offsets('a "group"', {TopicPartition("orders", 0): 20})
    found = scrape(exporter)
    assert found["commitlog_group_lag_records", ('a "group"', "orders", "0")] == 30
    assert found["commitlog_group_committed_offset", ('a "group"', "orders", "0")] == 20
    assert found["commitlog_group_members", ('a "group"',)] == 0


def test_health_is_a_number(
    exporter: Exporter, partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = scrape(exporter)
    assert found["commitlog_healthy", ()] == 1
    assert found["commitlog_task_alive", ("flusher",)] == 1
    assert found["commitlog_task_failures_total", ("cleaner",)] == 0

    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "a broken disk")

    partition.append(b"one", key=b"a")
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_data", broken)
        with pytest.raises(PartitionFailedError):
            partition.sync()
    found = scrape(exporter)
    assert found["commitlog_healthy", ()] == 0
    assert found["commitlog_partition_failed", ("orders", "0")] == 1


def test_several_producers_are_one_task(exporter: Exporter, log: CommitLog) -> None:
    with log.producer(), log.producer():
        assert scrape(exporter)["commitlog_task_alive", ("producer",)] == 1


def test_a_reader_exports_what_it_knows(log: CommitLog, partition: Partition) -> None:
    with commitlog.open(log.path, mode="r") as reading, serve(reading, port=0) as exporter:
        found = scrape(exporter)
    assert found["commitlog_partition_next_offset", ("orders", "0")] == 50
    assert ("commitlog_appends_total", ("orders", "0")) not in found


def test_the_scrape_of_a_closed_log_fails(exporter: Exporter, log: CommitLog) -> None:
    log.close()
    with pytest.raises(HTTPError, match="500"):
        scrape(exporter)


def test_a_closed_exporter_listens_no_more(log: CommitLog) -> None:
    exporter = serve(log, port=0)
    exporter.close()
    exporter.close()
    with pytest.raises(URLError):
        scrape(exporter)


def test_the_collector_joins_a_registry_of_the_application(log: CommitLog, partition: Partition) -> None:
    registry = CollectorRegistry()
    registry.register(LogCollector(log))
    assert b'commitlog_partition_next_offset{partition="0",topic="orders"} 50.0' in generate_latest(registry)


def test_without_prometheus_client_one_is_told_what_to_install() -> None:
    program = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import commitlog\n"
        "try: import commitlog.prometheus\n"
        "except commitlog.errors.MissingDependencyError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install commitlog[metrics]" in done.stdout
