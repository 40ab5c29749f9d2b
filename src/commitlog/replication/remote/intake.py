"""Intake: the checks that a leader makes on a client's batches before they become part of the log.

The client made the same checks with the settings it knew. But every reader trusts what is in the log, so the
leader does not rely on the client.
"""

from __future__ import annotations

from commitlog.batches.batch import RecordBatch
from commitlog.batches.columns import NO_NULLS
from commitlog.batches.encode import EncodedBatch, retimed
from commitlog.batches.format import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    STAMP,
    TRANSACTIONAL,
    fold,
)
from commitlog.batches.staged import StagedFile, read_batches, record_batches
from commitlog.config import MIB, TopicConfig
from commitlog.errors import BatchTooLargeError, ConfigError, InvalidRecordError, RecordTooLargeError
from commitlog.record import Buffer

# A compressed batch may unpack to this plus max_message_bytes. The transport bounds uncompressed ones.
MOST_UNPACKED_BYTES = 32 * MIB


def accepted(data: Buffer, config: TopicConfig, now_ms: int) -> EncodedBatch:
    """Return a client's batch, ready to be appended to a topic with these settings.

    CorruptionError if its bytes are damaged, another error if it does not belong in the topic.
    """
    batch = RecordBatch.decode(data, path="a client's batch")
    if batch.size_bytes != len(data):
        raise InvalidRecordError(0, f"its batch has {batch.size_bytes} bytes, but {len(data)} were sent")
    _check(batch, config)
    if batch.header.producer != NO_PRODUCER and min(batch.header.producer) < 0:
        raise InvalidRecordError(0, f"{batch.header.producer} is not a valid producer")
    encoded = _unstamped(batch)
    return retimed(encoded, now_ms) if batch.header.flags & LOG_APPEND_TIME else encoded


def check_received(path: str, staged: StagedFile, config: TopicConfig) -> None:
    """Check a staged file that a client sent; raises the errors of accepted()."""
    for batch in record_batches(path, read_batches(path, staged)):
        _check(batch, config)


def _check(batch: RecordBatch, config: TopicConfig) -> None:
    limit = MOST_UNPACKED_BYTES + config.max_message_bytes
    if batch.header.flags & CODEC_MASK and batch.body_bytes > limit:  # before anything is unpacked
        raise BatchTooLargeError(batch.body_bytes, limit, "bytes before compression")
    batch.check_contents()
    _check_header(batch)
    _check_records(batch, config)
    log_append_time = bool(batch.header.flags & LOG_APPEND_TIME)
    if log_append_time != (config.message_timestamp_type == "LogAppendTime"):
        reason = "differs from that of the batch; open the topic again"
        raise ConfigError("message_timestamp_type", config.message_timestamp_type, reason)


def _unstamped(batch: RecordBatch) -> EncodedBatch:
    """Return a batch as it was before it was stamped; the partition assigns its offsets."""
    header = batch.header
    crc = header.crc ^ fold(header.base_offset, header.leader_epoch)
    span = header.next_offset - header.base_offset
    parts = (batch.raw[STAMP.size :],)
    return EncodedBatch(crc, parts, header.size, span, header.max_timestamp, header.producer)


def _check_header(batch: RecordBatch) -> None:
    header = batch.header
    if header.flags & (TRANSACTIONAL | CONTROL):  # nobody would end it: it would stay open
        raise InvalidRecordError(0, "transactions need the process that has the log")
    span = header.next_offset - header.base_offset
    if header.record_count < 1 or header.record_count != span or batch.body.offsets is not None:
        raise InvalidRecordError(0, f"{header.record_count} records take {span} offsets")
    if header.flags & DELETE_HORIZON:
        raise InvalidRecordError(0, "the batch has already been compacted")
    if header.base_timestamp < 0:
        raise InvalidRecordError(0, "timestamp is negative")
    if header.flags & LOG_APPEND_TIME and batch.body.timestamps.stored is not None:
        raise InvalidRecordError(0, "a batch with LogAppendTime has several timestamps")


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
