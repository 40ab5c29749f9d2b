"""How a cluster's state looks as JSON: in a file, in ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from commitlog.replication.cluster import ClusterState, NodeState, PartitionState, TopicState


def dumped(value: Any) -> bytes:
    """Return JSON, short, the same for the same value."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def state_to_json(state: ClusterState) -> dict[str, Any]:
    """Return a whole state."""
    return {
        "epoch": state.epoch,
        "version": state.version,
        "nodes": nodes_to_json(state.nodes),
        "topics": {name: topic_to_json(topic) for name, topic in state.topics.items()},
    }


def state_from_json(raw: Mapping[str, Any]) -> ClusterState:
    """Return a whole state; ValueError, KeyError or TypeError if it is none."""
    topics = {str(name): topic_from_json(topic) for name, topic in raw["topics"].items()}
    return ClusterState(nodes_from_json(raw["nodes"]), topics, int(raw["epoch"]), int(raw["version"]))


def nodes_to_json(nodes: Mapping[int, NodeState]) -> list[list[Any]]:
    """Return the nodes that are alive."""
    return [[node.node_id, node.address, node.incarnation, node.leaving] for node in nodes.values()]


def nodes_from_json(raw: list[list[Any]]) -> dict[int, NodeState]:
    """Return the nodes that are alive."""
    found = [
        NodeState(int(node_id), str(address), int(life), bool(leaving))
        for node_id, address, life, leaving in raw
    ]
    return {node.node_id: node for node in found}


def topic_to_json(topic: TopicState) -> dict[str, Any]:
    """Return a topic."""
    partitions = [
        [one.replicas, one.isr, one.leader, one.leader_epoch, one.version, one.target]
        for one in topic.partitions
    ]
    return {"topic_id": topic.topic_id, "config": dict(topic.config), "partitions": partitions}


def topic_from_json(raw: Mapping[str, Any]) -> TopicState:
    """Return a topic."""
    partitions = tuple(
        PartitionState(
            tuple(replicas),
            tuple(isr),
            leader,
            int(epoch),
            int(version),
            None if target is None else tuple(target),
        )
        for replicas, isr, leader, epoch, version, target in raw["partitions"]
    )
    return TopicState(int(raw["topic_id"]), dict(raw["config"]), partitions)
