"""The JSON form of a cluster's state, in a file and in ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from commitlog import files
from commitlog.checksum import crc32c
from commitlog.errors import CorruptionError, UnsupportedFormatError
from commitlog.replication.cluster import (
    ClusterState,
    Deletion,
    Member,
    NodeState,
    PartitionState,
    Reign,
    TopicState,
)
from commitlog.topics.catalog import not_ours, read_json

FORMAT = 2


class StoredState(NamedTuple):
    """A state in a file. `superseded` is the version of a node's state that this state does not follow."""

    state: ClusterState
    superseded: int | None = None


def read_state_file(path: str) -> StoredState | None:
    """Return what write_state_file() stored; None if there is no such file."""
    try:
        raw = read_json(path)
        if type(raw["format"]) is int and raw["format"] != FORMAT:
            raise UnsupportedFormatError(path, raw["format"], FORMAT)
        if raw.pop("checksum") != crc32c(dumped(raw)):
            raise CorruptionError(path, 0, "the checksum of the state does not match")
        superseded = raw["superseded"]
        return StoredState(state_from_json(raw["state"]), None if superseded is None else _number(superseded))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise not_ours(path) from None


def write_state_file(path: str, stored: StoredState) -> None:
    """Store a state durably, replacing the file atomically."""
    contents = {"format": FORMAT, "state": state_to_json(stored.state), "superseded": stored.superseded}
    packed = dumped(contents)  # once, since a state may be large; "checksum" sorts before the other names
    files.write_whole(path, b'{"checksum":%d,' % crc32c(packed) + packed[1:], path + ".new")


def _number(value: object) -> int:
    """Return a number that a state can hold; ValueError for anything else."""
    if type(value) is not int or not -1 <= value < 1 << 63:
        raise ValueError(f"{value!r} is not a number of a state")
    return value


def dumped(value: Any) -> bytes:
    """Return compact JSON, always the same for equal values."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()


def state_to_json(state: ClusterState) -> dict[str, Any]:
    """Return the JSON of a whole state."""
    topics = {name: topic_to_json(topic) for name, topic in state.topics.items()}
    return {"topics": topics, **cluster_to_json(state)}


def state_from_json(raw: Mapping[str, Any]) -> ClusterState:
    """Return a whole state; ValueError, KeyError, TypeError or AttributeError if `raw` is not one."""
    topics = {str(name): topic_from_json(topic) for name, topic in raw["topics"].items()}
    return replace(cluster_from_json(raw), topics=topics)


def cluster_to_json(state: ClusterState) -> dict[str, Any]:
    """Return the JSON of everything but the topics."""
    return {
        "epoch": state.epoch,
        "version": state.version,
        "nodes": [[one.node_id, one.address, one.incarnation, one.leaving] for one in state.nodes.values()],
        "cluster_id": state.cluster_id,
        "reigns": [[one.reign_id, one.first_version] for one in state.reigns],
        "members": [
            [key, one.disk_id, one.heard_version, one.joined_version] for key, one in state.members.items()
        ],
        "deleted": [[key, one.name, one.version] for key, one in state.deleted.items()],
    }


def cluster_from_json(raw: Mapping[str, Any]) -> ClusterState:
    """Return a state without topics."""
    nodes = {
        _number(key): NodeState(key, str(address), _number(life), bool(leaving))
        for key, address, life, leaving in raw["nodes"]
    }
    members = {
        _number(key): Member(str(disk), _number(heard), _number(joined))
        for key, disk, heard, joined in raw["members"]
    }
    deleted = {str(key): Deletion(str(name), _number(at)) for key, name, at in raw["deleted"]}
    reigns = tuple(Reign(str(key), _number(version)) for key, version in raw["reigns"])
    epoch, version, cluster_id = _number(raw["epoch"]), _number(raw["version"]), str(raw["cluster_id"])
    return ClusterState(nodes, {}, epoch, version, cluster_id, reigns, members, deleted)


def topic_to_json(topic: TopicState) -> dict[str, Any]:
    """Return the JSON of a topic."""
    partitions = [
        [one.replicas, one.isr, one.leader, one.leader_epoch, one.version, one.target, one.awaits]
        for one in topic.partitions
    ]
    return {"topic_id": topic.topic_id, "config": dict(topic.config), "partitions": partitions}


def topic_from_json(raw: Mapping[str, Any]) -> TopicState:
    """Return the topic of its JSON."""
    partitions = tuple(
        PartitionState(
            tuple(map(_number, replicas)),
            tuple(map(_number, isr)),
            None if leader is None else _number(leader),
            _number(epoch),
            _number(version),
            None if target is None else tuple(map(_number, target)),
            None if awaits is None else str(awaits),
        )
        for replicas, isr, leader, epoch, version, target, awaits in raw["partitions"]
    )
    return TopicState(str(raw["topic_id"]), dict(raw["config"]), partitions)
