"""Intake: what a leader checks of a batch that a client has encoded, before it becomes part of the log.

The client has done all of this already, by the settings it knew. But whatever is in the log is believed by
everybody who reads it, so nobody else's word is taken for it.
"""

from __future__ import annotations

from commitlog.batches.batch import RecordBatch
from commitlog.batches.columns import NO_NULLS
from commitlog.batches.encode import EncodedBatch, retimed
from commitlog.batches.format import CODEC_MASK, DELETE_HORIZON, LOG_APPEND_TIME, NO_PRODUCER, STAMP, fold
from commitlog.config import MIB, TopicConfig
from commitlog.errors import BatchTooLargeError, ConfigError, InvalidRecordError, RecordTooLargeError
from commitlog.record import Buffer

# A compressed batch may unpack to this and a record of max_message_bytes. One that is not compressed was sent
# byte by byte, and the transport bounds it.
MOST_UNPACKED_BYTES = 32 * MIB


def accepted(data: Buffer, config: TopicConfig, now_ms: int) -> EncodedBatch:
    """Return a client's batch, ready to be appended to a topic with these settings.

    CorruptionError if its bytes are not whole and sound, another error if it does not belong in the topic.
    """
    batch = RecordBatch.decode(data, path="a client's batch")
    if batch.size_bytes != len(data):
        raise InvalidRecordError(0, f"one batch is wanted, not {len(data)} bytes with one of them first")
    limit = MOST_UNPACKED_BYTES + config.max_message_bytes
    if batch.header.flags & CODEC_MASK and batch.body_bytes > limit:  # before anything is unpacked
        raise BatchTooLargeError(batch.body_bytes, limit, "bytes before compression")
    batch.check_contents()
    _check_header(batch)
    _check_records(batch, config)
    log_append_time = bool(batch.header.flags & LOG_APPEND_TIME)
    if log_append_time != (config.message_timestamp_type == "LogAppendTime"):
        reason = "is another than that of the batch; open the topic again"
        raise ConfigError("message_timestamp_type", config.message_timestamp_type, reason)
    encoded = _unstamped(batch)
    return retimed(encoded, now_ms) if log_append_time else encoded


def _unstamped(batch: RecordBatch) -> EncodedBatch:
    """Return a batch as it was before it was stamped: the partition gives it its offset."""
    header = batch.header
    crc = header.crc ^ fold(header.base_offset, header.leader_epoch)
    span = header.next_offset - header.base_offset
    parts = (batch.raw[STAMP.size :],)
    return EncodedBatch(crc, parts, header.size, span, header.max_timestamp, header.producer)


def _check_header(batch: RecordBatch) -> None:
    header = batch.header
    span = header.next_offset - header.base_offset
    if header.record_count < 1 or header.record_count != span or batch.body.offsets is not None:
        raise InvalidRecordError(0, f"{header.record_count} records that take {span} offsets")
    if header.flags & DELETE_HORIZON:
        raise InvalidRecordError(0, "a batch that compaction has seen")
    if header.producer != NO_PRODUCER and min(header.producer) < 0:
        raise InvalidRecordError(0, f"no producer can be {header.producer}")
    if header.base_timestamp < 0:
        raise InvalidRecordError(0, "timestamp is negative")
    if header.flags & LOG_APPEND_TIME and batch.body.timestamps.stored is not None:
        raise InvalidRecordError(0, "several timestamps in a batch of LogAppendTime")


def _check_records(batch: RecordBatch, config: TopicConfig) -> None:
    body = batch.body
    if config.compacts and body.keys.nulls != NO_NULLS:
        row = int(batch.key_lengths.argmin())
        raise InvalidRecordError(row, "a compacted topic needs a key in every record")
    bound = len(body.keys.blob) + len(body.values.blob)
    if body.headers is not None:
        bound += len(body.headers.names.blob) + len(body.headers.values.blob)
    if bound > config.max_message_bytes:
        _check_sizes(batch, config.max_message_bytes)


def _check_sizes(batch: RecordBatch, limit: int) -> None:
    sizes = batch.key_lengths.clip(0) + batch.value_lengths.clip(0)
    if batch.body.headers is not None:
        for row, headers in enumerate(batch.headers()):
            sizes[row] += sum(len(name.encode()) + len(content or b"") for name, content in headers)
    row = int(sizes.argmax())
    if int(sizes[row]) > limit:
        raise RecordTooLargeError(row, int(sizes[row]), limit)
