"""Elected: the work of the controller that the nodes elect through ZooKeeper.

It watches who is alive, answers requests, and writes the state. Every write is a transaction that checks that
no other controller has been elected. A change and its answer are written together or not at all, so a request
is carried out once, even if another node is elected in the meantime.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

from commitlog.ids import new_id
from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import RegisterNodes
from commitlog.replication.controllers.stored import dumped
from commitlog.replication.controllers.zookeeper.requests import answered
from commitlog.replication.controllers.zookeeper.znodes import (
    Cluster,
    Layout,
    Watch,
    packed_topic,
    read_nodes,
    read_state,
)

_logger = logging.getLogger("commitlog.replication")
# of the topics of a transaction, unless there is just one, and of the whole; ZooKeeper refuses a megabyte
_MOST_BYTES, _MOST_BYTES_AT_ALL = 512 << 10, 950_000
Write = Callable[[Any], None]  # adds an operation to a transaction


class DeposedError(Exception):
    """Another controller has been elected."""


class Elected:
    """The elected controller. One thread uses it; `watch` is called when govern() has work to do."""

    def __init__(self, client: Any, layout: Layout, epoch: int, epoch_version: int, watch: Watch) -> None:
        self.epoch = epoch
        self._client = client
        self._layout = layout
        self._epoch_version = epoch_version
        self._watch = watch
        self._state: ClusterState | None = None  # None: it must be read again
        self._cluster = Cluster()
        self._cluster_version = 0
        self._answered: set[str] = set()
        self._reign_id = new_id()

    @classmethod
    def stand(cls, client: Any, layout: Layout, name: str, watch: Watch) -> Self | None:
        """Stand for election; None if another node won."""
        raw, stat = client.get(layout.controller_epoch)
        epoch = int(raw) + 1
        transaction = client.transaction()
        transaction.create(layout.controller, dumped({"name": name, "epoch": epoch}), ephemeral=True)
        transaction.set_data(layout.controller_epoch, str(epoch).encode(), version=stat.version)
        if any(isinstance(result, Exception) for result in transaction.commit()):
            return None
        _logger.info("%s is elected controller, epoch %s", name, epoch)
        return cls(client, layout, epoch, stat.version + 1, watch)

    def govern(self) -> None:
        """Handle changed nodes and requests. After a KazooException writes are in doubt: call it again."""
        try:
            if self._state is None:
                self._take_over()
            assert self._state is not None
            alive = RegisterNodes(read_nodes(self._client, self._layout, self._watch))
            self._write(self._state, rules.apply(self._state, alive))
            self._answer_requests()
        except KazooException:
            self._state = None
            raise

    def _take_over(self) -> None:
        """Read the last controller's state; it may have stopped between two transactions of a change."""
        self._cluster_version = self._client.get(self._layout.cluster)[1].version
        found = read_state(self._client, self._layout, None, None)
        newest = max(
            [found.version] + [one.version for topic in found.topics.values() for one in topic.partitions]
        )
        before = replace(found, version=newest)
        self._cluster = Cluster(replace(before, topics={}))  # nothing recent: everybody reads all topics
        self._write(before, rules.begun(before, self._reign_id, self.epoch, newest + 1))

    def _answer_requests(self) -> None:
        names = self._client.get_children(self._layout.requests, watch=self._watch)
        self._answered &= set(names)
        for name in sorted(names, key=lambda one: one[-10:]):  # in the order of their creation
            if name not in self._answered:
                self._answer(name)
                self._answered.add(name)

    def _answer(self, name: str) -> None:
        path = f"{self._layout.requests}/{name}"
        try:
            raw, stat = self._client.get(path)
        except NoNodeError:
            return  # the node that asked is gone
        if stat.version > 0:
            return  # the last controller answered it
        before = self._state
        assert before is not None
        after, answer = answered(before, raw)
        self._write(before, after, answering=(path, answer))

    # --- writing

    def _write(
        self, before: ClusterState, after: ClusterState, answering: tuple[str, bytes] | None = None
    ) -> None:
        """Write a change and its answer; only the answer if nothing changes."""
        if after is before and answering is None:
            return
        cluster = self._cluster
        pieces: list[list[Write]] = [[]]
        if after is not before:
            names = {name for name, topic in after.topics.items() if before.topics.get(name) is not topic}
            names |= before.topics.keys() - after.topics.keys()
            cluster = cluster.followed_by(after, names)
            pieces = [*self._pieces(before, after, names, len(cluster.packed()))]
        for piece in pieces[:-1]:
            self._commit(piece)  # a controller that takes over here finds topics newer than `cluster`
        if self._commit(pieces[-1], cluster if after is not before else None, answering):
            self._state = after
            if after is not before:
                self._cluster = cluster
                self._cluster_version += 1
        elif len(pieces) > 1:
            self._take_over()

    def _pieces(
        self, before: ClusterState, after: ClusterState, names: set[str], cluster_bytes: int
    ) -> Iterator[list[Write]]:
        """Yield the changes of topics, in one piece unless that is too large for ZooKeeper.

        `cluster` is written with the last piece, which leaves room for it.
        """
        piece: list[Write] = []
        size = 0
        for name in sorted(names):
            write, length = self._topic_write(before, after, name)
            if piece and size + length > _MOST_BYTES:
                yield piece
                piece, size = [], 0
            piece.append(write)
            size += length
        if size + cluster_bytes > _MOST_BYTES_AT_ALL:
            yield piece
            piece = []
        yield piece

    def _topic_write(self, before: ClusterState, after: ClusterState, name: str) -> tuple[Write, int]:
        path, topic = self._layout.topic(name), after.topics.get(name)
        if topic is None:
            return (lambda transaction: transaction.delete(path)), len(path)
        packed = packed_topic(topic)
        if name in before.topics:
            return (lambda transaction: transaction.set_data(path, packed)), len(packed)
        return (lambda transaction: transaction.create(path, packed)), len(packed)

    def _commit(
        self, piece: list[Write], cluster: Cluster | None = None, answering: tuple[str, bytes] | None = None
    ) -> bool:
        """Write all or nothing; False if the node that asked is gone, DeposedError if we were replaced."""
        transaction = self._client.transaction()
        transaction.check(self._layout.controller_epoch, self._epoch_version)
        if answering is not None:
            transaction.set_data(*answering, version=0)
        for write in piece:
            write(transaction)
        if cluster is not None:
            transaction.set_data(self._layout.cluster, cluster.packed(), version=self._cluster_version)
        failed = [
            (place, result)
            for place, result in enumerate(transaction.commit())
            if isinstance(result, Exception)
            and not isinstance(result, RolledBackError | RuntimeInconsistency)
        ]
        if not failed:
            return True
        place, error = failed[0]
        if place == 1 and answering is not None and isinstance(error, NoNodeError | BadVersionError):
            return False
        raise DeposedError(f"epoch {self.epoch}: {error!r}")
