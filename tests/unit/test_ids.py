"""Random ids."""

from __future__ import annotations

import base64
import uuid

from commitlog.ids import is_id, new_id


def test_ids_differ_and_have_the_form_of_a_uuid_as_kafka_writes_it() -> None:
    ids = [new_id() for _ in range(2_000)]
    assert len(set(ids)) == len(ids)
    assert all(is_id(one) and not one.startswith("-") for one in ids)
    assert all(uuid.UUID(bytes=base64.urlsafe_b64decode(one + "==")).version == 4 for one in ids)


def test_what_is_no_id_is_not_taken_for_one() -> None:
    one = new_id()
    assert not any(
        map(is_id, (None, 7, "", one[:-1], one + "A", "-" + one[1:], one[:-1] + "\n", one.encode()))
    )
