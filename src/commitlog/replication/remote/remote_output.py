"""RemoteOutput: sends the bytes of a staged file to the node that leads its partition."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from commitlog.batches.staged import StagedFile
from commitlog.config import MIB
from commitlog.record import Buffer, TopicPartition
from commitlog.replication.messages import Bytes, SentFile, Stage, Staged
from commitlog.replication.remote.router import Deadline, Pending, Router

_CHUNK_BYTES = MIB
_CHECK_MS = 300_000  # how long a node may take to check and sync a file
_MOST_UNDER_WAY = 4  # chunks of a file that were sent and not answered yet
_MOST_IN_ALL = 16  # chunks of all files: with more, some would wait until they seem lost


class _Sent(NamedTuple):
    message: Stage
    pending: Pending


def sent_file(staged: StagedFile) -> SentFile:
    """Return a staged file as messages name it."""
    name = TopicPartition(staged.topic, staged.partition)
    topic_id = staged.topic_id or ""
    return SentFile(name, topic_id, staged.name, staged.size_bytes, staged.records, staged.checksum)


class RemoteOutput:
    """Sends chunks ahead of their answers; a chunk without an answer is sent again, in its place.

    `under_way` has what all outputs of a connection have sent; each looks at its own answers.
    """

    def __init__(self, router: Router, staged: StagedFile, under_way: deque[Pending]) -> None:
        self._router = router
        self._under_way = under_way
        self._file = sent_file(staged)
        self._buffer = bytearray()
        self._position = 0  # of the buffer in the file
        self._sent: deque[_Sent] = deque()

    def write(self, parts: Sequence[Buffer], size: int) -> None:
        """Send bytes as soon as there are enough of them."""
        for part in parts:
            self._buffer += part
        while len(self._buffer) >= _CHUNK_BYTES:
            self._send(_CHUNK_BYTES)

    def _send(self, size: int) -> None:
        while self._sent and (len(self._sent) >= _MOST_UNDER_WAY or self._sent[0].pending.is_there):
            self._settle()
        while len(self._under_way) >= _MOST_IN_ALL:
            with contextlib.suppress(IndexError):  # another thread was quicker
                self._under_way.popleft().wait()
        message = Stage(self._file, self._position, Bytes(bytes(self._buffer[:size])))
        del self._buffer[:size]
        self._position += size
        router, deadline = self._router, self._router.deadline()
        address, _ = router.place_of(self._file.name, self._file.topic_id, deadline)
        if address is None:
            self._ask(message)
            return
        pending = router.ask_soon(address, message, deadline.try_ms)
        self._sent.append(_Sent(message, pending))
        self._under_way.append(pending)

    def _settle(self) -> None:
        """Wait for the oldest answer. If it is not the expected one, the chunk is sent again."""
        message, pending = self._sent.popleft()
        if not isinstance(pending.wait(), Staged):
            self._ask(message)

    def _ask(self, message: Stage, deadline: Deadline | None = None) -> None:
        file, deadline = message.file, deadline or self._router.deadline()
        self._router.ask_for(file.name, file.topic_id, lambda try_ms: message, deadline)

    def finish(self, staged: StagedFile) -> None:
        """Send the rest, and wait until the node has checked the file and made it durable."""
        if self._buffer:
            self._send(len(self._buffer))
        while self._sent:
            self._settle()
        if self._position:
            self._ask(Stage(sent_file(staged), self._position), Deadline(_CHECK_MS))

    def discard(self) -> None:
        """Send no more; the node removes what it has when the epoch is published or discarded."""
        self._buffer.clear()
        self._sent.clear()
