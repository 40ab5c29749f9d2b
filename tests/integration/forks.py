"""Programs that fork, for test_locks_and_forks.py: `python forks.py <name> <path>`."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import commitlog
from commitlog import CorruptionError, Partition, files
from commitlog.clients.quotas import Quotas
from commitlog.errors import ForkedError

SECONDS = 30
CONFIG = {"segment_bytes": 2048, "file_delete_delay_ms": 0}


def value_of(offset: int) -> bytes:
    return b"value %d" % offset


def append(partition: Partition, count: int) -> None:
    for _ in range(count):
        partition.append(value_of(partition.next_offset))


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child that ends at once afterwards; returns its process id."""
    child = os.fork()
    if child:
        return child
    signal.alarm(SECONDS)  # a deadlock shows as a signal
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(child: int) -> None:
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the child ended with {os.waitstatus_to_exitcode(status)}"


def refused(call: Callable[[], Any]) -> None:
    try:
        call()
    except ForkedError:
        return
    raise AssertionError("a forked child was let through")


def read_or_be_refused(partition: Any, end: int) -> None:
    """A child may read what there was when it was made, or be told that it may not; nothing else."""
    try:
        found = [(record.offset, record.value) for record in partition.records(0, end)]
    except ForkedError:
        return
    assert found == [(offset, value_of(offset)) for offset in range(end)], found[:5]


# --- the programs


def writes_are_refused(path: str) -> None:
    with commitlog.open(path) as log:
        topic = log.create_topic("t", config=CONFIG)
        partition = topic.partition(0)
        append(partition, 100)

        def child() -> None:
            refused(lambda: partition.append(b"wrong"))
            refused(lambda: partition.append_many([b"wrong"]))
            refused(lambda: topic.append(b"wrong"))
            refused(partition.sync)
            refused(partition.roll)
            refused(lambda: partition.trim_before(10))
            refused(lambda: partition.truncate_from(10))
            refused(partition.repair)
            refused(lambda: log.create_topic("new"))
            refused(lambda: log.delete_topic("t"))
            refused(lambda: topic.add_partitions(3))
            read_or_be_refused(partition, 100)
            log.close()

        wait(in_child(child))
        append(partition, 100)
        assert [one.value for one in partition.records()] == [value_of(offset) for offset in range(200)]
        assert log.health().ok


def producers_stay_with_the_parent(path: str) -> None:
    """A child sends nothing, not even what the parent still holds, and ends like any other program."""
    with commitlog.open(path) as log:
        log.create_topic("t")
        with log.producer(linger_ms=60_000) as producer:
            held = producer.send("t", b"held")

            def child() -> None:
                refused(lambda: producer.send("t", b"lost"))
                refused(lambda: producer.send("u", b"lost"))
                refused(producer.flush)
                producer.close()
                log.close()

            wait(in_child(child))
            leaving = os.fork()
            if not leaving:
                sys.exit(0)  # what is done at exit is done here, too
            wait(leaving)
            assert not held.done()
        assert held.result().offset == 0
        assert log.topic("t").partition(0).next_offset == 1


def a_child_leaves_the_mapped_tail_alone(path: str) -> None:
    """It has a map of the tail, too; letting it go must not cut the file under its parent."""
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config={"flush_ms": -1}).partition(0)
        append(partition, 2000)
        size = os.stat(partition.segments[-1].path).st_size

        def child() -> None:
            refused(lambda: partition.append(b"wrong"))
            log.close()
            partition._state.writer.close()

        wait(in_child(child))
        assert os.stat(partition.segments[-1].path).st_size == size
        append(partition, 2000)
        assert [one.value for one in partition.records()] == [value_of(offset) for offset in range(4000)]


def reads_are_right_or_refused(path: str) -> None:
    """The parent goes on under a child that reads through its handles."""
    for change in ("append", "roll", "trim", "truncate"):
        with commitlog.open(os.path.join(path, change)) as log:
            partition = log.create_topic("t", config=CONFIG).partition(0)
            append(partition, 100)
            go_on, told = os.pipe()

            def child(partition: Partition = partition, go_on: int = go_on) -> None:
                os.read(go_on, 1)
                try:
                    read_or_be_refused(partition, 100)
                except commitlog.OffsetOutOfRangeError:
                    pass  # trimmed meanwhile
                except CorruptionError:
                    raise AssertionError("a healthy log seems damaged to a forked child") from None

            made = in_child(child)
            if change == "append":
                append(partition, 100)
            elif change == "roll":
                partition.roll()
                append(partition, 1)
            elif change == "trim":
                partition.trim_before(90)
            else:
                partition.truncate_from(5)
                append(partition, 200)
            os.write(told, b"x")
            wait(made)


def the_parent_keeps_the_lock(path: str) -> None:
    """A child comes and ends, in the two ways a process ends; the parent stays the only writer."""
    with commitlog.open(path) as log:
        partition = log.create_topic("t").partition(0)
        wait(in_child(lambda: None))
        context = multiprocessing.get_context("fork")
        process = context.Process(target=refused, args=(lambda: partition.append(b"wrong"),))
        process.start()
        process.join(SECONDS)
        assert process.exitcode == 0
        try:
            commitlog.open(path)
        except commitlog.LogLockedError:
            pass
        else:
            raise AssertionError("the lock was lost")
        append(partition, 10)


def the_lock_goes_with_the_parent(path: str) -> None:
    """Prints the process id of a child that outlives the log: closed by the parent, or left to its death."""
    how = sys.argv[3]
    log = commitlog.open(path)
    log.create_topic("t").partition(0).append(b"value")
    child = os.fork()
    if child == 0:
        os.close(1)
        signal.alarm(SECONDS)
        time.sleep(SECONDS)
        os._exit(0)
    if how == "closed":
        log.close()
    print(json.dumps(child), flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.readline()


def forks_under_load(path: str) -> None:
    """Threads append, read and roll; children are made all the while, and none of them hangs."""
    with commitlog.open(path) as log:
        partition = log.create_topic("t", config={**CONFIG, "flush_ms": 1}).partition(0)
        append(partition, 100)
        stop = threading.Event()

        def loop(work: Callable[[], object]) -> threading.Thread:
            def run() -> None:
                while not stop.is_set():
                    work()

            thread = threading.Thread(target=run)
            thread.start()
            return thread

        threads = [
            loop(lambda: partition.append(value_of(partition.next_offset))),
            loop(lambda: list(partition.records(0, 100))),
            loop(partition.roll),
            loop(lambda: partition.wait_for(partition.next_offset, 0.001)),
            loop(log.health),
        ]

        def child() -> None:
            refused(lambda: partition.append(b"wrong"))
            read_or_be_refused(partition, 100)
            log.close()
            with commitlog.open(path, mode="r") as own:
                assert own.topic("t").partition(0).next_offset >= 100

        for _ in range(20):
            wait(in_child(child))
        stop.set()
        for thread in threads:
            thread.join(SECONDS)
        assert log.health().ok
        end = partition.next_offset
        assert [one.value for one in partition.records()] == [value_of(offset) for offset in range(end)]


def readers_fork_too(path: str) -> None:
    """A child is made while a thread of a reading parent is inside a call; the child reads for itself."""
    with commitlog.open(path) as writer, commitlog.open(path, mode="r") as log:
        source = writer.create_topic("t", config=CONFIG).partition(0)
        append(source, 100)
        partition = log.topic("t").partition(0)
        inside, leave = threading.Event(), threading.Event()
        real = os.scandir

        def slow(*args: Any) -> Any:
            inside.set()
            leave.wait(SECONDS)
            return real(*args)

        os.scandir = slow  # type: ignore[assignment]
        source.roll()  # the reader must list the segments again
        thread = threading.Thread(target=lambda: list(partition.records()))
        thread.start()
        assert inside.wait(SECONDS)
        os.scandir = real
        child = in_child(lambda: read_or_be_refused(partition, 100))
        wait(child)
        leave.set()
        thread.join(SECONDS)


def clients_with_quotas_fork_too(path: str) -> None:
    """A child is made while a thread of its parent holds the account; both count, neither is in the way."""
    with commitlog.open(path) as writer, commitlog.open(path, mode="r") as log:
        writer.set_quota("a", consumer_byte_rate=1_000)
        stopped = Quotas(log.path, lambda: 10**15)
        meter = stopped.meter("a", "consume")
        meter.take(1_000)
        inside, leave = threading.Event(), threading.Event()
        real = files.pwrite

        def slow(*args: Any) -> int:
            inside.set()
            assert leave.wait(SECONDS)
            return real(*args)

        files.pwrite = slow
        thread = threading.Thread(target=meter.take, args=(500,))
        thread.start()
        assert inside.wait(SECONDS)
        files.pwrite = real
        child = in_child(lambda: [meter.take(100) for _ in range(70)])
        leave.set()
        thread.join(SECONDS)
        wait(child)
        assert meter.take(0) == 7.5


def a_child_opens_for_itself(path: str) -> None:
    with commitlog.open(path) as log:
        append(log.create_topic("t").partition(0), 10)

        def child() -> None:
            with commitlog.open(path, mode="r") as own:
                read_or_be_refused(own.topic("t").partition(0), 10)
            with commitlog.open(path + "-own") as own:
                append(own.create_topic("t").partition(0), 3)

        wait(in_child(child))
    with commitlog.open(path + "-own") as log:
        assert log.topic("t").partition(0).next_offset == 3


def consumers_stay_with_the_parent(path: str) -> None:
    """A child is made while one thread of the parent waits in poll() and another is about to wake it."""
    with commitlog.open(path) as log:
        partition = log.create_topic("t").partition(0)
        append(partition, 10)
        consumer = log.consumer("t", group_id="g", enable_auto_commit=False)
        alone = log.consumer("t", consumer_timeout_ms=0)
        records = iter(alone)
        assert next(records).offset == 0
        found = consumer.poll(max_records=4)
        assert sum(map(len, found.values())) == 4

        def child() -> None:
            for one in (consumer, alone):
                refused(one.poll)
                refused(one.poll_batches)
                refused(lambda one=one: one.seek(("t", 0), 0))  # type: ignore[misc]
                refused(lambda one=one: one.subscribe("t"))  # type: ignore[misc]
                refused(lambda one=one: one.end_offsets([("t", 0)]))  # type: ignore[misc]
            refused(consumer.commit)
            refused(consumer.commit_async)
            refused(lambda: consumer.committed(("t", 0)))
            refused(lambda: next(iter(alone)))
            assert [one.offset for one in stopped(records)] == list(range(1, 10))  # it had them already
            consumer.close()
            alone.close()
            log.close()
            with commitlog.open(path, mode="r") as own, own.consumer("t", group_id="own") as mine:
                assert sum(map(len, mine.poll().values())) >= 10

        wait(in_child(child))
        context = multiprocessing.get_context("fork")
        process = context.Process(target=refused, args=(consumer.poll,))  # a child that ends in order
        process.start()
        process.join(SECONDS)
        assert process.exitcode == 0

        waiting = threading.Thread(target=lambda: alone.poll(timeout=SECONDS))
        list(records)
        waiting.start()
        wait(in_child(child_that_closes(consumer, alone)))
        append(partition, 1)
        waiting.join(SECONDS)
        assert not waiting.is_alive()

        consumer.commit()
        assert consumer.committed(("t", 0)) == 4
        assert len(log.describe_group("g").members) == 1
        seen = [one.offset for _ in range(2) for some in consumer.poll().values() for one in some]
        assert seen == list(range(4, 11))
        assert log.health().ok


def child_that_closes(*consumers: commitlog.Consumer) -> Callable[[], None]:
    def child() -> None:
        for one in consumers:
            refused(one.poll)
            one.close()

    return child


def stopped(records: Any) -> list[Any]:
    """What an iteration still had when the process was forked; then it is refused."""
    found = []
    try:
        for record in records:
            found.append(record)
    except ForkedError:
        return found
    raise AssertionError("a forked child was let through")


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
    if sys.argv[1] != "the_lock_goes_with_the_parent":
        print(json.dumps("done"))
