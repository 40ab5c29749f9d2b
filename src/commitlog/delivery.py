"""What becomes of sent records: a Delivery is a batch on its way, a RecordFuture one record of it."""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from commitlog.errors import DeliveryTimeoutError
from commitlog.record import Headers

if TYPE_CHECKING:
    from commitlog.topic import Topic

_logger = logging.getLogger("commitlog")


class RecordMetadata(NamedTuple):
    """Where a record is. With acks=0 nobody waits to know: the offset is -1."""

    topic: str
    partition: int
    offset: int
    timestamp: int


Callback = Callable[[RecordMetadata | None, Exception | None], None]


class Share(NamedTuple):
    """The records of a delivery that go to one partition: their rows (None: all), and where the first is."""

    partition: int
    rows: list[int] | None
    base_offset: int
    error: Exception | None


class Delivery:
    """Records of one topic, on their way together. The producer, which guards it, adds them row by row."""

    __slots__ = (
        "_acks", "_callbacks", "_ended", "_headers", "_partitions", "_shares", "created", "done", "keys",
        "size_bytes", "timestamps", "topic", "values",
    )  # fmt: skip

    def __init__(self, topic: str, ended: threading.Condition, *, acks: Literal[0, 1, "all"]) -> None:
        self.topic = topic
        self.created = time.monotonic()
        self.size_bytes = 0
        self.done = acks == 0  # nobody waits to know
        self._acks = acks
        self._ended = ended
        self.values: list[Any] = []
        self.keys: list[Any] = []
        self.timestamps: list[int] = []
        self._headers: dict[int, Headers] = {}
        self._partitions: dict[int, int] = {}
        self._callbacks: dict[int, Callback] = {}
        self._shares: list[Share] = []

    def add_extras(
        self, row: int, headers: Headers | None, partition: int | None, callback: Callback | None
    ) -> None:
        """Take what most records do not have."""
        if headers:
            self._headers[row] = headers
        if partition is not None:
            self._partitions[row] = partition
        if callback is not None:
            self._callbacks[row] = callback

    @property
    def has_callbacks(self) -> bool:
        """Whether each record has somebody who is told what became of it."""
        return len(self._callbacks) == len(self.timestamps)

    # --- on its way

    def shares(self, topic: Topic) -> list[tuple[int, list[int] | None]]:
        """Divide the records by partition: which rows (None for all of them) go where."""
        return topic.places(self.keys, self._partitions)

    def columns(self, rows: list[int] | None) -> tuple[Any, Any, Any, Any]:
        """Return values, keys, headers and timestamps of these rows."""
        columns = (self.values, self.keys, self._all_headers(), self.timestamps)
        if rows is None:
            return columns
        return tuple(column and [column[row] for row in rows] for column in columns)  # type: ignore[return-value]

    def _all_headers(self) -> list[Headers] | None:
        if not self._headers:
            return None
        return [self._headers.get(row, ()) for row in range(len(self.values))]

    def appended(self, shares: list[Share]) -> None:
        """Note where the records are; they need not be kept any longer."""
        self._shares = shares
        self.values, self.keys = [], []

    def fail(self, error: Exception) -> None:
        """Note that what was appended is not durable."""
        self._shares = [share._replace(error=share.error or error) for share in self._shares]

    def end(self) -> Exception | None:
        """Tell everybody; returns the first error."""
        with self._ended:
            self.done = True
            self._ended.notify_all()
        for row, callback in self._callbacks.items():
            try:
                callback(*self.outcome(row))
            except Exception:  # it is not ours
                _logger.exception("a delivery callback of %s failed", self.topic)
        return next((share.error for share in self._shares if share.error is not None), None)

    # --- asked for

    def outcome(self, row: int) -> tuple[RecordMetadata | None, Exception | None]:
        """Return where a record is, or what kept it from being there."""
        timestamp = self.timestamps[row]
        if self._acks == 0:
            return RecordMetadata(self.topic, -1, -1, timestamp), None
        for number, rows, base_offset, error in self._shares:
            place = row if rows is None else bisect_left(rows, row)
            if rows is None or (place < len(rows) and rows[place] == row):
                if error is not None:
                    return None, error
                return RecordMetadata(self.topic, number, base_offset + place, timestamp), None
        raise AssertionError("a record without a share")

    def wait(self, timeout: float | None) -> bool:
        """Wait for the end; False if it has not come after `timeout` seconds."""
        if not self.done:
            with self._ended:
                return self._ended.wait_for(lambda: self.done, timeout)
        return True


class RecordFuture(tuple[Delivery, int]):
    """What becomes of a record: a delivery and a row, and nothing more before somebody asks."""

    __slots__ = ()

    def done(self) -> bool:
        """Say whether it is known."""
        return self[0].done

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Return where the record is, waiting for that; raises what kept it from being there."""
        delivery, row = self
        if not delivery.wait(timeout):
            raise DeliveryTimeoutError(delivery.topic, timeout)
        metadata, error = delivery.outcome(row)
        if error is not None:
            raise error
        assert metadata is not None
        return metadata

    get = result  # kafka-python's name

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Return what kept the record from being there, None if nothing did."""
        delivery, row = self
        if not delivery.wait(timeout):
            raise DeliveryTimeoutError(delivery.topic, timeout)
        return delivery.outcome(row)[1]
