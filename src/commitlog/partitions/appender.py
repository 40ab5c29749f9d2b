"""Appender: a partition as it grows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

from commitlog import files
from commitlog.aborted_index import Aborted
from commitlog.batches.encode import IN_A_SEGMENT, EncodedBatch, encode, totals
from commitlog.batches.format import NO_PRODUCER, STAMP, fold
from commitlog.batches.markers import MARKER_BYTES, encode_marker
from commitlog.batches.single import encode_one
from commitlog.checksum import crc32c
from commitlog.config import MAX_INT64
from commitlog.errors import BatchTooLargeError, DiskFullError, OffsetOutOfRangeError
from commitlog.partitions.page import StatePage
from commitlog.partitions.state import LogState, now_ms
from commitlog.partitions.syncer import Syncer
from commitlog.record import ArrowData, Buffer, Headers
from commitlog.segment_writer import SegmentWriter
from commitlog.speedups import native

_END_POSITION, _NEXT = StatePage.END_POSITION, StatePage.NEXT
_pack_stamp = STAMP.pack
_LOCK = type(threading.Lock())


class Appender:
    """Appends to a partition. Disk first, then memory: what was not written was never there."""

    def __init__(self, state: LogState, syncer: Syncer) -> None:
        self._state = state
        self._syncer = syncer

    def fastest_append(self) -> Callable[..., int]:
        """Return append(), or a compiled function that packs small records and stores most of them itself."""
        if native is None:
            return self.append
        return native.single_append(self.append, self._store, self._state, _LOCK, _END_POSITION, _NEXT)  # type: ignore[no-any-return]

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
        state = self._state
        rules = state.rules
        shapes = rules.shapes
        if timestamp is None or rules.log_append_time:
            timestamp = time.time_ns() // 1_000_000
        elif type(timestamp) is not int or not 0 <= timestamp < 1 << 63:
            shapes = None
        key_size = len(key) if type(key) is bytes else None
        value_size = len(value) if type(value) is bytes else None
        other = (key_size is None and (key is not None or rules.keyed)) or (
            value_size is None and value is not None
        )
        if other or headers or shapes is None:
            batch = self.encode([value], [key], [headers], [timestamp])
            return self.append_encoded(batch, sync=sync)[0]
        shape = shapes[key_size, value_size]
        if shape is not None:
            pack, front, back, size = shape
            body = pack(front, timestamp, timestamp, back, key or b"", value or b"")
            crc = crc32c(body)
        else:
            crc, body, size = encode_one(value, key, timestamp, rules.flags, rules.max_message_bytes)  # type: ignore[arg-type]
        return self._store(crc, body, size, timestamp, sync)

    def _store(self, crc: int, body: bytes, size: int, timestamp: int, sync: bool) -> int:
        """Append the batch of one record, without its stamp, and return its offset."""
        state = self._state
        with state.lock:
            writer, offset = state.writer, state.next_offset
            position = writer.segment.size_bytes
            end, next_offset = position + size, offset + 1
            if end <= writer.lean_end and timestamp <= writer.roll_after and state.append_refusal is None:
                due = position > writer.quiet_position
                try:
                    if due:
                        writer.make_room()
                    epoch = state.leader_epoch
                    # what fold() makes of a small offset
                    folded = offset ^ epoch if offset <= 0xFFFF_FFFF else fold(offset, epoch)
                    data = _pack_stamp(offset, epoch, crc ^ folded) + body
                    if end <= writer.tail_end:
                        start = writer.tail_start
                        writer.tail[position - start : end - start] = data  # type: ignore[index]
                    else:
                        writer.write_single(data, size, position)
                    writer.segment.size_bytes = end
                    if due or timestamp > writer.max_timestamp:
                        writer.note(offset, position, timestamp)
                    state.next_offset = next_offset
                    words = state.words  # what publish_append() does
                    words[_END_POSITION], words[_NEXT] = end, next_offset
                except BaseException as error:
                    self.undo(writer, offset, position, error)
            else:
                self._append_locked((EncodedBatch(crc, (body,), size, 1, timestamp),))
        if state.counts_records or state.waiters.count or state.waited_for[0] or sync:
            self.after_append(next_offset, sync)
        return offset

    def after_append(self, end: int, sync: bool) -> None:
        """Notify everything that waits for records below `end`, and sync them if `sync` is set."""
        state = self._state
        if not (state.counts_records or state.waiters.count or state.waited_for[0] or sync):
            return
        appended = state.on_append
        if appended is not None and state.append_refusal is None:
            appended()  # first: replicas copy the records while they are synced here
        if state.counts_records and end - state.durable_offset >= state.config.flush_messages:
            state.wake_flusher()
        state.notify_of_append()
        if sync:
            self._syncer.sync_to(end)

    def encode_arrow(self, data: ArrowData) -> tuple[EncodedBatch, ...]:
        """Check Arrow data and encode it, each chunk as one batch or more. Takes no lock."""
        from commitlog.batches import arrow

        return tuple(arrow.to_batches(data, self._state.rules, now_ms()))

    def encode(
        self,
        values: Iterable[Buffer | None],
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[Headers] | None = None,
        timestamps: Iterable[int] | None = None,
        producer: tuple[int, int, int] = NO_PRODUCER,
        more_flags: int = 0,
    ) -> tuple[EncodedBatch, ...]:
        """Check records and encode them as one batch, or none if there are no records. Takes no lock."""
        state = self._state
        batches = encode(values, keys, headers, timestamps, state.rules, now_ms(), producer, more_flags)
        for batch in batches:
            self._check_fits(batch.size)
        return batches

    def _check_fits(self, size: int) -> None:
        state = self._state
        if size > state.config.segment_bytes:
            raise BatchTooLargeError(size, state.config.segment_bytes, IN_A_SEGMENT)

    def roll(self) -> None:
        """Seal the active segment, unless it is empty, and start another."""
        state = self._state
        with state.lock:
            state.check_writable()
            if state.writer.segment.size_bytes:
                state.roll()

    def append_encoded(self, batches: tuple[EncodedBatch, ...], *, sync: bool = False) -> range:
        """Append encoded batches, all or nothing, and return the offsets; a producer's batch comes alone."""
        state = self._state
        numbered = bool(batches) and batches[0].producer != NO_PRODUCER
        if numbered and not state.tells_of_producers:
            self._syncer.declare_producers()
        with state.lock:
            first = self._append_numbered(batches[0]) if numbered else self._append_locked(batches)
            end = first + batches[0].span if numbered else state.next_offset
        self.after_append(end, sync)
        return range(first, end)

    def _append_numbered(self, batch: EncodedBatch) -> int:
        """Append a producer's batch unless it is already here, and return its offset."""
        state = self._state
        state.check_appendable()
        found = state.producers.find(batch.producer, batch.span, state.name)
        if found is not None:
            return found
        return self.append_and_note((batch,))

    # --- transactions

    def append_transactional(self, batches: tuple[EncodedBatch, ...]) -> range:
        """Append batches of an open transaction, or of one that begins here, and return their offsets.

        One that its producer sends again is not appended again.
        """
        state = self._state
        if not state.tells_of_transactions:
            self._syncer.declare_transactions()
        first, end = -1, 0
        with state.lock:
            producers, now = state.producers, now_ms()
            for batch in batches:
                offset = producers.find(batch.producer, batch.span, state.name, transactional=True)
                if offset is None:
                    offset = state.next_offset
                    # first: a roll tells readers what has begun until then
                    writer = self._roomy_writer(batch.size, batch.span, batch.max_timestamp)
                    try:
                        state.undecided_before(offset)
                        self._write(writer, (batch,), batch.size, batch.span, batch.max_timestamp)
                        # crash: a batch of a transaction that nobody owns -> the next writer aborts it
                        producers.note(batch.producer, batch.span, offset, now, transactional=True)
                    except BaseException:  # also Ctrl-C, once it is appended or before
                        if state.next_offset != offset:
                            producers.note(batch.producer, batch.span, offset, now, transactional=True)
                        state.publish_transactions()
                        raise
                first, end = offset if first == -1 else first, offset + batch.span
        self.after_append(end, sync=False)
        return range(first, end)

    def append_and_commit(self, batches: tuple[EncodedBatch, ...]) -> range:
        """Append the last batches of a transaction and the marker that commits it, all or nothing.

        For a transaction in this partition alone: the marker is the decision. Returns the batches' offsets.
        """
        state = self._state
        producer_id, epoch, _ = batches[0].producer
        if totals(batches)[0] + MARKER_BYTES > state.config.segment_bytes:  # no segment holds all of them
            offsets = self.append_transactional(batches)
            self.end_transaction(producer_id, epoch, commits=True)
            return offsets
        if not state.tells_of_transactions:
            self._syncer.declare_transactions()
        with state.lock:
            state.check_appendable()
            producers, first, offset, now = state.producers, batches[0], state.next_offset, now_ms()
            producers.find(first.producer, first.span, state.name, transactional=True)  # may refuse it
            began = producers.open_at(producer_id, epoch)
            began = offset if began is None else began
            marker = encode_marker(producer_id, epoch, commits=True, first_offset=began, timestamp=now)
            try:
                self._append_locked((*batches, marker))
                self._note_marker(marker, began, now)
            except BaseException:
                if state.next_offset != offset:
                    self._note_marker(marker, began, now)
                raise
            state.counters.moved(1, 0)  # a marker is no record
            end = state.next_offset
        self.after_append(end, sync=False)
        return range(offset, end - 1)

    def end_transaction(self, producer_id: int, epoch: int, *, commits: bool) -> int | None:
        """Append the marker that ends a transaction, if it is open here; returns the marker's offset."""
        state = self._state
        with state.lock:
            state.check_appendable()  # also where it is not open
            first_offset = state.producers.open_at(producer_id, epoch)
            if first_offset is None:
                return None
            offset, now = state.next_offset, now_ms()
            marker = encode_marker(
                producer_id, epoch, commits=commits, first_offset=first_offset, timestamp=now
            )
            aborted = None if commits else Aborted(producer_id, first_offset, offset)
            # first: the list of what is aborted is that of the segment with the marker
            writer = self._roomy_writer(marker.size, marker.span, now)
            if aborted is not None:
                state.list_aborted([aborted])
                # crash: what is about to be aborted is listed, no marker -> the next writer aborts it
            aborts = state.aborts + (aborted is not None)
            try:
                self._write(writer, (marker,), marker.size, marker.span, now)
                self._note_marker(marker, first_offset, now, aborted, aborts)
            except BaseException:
                if state.next_offset != offset:
                    self._note_marker(marker, first_offset, now, aborted, aborts)
                raise
            state.counters.moved(1, 0)  # a marker is no record
        self.after_append(offset + 1, sync=False)
        return offset

    def _note_marker(
        self,
        marker: EncodedBatch,
        first_offset: int,
        now: int,
        aborted: Aborted | None = None,
        aborts: int = 0,
    ) -> None:
        """Note a marker that was appended; if Ctrl-C comes meanwhile, it is noted again."""
        state = self._state
        if aborted is not None:
            state.note_aborted(aborted, aborts)
        state.producers.note_marker(*marker.producer, state.next_offset - 1, now, first_offset)
        state.publish_transactions()

    # --- numbered batches

    def append_and_note(self, batches: tuple[EncodedBatch, ...]) -> int:
        """Append, and note the last batch for its producer, even if Ctrl-C comes once it is appended."""
        state = self._state
        first = state.next_offset
        try:
            self._append_locked(batches)
            self._note(batches[-1])
        except BaseException:
            if state.next_offset != first:
                self._note(batches[-1])
            raise
        return first

    def _note(self, last: EncodedBatch) -> None:
        state = self._state
        state.producers.note(last.producer, last.span, state.next_offset - last.span, now_ms())

    def _append_locked(self, batches: tuple[EncodedBatch, ...]) -> int:
        """Append batches to one segment, all or nothing, and return the first one's offset. Locked."""
        size, span, latest = totals(batches)
        writer = self._roomy_writer(size, span, latest)
        offset = self._state.next_offset
        if batches:
            self._write(writer, batches, size, span, latest)
        return offset

    def _roomy_writer(self, size: int, span: int, latest: int) -> SegmentWriter:
        """Return the writer of a segment with room for batches of this size, after a roll if need be. Locked.

        Raises if nothing may be appended here, or if the batches do not fit.
        """
        state = self._state
        if state.append_refusal is not None:
            raise state.append_refusal()
        writer, offset = state.writer, state.next_offset
        if writer.lean_end == 0:  # otherwise it is awake
            writer = state.wake()
        if offset + span > MAX_INT64:  # next_offset must fit into 64 bits, too
            raise OffsetOutOfRangeError(state.name, offset + span - 1, state.start_offset, MAX_INT64)
        if size and not writer.has_room(size, offset, latest):
            self._check_fits(size)
            writer = state.roll()
        return writer

    def _write(
        self, writer: SegmentWriter, batches: tuple[EncodedBatch, ...], size: int, span: int, latest: int
    ) -> None:
        """Write at next_offset and publish. Disk first, then memory: if the write fails, nothing moves."""
        state = self._state
        offset, position = state.next_offset, writer.segment.size_bytes
        try:
            writer.append(batches, size, latest, offset, state.leader_epoch)
            state.next_offset = next_offset = offset + span
            words = state.words  # what publish_append() does
            words[_END_POSITION], words[_NEXT] = position + size, next_offset
        except BaseException as error:
            self.undo(writer, offset, position, error)
        state.counters.batched(len(batches), span)

    def undo(self, writer: SegmentWriter, offset: int, position: int, error: BaseException) -> NoReturn:
        """Undo a failed or interrupted append; if readers here already see it, publish it instead."""
        state = self._state
        if state.next_offset != offset:
            state.page.publish_append(state.next_offset, writer.segment.size_bytes)
        elif state.ended_by is None:
            try:
                writer.roll_back(position)
            except BaseException as second:  # Ctrl-C again: memory and file may differ
                state.fail(f"{error!r}; and the partial append could not be cut off: {second!r}")
        if isinstance(error, FileNotFoundError):  # an index cannot grow in a directory that is gone
            state.fail_without_directory(error)
        if isinstance(error, OSError) and files.is_full(error) and not isinstance(error, DiskFullError):
            raise DiskFullError(writer.segment.path, error.strerror) from error
        raise error
