"""`commitlog bench`: measure appending and consuming on this machine, like Kafka's perf-test tools."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, astuple
from typing import Literal, cast

import click

import commitlog
from commitlog.cli import options
from commitlog.cli.bench_load import TOPIC, Figures, Load, consume, payload, produce
from commitlog.cli.output import print_json, print_table
from commitlog.cli.progress_bar import progress_bar

_COMPRESSION = ("none", "zstd", "lz4", "gzip", "snappy")


@click.command(
    epilog=options.example(
        "commitlog bench",
        "commitlog bench /mnt/disk --how single --durability synced --records 10000",
        "commitlog bench --how producer --partitions 4 --compression zstd --json",
    )
)
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(exists=True, file_okay=False))
@click.option("--records", type=click.IntRange(1), default=1_000_000, show_default=True, metavar="N")
@click.option("--record-size", type=click.IntRange(1), default=100, show_default=True, metavar="BYTES")
@click.option(
    "--how", type=click.Choice(["bulk", "single", "producer"]), default="bulk", show_default=True,
    help="Call append_many() for each batch, append() for each record, or send() for each record.",
)  # fmt: skip
@click.option(
    "--batch", type=click.IntRange(1), metavar="N", default=10_000, show_default=True,
    help="Records per batch, for --how bulk.",
)  # fmt: skip
@click.option(
    "--durability", type=click.Choice(["buffered", "written", "synced"]), default="written",
    show_default=True, help='What a call waits for; a producer gets acks 0, 1 or "all".',
)  # fmt: skip
@click.option("--compression", type=click.Choice(_COMPRESSION), default="none", show_default=True)
@click.option("--partitions", type=click.IntRange(1), default=1, show_default=True, metavar="N")
@options.as_json
def bench(
    directory: str | None, records: int, record_size: int, how: str, batch: int, durability: str,
    compression: str, partitions: int, as_json: bool,
) -> None:  # fmt: skip
    """Append records to a new log, consume them, and report how fast that was.

    The log is in a temporary directory (inside DIR, if given), which is removed afterwards. Values are random
    letters. A latency is the time of one call of append_many(), append() or poll(); for a producer, the time
    from send() to the delivery of the record.
    """
    if durability == "buffered" and how != "producer":
        raise click.UsageError("--durability buffered needs --how producer: append() always writes")
    load = Load(
        records, record_size, cast(Literal["bulk", "single", "producer"], how), batch, durability,
        compression, partitions,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-", dir=directory) as folder:
        produced, consumed = _run(folder, load)
    if as_json:
        print_json({**asdict(load), "produce": asdict(produced), "consume": asdict(consumed)})
        return
    columns = "", "records", "seconds", "records/s", "MB/s", "ms avg", "p50", "p95", "p99", "p99.9", "max"
    print_table(columns, [("produce", *_cells(produced)), ("consume", *_cells(consumed))])


def _run(folder: str, load: Load) -> tuple[Figures, Figures]:
    values = payload(load)
    with commitlog.open(folder) as log:
        log.create_topic(TOPIC, load.partitions, {"compression_type": load.compression})
        with progress_bar("appending", unit="records") as progress:
            produced = produce(log, load, values, progress)
        with progress_bar("consuming", unit="records") as progress:
            consumed = consume(log, load, progress)
    return produced, consumed


def _cells(found: Figures) -> tuple[str | int | float, ...]:
    records, seconds, rate, mb, *waits = astuple(found)
    return records, seconds, round(rate), mb, *(f"{one:.3g}" for one in waits)
