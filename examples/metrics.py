"""Measurements of many hosts: appended as columns, rolled up per minute exactly once, the latest at hand.

Raw samples arrive as Arrow tables, and retention soon removes them. A job rolls each minute up and
publishes it as an epoch: if it runs again, after a crash or by mistake, nothing is counted twice. The
latest state of every host is in a compacted topic.

    python examples/metrics.py
"""

import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import commitlog

NOON = 1_785_585_600_000  # 2026-08-01 12:00, in milliseconds
MINUTE = 60_000
HOSTS = [f"host-{number:02}" for number in range(20)]


def samples(minute: int) -> pa.Table:
    """A minute of CPU load, one sample per second and host; host-07 is overloaded from minute 3 on."""
    chance = np.random.default_rng(minute)
    load = chance.normal(30, 5, (60, len(HOSTS))).clip(0, 100)
    if minute >= 3:
        load[:, 7] = 97
    seconds = np.repeat(np.arange(60), len(HOSTS)) * 1000 + NOON + minute * MINUTE
    return pa.table(
        {
            "timestamp": pa.array(seconds),
            "key": pa.array(HOSTS * 60),
            "value": pa.array(load.round(1).astype(str).ravel()),
        }
    )


def roll_up(log: commitlog.CommitLog, minute: int) -> bool:
    """Publish the averages of a minute for every host; False if that minute was already rolled up."""
    raw = log.topic("load").partition(0)
    start = raw.offset_for_timestamp(NOON + minute * MINUTE)
    end = raw.offset_for_timestamp(NOON + (minute + 1) * MINUTE)
    table = raw.to_arrow(start, end, ["key", "value"])
    numbers = pa.table({"key": table["key"], "load": table["value"].cast("string").cast("float64")})
    means = numbers.group_by("key").aggregate([("load", "mean")]).sort_by("key")
    values = pc.round(means["load_mean"], 1).cast("string")
    results = pa.table({"key": means["key"], "value": values}).append_column(
        "timestamp", pa.array([NOON + minute * MINUTE] * len(means))
    )
    staged = []
    for topic in ("load-by-minute", "load-now"):
        with log.stage(topic, 0) as writer:
            writer.append(results)
            staged.append(writer.finish())
    return log.publish("roll-up", minute, staged)  # both topics, all or nothing, once


def main(path: str) -> None:
    with commitlog.open(path) as log:
        by_minute = {"compression_type": "zstd", "segment_ms": MINUTE // 2, "retention_ms": -1}
        raw = log.create_topic("load", config=by_minute)
        log.create_topic("load-by-minute", config={"retention_ms": -1})
        log.create_topic("load-now", config={"cleanup_policy": "compact"})

        for minute in range(6):
            raw.append_arrow(samples(minute))
        partition = raw.partition(0)
        print(f"{partition.next_offset} samples in {len(partition.segments)} segments")

        for minute in range(5):
            roll_up(log, minute)
        again = [roll_up(log, minute) for minute in range(5)]
        print(f"rolled up to minute {log.published('roll-up')}; once more changes nothing: {again}")
        print(f"{log.topic('load-by-minute').partition(0).next_offset} averages")

        print("hosts above 90 % now")
        for host, load in log.topic("load-now").latest().items():
            if float(load) > 90:
                print(f"  {host.decode()}  {load.decode()} %")

        raw.alter_config(retention_ms=3 * MINUTE)
        removed = log.apply_retention(now_ms=NOON + 6 * MINUTE)
        left = partition.next_offset - partition.start_offset
        print(f"retention removed {removed} segments; {left} samples are left, and all averages")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
        main(directory)
