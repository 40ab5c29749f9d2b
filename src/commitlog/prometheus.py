"""A collector of a log's metrics for Prometheus, and a small server. Needs the extra `metrics`.

docs/monitoring.md lists the metrics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    "start_offset": ("The first offset that can be read.", lambda one: one.start_offset),
    "next_offset": ("The offset of the next append.", lambda one: one.next_offset),
    "durable_offset": ("Records below it survive power loss.", lambda one: one.durable_offset),
    "high_watermark": ("Records below it are on every in-sync replica.", lambda one: one.high_watermark),
    "last_stable_offset": (
        "Readers read up to here: no transaction below it is open.",
        lambda one: one.last_stable_offset,
    ),
    "segments": ("The number of segments.", lambda one: one.segments),
    "bytes": ("The total size of the segments.", lambda one: one.size_bytes),
}
_WRITTEN: dict[str, tuple[str, Callable[[WriteMetrics], float]]] = {
    "appends": ("Batches appended by this process.", lambda one: one.appends),
    "appended_records": ("Records appended by this process.", lambda one: one.records),
    "appended_bytes": ("Bytes appended by this process.", lambda one: one.bytes),
    "rolls": ("Segments sealed by this process.", lambda one: one.rolls),
    "trimmed_segments": ("Segments removed by retention and trims.", lambda one: one.segments_trimmed),
    "trimmed_bytes": ("Bytes removed by retention and trims.", lambda one: one.bytes_trimmed),
}
_COMPACTION: dict[str, tuple[str, Callable[[CompactionMetrics], float]]] = {
    "passes": ("Compaction passes.", lambda one: one.passes),
    "seconds": ("Time spent in compaction passes.", lambda one: one.seconds),
    "input_bytes": ("Bytes in segments before compaction passes.", lambda one: one.bytes_before),
    "output_bytes": ("Bytes in segments after compaction passes.", lambda one: one.bytes_after),
    "removed_records": ("Records removed by compaction.", lambda one: one.records_before - one.records_after),
}


class LogCollector(Collector):
    """A prometheus_client collector for an open log; it reads the metrics at each scrape."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def describe(self) -> list[Metric]:
        """Return no metrics in advance: they depend on the topics."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield every metric; raises ClosedError if the log is closed, which fails the scrape."""
        found = self._log.metrics()
        yield from _partitions(found)
        yield from _written(found)
        yield from _compaction(found)
        yield from _groups(found)
        yield from _transactions(found)
        yield from _whole_log(found)


class Exporter:
    """An HTTP server for metrics, in its own threads, until close()."""

    def __init__(self, server: ThreadingWSGIServer, join: Callable[[], None]) -> None:
        self._server, self._join = server, join

    @property
    def port(self) -> int:
        """The port that the server listens on."""
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
    """Serve the metrics of an open log at http://address:port/metrics; port 0 means any free port."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LogCollector(log))
    server, thread = start_http_server(port, address, registry)
    return Exporter(server, thread.join)  # type: ignore[arg-type]


def _labels(one: PartitionMetrics) -> list[str]:
    return [one.topic, str(one.partition)]


def _family(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily],
    name: str,
    text: str,
    samples: Iterable[tuple[list[str], float]],
    labels: Sequence[str] = _OF_PARTITION,
) -> Metric:
    """Return a metric with a value for each list of labels."""
    family = kind(f"commitlog_{name}", text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def _partitions(found: LogMetrics) -> Iterator[Metric]:
    rows = [(_labels(one), one) for one in found.partitions]
    for name, (text, value) in _PARTITION.items():
        samples = [(labels, value(one)) for labels, one in rows]
        yield _family(GaugeMetricFamily, f"partition_{name}", text, samples)
    health = found.health
    for name, text, problems in (
        ("failed", "Whether a disk error has stopped the partition.", health.failed_partitions),
        ("uncleanable", "Whether compaction has set the partition aside.", health.uncleanable_partitions),
        ("damaged", "Whether damage stops retention from removing segments.", health.damaged_partitions),
    ):
        bad = {partition for partition, _ in problems}
        samples = [(labels, "-".join(labels) in bad) for labels, _ in rows]
        yield _family(GaugeMetricFamily, f"partition_{name}", text, samples)


def _written(found: LogMetrics) -> Iterator[Metric]:
    rows = [(_labels(one), one.written) for one in found.partitions if one.written is not None]
    for name, (text, value) in _WRITTEN.items():
        yield _family(CounterMetricFamily, name, text, [(labels, value(one)) for labels, one in rows])
    text = "Producers that the partition remembers."
    producers = [(labels, one.producers) for labels, one in rows]
    yield _family(GaugeMetricFamily, "partition_producers", text, producers)
    syncs = HistogramMetricFamily("commitlog_sync_seconds", "Duration of syncs.", labels=_OF_PARTITION)
    for labels, one in rows:
        buckets = [(str(bound), count) for bound, count in one.syncs.buckets]
        syncs.add_metric(labels, [*buckets, ("+Inf", one.syncs.count)], one.syncs.seconds)
    yield syncs


def _compaction(found: LogMetrics) -> Iterator[Metric]:
    rows = [(_labels(one), one.compaction) for one in found.partitions if one.compaction is not None]
    for name, (text, value) in _COMPACTION.items():
        samples = [(labels, value(one)) for labels, one in rows]
        yield _family(CounterMetricFamily, f"compaction_{name}", text, samples)
    text = "Of the bytes that may be cleaned now, the part that no pass has cleaned."
    ratios = [(labels, one.dirty_ratio) for labels, one in rows if one.dirty_ratio is not None]
    yield _family(GaugeMetricFamily, "partition_dirty_ratio", text, ratios)


def _groups(found: LogMetrics) -> Iterator[Metric]:
    rows = [
        ([group.group_id, one.topic, str(one.partition)], one.committed, one.lag)
        for group in found.groups
        for one in group.partitions
        if one.committed is not None and one.lag is not None
    ]
    members = [([group.group_id], len(group.members)) for group in found.groups]
    committed, lag = [(row[0], row[1]) for row in rows], [(row[0], row[2]) for row in rows]
    yield _family(GaugeMetricFamily, "group_members", "The number of members.", members, ["group"])
    yield _family(GaugeMetricFamily, "group_committed_offset", "Committed offset.", committed, _OF_GROUP)
    text = "Records after the committed offset; offsets, if there are many."
    yield _family(GaugeMetricFamily, "group_lag_records", text, lag, _OF_GROUP)


def _transactions(found: LogMetrics) -> Iterator[Metric]:
    now = found.transactions
    for name, text, value in (
        ("open", "Transactions that are open in the log.", now.open),
        ("oldest_seconds", "The age of the oldest open transaction.", now.oldest_ms / 1000),
    ):
        yield GaugeMetricFamily(f"commitlog_transactions_{name}", text, value=value)
    if found.mode == "r":  # it decides nothing
        return
    for name, text, count in (
        ("committed", "Transactions committed by this process.", now.committed),
        ("aborted", "Transactions aborted by this process.", now.aborted),
        ("timed_out", "Transactions that this process aborted because of their timeout.", now.timed_out),
    ):
        yield CounterMetricFamily(f"commitlog_transactions_{name}", text, value=count)


def _whole_log(found: LogMetrics) -> Iterator[Metric]:
    recovery = found.recovery
    for name, text, value in (
        ("segments_mapped", "The number of mapped segments.", found.segments_mapped),
        ("healthy", "Whether background tasks and all partitions are healthy.", found.health.ok),
        ("recovery_seconds", "Duration of recovery at open.", recovery.seconds),
        ("recovery_checked_bytes", "Bytes that recovery checked.", recovery.bytes_checked),
        ("recovery_cut_bytes", "Bytes of torn tails that recovery cut.", recovery.bytes_cut),
        ("recovery_dropped_segments", "Unsynced segments that recovery dropped.", recovery.segments_dropped),
    ):
        yield GaugeMetricFamily(f"commitlog_{name}", text, value=value)
    alive: dict[str, int] = {}
    runs: defaultdict[str, int] = defaultdict(int)
    failures: defaultdict[str, int] = defaultdict(int)
    for task in found.health.tasks:  # producers and consumers have tasks with the same names
        alive[task.name] = min(task.alive, alive.get(task.name, 1))
        runs[task.name] += task.runs
        failures[task.name] += task.failures
    for kind, name, text, values in (
        (GaugeMetricFamily, "alive", "Whether the task runs.", alive),
        (CounterMetricFamily, "runs", "Runs of the task.", runs),
        (CounterMetricFamily, "failures", "Failed runs of the task.", failures),
    ):
        samples = [([task_name], count) for task_name, count in values.items()]
        yield _family(kind, f"task_{name}", text, samples, ["task"])


__all__ = ["Exporter", "LogCollector", "serve"]
