"""Where a cluster's state is kept in ZooKeeper, and how it is read. docs/controllers.md has the table."""

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
    dumped,
    lineage_from_json,
    lineage_to_json,
    nodes_from_json,
    nodes_to_json,
    topic_from_json,
    topic_to_json,
)

try:
    from kazoo.exceptions import NodeExistsError, NoNodeError
except ImportError as missing:
    raise MissingDependencyError("ZooKeeperController", "commitlog[zookeeper]") from missing

RECENT = 64  # changes that are remembered, so that a node need not read every topic again
RECENT_BYTES = 100_000  # of their topics' names
Watch = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below a root."""

    root: str

    @property
    def cluster(self) -> str:
        """What the elected controller knows of nodes, and what has changed lately; set with every change."""
        return f"{self.root}/cluster"

    @property
    def topics(self) -> str:
        """One child for each topic, with the state of its partitions."""
        return f"{self.root}/topics"

    @property
    def nodes(self) -> str:
        """One ephemeral child for each node: its czxid is the node's incarnation."""
        return f"{self.root}/nodes"

    @property
    def requests(self) -> str:
        """Ephemeral children: what nodes ask of the elected controller, and its answers."""
        return f"{self.root}/requests"

    @property
    def controller(self) -> str:
        """Ephemeral: who is elected."""
        return f"{self.root}/controller"

    @property
    def controller_epoch(self) -> str:
        """How many times a controller was elected; every write of one checks that it is still the last."""
        return f"{self.root}/controller_epoch"

    @property
    def superseded(self) -> str:
        """Made by a node that knew a later state than this: until it is removed, nobody decides anything."""
        return f"{self.root}/superseded"

    def topic(self, name: str) -> str:
        """Return the path of a topic."""
        return f"{self.topics}/{name}"

    def node(self, node_id: int) -> str:
        """Return the path of a node."""
        return f"{self.nodes}/{node_id}"

    def make(self, client: Any, known: Known | None = None) -> None:
        """Make what is not there yet; a new cluster only for a node that belongs to none."""
        if known is None or client.exists(self.cluster) is not None:
            for path in (self.topics, self.nodes, self.requests):
                client.ensure_path(path)
            first = Cluster(ClusterState(cluster_id=new_id(), reigns=(Reign(new_id(), 0),)))
            for path, value in ((self.controller_epoch, b"0"), (self.cluster, first.packed())):
                with contextlib.suppress(NodeExistsError):
                    client.create(path, value)

    def refusal(self, client: Any, known: Known | None, watch: Watch) -> CommitLogError | None:
        """Return why a node that knows this state must not listen to what is here; None if it may.

        If it knows more than what is here, that is an older copy: it says so to all.
        """
        state = self._lineage(client)
        if known is not None and (state is None or state.refusal(known) is not None):
            client.sync(self.cluster)  # the server that we reach may only be behind the others
            state = self._lineage(client)
        if state is None:
            if known is not None:
                return WrongClusterError(known.cluster_id, f"none: there is no {self.cluster} in ZooKeeper")
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
    """What the znode `cluster` holds. `recent` has changes: the version before each, and the topics changed.

    They follow one another without a gap, up to `version`. A reader that knows a version below the first has
    to read all topics.
    """

    state: ClusterState = ClusterState()  # without its topics
    recent: tuple[tuple[int, tuple[str, ...]], ...] = ()

    def packed(self) -> bytes:
        """Return what is kept."""
        state = self.state
        return dumped(
            {
                "epoch": state.epoch,
                "version": state.version,
                "nodes": nodes_to_json(state.nodes),
                "recent": [[before, list(names)] for before, names in self.recent],
                **lineage_to_json(state),
            }
        )

    @classmethod
    def unpacked(cls, raw: bytes) -> Cluster:
        """Return what was kept."""
        found = json.loads(raw)
        recent = tuple((int(before), tuple(names)) for before, names in found["recent"])
        nodes, epoch, version = nodes_from_json(found["nodes"]), int(found["epoch"]), int(found["version"])
        return cls(ClusterState(nodes, {}, epoch, version, **lineage_from_json(found)), recent)

    def changed_since(self, version: int) -> set[str] | None:
        """Return the topics that have changed since a version; None if that is not remembered."""
        if version == self.state.version:
            return set()
        if not self.recent or version < self.recent[0][0]:
            return None
        return {name for before, names in self.recent if before >= version for name in names}

    def followed_by(self, after: ClusterState, names: Iterable[str]) -> Cluster:
        """Return what holds once a state has changed into this one."""
        recent = (*self.recent, (self.state.version, tuple(sorted(names))))[-RECENT:]
        while recent and sum(len(name) + 3 for _, changed in recent for name in changed) > RECENT_BYTES:
            recent = recent[1:]
        return Cluster(replace(after, topics={}), recent)


def read_state(client: Any, layout: Layout, known: ClusterState | None, watch: Watch | None) -> ClusterState:
    """Read the state; only topics that have changed, if one is known. A topic may be newer than the rest."""
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
        topic = read_topic(client, layout, name)
        if topic is not None:
            topics[name] = topic
    return replace(cluster.state, topics=topics)


def read_topic(client: Any, layout: Layout, name: str) -> TopicState | None:
    """Read a topic; None if it is not there any more."""
    try:
        raw, _ = client.get(layout.topic(name))
    except NoNodeError:
        return None
    return topic_from_json(json.loads(raw))


def packed_topic(topic: TopicState) -> bytes:
    """Return what is kept of a topic."""
    return dumped(topic_to_json(topic))


def packed_node(node: JoinNode) -> bytes:
    """Return what a node says about itself."""
    heard = None if node.known is None else node.known.version
    return dumped({"address": node.address, "clean": node.clean, "disk_id": node.disk_id, "heard": heard})


def read_nodes(client: Any, layout: Layout, watch: Watch) -> dict[int, Registration]:
    """Read who is alive."""
    found = {}
    for name in client.get_children(layout.nodes, watch=watch):
        try:
            raw, stat = client.get(f"{layout.nodes}/{name}")
        except NoNodeError:
            continue  # gone since; the watch tells
        about = json.loads(raw)
        found[int(name)] = Registration(
            str(about["address"]), stat.czxid, bool(about["clean"]), str(about["disk_id"]), about["heard"]
        )
    return found
