"""PartitionWriter: a partition as it grows: append, sync, roll. partition.py adds what takes away from it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from commitlog import files
from commitlog.columns import Buffer
from commitlog.config import TopicConfig
from commitlog.encode import EncodedBatch, Rules, encode
from commitlog.errors import (
    BatchTooLargeError,
    CommitLogError,
    DiskFullError,
    PartitionFailedError,
)
from commitlog.handles import HandleCache
from commitlog.ones import encode_one
from commitlog.reader import Layout, PartitionReader
from commitlog.record import Headers
from commitlog.recovery import Recovered, RecoveryReport
from commitlog.segment import Segment
from commitlog.segment_writer import SegmentWriter, sync_sealed
from commitlog.state import StatePage
from commitlog.trash import Trash

if TYPE_CHECKING:
    import pyarrow as pa

_NEVER = 1 << 62
_LEADER_EPOCH = 0


class PartitionWriter(PartitionReader):
    """Appends to, reads, trims and truncates one partition; threads may share it.

    start_offset <= durable_offset <= next_offset. Bytes are in the file before next_offset moves, and a
    sync has returned before durable_offset does.

    Locks: `_lock` guards appends and the set of segments, `_sync_lock` allows one sync at a time and is
    taken first. No sync is made while `_lock` is held, but by truncate_from() and repair(), which stop
    appends anyway.
    """

    def __init__(
        self, path: str, name: str, config: TopicConfig, cache: HandleCache, page: StatePage, found: Recovered
    ) -> None:
        self.path = path
        self.name = name
        self.recovery: RecoveryReport = found.report
        self._cache = cache
        self._page = page
        self._make_locks()
        self._refusal: Callable[[], CommitLogError] | None = None
        self._failure: str | None = None
        self._wake_flusher: Callable[[], None] = lambda: None
        self._start_offset = found.start_offset
        self._next_offset = found.next_offset
        self._durable_offset = found.durable_offset
        self._segments = Layout.of(found.segments, page.generation)
        self._unsynced = [
            segment
            for segment, after in pairwise(found.segments)
            if after.base_offset >= found.durable_offset
        ]
        self._name_changes, self._names_synced = 1, 0  # the directory needs a sync while they differ
        self._trash = Trash()
        self._writer = SegmentWriter.open(found.segments[-1], config, trust_indexes=found.indexes_trusted)
        self.configure(config)

    def _make_locks(self) -> None:
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._readable = threading.Condition()
        self._waiters = 0

    def configure(self, config: TopicConfig) -> None:
        """Take other settings; those of segments count from the next roll on."""
        self.config = config
        self._rules = Rules(config)
        self._flush_messages = _NEVER if config.flush_messages == -1 else config.flush_messages

    def wake_flusher_with(self, wake: Callable[[], None]) -> None:
        """Call `wake` when flush_messages records wait for a sync."""
        self._wake_flusher = wake

    # --- where it stands

    def _layout(self) -> Layout:
        return self._segments

    @property
    def _changes(self) -> int:
        return self._page.generation

    @property
    def start_offset(self) -> int:
        """The first offset that may be read."""
        return self._start_offset

    @property
    def next_offset(self) -> int:
        """The offset that the next append gets."""
        return self._next_offset

    @property
    def durable_offset(self) -> int:
        """Everything below it survives power loss."""
        return self._durable_offset

    @property
    def high_watermark(self) -> int:
        """Readers stop here; next_offset, as there are no replicas."""
        return self._next_offset

    @property
    def failure(self) -> str | None:
        """The disk error that stopped appends, None while all is well."""
        return self._failure

    def wait_for(self, offset: int, timeout: float | None = None) -> bool:
        """Wait until `offset` can be read; False if it cannot after `timeout` seconds, or when closed."""
        if self._next_offset > offset:
            return True
        with self._readable:
            self._waiters += 1
            try:
                self._readable.wait_for(lambda: self._next_offset > offset or self._refusal, timeout)
            finally:
                self._waiters -= 1
        return self._next_offset > offset

    # --- appending

    def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: Headers = (),
        timestamp: int | None = None,
        sync: bool = False,
    ) -> int:
        """Append a record and return its offset once readers see it, or with `sync` once it is durable."""
        rules = self._rules
        lean = rules.lean and (value is None or type(value) is bytes) and (key is None or type(key) is bytes)
        if timestamp is None or rules.log_append_time:
            timestamp = time.time_ns() // 1_000_000
        elif type(timestamp) is not int or not 0 <= timestamp < 1 << 63:
            lean = False
        if headers or not lean:
            return self.append_many(
                [value], keys=[key], headers=[headers], timestamps=[timestamp], sync=sync
            )[0]
        limit = rules.max_message_bytes
        crc, body = encode_one(value, key, timestamp, rules.flags, limit)  # type: ignore[arg-type]
        with self._lock:
            if self._refusal is not None:
                raise self._refusal()
            offset, writer = self._next_offset, self._writer
            position = writer.segment.size_bytes
            try:
                written = writer.append_one(body, crc, timestamp, offset, _LEADER_EPOCH)
                if written:
                    self._next_offset = offset + 1
                    self._page.publish_append(offset + 1, writer.segment.size_bytes)
            except BaseException as error:
                self._undo(writer, offset, position, error)
            if not written:
                self._append_locked((EncodedBatch.of_one(crc, body, timestamp),))
        self._after_append(offset + 1, sync)
        return offset

    def _after_append(self, end: int, sync: bool) -> None:
        if end - self._durable_offset >= self._flush_messages:
            self._wake_flusher()
        if self._waiters:
            self._notify()
        if sync:
            self._sync_to(end)

    def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        sync: bool = False,
    ) -> range:
        """Append records as one batch, all or nothing, and return their offsets."""
        return self.append_encoded(self.encode(values, keys, headers, timestamps), sync=sync)

    def append_arrow(self, data: pa.RecordBatch | pa.Table, *, sync: bool = False) -> range:
        """Append the columns value, key, timestamp and headers of Arrow data (all but value optional).

        All or nothing for readers; a crash may keep a prefix of a table's chunks, each one whole.
        """
        from commitlog import arrow

        return self.append_encoded(tuple(arrow.to_batches(data, self._rules, _now_ms())), sync=sync)

    def encode(
        self,
        values: Iterable[Buffer | None],
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
    ) -> tuple[EncodedBatch, ...]:
        """Check records and encode them as one batch (none, if there are none): what needs no lock."""
        batches = encode(values, keys, headers, timestamps, self._rules, _now_ms())
        self._check_fits(sum(batch.size for batch in batches))
        return batches

    def _check_fits(self, size: int) -> None:
        if size > self.config.segment_bytes:
            raise BatchTooLargeError(size, self.config.segment_bytes)

    def append_encoded(self, batches: tuple[EncodedBatch, ...], *, sync: bool = False) -> range:
        """Append encoded batches, all or nothing, and return their offsets."""
        with self._lock:
            first = self._append_locked(batches)
            end = self._next_offset
        self._after_append(end, sync)
        return range(first, end)

    def _append_locked(self, batches: tuple[EncodedBatch, ...]) -> int:
        """Write at next_offset and publish. Disk first, then memory: if the write fails, nothing moved."""
        if self._refusal is not None:
            raise self._refusal()
        offset, writer = self._next_offset, self._writer
        if not batches:
            return offset
        size = span = latest = 0
        for batch in batches:
            size += batch.size
            span += batch.span
            latest = batch.max_timestamp if batch.max_timestamp > latest else latest
        if not writer.has_room(size, offset, latest):
            self._check_fits(size)
            writer = self._roll_locked()
        position = writer.segment.size_bytes
        try:
            writer.append(batches, size, offset, _LEADER_EPOCH)
            self._next_offset = offset + span
            self._page.publish_append(offset + span, writer.segment.size_bytes)
        except BaseException as error:
            self._undo(writer, offset, position, error)
        return offset

    def _undo(self, writer: SegmentWriter, offset: int, position: int, error: BaseException) -> NoReturn:
        """Undo an append that failed, or that Ctrl-C interrupted, unless readers were told of it."""
        if self._next_offset == offset and self._refusal is None:
            try:
                writer.roll_back(position)
            except OSError as second:
                self._fail(f"{error}; and the partial append could not be cut off: {second}")
        if isinstance(error, OSError) and files.is_full(error) and not isinstance(error, DiskFullError):
            raise DiskFullError(writer.segment.path, error.strerror) from error
        raise error

    def _notify(self) -> None:
        with self._readable:
            self._readable.notify_all()

    def _check_writable(self) -> None:
        if self._refusal is not None:
            raise self._refusal()

    # --- syncing

    def sync(self) -> None:
        """Make everything appended so far durable."""
        self._check_writable()
        self._sync_to(self._next_offset)

    def _sync_to(self, offset: int) -> None:
        """Group commit: whoever waited for another's sync finds its records covered and returns."""
        with self._sync_lock:
            if self._durable_offset >= offset:
                return
            self._check_writable()
            with self._lock:
                unsynced = self._take_unsynced()
            self._sync_files(*unsynced)

    def _sync_locked(self) -> None:
        self._sync_files(*self._take_unsynced())

    def _take_unsynced(self) -> tuple[int, files.Descriptor, list[Segment], int]:
        """Return what a sync has to cover now, with `_lock` held: end, descriptor, segments, names."""
        return self._next_offset, self._writer.handle_for_sync(), list(self._unsynced), self._name_changes

    def _sync_files(self, end: int, active: files.Descriptor, sealed: list[Segment], names: int) -> None:
        with self._ended_by_failure():
            try:
                for segment in sealed:
                    sync_sealed(segment)
                files.sync_data(active.fd)
                if names != self._names_synced:
                    files.sync_directory(self.path)
            finally:
                active.close()
        # only now: what an interrupted sync did not reach waits for the next
        del self._unsynced[: len(sealed)]
        self._names_synced = names
        self._durable_offset = end
        self._page.publish_durable(end)
        if sealed:  # or damage to them would look, after a power cut, like a torn tail
            self._sync_page()

    def _sync_page(self) -> None:
        with self._ended_by_failure():
            self._page.sync()

    def _sync_names(self) -> None:
        names = self._name_changes
        with self._ended_by_failure():
            files.sync_directory(self.path)
        self._names_synced = names

    @contextlib.contextmanager
    def _ended_by_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._fail(str(error))
            raise PartitionFailedError(self.name, str(error)) from error

    def _fail(self, cause: str) -> None:
        """Take no more appends: after a failed sync nobody knows what the disk holds."""
        self._failure = cause
        self._refusal = lambda: PartitionFailedError(self.name, cause)
        self._notify()

    # --- rolling

    def roll(self) -> None:
        """Seal the active segment and start another; an empty one stays."""
        with self._lock:
            self._check_writable()
            if self._writer.segment.size_bytes:
                self._roll_locked()

    def _roll_locked(self) -> SegmentWriter:
        old = self._writer
        with self._ended_by_interruption():
            self._page.begin_change()
            try:
                old.prepare_to_seal()
                new = SegmentWriter.create(self.path, self._next_offset, self.config, self._cache)
            except OSError as error:
                self._end_change()
                if files.is_full(error):
                    raise DiskFullError(self.path, error.strerror) from error
                raise
            # crash: an empty segment after the active one -> open() goes on in it
            old.seal(self._next_offset)
            self._unsynced.append(old.segment)
            self._name_changes += 1
            self._writer = new
            self._publish_layout((*self._segments.segments, new.segment))
        return new

    @contextlib.contextmanager
    def _ended_by_interruption(self) -> Iterator[None]:
        """Ctrl-C in the middle of a change of segments leaves nothing that could go on."""
        try:
            yield
        except Exception:
            raise
        except BaseException as interruption:
            self._fail(f"interrupted by {type(interruption).__name__}")
            self._start_offset = self._page.start_offset
            self._end_change()
            raise

    def _end_change(self) -> None:
        """Tell readers, those of this process too, that the segments stay as they are."""
        self._page.end_change()
        self._segments = self._segments._replace(generation=self._page.generation)

    def _publish_layout(self, segments: Sequence[Segment]) -> None:
        page, active = self._page, segments[-1]
        page.begin_change()
        page.publish_layout(active.base_offset, active.size_bytes, self._next_offset)
        page.end_change()
        self._segments = Layout.of(segments, page.generation)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
