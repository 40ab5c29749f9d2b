"""Replication: leaders, followers and in-sync replicas. docs/replication.md describes the protocol."""

from __future__ import annotations

from typing import Any

from commitlog.replication.cluster import ClusterState, NodeState, PartitionState, TopicState
from commitlog.replication.controllers.remote_controller import RemoteController
from commitlog.replication.controllers.server import ControllerServer
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.node import Node, NodeHealth
from commitlog.replication.ports import Controller, Transport
from commitlog.replication.settings import ReplicationConfig
from commitlog.replication.transports.tcp import TcpTransport
from commitlog.replication.transports.tls import TlsConfig

__all__ = [
    "ClusterState",
    "Controller",
    "ControllerServer",
    "Node",
    "NodeHealth",
    "NodeState",
    "PartitionState",
    "RemoteController",
    "ReplicationConfig",
    "StaticController",
    "TcpTransport",
    "TlsConfig",
    "TopicState",
    "Transport",
    "ZooKeeperController",
]


def __getattr__(name: str) -> Any:
    if name == "ZooKeeperController":  # kazoo is an extra
        from commitlog.replication.controllers.zookeeper.controller import ZooKeeperController

        return ZooKeeperController
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
