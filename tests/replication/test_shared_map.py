from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commitlog.replication.shared_map import SharedMap

CHANGES = st.lists(st.tuples(st.integers(0, 600), st.one_of(st.none(), st.integers())), max_size=300)


@given(CHANGES)
def test_a_shared_map_behaves_like_a_dictionary_and_its_copies_do_not_change(
    changes: list[tuple[int, int | None]],
) -> None:
    copies: list[tuple[SharedMap[int], dict[str, int]]] = [(SharedMap(), {})]
    for number, value in changes:
        shared, plain = copies[-1]
        key = f"topic-{number}"
        if value is None and key not in plain:
            continue
        after = {**plain, key: value}
        kept = {name: one for name, one in after.items() if one is not None}
        copies.append((SharedMap(shared.changed({key: value})), kept))
    for shared, plain in copies:
        assert shared == plain
        assert len(shared) == len(plain)


def test_a_name_that_no_topic_can_have_is_not_in_it() -> None:
    shared = SharedMap[int](SharedMap[int]().changed({"orders": 1}))
    assert shared.get("\ud800") is None
    assert "orders" in shared
