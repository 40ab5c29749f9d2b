"""Tools to test applications against failures: a network in one process, on a virtual clock.

Messages are delayed, lost, duplicated and reordered as `Faults` says; nodes crash, pause, and are cut off
from one another and from the controller. Nothing waits in real time, and the same seed gives the same run.

Here three nodes with real logs replicate a topic. The leader pauses for a while, like a process stopped with
SIGSTOP. Another node takes over, and nothing that all in-sync replicas acknowledged is lost; what the old
leader accepts before it learns of that is lost.

    >>> import commitlog, os, tempfile
    >>> from commitlog.replication import Node
    >>> folder = tempfile.TemporaryDirectory()
    >>> network = LocalNetwork(seed=7, faults=Faults(delay_ms=(1, 20)))
    >>> controller = SimulatedController(network, session_timeout_ms=6000)
    >>> nodes = {}
    >>> for node_id in (1, 2, 3):
    ...     log = commitlog.open(os.path.join(folder.name, str(node_id)))
    ...     nodes[node_id] = Node(log, network.transport(str(node_id)), controller, node_id).start()
    >>> nodes[1].create_topic("orders", replication_factor=3, config={"min_insync_replicas": 2})
    >>> nodes[1].topic("orders").append(b"three apples", acks="all")        # (partition, offset)
    (0, 0)
    >>> network.pause("1")
    >>> orders = TopicPartition("orders", 0)
    >>> network.run_until(lambda: nodes[2].leads(orders), timeout_ms=10_000)
    True
    >>> nodes[2].topic("orders").append(b"a pear", acks="all")
    (0, 1)
    >>> nodes[1].leads(orders), nodes[1].topic("orders").append(b"who reads this?", acks=1)
    (True, (0, 1))
    >>> nodes[1].topic("orders").append(b"nobody", acks="all")
    Traceback (most recent call last):
    ...
    commitlog.errors.ReplicationTimeoutError: orders-0: not acknowledged after 30000 ms; it may ...
    >>> network.resume("1")
    >>> network.run_until(lambda: len(controller.state().partition(orders).isr) == 3, timeout_ms=60_000)
    True
    >>> [record.value for record in nodes[1].log.topic("orders").partition(0).records()]
    [b'three apples', b'a pear']
    >>> for node in nodes.values():
    ...     node.stop()
    ...     node.log.close()
    >>> folder.cleanup()

Calls that wait (an append with acks="all", create_topic(), stop()) drive the network, as run_for() does. All
this happens in one thread: do not call nodes from another. `controller.state()`, and so `node.state()`, is
what the controller has decided, even if a node does not know it yet; `node.leads()` is what a node believes.
Records get the machine's time unless you pass one: `append(value, timestamp=network.now_ms())`. Only nodes
are on this network: commitlog.connect() needs sockets, and so does a producer's thread with acks="all".

The transports can also carry messages on their own, to test other protocols:

    >>> from commitlog.replication.messages import Describe, FoundOffset
    >>> network = LocalNetwork(seed=7, faults=Faults(delay_ms=(5, 20)))
    >>> client, node = network.transport("client"), network.transport("node")
    >>> address = node.serve(lambda request, reply: reply(FoundOffset(7)))
    >>> answers = []
    >>> client.request(address, Describe(), answers.append, timeout_ms=1000)
    >>> client.wait_for(lambda: answers, timeout_ms=1000), answers, network.now_ms() <= 40
    (True, [FoundOffset(offset=7)], True)
    >>> network.partition("node", "client", one_way=True)    # requests get through, answers do not
    >>> client.request(address, Describe(), answers.append, timeout_ms=1000)
    >>> network.run_for(2000); answers
    [FoundOffset(offset=7), None]
"""

from __future__ import annotations

from commitlog.record import TopicPartition
from commitlog.replication.controllers.simulated import CONTROLLER, SimulatedController
from commitlog.replication.transports.local import Faults, LocalNetwork, LocalTransport

__all__ = ["CONTROLLER", "Faults", "LocalNetwork", "LocalTransport", "SimulatedController", "TopicPartition"]
