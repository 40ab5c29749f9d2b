"""What records look like to hypothesis."""

from __future__ import annotations

from typing import Any

from helpers import CODECS
from hypothesis import strategies as st

codecs = st.sampled_from(CODECS)
timestamps = st.one_of(
    st.integers(0, 2_000),
    st.integers(1_700_000_000_000, 1_700_000_100_000),
    st.sampled_from([0, 2**31, 2**32, 2**62, 2**63 - 1]),
)
# short ones, empty ones, ones of a length that needs two bytes, and repetitive ones that compress
blobs = st.one_of(
    st.binary(max_size=12),
    st.just(b""),
    st.integers(250, 300).map(lambda size: b"long" * (size // 4)),
)
optional = st.none() | blobs
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=6)), max_size=3).map(tuple)


@st.composite
def columns(draw: Any, *, least: int = 1, most: int = 30) -> dict[str, list[Any]]:
    """Records as columns; some columns all null, some without any, some mixed."""
    count = draw(st.integers(least, most))

    def column(items: Any) -> list[Any]:
        return draw(st.lists(items, min_size=count, max_size=count))

    return {
        "values": column(
            draw(st.sampled_from([optional, blobs, st.none(), st.binary(min_size=3, max_size=3)]))
        ),
        "keys": column(
            draw(st.sampled_from([optional, blobs, st.none(), st.binary(min_size=2, max_size=2)]))
        ),
        "headers": column(draw(st.sampled_from([headers, st.just(())]))),
        "timestamps": column(draw(st.sampled_from([timestamps, st.just(5)]))),
    }


def rows(given: dict[str, list[Any]], base_offset: int = 0) -> list[tuple[Any, ...]]:
    """The same records as rows."""
    found = zip(given["timestamps"], given["keys"], given["values"], given["headers"], strict=True)
    return [(offset, *row) for offset, row in enumerate(found, base_offset)]
