"""Readers that wait are woken by writers in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pytest
from helpers import wait_until

import commitlog
from commitlog import bells, futex
from commitlog.bells import NAME, SIZE_BYTES, Bell, Bells, Listener
from commitlog.tasks import Signal
from commitlog.topics.topic_set import Mode

pytestmark = pytest.mark.skipif(not futex.is_supported(), reason="needs futex_waitv, of Linux 5.16")

APPEND_ON_DEMAND = """
import sys, commitlog
with commitlog.open(sys.argv[1], mode="shared") as log:
    for line in sys.stdin:
        log.topic("orders").append(b"one", partition=int(line))
        print("appended", flush=True)
"""


class Writer:
    """Another process, which appends a record when it is asked to."""

    def __init__(self, path: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", APPEND_ON_DEMAND, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def append(self, partition: int = 0) -> None:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        print(partition, file=stdin, flush=True)
        assert stdout.readline() == "appended\n"

    def close(self) -> None:
        self._process.communicate()
        assert self._process.returncode == 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with commitlog.open(tmp_path / "log") as log:
        log.create_topic("orders", 2)
    return tmp_path / "log"


@pytest.fixture
def writer(path: Path) -> Iterator[Writer]:
    one = Writer(path)
    one.append()  # it has the log open
    yield one
    one.close()


def new_bell(tmp_path: Path) -> Bell:
    bells = Bells.open(str(tmp_path), create=True)
    assert bells is not None
    return bells.bell("orders", 0)


@pytest.mark.parametrize("mode", ["r", "shared"])
def test_an_append_of_another_process_ends_a_wait(path: Path, writer: Writer, mode: Mode) -> None:
    with commitlog.open(path, mode=mode) as log:
        partition, listener = log.topic("orders").partition(0), Listener()
        assert partition.watch(listener)
        assert not listener.wait(0)
        writer.append()
        assert listener.wait(0)
        assert partition.high_watermark == 2


def test_only_a_reader_that_waits_is_woken(path: Path, writer: Writer) -> None:
    with commitlog.open(path, mode="r") as log:
        partition, listener = log.topic("orders").partition(0), Listener()
        partition.watch(listener)
        writer.append(partition=1)
        assert not listener.wait(0)
        writer.append()
        assert listener.wait(0)
        partition.watch(listener)
        partition.unwatch(listener)
        writer.append()
        assert not listener.wait(0)


def test_every_process_that_waits_is_woken(path: Path, writer: Writer) -> None:
    with commitlog.open(path, mode="r") as first, commitlog.open(path, mode="r") as second:
        listeners = [Listener(), Listener()]
        for log, listener in zip((first, second), listeners, strict=True):
            log.topic("orders").partition(0).watch(listener)
        writer.append()
        assert all(listener.wait(0) for listener in listeners)


def test_a_bell_that_was_rung_and_listened_to_again_still_ends_a_wait(tmp_path: Path) -> None:
    bell, slow, quick = new_bell(tmp_path), Listener(), Listener()
    slow.hear(bell)
    bell.ring()
    quick.hear(bell)
    assert slow.wait(0)
    assert not quick.wait(0)


def test_a_writer_knows_whether_a_reader_waits(tmp_path: Path) -> None:
    bell = new_bell(tmp_path)
    assert not bell.waited_for[0]
    bell.listen()
    assert bell.waited_for[0]
    bell.ring()
    assert not bell.waited_for[0]


def test_a_signal_of_another_thread_ends_a_wait_for_bells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bells, "LONGEST_SLEEP", 600)  # nothing else ends the wait before the test gives up
    listener, woken = Listener(), []
    listener.hear(new_bell(tmp_path))
    waiting = threading.Thread(target=lambda: woken.append(listener.wait()), daemon=True)
    waiting.start()
    listener.set()
    waiting.join(60)
    assert woken == [True]
    assert listener.is_set() and listener.wait(0)
    listener.clear()
    assert not listener.wait(0)


def test_a_reader_reads_the_word_before_it_sets_the_flag(tmp_path: Path) -> None:
    """A bell rung in between changes the word that the reader will wait for."""

    class Words(list[int]):
        steps: ClassVar[list[str]] = []

        def __getitem__(self, number: Any) -> Any:
            self.steps.append(f"read {number}")
            return super().__getitem__(number)

        def __setitem__(self, number: Any, value: Any) -> None:
            self.steps.append(f"write {number}")
            super().__setitem__(number, value)

    bell = new_bell(tmp_path)
    bell._page = Words([0, 7])  # type: ignore[assignment]
    assert bell.listen()[1] == 7
    assert Words.steps == ["read 1", "write 0"]


def test_what_is_appended_just_before_a_reader_listens_is_seen(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any) -> bool:
        raise AssertionError("it waits, though the record is there")

    with commitlog.open(path) as log, commitlog.open(path, mode="r") as reader:
        partition = reader.topic("orders").partition(0)
        source = partition._log_source
        watch = source.watch
        monkeypatch.setattr(Listener, "wait", never)

        def late(signal: Signal) -> bool:
            log.topic("orders").append(b"one", partition=0)
            return watch(signal)

        monkeypatch.setattr(source, "watch", late)
        assert partition.wait_for(0, timeout=60)


def test_a_consumer_that_waits_is_woken(path: Path) -> None:
    with commitlog.open(path) as log, commitlog.open(path, mode="r") as reader:
        writing = log.topic("orders").partition(0)
        with reader.consumer("orders") as consumer, ThreadPoolExecutor(1) as pool:
            polled = pool.submit(consumer.poll, 60)
            wait_until(lambda: writing._state.waited_for[0])
            writing.append(b"one")
            assert [record.value for some in polled.result().values() for record in some] == [b"one"]
            assert not writing._state.waited_for[0] or consumer.position(("orders", 0)) == 1


def test_an_append_into_the_mapped_tail_wakes_a_reader(path: Path) -> None:
    with commitlog.open(path) as log, commitlog.open(path, mode="r") as reader:
        writing, listener = log.topic("orders").partition(0), Listener()
        while writing._state.writer.tail is None:
            writing.append(b"value")
        writing.append(b"value", timestamp=0)  # nothing but the store is due
        assert reader.topic("orders").partition(0).watch(listener)
        assert not listener.wait(0)
        writing.append(b"value", timestamp=0)
        assert listener.wait(0)
        assert not writing._state.waited_for[0]


def test_readers_of_a_replicated_partition_are_woken_by_the_high_watermark(path: Path) -> None:
    with commitlog.open(path) as log, commitlog.open(path, mode="r") as reader:
        writing, listener = log.topic("orders").partition(0), Listener()
        writing.lead(1)
        reading = reader.topic("orders").partition(0)
        assert reading.watch(listener)
        writing.append(b"one")
        assert not listener.wait(0)
        writing.set_high_watermark(1)
        assert listener.wait(0)


def test_a_closed_log_lets_go_of_the_file(path: Path) -> None:
    def mapped() -> bool:
        return f"{path}/{NAME}" in Path("/proc/self/maps").read_text()

    with commitlog.open(path) as log, commitlog.open(path, mode="r") as reader:
        log.topic("orders").append(b"one", partition=0)
        reader.topic("orders").partition(0).watch(Listener())
        assert mapped()
    assert not mapped()


def test_a_reader_without_bells_polls(path: Path, writer: Writer) -> None:
    os.remove(path / NAME)
    with commitlog.open(path, mode="r") as log:
        partition = log.topic("orders").partition(0)
        assert not partition.watch(Listener())
        writer.append()
        assert partition.wait_for(1, timeout=60)


@pytest.mark.parametrize("content", [b"", b"short", os.urandom(SIZE_BYTES)])
def test_any_content_of_the_file_is_harmless(path: Path, content: bytes) -> None:
    (path / NAME).write_bytes(content)
    with commitlog.open(path, mode="r") as log:
        log.topic("orders").partition(0).watch(Listener())
    with commitlog.open(path) as log, commitlog.open(path, mode="r") as reader:
        log.topic("orders").append(b"one", partition=0)
        assert reader.topic("orders").partition(0).wait_for(0, timeout=60)
        listener = Listener()
        assert reader.topic("orders").partition(0).watch(listener)
        assert not listener.wait(0)
        log.topic("orders").append(b"two", partition=0)
        assert listener.wait(0)


def test_a_reader_creates_no_file(path: Path) -> None:
    os.remove(path / NAME)
    with commitlog.open(path, mode="r") as log:
        log.topic("orders").partition(0).watch(Listener())
    assert not (path / NAME).exists()
