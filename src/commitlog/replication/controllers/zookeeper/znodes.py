"""The znodes that hold a cluster's state, and how they are read. docs/controllers.md has the table."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from commitlog.errors import CommitLogError, MissingDependencyError, StaleControllerError, WrongClusterError
from commitlog.ids import new_id
from commitlog.replication.cluster import ClusterState, Known, Reign, TopicState
from commitlog.replication.commands import JoinNode, Registration
from commitlog.replication.controllers.stored import (
    cluster_from_json,
    cluster_to_json,
    dumped,
    topic_from_json,
    topic_to_json,
)

try:
    from kazoo.exceptions import NodeExistsError, NoNodeError
except ImportError as missing:
    raise MissingDependencyError("ZooKeeperController", "commitlog[zookeeper]") from missing

RECENT = 64  # remembered changes, so that a node need not read every topic again
RECENT_BYTES = 100_000  # of the names of their topics
Watch = Callable[[Any], None]


class Layout:
    """The paths below a root."""

    def __init__(self, root: str) -> None:
        self.cluster = f"{root}/cluster"  # everything but the topics; set with every change
        self.topics = f"{root}/topics"  # a child per topic, with the state of its partitions
        self.nodes = f"{root}/nodes"  # an ephemeral child per node: its czxid is the node's incarnation
        self.requests = f"{root}/requests"  # ephemeral: requests to the elected controller, and its answers
        self.controller = f"{root}/controller"  # ephemeral: the elected controller
        self.controller_epoch = f"{root}/controller_epoch"  # the number of elections; each write checks it
        # created by a node that knows a later state than `cluster`; while it exists, nobody decides anything
        self.superseded = f"{root}/superseded"

    def topic(self, name: str) -> str:
        """Return the path of a topic."""
        return f"{self.topics}/{name}"

    def node(self, node_id: int) -> str:
        """Return the path of a node."""
        return f"{self.nodes}/{node_id}"

    def make(self, client: Any, known: Known | None = None) -> None:
        """Create the missing znodes; a new cluster only for a node that belongs to none."""
        if known is None or client.exists(self.cluster) is not None:
            for path in (self.topics, self.nodes, self.requests):
                client.ensure_path(path)
            first = Cluster(ClusterState(cluster_id=new_id(), reigns=(Reign(new_id(), 0),)))
            for path, value in ((self.controller_epoch, b"0"), (self.cluster, first.packed())):
                with contextlib.suppress(NodeExistsError):
                    client.create(path, value)

    def refusal(self, client: Any, known: Known | None, watch: Watch) -> CommitLogError | None:
        """Return why a node that knows `known` must reject the state in ZooKeeper; None if it may accept it.

        If the node knows a later state, the one in ZooKeeper is an older copy: it creates `superseded`.
        """
        state = self._lineage(client)
        if known is not None and (state is None or state.refusal(known) is not None):
            client.sync(self.cluster)  # our server may merely be behind the others
            state = self._lineage(client)
        if state is None:
            if known is not None:
                return WrongClusterError(known.cluster_id, f"none, because ZooKeeper has no {self.cluster}")
            return None
        if known is not None and state.is_older_than(known):
            with contextlib.suppress(NodeExistsError):
                client.create(self.superseded, str(known.version).encode())
        refusal = state.refusal(known)
        try:
            raw, _ = client.get(self.superseded, watch=watch)
        except NoNodeError:
            return refusal
        return refusal or StaleControllerError(int(raw), state.version)

    def _lineage(self, client: Any) -> ClusterState | None:
        """Read the state without its topics; None if there is none."""
        try:
            raw, _ = client.get(self.cluster)
        except NoNodeError:
            return None
        return Cluster.unpacked(raw).state


@dataclass(frozen=True, slots=True)
class Cluster:
    """The contents of the znode `cluster`. `recent` lists changes: the version before each, and its topics.

    They have no gaps and end at `version`. A reader that knows a version below the first reads all topics.
    """

    state: ClusterState = ClusterState()  # without topics
    recent: tuple[tuple[int, tuple[str, ...]], ...] = ()

    def packed(self) -> bytes:
        """Return the bytes for the znode."""
        recent = [[before, list(names)] for before, names in self.recent]
        return dumped({"recent": recent, **cluster_to_json(self.state)})

    @classmethod
    def unpacked(cls, raw: bytes) -> Cluster:
        """Return the contents that packed() returned."""
        found = json.loads(raw)
        recent = tuple((int(before), tuple(names)) for before, names in found["recent"])
        return cls(cluster_from_json(found), recent)

    def changed_since(self, version: int) -> set[str] | None:
        """Return the topics that have changed since a version; None if it is too old to say."""
        if version == self.state.version:
            return set()
        if not self.recent or version < self.recent[0][0]:
            return None
        return {name for before, names in self.recent if before >= version for name in names}

    def followed_by(self, after: ClusterState, names: Iterable[str]) -> Cluster:
        """Return the contents after a change to `after`, in which the topics `names` changed."""
        recent = (*self.recent, (self.state.version, tuple(sorted(names))))[-RECENT:]
        while recent and sum(len(name) + 3 for _, changed in recent for name in changed) > RECENT_BYTES:
            recent = recent[1:]
        return Cluster(replace(after, topics={}), recent)


def read_state(client: Any, layout: Layout, known: ClusterState | None, watch: Watch | None) -> ClusterState:
    """Read the state, only the topics that changed since `known`. A topic may be newer than the rest."""
    raw, _ = client.get(layout.cluster, watch=watch)
    cluster = Cluster.unpacked(raw)
    follows = known is not None and cluster.state.refusal(known.known) is None
    names = cluster.changed_since(known.version) if known is not None and follows else None
    if names is None:
        names, topics = set(client.get_children(layout.topics)), {}
    else:
        assert known is not None
        topics = {name: topic for name, topic in known.topics.items() if name not in names}
    for name in sorted(names):
        with contextlib.suppress(NoNodeError):  # it was deleted
            topics[name] = topic_from_json(json.loads(client.get(layout.topic(name))[0]))
    return replace(cluster.state, topics=topics)


def packed_topic(topic: TopicState) -> bytes:
    """Return the bytes for the znode of a topic."""
    return dumped(topic_to_json(topic))


def packed_node(node: JoinNode) -> bytes:
    """Return the bytes for the znode of a node."""
    heard = None if node.known is None else node.known.version
    return dumped({"address": node.address, "clean": node.clean, "disk_id": node.disk_id, "heard": heard})


def read_nodes(client: Any, layout: Layout, watch: Watch) -> dict[int, Registration]:
    """Return the living nodes."""
    found = {}
    for name in client.get_children(layout.nodes, watch=watch):
        try:
            raw, stat = client.get(f"{layout.nodes}/{name}")
        except NoNodeError:
            continue  # gone since; the watch fires
        about = json.loads(raw)
        found[int(name)] = Registration(
            str(about["address"]), stat.czxid, bool(about["clean"]), str(about["disk_id"]), about["heard"]
        )
    return found
