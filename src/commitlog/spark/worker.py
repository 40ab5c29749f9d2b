"""What runs in a Python process of Spark: logs that stay open from task to task, and reading ranges."""

from __future__ import annotations

import functools
import gc
import os
import socket
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from commitlog.batches.batch import RecordBatch
from commitlog.errors import (
    ConfigError,
    NotALogError,
    OffsetOutOfRangeError,
    PathNotMountedError,
    UnknownPartitionError,
    UnknownTopicError,
    WrongLogError,
)
from commitlog.log import CommitLog
from commitlog.partitions.reader import LogReader
from commitlog.record import TopicPartition
from commitlog.spark.hang_up import quiet_hang_up
from commitlog.spark.options import ReadOptions
from commitlog.spark.planning import Range, lost, replaced, same_id
from commitlog.spark.readable import ReadableLog, is_remote, open_readable

if TYPE_CHECKING:
    import pyarrow as pa

    from commitlog.spark.schema import Field

_MOST_LOGS = 8


class _Handle(NamedTuple):
    log: ReadableLog
    directory: int | None  # a descriptor: while it is open, no other directory gets the same inode


_handles: dict[str, _Handle] = {}


def open_log(path: str) -> ReadableLog:
    """Return a log opened for reading, which all tasks of the process share."""
    known = _handles.get(path)
    if known is not None:
        if _is_there(path, known):
            if isinstance(known.log, CommitLog):
                known.log.release_removed()  # otherwise removed files would keep filling the disk
            return known.log
        forget_log(path)
    log = open_readable(path)
    while len(_handles) >= _MOST_LOGS:
        forget_log(next(iter(_handles)))
    _handles[path] = _Handle(log, None if is_remote(path) else os.open(path, os.O_RDONLY))
    return log


def open_files(path: str) -> CommitLog:
    """Return the log for a caller that needs its files; ConfigError if the path names nodes."""
    found = open_log(path)
    if not isinstance(found, CommitLog):
        raise ConfigError("path", path, "must be the log's directory: this needs its files")
    return found


def forget_log(path: str) -> None:
    """Close a log; the next caller opens it again."""
    handle = _handles.pop(path, None)
    if handle is not None:
        handle.log.close()
        if handle.directory is not None:
            os.close(handle.directory)


def log_here(path: str, log_id: str | None) -> ReadableLog:
    """Return the log in a task; it must be the one that the driver sees.

    PathNotMountedError, with the host's name, if it cannot be read; WrongLogError if it is another log.
    """
    try:
        log = open_log(path)
        _check_identity(log, path, log_id)
        return log
    except (NotALogError, OSError) as problem:
        raise not_mounted(path, problem) from None


def _check_identity(log: ReadableLog, path: str, log_id: str | None) -> None:
    found = log.log_id
    if not same_id(log_id, found):
        raise WrongLogError(path, socket.gethostname(), log_id, found)


def not_mounted(path: str, problem: NotALogError | OSError) -> PathNotMountedError:
    """Return the error for a host that does not see the log."""
    cause = problem.args[1] if isinstance(problem, NotALogError) else str(problem)
    return PathNotMountedError(path, socket.gethostname(), cause)


def _is_there(path: str, handle: _Handle) -> bool:
    """Return whether the path still names the directory that was opened."""
    if handle.directory is None:  # a remote log reconnects by itself
        return True
    try:
        return os.path.samestat(os.stat(path), os.fstat(handle.directory))
    except OSError:
        return False


@functools.cache
def settle_down() -> None:
    """Once per process: exempt loaded objects from the garbage collection that Spark runs after every task.

    Measured: 26 ms per task instead of 63.
    """
    gc.collect()
    gc.freeze()


# --- reading -------------------------------------------------------------------------------------


def read_ranges(
    options: ReadOptions, fields: tuple[Field, ...], ranges: Iterable[Range]
) -> Iterator[pa.RecordBatch]:
    """Iterate over the ranges of a task as Arrow batches for Spark."""
    from commitlog.spark.arrow_rows import spark_batches

    settle_down()
    with quiet_hang_up():
        for one in ranges:
            name = TopicPartition(one.topic, one.partition)
            yield from spark_batches(_batches(options, one), name, fields)


def _batches(options: ReadOptions, wanted: Range) -> Iterator[RecordBatch]:
    """Iterate over the stored batches of a range; report records that were removed meanwhile as lost."""
    start = wanted.start
    while start < wanted.end:
        try:
            partition = _partition(options, wanted)
            if partition is None:
                return
            level = options.isolation_level
            mark = partition.end_offset(level)  # read before, too: in a cluster it may drop and rise again
            for batch in partition.combined_batches(start, wanted.end, isolation_level=level):
                start = batch.next_offset
                yield batch
            mark = min(mark, partition.end_offset(level))
            if mark < wanted.end:
                lost(options, partition.name, f"its end moved back to {mark}")
            return
        except OffsetOutOfRangeError as problem:
            _, _, low, high = problem.args
            after = low if start < low else wanted.end
            missing = f"offsets [{start}, {min(after, wanted.end)}) are outside [{low}, {high})"
            lost(options, f"{wanted.topic}-{wanted.partition}", missing)
            start = after
        except (UnknownTopicError, UnknownPartitionError) as problem:
            lost(options, f"{wanted.topic}-{wanted.partition}", str(problem))
            return


def _partition(options: ReadOptions, wanted: Range) -> LogReader | None:
    """Open a partition; if it is too short, open it again: a network file system may show old pages.

    None if its topic was replaced, which has been reported as lost.
    """
    try:
        partition = _found(options, wanted)
        if partition is not None and partition.end_offset(options.isolation_level) < wanted.end:
            forget_log(options.path)
            partition = _found(options, wanted)
        return partition
    except (NotALogError, OSError) as problem:
        raise not_mounted(options.path, problem) from None


def _found(options: ReadOptions, wanted: Range) -> LogReader | None:
    """Return the partition of a range; the ids of its log and its topic must match."""
    log = open_log(options.path)
    _check_identity(log, options.path, wanted.log_id)
    topic = log.topic(wanted.topic)
    if not same_id(wanted.topic_id, topic.topic_id):
        what = replaced(wanted.topic_id, topic.topic_id)
        lost(options, f"{wanted.topic}-{wanted.partition} on host {socket.gethostname()}", what)
        return None
    partition: LogReader = topic.partition(wanted.partition)
    return partition
