"""PartitionWriter: a partition as it grows."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NoReturn

from commitlog import files
from commitlog.active import ActivePartition, now_ms
from commitlog.columns import Buffer
from commitlog.encode import EncodedBatch, encode
from commitlog.errors import BatchTooLargeError, DiskFullError
from commitlog.ones import encode_one
from commitlog.record import Headers
from commitlog.segment_writer import SegmentWriter

if TYPE_CHECKING:
    import pyarrow as pa

_LEADER_EPOCH = 0


class PartitionWriter(ActivePartition):
    """Appends to a partition. Disk first, then memory: what was not written was never there."""

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
        if headers or not lean or (key is None and rules.keyed):
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

        return self.append_encoded(tuple(arrow.to_batches(data, self._rules, now_ms())), sync=sync)

    def encode(
        self,
        values: Iterable[Buffer | None],
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
    ) -> tuple[EncodedBatch, ...]:
        """Check records and encode them as one batch (none, if there are none): what needs no lock."""
        batches = encode(values, keys, headers, timestamps, self._rules, now_ms())
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
