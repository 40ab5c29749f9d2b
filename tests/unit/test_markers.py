from __future__ import annotations

from typing import Any

import pytest
from helpers import encoded

from commitlog import CorruptionError, RecordBatch
from commitlog.batches import format
from commitlog.batches.encode import numbered
from commitlog.batches.format import CHECKED, STAMP, BatchHeader, stamp
from commitlog.batches.markers import encode_marker, first_offset_of
from commitlog.batches.runs import sound_run
from commitlog.checksum import crc32c


def stamped(offset: int, **fields: Any) -> bytes:
    about: dict[str, Any] = {"commits": True, "first_offset": 3, "timestamp": 50, **fields}
    return b"".join(encode_marker(7, 2, **about).stamped(offset, 0))


def changed(raw: bytes, **fields: int) -> bytes:
    """The same marker with other fields in its header, and the checksum they need."""
    header = BatchHeader(*format.HEADER.unpack_from(raw))._replace(**fields)
    body = CHECKED.pack(*header[3:]) + raw[STAMP.size + CHECKED.size :]
    return stamp(header.base_offset, header.leader_epoch, crc32c(body)) + body


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("horizon", [None, 1_700_000_000_000])
def test_a_marker_says_which_transaction_it_ends_and_how(commits: bool, horizon: int | None) -> None:
    raw = stamped(9, commits=commits, delete_horizon=horizon)
    batch = RecordBatch.decode(raw)
    header = batch.header
    assert (header.is_marker, header.commits, header.is_transactional) == (True, commits, False)
    assert (header.producer_id, header.producer_epoch) == (7, 2)
    assert first_offset_of(header, raw, 0) == 3
    assert batch.delete_horizon == horizon


def test_a_marker_is_a_batch_without_records_that_takes_one_offset() -> None:
    batch = RecordBatch.decode(stamped(9))
    assert (len(batch), batch.base_offset, batch.next_offset) == (0, 9, 10)
    assert list(batch.records()) == []
    batch.check_contents()


@pytest.mark.parametrize(
    "fields",
    [
        {"flags": format.CONTROL},
        {"flags": format.CONTROL | format.TRANSACTIONAL | 4},
        {"record_count": 1},
        {"last_offset_delta": 5},
        {"producer_id": -1},
        {"producer_epoch": -1},
        {"producer_epoch": format.PUBLISHED},
        {"base_sequence": 2},
        {"base_sequence": -1},
    ],
    ids=str,
)
def test_a_control_batch_that_is_no_marker_is_damage(fields: dict[str, int]) -> None:
    raw = changed(stamped(0), **fields)
    with pytest.raises(CorruptionError):
        format.check(raw, 0, len(raw), "x.log")
    assert len(sound_run(raw, 0, len(raw)).starts) == 0


def test_only_batches_with_the_flag_are_transactional() -> None:
    plain = encoded([b"a", b"b"])
    part = numbered(plain, (7, 2, 0), format.TRANSACTIONAL)
    header = format.check(b"".join(part.stamped(0, 0)), 0, part.size, "x.log")
    assert header.is_transactional and not header.is_marker
    assert header.producer == part.producer == (7, 2, 0)
    raw = b"".join(plain.stamped(0, 0))
    assert not format.check(raw, 0, len(raw), "x.log").is_transactional
