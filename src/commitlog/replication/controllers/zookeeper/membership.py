"""Member: the node of this process, as ZooKeeper knows it: its ephemeral znode, and whether it is fenced."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from kazoo.exceptions import NodeExistsError

from commitlog.replication import rules
from commitlog.replication.cluster import ClusterState
from commitlog.replication.commands import JoinNode
from commitlog.replication.controllers.zookeeper.znodes import Layout, Watch, packed_node
from commitlog.replication.ports import Changed

_logger = logging.getLogger("commitlog.replication")


@dataclass(slots=True, eq=False)
class Member:
    """A node. One thread changes it.

    It makes its znode, whose czxid is its incarnation; it is alive once the elected controller has seen that.
    When the state has it no longer, it is fenced, until it is alive again under another incarnation.
    """

    node: JoinNode
    changed: Changed
    incarnation: int = 0  # 0: it has no znode
    alive: bool = False
    fenced: bool = False
    told: tuple[int, bool] = (-1, False)  # the version of the state that the node was told last; as fenced?

    @property
    def node_id(self) -> int:
        """The node's id."""
        return self.node.node_id

    def register(self, client: Any, layout: Layout, session: int, watch: Watch) -> None:
        """Make the znode in this session, unless it is there.

        When it joins, a node takes the place of an earlier life of it. Once it was fenced it waits until
        the node that has taken its place is gone, lest the two drive each other out for ever.
        """
        path, packed = layout.node(self.node_id), packed_node(self.node)
        stat = client.exists(path, watch=watch)
        try:
            if stat is None:
                client.create(path, packed, ephemeral=True)
            elif stat.ephemeralOwner != session and not self.fenced and self.incarnation == 0:
                transaction = client.transaction()
                transaction.delete(path, version=stat.version)
                transaction.create(path, packed, ephemeral=True)
                transaction.commit()
        except NodeExistsError:
            pass  # another one was faster; the watch tells when it is gone
        stat = client.exists(path, watch=watch)
        if stat is not None and stat.ephemeralOwner == session:
            self.incarnation = stat.czxid

    def unregister(self, client: Any, layout: Layout, session: int) -> None:
        """Remove the znode, if it is this node's."""
        path = layout.node(self.node_id)
        stat = client.exists(path)
        if stat is not None and stat.ephemeralOwner == session:
            client.delete(path)

    def shown(self, state: ClusterState) -> ClusterState | None:
        """Return what the node is to be told of a state; None if that is nothing yet, or nothing new."""
        node = state.nodes.get(self.node_id)
        if node is not None and node.incarnation == self.incarnation:
            self.alive, self.fenced = True, False
        elif self.alive:
            self.fence("another process has taken its place" if node is not None else "its session is over")
        elif node is not None and node.incarnation > self.incarnation > 0:
            self.incarnation, self.fenced = 0, True  # driven out before it was seen
        now = (state.version, self.fenced)
        if self.told == now or not (self.alive or self.told[0] >= 0):
            return None
        self.told, self.node = now, replace(self.node, known=state.known)
        if self.alive:
            return state
        return rules.without(state, self.node_id)

    def fence(self, reason: str) -> None:
        """It leads and follows nothing any more. It will join again as one that may have lost records."""
        if self.alive:
            _logger.warning("node %s is fenced: %s", self.node_id, reason)
        self.alive, self.fenced, self.incarnation = False, self.told[0] >= 0, 0
        self.node = replace(self.node, clean=False)
