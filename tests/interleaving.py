"""Work: transactions of several producers that overlap in one partition."""

from __future__ import annotations

from typing import Any

from commitlog import CommitLog, Topic


class Work:
    """Interleaves transactions of several producers in one partition; each send is one stored batch."""

    def __init__(self, log: CommitLog, topic: str = "t") -> None:
        self._topic: Topic = log.topic(topic)
        self._log = log
        self._producers: dict[str, Any] = {}
        self._open: set[str] = set()

    def send(self, name: str, *values: bytes) -> None:
        """Append a batch of a transaction, which begins with it if none is open; "" means outside one."""
        if not name:
            self._topic.append_many(values, keys=[b"k%d" % number for number in range(len(values))])
            return
        if name not in self._producers:
            self._producers[name] = self._log.producer(transactional_id=name)
        producer = self._producers[name]
        if name not in self._open:
            producer.begin_transaction()
            self._open.add(name)
        for number, value in enumerate(values):
            producer.send(self._topic.name, value, key=b"k%d" % number, partition=0)
        producer.flush()

    def end(self, name: str, *, commits: bool = True) -> None:
        """End a transaction, if it is open."""
        if name in self._open:
            self._open.remove(name)
            producer = self._producers[name]
            producer.commit_transaction() if commits else producer.abort_transaction()

    def close(self) -> None:
        """Abort what is open."""
        for name in list(self._open):
            self.end(name, commits=False)
        for producer in self._producers.values():
            producer.close()
