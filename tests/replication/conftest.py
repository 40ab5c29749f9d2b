"""Transports that are closed, certificates, and a ZooKeeper, for the tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from commitlog.replication.transports.tcp import TcpTransport

from . import zookeeper_server
from .talk import Authority
from .zookeeper_server import ZooKeeperServer

MakeTransport = Callable[..., TcpTransport]


@pytest.fixture
def make_transport() -> Iterator[MakeTransport]:
    """Make transports; they are closed when the test is over."""
    made: list[TcpTransport] = []

    def make(**settings: Any) -> TcpTransport:
        made.append(TcpTransport(**settings))
        return made[-1]

    yield make
    for transport in made:
        transport.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates") / "one")


@pytest.fixture(scope="session")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody trusts."""
    return Authority(tmp_path_factory.mktemp("certificates") / "two")


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperServer]:
    """A running ZooKeeper; without one the test is skipped, or fails where it must not be missing."""
    yield from _running_zookeeper()


@pytest.fixture
def own_zookeeper() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper for one test, which may stop it and change its files."""
    yield from _running_zookeeper()


def _running_zookeeper() -> Iterator[ZooKeeperServer]:
    reason = zookeeper_server.missing()
    if reason is not None and zookeeper_server.REQUIRED:
        pytest.fail(f"COMMITLOG_REQUIRE_ZOOKEEPER is set, but {reason}")
    if reason is not None:
        pytest.skip(f"needs ZooKeeper: {reason}")
    with closing(ZooKeeperServer()) as server:
        server.start()
        yield server
