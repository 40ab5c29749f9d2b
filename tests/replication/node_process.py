"""A node in a process of its own, that does nothing but listen to its controller and say what it heard."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from helpers import wait_until

ORDERS = ("orders", 0)


class NodeProcess:
    """The parent's side. `heard` are the states that the node was told, as dictionaries."""

    def __init__(self, node_id: int, *where: str) -> None:
        self.node_id = node_id
        self.heard: list[dict[str, Any]] = []
        self.decisions: list[bool] = []
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(node_id), *where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "decided" in told:
                self.decisions.append(told["decided"])
            else:
                self.heard.append(told)

    @property
    def last(self) -> dict[str, Any]:
        return self.heard[-1] if self.heard else {}

    def until(self, **wanted: Any) -> dict[str, Any]:
        """Wait until the node has heard of such a state."""
        wait_until(lambda: all(self.last.get(key) == value for key, value in wanted.items()), 60)
        return self.last

    def say(self, *words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def main(node_id: int, kind: str, hosts: str, root: str = "") -> None:
    from commitlog.replication.cluster import ClusterState
    from commitlog.replication.commands import CreateTopic, JoinNode
    from commitlog.replication.controllers.remote_controller import RemoteController
    from commitlog.replication.transports.tcp import TcpTransport
    from replication.rigs import Listener

    def tell(**about: Any) -> None:
        sys.stdout.write(json.dumps(about) + "\n")
        sys.stdout.flush()

    controller: Any
    if kind == "served":
        controller = RemoteController(TcpTransport(), hosts)
    else:
        from commitlog.replication.controllers.zookeeper.controller import ZooKeeperController

        controller = ZooKeeperController(hosts, root=root, session_timeout_ms=2000)
    listener = Listener(node_id, controller)

    def changed(state: ClusterState) -> None:
        listener._changed(state)
        one = listener.orders()
        me = state.nodes.get(node_id)
        tell(
            nodes=sorted(state.nodes),
            incarnation=me.incarnation if me else None,
            topics=sorted(state.topics),
            leader=one.leader if one else None,
            leader_epoch=one.leader_epoch if one else None,
            isr=list(one.isr) if one else None,
            controller_epoch=state.epoch,
        )

    controller.join(JoinNode(node_id, f"host:{node_id}", clean=False), changed)
    for line in sys.stdin:
        words = line.split()
        if words[0] == "isr":
            change = listener.proposal(*map(int, words[1:]))
            controller.propose_isr(change, lambda counts: tell(decided=counts))
        elif words[0] == "create":
            controller.submit(CreateTopic(words[1], 1, int(words[2]), {}))
        elif words[0] == "stop":
            controller.leave(node_id, 10_000)
            controller.gone(node_id)
            controller.close()
            return


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
