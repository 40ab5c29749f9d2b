"""The rows of consumers: records a second, and how long a record takes from send() to poll() elsewhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic_ns, sleep
from typing import Any

import engine
import peers
from bench import Bench, best_of, timed
from compare import loaded, scan
from data import Seen
from limits import child
from report import Group, Line, versus_best

import commitlog

P50_MICROSECONDS, P99_MICROSECONDS = 200, 1000


def consumer(bench: Bench) -> Iterator[Group]:
    """A consumer that reads a partition from its beginning, beside plain scans of the peers."""
    dataset = bench.fixed()
    path = loaded(bench, False)["commitlog"]
    ways: dict[str, Callable[[commitlog.Consumer], int]] = {
        "commitlog": lambda one: sum(len(found) for found in polls(one.poll)),
        "commitlog, 10,000 a poll": lambda one: sum(
            len(found) for found in polls(lambda: one.poll(max_records=10_000))
        ),
        "commitlog, for record in consumer": lambda one: sum(1 for _ in one),
        "commitlog, poll_batches": lambda one: sum(
            len(batch) for found in polls(one.poll_batches) for batch in found
        ),
        "commitlog, poll_arrow": lambda one: sum(table.num_rows for table in polls(one.poll_arrow)),
    }
    contenders = {name: lambda work=work: consume(path, work, dataset.records) for name, work in ways.items()}
    expected: Seen = dataset.seen_by_records()
    for store in peers.available():
        if store.name in loaded(bench, False):
            contenders[f"{store.name}, scan"] = lambda store=store: scan(
                store, loaded(bench, False)[store.name], lambda one: one.scan_records(), expected
            )
    seconds = best_of(bench.repeats, contenders)
    title = "consumer, from the beginning to the end: 90-byte values"
    note = "poll() gives topic, partition, offset, timestamp, key, value and headers, 500 at a time."
    yield Group("consumer", title, versus_best(seconds, dataset.records, "rec/s", 1.0), note)


def polls(poll: Callable[[], dict[object, Any]]) -> Iterator[Any]:
    """Poll until nothing is left."""
    while found := poll():
        yield from found.values()


def consume(path: Path, work: Callable[[commitlog.Consumer], int], records: int) -> float:
    counted: list[int] = []
    with (
        commitlog.open(path, mode="r") as log,
        log.consumer(*log.topics(), consumer_timeout_ms=0) as one,
    ):
        seconds = timed(lambda: counted.append(work(one)))
    if counted != [records]:
        raise AssertionError(f"consumed {counted}, not {records}")
    return seconds


# --- latency -------------------------------------------------------------------------------------


def latency(bench: Bench) -> Iterator[Group]:
    """send() in one thread, poll() in another or in another process; a record a millisecond."""
    count = bench.pick(5000, 1000)
    lines = []
    for where, measure in (("another thread", in_a_thread), ("another process", in_a_process)):
        with bench.scratch("latency") as path:
            lines += latency_lines(where, measure(path, count))
    title = "from producer.send() to its receipt by consumer.poll(), linger_ms=0, a record a millisecond"
    yield Group("latency", title, lines)


def latency_lines(where: str, taken: list[int]) -> list[Line]:
    micros = sorted(one / 1000 for one in taken)
    p50, p99 = micros[len(micros) // 2], micros[len(micros) * 99 // 100]
    return [
        Line(f"{where}, p50", p50, "us", None, f"< {P50_MICROSECONDS} us", p50 < P50_MICROSECONDS),
        Line(f"{where}, p99", p99, "us", None, f"< {P99_MICROSECONDS} us", p99 < P99_MICROSECONDS),
    ]


def send_with_time(log: commitlog.CommitLog, count: int) -> None:
    with log.producer(linger_ms=0) as producer:
        for _ in range(count):
            producer.send(engine.TOPIC, b"%d" % monotonic_ns())
            sleep(0.001)


def receive(one: commitlog.Consumer, count: int) -> list[int]:
    taken: list[int] = []
    while len(taken) < count:
        for records in one.poll(10).values():
            now = monotonic_ns()
            taken += [now - int(record.value) for record in records]
    return taken


def in_a_thread(path: Path, count: int) -> list[int]:
    log, _ = engine.create(path)
    taken: list[int] = []
    with log, log.consumer(engine.TOPIC) as one:
        receiver = threading.Thread(target=lambda: taken.extend(receive(one, count)))
        receiver.start()
        send_with_time(log, count)
        receiver.join()
    return taken


def in_a_process(path: Path, count: int) -> list[int]:
    log, _ = engine.create(path)
    with log:
        receiver = child("receive", path, count)
        assert receiver.stdout is not None
        receiver.stdout.readline()  # it is there
        send_with_time(log, count)
        output, _ = receiver.communicate()
    return list(json.loads(output))
