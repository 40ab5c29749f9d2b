"""Writers and members of groups, in processes of their own, that tests stop and kill.

Each keeps a journal, a line for all that it was told or was handed; the tests compare them with the log.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import commitlog
from commitlog import CommitLog, Consumer, ConsumerRecord, RebalanceListener, TopicPartition
from commitlog.errors import CommitFailedError, FencedMemberError, OutOfOrderSequenceError
from commitlog.partitions.state import LogState
from commitlog.segment_writer import SegmentWriter

PARTITIONS = 4
SESSION_MS = 1000
BEAT_MS = 100
_KEYS = 3  # of each writer

# forked from a process that has imported everything: to start one takes no time
_context = multiprocessing.get_context("forkserver")


def start(program: Callable[..., None], journal: Path, *arguments: object) -> BaseProcess:
    """Start a process that runs one of the functions below."""
    _context.set_forkserver_preload(["commitlog"])
    process = _context.Process(target=_run, args=(program, str(journal), *arguments), daemon=True)
    process.start()
    return process


def _run(program: Callable[..., None], journal_path: str, *arguments: object) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    journal = Journal(journal_path)
    try:
        program(journal, *arguments)
    except BaseException:
        journal.note("error", traceback.format_exc())
        os._exit(1)


class Journal:
    """A file that outlives its process: a line is there, all of it, once note() has returned."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, *line: Any) -> None:
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def read(path: str | Path) -> list[list[Any]]:
    """Return the lines of a journal."""
    return [json.loads(line) for line in Path(path).read_bytes().splitlines()]


class Told:
    """Whether SIGTERM has come: the process is to come to a good end."""

    def __init__(self) -> None:
        self.to_stop = False
        signal.signal(signal.SIGTERM, self._stop)

    def _stop(self, *_: object) -> None:
        self.to_stop = True


def end_well(journal: Journal, log: CommitLog) -> None:
    """Note that nothing went wrong behind the caller's back."""
    failed = [task for task in log.health().tasks if task.failures or not task.alive]
    journal.note("error" if failed or not log.health().ok else "ended", str(failed))


# --- writers


def key_of(name: str, partition: int, sequence: int) -> str:
    """The keys of a writer that numbers its batches itself."""
    return f"{name}.{partition}.{sequence % _KEYS}"


def write_numbered(journal: Journal, path: str, name: str, producer_id: int, seed: int) -> None:
    """Append numbered batches; what may not have been acknowledged to one that was killed is sent again.

    Several may run at once, under one number: they send the same batches.
    """
    told, chance = Told(), random.Random(seed)
    sequences = dict.fromkeys(range(PARTITIONS), 0)
    for what, *line in read(journal.path):
        if what == "numbered":
            sequences[line[0]] = max(sequences[line[0]], line[1] + line[3])
    with commitlog.open(path, mode="shared") as log:
        topic = log.topic("t")
        while not told.to_stop:
            partition = chance.randrange(PARTITIONS)
            sequence = sequences[partition]
            numbers = range(sequence, sequence + 1 + sequence * 7 % 5)  # the same ones, when sent again
            values = [b"%d" % number for number in numbers]
            keys = [key_of(name, partition, number).encode() for number in numbers]
            append = topic.partition(partition).append_many
            try:
                offsets = append(values, keys=keys, producer=(producer_id, 0, sequence))
                if chance.random() < 0.1:
                    assert append(values, keys=keys, producer=(producer_id, 0, sequence)) == offsets
            except OutOfOrderSequenceError:  # another one under this number has gone on
                return
            journal.note("numbered", partition, sequence, offsets.start, len(offsets))
            sequences[partition] = numbers.stop
            time.sleep(chance.random() * 0.01)
        end_well(journal, log)


def write_through_a_producer(
    journal: Journal, path: str, name: str, acks: Literal[1, "all"], life: int, seed: int
) -> None:
    """Send records, one by one; a value tells in which life of the writer it was sent, and its number."""
    told, chance = Told(), random.Random(seed)
    with (
        commitlog.open(path, mode="shared") as log,
        log.producer(acks=acks, batch_size=600, linger_ms=2) as producer,
    ):
        sent = 0
        while not told.to_stop:
            key, value = f"{name}.{sent % _KEYS}", f"{life}.{sent // _KEYS}"

            def tell(
                place: commitlog.RecordMetadata | None,
                error: Exception | None,
                key: str = key,
                value: str = value,
            ) -> None:
                if place is None:
                    journal.note("error", repr(error))
                else:
                    journal.note("sent", place.partition, place.offset, key, value)

            producer.send("t", value.encode(), key.encode(), on_delivery=tell)
            sent += 1
            time.sleep(chance.random() * 0.005)
        producer.flush()
        end_well(journal, log)


STORED_WORDS = {"written": 0, "half published": 1, "published": 2}  # of the page, when an append is killed


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DeadlyWords:
    """The words of a state page, where the process is killed once some more of them are stored."""

    def __init__(self, words: Any, more: int) -> None:
        self._words, self._more = words, more

    def __setitem__(self, index: int, value: int) -> None:
        if self._more:
            self._words[index] = value
            self._more -= 1
        if not self._more:
            die()


def append_and_die(
    journal: Journal, path: str, moment: str, producer: tuple[int, int, int], values: list[bytes]
) -> None:
    """Append a batch, and be killed at some moment of it, so that nobody is told."""
    log = commitlog.open(path, mode="shared")
    partition = log.topic("t").partition(0)
    if moment == "rolled":
        LogState.save_producers = die  # type: ignore[method-assign,assignment]
    elif moment in STORED_WORDS:
        state, real = partition._state, SegmentWriter.append

        def append(*args: Any) -> None:
            real(*args)
            state.words = DeadlyWords(state.words, STORED_WORDS[moment])  # type: ignore[assignment]

        SegmentWriter.append = append  # type: ignore[method-assign,assignment]
    partition.append_many(values, producer=producer)
    assert moment == "appended", "it should be dead"
    die()


# --- members


class Episodes(RebalanceListener):
    """Notes what a member is assigned; each time is an episode, which begins at what is committed."""

    def __init__(self, journal: Journal, name: str) -> None:
        self.consumer: Consumer | None = None
        self._journal = journal
        self._name = name
        self._count = 0
        self.current: dict[TopicPartition, str] = {}
        self.uncommitted: set[TopicPartition] = set()

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        assert self.consumer is not None
        for one in partitions:
            self._count += 1
            episode = self.current[one] = f"{self._name}.{self._count}"
            start = self.consumer.position(one)
            self._journal.note("assigned", one.partition, episode, start)

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        self._journal.note("revoked", [one.partition for one in partitions])

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        self._journal.note("lost", [one.partition for one in partitions])


def consume(
    journal: Journal, path: str, group: str, mode: Literal["r", "shared"], settings: dict[str, Any], seed: int
) -> None:
    """Read as a member of a group: "after" commits what it has delivered, "before" delivers what it has
    committed, "auto" lets its positions be committed. To deliver is to note in the journal.
    """
    told, chance = Told(), random.Random(seed)
    with opened(path, mode) as log:
        episodes = Episodes(journal, Path(journal.path).name)
        consumer = episodes.consumer = log.consumer(
            group_id=group, enable_auto_commit=group == "auto", auto_commit_interval_ms=50, **settings
        )
        consumer.subscribe("t", listener=episodes)
        try:
            while not told.to_stop:
                consume_some(journal, consumer, episodes, chance)
        except FencedMemberError:  # another one came under the same name
            journal.note("fenced")
        consumer.close()
        end_well(journal, log)


def consume_some(journal: Journal, consumer: Consumer, episodes: Episodes, chance: random.Random) -> None:
    group = consumer.config.group_id
    found = consumer.poll(0.1, max_records=chance.randint(1, 40))
    if group != "before":
        deliver(journal, found)
    episodes.uncommitted = (episodes.uncommitted | found.keys()) & consumer.assignment()
    if group == "auto" or (found and group == "after" and chance.random() < 0.3):
        return
    offsets: dict[Any, tuple[int, str]] = {
        one: (consumer.position(one), episodes.current[one]) for one in episodes.uncommitted
    }
    episodes.uncommitted = set()
    rows = [(one.partition, *offset) for one, offset in offsets.items()]

    def tell(_: object, problem: Exception | None) -> None:
        journal.note("committed" if problem is None else "refused", rows)

    if group == "after" and chance.random() < 0.3:
        consumer.commit_async(offsets, tell)
        return
    try:
        consumer.commit(offsets)
    except CommitFailedError as problem:
        tell(None, problem)
        return
    tell(None, None)
    if group == "before":
        deliver(journal, found)


def deliver(journal: Journal, found: dict[TopicPartition, list[ConsumerRecord]]) -> None:
    """Note records, all of them in one line."""
    rows = {
        one.partition: [(record.offset, record.key.decode(), record.value.decode()) for record in records]
        for one, records in found.items()
    }
    if rows:
        journal.note("delivered", time.monotonic_ns(), rows)


def opened(path: str, mode: Literal["r", "shared"]) -> CommitLog:
    return commitlog.open(path, mode="r") if mode == "r" else commitlog.open(path, mode="shared")
