"""A log's metrics for Prometheus: a collector, and a small server. Needs the extra `metrics`.

docs/monitoring.md lists the names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self

from commitlog.errors import MissingDependencyError

try:
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise MissingDependencyError("commitlog.prometheus", "commitlog[metrics]") from None

from commitlog.log import CommitLog
from commitlog.metrics import LogMetrics
from commitlog.partitions.counters import CompactionMetrics, PartitionMetrics, WriteMetrics

if TYPE_CHECKING:
    from prometheus_client.exposition import ThreadingWSGIServer

_OF_PARTITION, _OF_GROUP = ["topic", "partition"], ["group", "topic", "partition"]

_PARTITION: dict[str, tuple[str, Callable[[PartitionMetrics], float]]] = {
    "start_offset": ("The first offset that may be read.", lambda one: one.start_offset),
    "next_offset": ("The offset that the next append gets.", lambda one: one.next_offset),
    "durable_offset": ("Everything below it survives power loss.", lambda one: one.durable_offset),
    "high_watermark": ("Readers stop here.", lambda one: one.high_watermark),
    "segments": ("Segments.", lambda one: one.segments),
    "bytes": ("The size of all segments.", lambda one: one.size_bytes),
}
_WRITTEN: dict[str, tuple[str, Callable[[WriteMetrics], float]]] = {
    "appends": ("Batches appended by this process.", lambda one: one.appends),
    "appended_records": ("Records appended by this process.", lambda one: one.records),
    "appended_bytes": ("Bytes appended by this process.", lambda one: one.bytes),
    "rolls": ("Segments sealed.", lambda one: one.rolls),
    "trimmed_segments": ("Segments removed by retention and trims.", lambda one: one.segments_trimmed),
    "trimmed_bytes": ("Bytes removed by retention and trims.", lambda one: one.bytes_trimmed),
}
_COMPACTION: dict[str, tuple[str, Callable[[CompactionMetrics], float]]] = {
    "passes": ("Passes of compaction.", lambda one: one.passes),
    "seconds": ("The time that passes took.", lambda one: one.seconds),
    "input_bytes": ("Bytes of the segments that passes cleaned.", lambda one: one.bytes_before),
    "output_bytes": ("Bytes of the segments that passes left.", lambda one: one.bytes_after),
    "removed_records": (
        "Records that passes removed.",
        lambda one: one.records_before - one.records_after,
    ),
}


class LogCollector(Collector):
    """The metrics of an open log, for a registry of prometheus_client: looked up at each scrape."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def describe(self) -> list[Metric]:
        """Name nothing in advance: what there is depends on the topics."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; ClosedError once the log is closed, which makes the scrape fail."""
        found = self._log.metrics()
        yield from _partitions(found)
        yield from _written(found)
        yield from _compaction(found)
        yield from _groups(found)
        yield from _whole_log(found)


class Exporter:
    """A server of metrics, in threads of its own, until close()."""

    def __init__(self, server: ThreadingWSGIServer, join: Callable[[], None]) -> None:
        self._server, self._join = server, join

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_port)

    def close(self) -> None:
        """Stop serving; closing twice is fine."""
        self._server.shutdown()
        self._join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(log: CommitLog, port: int = 9464, address: str = "127.0.0.1") -> Exporter:
    """Serve the metrics of an open log at http://address:port/metrics; port 0 takes a free one."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LogCollector(log))
    server, thread = start_http_server(port, address, registry)
    return Exporter(server, thread.join)  # type: ignore[arg-type]


def _labels(one: PartitionMetrics) -> list[str]:
    return [one.topic, str(one.partition)]


def _partitions(found: LogMetrics) -> Iterator[Metric]:
    for name, (text, value) in _PARTITION.items():
        family = GaugeMetricFamily(f"commitlog_partition_{name}", text, labels=_OF_PARTITION)
        for one in found.partitions:
            family.add_metric(_labels(one), value(one))
        yield family
    health = found.health
    states = {
        "failed": ("Whether a disk error stopped it.", health.failed_partitions),
        "uncleanable": ("Whether compaction set it aside.", health.uncleanable_partitions),
        "damaged": ("Whether damage keeps retention from removing segments.", health.damaged_partitions),
    }
    for name, (text, problems) in states.items():
        bad = {partition for partition, _ in problems}
        family = GaugeMetricFamily(f"commitlog_partition_{name}", text, labels=_OF_PARTITION)
        for one in found.partitions:
            family.add_metric(_labels(one), f"{one.topic}-{one.partition}" in bad)
        yield family


def _written(found: LogMetrics) -> Iterator[Metric]:
    counted = [(_labels(one), one.written) for one in found.partitions if one.written is not None]
    for name, (text, value) in _WRITTEN.items():
        family = CounterMetricFamily(f"commitlog_{name}", text, labels=_OF_PARTITION)
        for labels, one in counted:
            family.add_metric(labels, value(one))
        yield family
    producers = GaugeMetricFamily(
        "commitlog_partition_producers", "Producers that the partition remembers.", labels=_OF_PARTITION
    )
    syncs = HistogramMetricFamily("commitlog_sync_seconds", "How long syncs took.", labels=_OF_PARTITION)
    for labels, one in counted:
        producers.add_metric(labels, one.producers)
        buckets = [(str(bound), count) for bound, count in one.syncs.buckets]
        syncs.add_metric(labels, [*buckets, ("+Inf", one.syncs.count)], one.syncs.seconds)
    yield producers
    yield syncs


def _compaction(found: LogMetrics) -> Iterator[Metric]:
    compacted = [(_labels(one), one.compaction) for one in found.partitions if one.compaction is not None]
    for name, (text, value) in _COMPACTION.items():
        family = CounterMetricFamily(f"commitlog_compaction_{name}", text, labels=_OF_PARTITION)
        for labels, one in compacted:
            family.add_metric(labels, value(one))
        yield family
    text = "Of the bytes that may be cleaned now, the part that no pass has cleaned."
    ratio = GaugeMetricFamily("commitlog_partition_dirty_ratio", text, labels=_OF_PARTITION)
    for labels, one in compacted:
        if one.dirty_ratio is not None:
            ratio.add_metric(labels, one.dirty_ratio)
    yield ratio


def _groups(found: LogMetrics) -> Iterator[Metric]:
    members = GaugeMetricFamily("commitlog_group_members", "Members of the group.", labels=["group"])
    committed = GaugeMetricFamily("commitlog_group_committed_offset", "What it committed.", labels=_OF_GROUP)
    lag = GaugeMetricFamily(
        "commitlog_group_lag_records", "From what it committed to the high watermark.", labels=_OF_GROUP
    )
    for group in found.groups:
        members.add_metric([group.group_id], len(group.members))
        for one in group.partitions:
            labels = [group.group_id, one.topic, str(one.partition)]
            if one.committed is not None and one.lag is not None:
                committed.add_metric(labels, one.committed)
                lag.add_metric(labels, one.lag)
    yield from (members, committed, lag)


def _whole_log(found: LogMetrics) -> Iterator[Metric]:
    recovery = found.recovery
    for name, text, value in (
        ("segments_mapped", "Segments that are mapped.", found.segments_mapped),
        ("healthy", "Whether background work and all partitions are well.", found.health.ok),
        ("recovery_seconds", "How long recovery took at open.", recovery.seconds),
        ("recovery_checked_bytes", "Bytes that recovery checked.", recovery.bytes_checked),
        ("recovery_cut_bytes", "Bytes of torn tails that recovery cut.", recovery.bytes_cut),
        ("recovery_dropped_segments", "Unsynced segments behind a tear.", recovery.segments_dropped),
    ):
        yield GaugeMetricFamily(f"commitlog_{name}", text, value=value)
    alive: dict[str, int] = {}
    runs: defaultdict[str, int] = defaultdict(int)
    failures: defaultdict[str, int] = defaultdict(int)
    for task in found.health.tasks:  # each producer and each consumer of a group has some of the same name
        alive[task.name] = min(task.alive, alive.get(task.name, 1))
        runs[task.name] += task.runs
        failures[task.name] += task.failures
    yield _by_task(GaugeMetricFamily("commitlog_task_alive", "Whether it runs.", labels=["task"]), alive)
    yield _by_task(CounterMetricFamily("commitlog_task_runs", "Its runs.", labels=["task"]), runs)
    yield _by_task(CounterMetricFamily("commitlog_task_failures", "Its failures.", labels=["task"]), failures)


def _by_task(
    family: GaugeMetricFamily | CounterMetricFamily, values: dict[str, int]
) -> GaugeMetricFamily | CounterMetricFamily:
    for task, value in values.items():
        family.add_metric([task], value)
    return family


__all__ = ["Exporter", "LogCollector", "serve"]
