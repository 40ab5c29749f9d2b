"""Member: the node of this process in ZooKeeper: its ephemeral znode, and whether it is fenced."""

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

    The czxid of its znode is its incarnation; it is alive once the elected controller has seen the znode.
    When it disappears from the state it is fenced, until it is alive again with another incarnation.
    """

    node: JoinNode
    changed: Changed
    incarnation: int = 0  # 0: it has no znode
    alive: bool = False
    fenced: bool = False
    told: tuple[int, bool] = (-1, False)  # the version last passed to the node, and whether it was fenced

    @property
    def node_id(self) -> int:
        """The node's id."""
        return self.node.node_id

    def register(self, client: Any, layout: Layout, session: int, watch: Watch) -> None:
        """Create the znode in this session, unless it exists.

        A node that joins replaces an earlier life of itself. A fenced node waits until the node that took
        its place is gone; otherwise the two would replace each other forever.
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
            pass  # another process was faster; the watch fires when it is gone
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
        """Return the state to pass to the node; None if it has not joined yet, or nothing is new."""
        node = state.nodes.get(self.node_id)
        if node is not None and node.incarnation == self.incarnation:
            self.alive, self.fenced = True, False
        elif self.alive:
            self.fence("another process has taken its place" if node is not None else "its session has ended")
        elif node is not None and node.incarnation > self.incarnation > 0:
            self.incarnation, self.fenced = 0, True  # replaced before the controller saw it
        now = (state.version, self.fenced)
        if self.told == now or not (self.alive or self.told[0] >= 0):
            return None
        self.told, self.node = now, replace(self.node, known=state.known)
        if self.alive:
            return state
        return rules.without(state, self.node_id)

    def fence(self, reason: str) -> None:
        """Stop leading and following. The node will rejoin as one that may have lost records."""
        if self.alive:
            _logger.warning("node %s is fenced: %s", self.node_id, reason)
        self.alive, self.fenced, self.incarnation = False, self.told[0] >= 0, 0
        self.node = replace(self.node, clean=False)
