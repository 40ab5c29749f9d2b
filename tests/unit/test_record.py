from __future__ import annotations

import pickle

from commitlog import Record


def test_a_record_is_a_plain_tuple_with_names() -> None:
    record = Record(7, 1_000, b"key", b"value", (("trace", b"1"),))
    offset, timestamp, key, value, headers = record
    assert (offset, timestamp, key, value, headers) == (7, 1_000, b"key", b"value", (("trace", b"1"),))
    assert record.offset == 7
    assert record.headers[0] == ("trace", b"1")


def test_a_record_has_no_headers_unless_given() -> None:
    assert Record(0, 0, None, None).headers == ()


def test_records_pickle() -> None:
    record = Record(7, 1_000, None, b"value")
    assert pickle.loads(pickle.dumps(record)) == record
