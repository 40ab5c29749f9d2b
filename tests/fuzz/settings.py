"""Small files of settings: the catalog, topics, quotas and what they count, and those of replication."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import commitlog
from commitlog import LogConfig
from commitlog.clients.quotas import Quota, Quotas
from commitlog.clients.rate_limit import LONGEST_NS, Account
from commitlog.replication.commands import CreateTopic, JoinNode
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.local_topics import FILE_NAME, LocalTopics
from commitlog.topics.catalog import Catalog
from fuzz.harness import Input, Target, WrongAnswer
from fuzz.mutations import mutated, mutated_json

_NOW = 10**15


class JsonTarget(Target):
    """A file of JSON."""

    def mutate(self, random: Random, data: bytes, donor: bytes) -> bytes:
        return mutated_json(random, data) if random.random() < 0.7 else mutated(random, data, donor)


class CatalogTarget(JsonTarget):
    """commitlog.json and topics/t.json; now and then the whole log is opened."""

    name = "catalog"
    kinds = 2
    _whole_log = 50

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._log = directory / "log"
        with commitlog.open(self._log) as log:
            log.create_topic("t", 2, {"retention_ms": 5000, "cleanup_policy": "compact"}).append(
                b"v", key=b"k"
            )
            log.create_topic("u").append(b"value")
        self._bare = directory / "bare"
        shutil.copytree(self._log, self._bare)
        self._about, self._topic = self._log / "commitlog.json", self._log / "topics" / "t.json"
        self._sound = (self._about.read_bytes(), self._topic.read_bytes())
        self._known = [json.loads(one) for one in self._sound]

    def seeds(self) -> list[Input]:
        return [Input(data, number) for number, data in enumerate(self._sound)]

    def run(self, given: Input) -> str:
        which = given.choice % 2
        if given.choice // 2 % self._whole_log == 0:
            return self._open(which, given)
        (self._about if which == 0 else self._topic).write_bytes(given.data)
        (self._topic if which == 0 else self._about).write_bytes(self._sound[1 - which])
        entry = Catalog.open(str(self._log)).entry("t")
        if entry is None or not 1 <= entry.partitions <= 1_000_000 or type(entry.partitions) is not int:
            raise WrongAnswer("no topic", entry)
        return "read"

    def _open(self, which: int, given: Input) -> str:
        shutil.rmtree(self._log)
        shutil.copytree(self._bare, self._log)
        (self._about if which == 0 else self._topic).write_bytes(given.data)
        mode: dict[str, Any] = (
            {"mode": "r"}, {"mode": "w"}, {"mode": "shared"}, {"config": LogConfig(recovery_mode="salvage")},
        )[given.choice // 1000 % 4]  # fmt: skip
        with commitlog.open(self._log, **mode) as log:
            for name in log.topics():
                for partition in log.topic(name).partitions:
                    list(partition.records())
            if [one.value for one in log.topic("u").partition(0).records()] != [b"value"]:
                raise WrongAnswer("another topic has lost its record")
        return "opened"


class QuotasTarget(JsonTarget):
    """quotas/NAME.json and quotas/NAME.account"""

    name = "quotas"
    kinds = 2

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._quotas = Quotas(str(directory), lambda: _NOW)
        self._quotas.set("app", Quota(1000, 2000))
        self._quotas.set(None, Quota(consumer_byte_rate=5))
        account = Account(str(directory / "quotas" / "app.account"))
        account.charge(0, 10_000, 1000, lambda: _NOW)
        account.charge(1, 10_000, 1000, lambda: _NOW)
        self._path = directory / "quotas" / "app.json"
        self._account = directory / "quotas" / "app.account"
        self._sound = (self._path.read_bytes(), self._account.read_bytes())

    def seeds(self) -> list[Input]:
        return [Input(data, number) for number, data in enumerate(self._sound)]

    def run(self, given: Input) -> str:
        if given.choice % 2:
            self._account.write_bytes(given.data)
            account = Account(str(self._account))
            waits = [account.charge(slot, 10, 1000, lambda: _NOW) for slot in (0, 1, 0)]
            if not all(0 <= one <= LONGEST_NS for one in waits):
                raise WrongAnswer("too long to wait", waits)
            return "charged"
        self._path.write_bytes(given.data)
        found = self._quotas.get("app")
        self._quotas.all()
        for rate in (found.producer_byte_rate, found.consumer_byte_rate):
            if rate is not None and not (type(rate) is int and rate >= 1):
                raise WrongAnswer("no rate", rate)
        return "read"


class ClusterFilesTarget(JsonTarget):
    """cluster.json of a controller, which opens it, and replicated-topics.json of a node."""

    name = "cluster-files"
    kinds = 2

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._cluster, self._topics = directory / "cluster.json", directory / FILE_NAME
        with self._opened() as controller:
            for node_id in (1, 2, 3):
                controller.register(JoinNode(node_id, f"localhost:{node_id}", clean=True))
            controller.submit(CreateTopic("orders", 3, 2, {"retention_ms": 5000}))
            controller.submit(CreateTopic("clicks", 1, 3, {}))
            controller.gone(3)
            ids = {name: topic.topic_id for name, topic in controller.state().topics.items()}
        self._sound = (self._cluster.read_bytes(), json.dumps(ids).encode())

    @contextmanager
    def _opened(self) -> Iterator[StaticController]:
        """Open the controller; it tells nobody of what changes."""
        controller = StaticController.open(str(self.directory), keep_nodes=True, call_soon=lambda call: None)
        try:
            yield controller
        finally:
            controller.close()

    def seeds(self) -> list[Input]:
        return [Input(data, number) for number, data in enumerate(self._sound)]

    def run(self, given: Input) -> str:
        if given.choice % 2:
            self._topics.write_bytes(given.data)
            hosting = LocalTopics.__new__(LocalTopics)  # only the file is read
            hosting._path = str(self._topics)
            found = hosting._load()
            if type(found) is not dict or not all(type(one) is str for one in found):
                raise WrongAnswer("no table of topics", found)
            return "topics"
        self._cluster.write_bytes(given.data)
        with self._opened() as controller:
            for topic in controller.state().topics.values():
                for one in topic.partitions:
                    numbers = (*one.replicas, *one.isr, *(one.target or ()), one.leader_epoch, one.version)
                    if not all(type(number) is int for number in numbers):
                        raise WrongAnswer("no state of a partition", one)
            controller.register(JoinNode(4, "localhost:4", clean=False))
            controller.gone(1)
        return "state"
