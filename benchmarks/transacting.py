"""The rows of transactions: small and large ones beside SQLite and LMDB, synced ones by threads, and scans.

Times are processor time, because that changes least on a busy machine; only synced commits are measured by
the clock, because they wait for the disk. The others sync nothing: all commit at the level *written*.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter, process_time, sleep, thread_time, time_ns
from typing import Protocol

import engine
import partitioned
import peers
from bench import Bench, best_of
from data import Batch
from report import Group, Line
from store import HEAD, OFFSET, offsets_of, packed, stamps_of

import commitlog

ROW = "transactions"
THREADS = 8
WARMING = 20  # transactions that are not measured


class Transactional(Protocol):
    """An engine with several partitions, and transactions over all of them."""

    def __init__(self, path: Path, partitions: int) -> None: ...

    def commit_each(self, batches: list[Batch]) -> None:
        """Append each batch to all partitions, in a transaction, stamped with the time."""

    def records(self) -> int: ...

    def close(self) -> None: ...


class Commitlog(partitioned.Commitlog):
    """log.transaction(): a list for each partition, or a single record."""

    def commit_each(self, batches: list[Batch]) -> None:
        log, topic, partitions = self._log, engine.TOPIC, range(len(self._partitions))
        for _, _, keys, values in batches:
            with log.transaction() as transaction:
                for partition in partitions:
                    if len(values) == 1:
                        transaction.append(topic, values[0], key=keys[0], partition=partition)
                    else:
                        transaction.append_many(topic, values, keys=keys, partition=partition)


class OneByOne(partitioned.Commitlog):
    """log.transaction(), and a call for each record."""

    def commit_each(self, batches: list[Batch]) -> None:
        log, topic, partitions = self._log, engine.TOPIC, range(len(self._partitions))
        for _, _, keys, values in batches:
            with log.transaction() as transaction:
                append = transaction.append
                for partition in partitions:
                    for key, value in zip(keys, values, strict=True):
                        append(topic, value, key=key, partition=partition)


class Producing(partitioned.Commitlog):
    """A producer with a transactional id, and a call for each record."""

    def commit_each(self, batches: list[Batch]) -> None:
        topic, partitions = engine.TOPIC, range(len(self._partitions))
        with self._log.producer(transactional_id="bench", acks=1) as producer:
            send = producer.send
            for _, _, keys, values in batches:
                with producer.transaction():
                    for partition in partitions:
                        for key, value in zip(keys, values, strict=True):
                            send(topic, value, key, partition=partition)


class SQLite(partitioned.SQLite):
    """A table for each partition in one database; a single insert is a transaction by itself."""

    def commit_each(self, batches: list[Batch]) -> None:
        execute, executemany = self._db.execute, self._db.executemany
        statements = [f"INSERT INTO log{number} VALUES (?, ?, ?, ?)" for number in range(self._partitions)]
        for batch in batches:
            if len(batch.values) == len(statements) == 1:
                stamp = time_ns() // 1_000_000
                execute(statements[0], (batch.base_offset, stamp, batch.keys[0], batch.values[0]))
                continue
            execute("BEGIN")
            for statement in statements:
                stamps = stamps_of(batch, True)
                executemany(statement, zip(offsets_of(batch), stamps, batch.keys, batch.values, strict=True))
            execute("COMMIT")


class LMDB(partitioned.LMDB):
    """A named database for each partition in one environment."""

    def commit_each(self, batches: list[Batch]) -> None:
        begin, databases = self._env.begin, self._databases
        for batch in batches:
            transaction = begin(write=True)
            if len(batch.values) == 1:
                head = HEAD.pack(time_ns() // 1_000_000, len(batch.keys[0]))
                name, content = OFFSET.pack(batch.base_offset), head + batch.keys[0] + batch.values[0]
                for database in databases:
                    transaction.put(name, content, append=True, db=database)
            else:
                for database in databases:
                    transaction.cursor(database).putmulti(packed(batch, True), append=True)
            transaction.commit()


class MappedLMDB(LMDB):
    """LMDB with a writable map."""

    writemap = True


ENGINES: dict[str, type[Transactional]] = {
    "commitlog": Commitlog,
    "commitlog, append() each": OneByOne,
    "commitlog, producer": Producing,
    "SQLite WAL": SQLite,
    **({"LMDB": LMDB, "LMDB writemap": MappedLMDB} if peers.lmdb else {}),
}


def transactions(bench: Bench) -> Iterator[Group]:
    """Transactions of three sizes by one thread, synced ones by several, and scans."""
    yield small(bench)
    yield beside_sqlite(bench, 10, bench.pick(5_000, 1_500), 1.0)
    yield beside_sqlite(bench, 250, bench.pick(1_000, 300), 3.0)
    for partitions in (1, 4):
        yield synced(bench, partitions)
        yield synced(bench, partitions, slower_ms=2)
    yield from scans(bench)


# --- beside the peers ----------------------------------------------------------------------------


def small(bench: Bench) -> Group:
    """One record in one partition."""
    costs = compared(bench, 1, 1, bench.pick(20_000, 5_000))
    title = "transactions of one record in one partition"
    return group(title, costs, "<= 25 µs", lambda cost, _: cost <= 25)


def beside_sqlite(bench: Bench, records: int, count: int, goal: float) -> Group:
    """A list in each of four partitions."""
    costs = compared(bench, 4, records, count)
    title = f"transactions of {records} records in each of 4 partitions"
    return group(title, costs, f">= {goal:g} x SQLite WAL", lambda _, ratio: ratio >= goal)


def group(title: str, costs: dict[str, float], target: str, met: Callable[[float, float], bool]) -> Group:
    lines = []
    for name, cost in sorted(costs.items(), key=lambda item: item[1]):
        ratio = costs["SQLite WAL"] / cost
        judged = (target, met(cost, ratio)) if name == "commitlog" else ("", None)
        lines.append(Line(name, cost, "µs", ratio, *judged))
    return Group(ROW, title, lines, "Processor time of a transaction. The ratio is to SQLite WAL.")


def compared(bench: Bench, partitions: int, records: int, count: int) -> dict[str, float]:
    """Return the microseconds of a transaction with each engine."""
    batches = batches_of(bench, records, count + WARMING)
    contenders = {name: partial(committed, bench, one, partitions, batches) for name, one in ENGINES.items()}
    return {name: 1e6 * taken / count for name, taken in best_of(bench.repeats, contenders).items()}


def batches_of(bench: Bench, records: int, count: int) -> list[Batch]:
    """Return `count` batches of `records` records, in which the same values return."""
    _, _, keys, values = bench.fixed().batches[0]
    starts = range(0, len(values) - records + 1, records)
    batches = []
    for number in range(count):
        at = starts[number % len(starts)]
        batches.append(Batch(number * records, [], keys[at : at + records], values[at : at + records]))
    return batches


def committed(bench: Bench, opening: type[Transactional], partitions: int, batches: list[Batch]) -> float:
    """Measure transactions in a new store, and count afterwards what is there."""
    with bench.scratch(ROW) as path, closing(opening(path, partitions)) as opened:
        opened.commit_each(batches[:WARMING])
        began = process_time()
        opened.commit_each(batches[WARMING:])
        seconds = process_time() - began
        found, expected = opened.records(), partitions * sum(len(batch.values) for batch in batches)
    if found != expected:
        raise AssertionError(f"{opening.__name__} kept {found} of {expected} records")
    return seconds


# --- synced --------------------------------------------------------------------------------------


def synced(bench: Bench, partitions: int, slower_ms: int = 0) -> Group:
    """Commits that survive a power cut, by one thread and by several at a time.

    With `slower_ms` every sync takes that much longer, as on a disk that is slower than most of today's.
    """
    count = max(bench.pick(800, 160) // (4 if slower_ms else 1), THREADS)
    with counted_syncs(slower_ms / 1000) as syncs:
        turns = {
            threads: partial(commit_synced, bench, partitions, threads, count, syncs)
            for threads in (1, THREADS)
        }
        rates = {threads: count / seconds for threads, seconds in best_of(bench.repeats, turns).items()}
        shares = {}
        for threads, turn in turns.items():
            turn()
            shares[threads] = f"{len(syncs) / (count // threads * threads):.2f} syncs a commit"
    ratio = rates[THREADS] / rates[1]
    lines = [
        Line("commitlog, 1 thread", rates[1], "commits/s", note=shares[1]),
        Line(
            f"commitlog, {THREADS} threads",
            rates[THREADS],
            "commits/s",
            ratio,
            ">= 3 x 1 thread",
            ratio >= 3,
            shares[THREADS],
        ),
    ]
    where = "one partition" if partitions == 1 else f"each of {partitions} partitions"
    disk = f", syncs {slower_ms} ms slower" if slower_ms else ""
    title = f"synced transactions of one record in {where}, by the clock{disk}"
    return Group(ROW, title, lines, "The threads write to the same partitions, and share syncs.")


@contextmanager
def counted_syncs(seconds: float) -> Iterator[list[int]]:
    """Count the syncs of this process, and make each of them slower."""
    real, found = os.fdatasync, []

    def sync(descriptor: int) -> None:
        found.append(descriptor)
        real(descriptor)
        if seconds:
            sleep(seconds)

    os.fdatasync = sync
    try:
        yield found
    finally:
        os.fdatasync = real


def commit_synced(bench: Bench, partitions: int, threads: int, count: int, syncs: list[int]) -> float:
    """Return the seconds of `count` commits, which `threads` threads divide; their syncs are in `syncs`."""
    _, _, keys, values = bench.fixed().batches[0]
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(count // threads):
                with log.transaction(sync=True) as transaction:
                    for partition in range(partitions):
                        transaction.append(
                            engine.TOPIC, values[number], key=keys[number], partition=partition
                        )
        except BaseException as error:
            failures.append(error)

    with bench.scratch(ROW) as path, commitlog.open(path) as log:
        topic = log.create_topic(engine.TOPIC, partitions, commitlog.TopicConfig(**engine.WRITTEN))
        work(0)
        syncs.clear()
        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        began = perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds, made = perf_counter() - began, len(syncs)
        if failures:
            raise failures[0]
        found = {sum(1 for _ in partition.records()) for partition in topic.partitions}
    if found != {count // threads * (threads + 1)}:
        raise AssertionError(f"{found} records were kept of {count // threads} transactions in each thread")
    del syncs[made:]  # those of close()
    return seconds


# --- scans ---------------------------------------------------------------------------------------

SCANNED_RECORDS = 150
KINDS = {"no transactions": None, "all committed": 0, "a tenth aborted": 10}


def scans(bench: Bench) -> Iterator[Group]:
    """Read the same records from a log without transactions, and from logs with some."""
    count = bench.pick(2_000, 500)
    with bench.scratch(ROW) as path, commitlog.open(path) as log:
        for kind, every in KINDS.items():
            fill(bench, log, kind.replace(" ", "-"), every, count)
        ways: dict[str, Callable[[commitlog.Partition], object]] = {
            "records()": lambda partition: deque(partition.records(), maxlen=0),
            "to_arrow()": lambda partition: partition.to_arrow(),
        }
        for way, read in ways.items():
            contenders = {
                kind: partial(read_in, log.topic(kind.replace(" ", "-")).partition(0), read) for kind in KINDS
            }
            rates = {
                kind: count * SCANNED_RECORDS / seconds
                for kind, seconds in best_of(3 * bench.repeats, contenders).items()
            }
            lines = [
                Line(kind, rate, "rec/s", rate / rates["no transactions"]) for kind, rate in rates.items()
            ]
            title = f"{way} of {SCANNED_RECORDS} records a batch"
            yield Group(
                ROW, title, lines, "Processor time; a batch is a transaction, except in the first log."
            )


def fill(bench: Bench, log: commitlog.CommitLog, topic: str, aborted_every: int | None, count: int) -> None:
    """Append `count` batches that stay, plain or as transactions; every so many another one is aborted."""
    partition = log.create_topic(topic, config=commitlog.TopicConfig(**engine.WRITTEN)).partition(0)
    for number, batch in enumerate(batches_of(bench, SCANNED_RECORDS, count)):
        if aborted_every is None:
            partition.append_many(batch.values, keys=batch.keys)
            continue
        with log.transaction() as transaction:
            transaction.append_many(topic, batch.values, keys=batch.keys)
        if aborted_every and number % aborted_every == 0:
            with log.producer(transactional_id="bench", acks=1) as producer:
                producer.begin_transaction()
                for key, value in zip(batch.keys, batch.values, strict=True):
                    producer.send(topic, value, key)
                producer.flush()
                producer.abort_transaction()
    found = sum(1 for _ in partition.records())
    if found != count * SCANNED_RECORDS:
        raise AssertionError(f"{topic} has {found} records, not {count * SCANNED_RECORDS}")


def read_in(partition: commitlog.Partition, read: Callable[[commitlog.Partition], object]) -> float:
    began = thread_time()
    read(partition)
    return thread_time() - began
