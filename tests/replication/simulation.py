"""A cluster that lives through a random schedule of failures, decided by a seed; a judge watches.

`run(seed)` raises ViolationError with the schedule if something happens that must not; the same seed does it
again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random

from commitlog.errors import (
    CommitLogError,
    PartitionFailedError,
    StaleControllerError,
    WrongClusterError,
)
from commitlog.record import TopicPartition
from commitlog.replication.cluster import ClusterState, TopicState
from commitlog.replication.commands import AlterTopic, CreateTopic, ElectPreferred, Reassign
from commitlog.replication.controllers.simulated import CONTROLLER, SimulatedController
from commitlog.replication.core.node_core import NodeCore
from commitlog.replication.settings import ReplicationConfig
from commitlog.replication.transports.local import Faults, LocalNetwork

from .judge import Judge, WatchedLog
from .memory_log import BATCH, Disk, ViolationError

CONFIG = ReplicationConfig(
    replica_fetch_backoff_ms=20,
    replica_fetch_max_bytes=BATCH.size * 4,
    replica_fetch_wait_max_ms=60,
    replica_lag_time_max_ms=200,
    request_timeout_ms=150,
)
SESSION_TIMEOUT_MS = 150
CALM = Faults((1, 3))
WEATHERS = (
    CALM,
    Faults((1, 20), reordering=True),
    Faults((1, 10), loss=0.1, duplication=0.1, reordering=True),
    Faults((1, 150), duplication=0.2, reordering=True),
    Faults((5, 60), loss=0.3),
)


class SimulatedNode:
    """A node: what it has on disk, and while it runs, its core and its logs."""

    def __init__(self, simulation: Simulation, node_id: int) -> None:
        self.simulation = simulation
        self.node_id, self.name = node_id, str(node_id)
        self.disks: dict[TopicPartition, Disk] = {}
        self.disk_id = f"disk of {node_id}"
        self.state: ClusterState | None = None
        self.logs: dict[TopicPartition, WatchedLog] = {}
        self.lives = 0
        self.clean = True
        self.paused = False
        self.core: NodeCore | None = None

    def start(self) -> None:
        simulation, random = self.simulation, self.simulation.random
        if simulation.right is not None and self.state is None:
            return  # it belongs to no cluster yet, and would join the wrong one
        skew_ms, drift = random.randint(0, 10_000), random.choice((1.0, 1.0, 0.7, 1.4))
        transport = simulation.network.transport(self.name, skew_ms=skew_ms, drift=drift)
        self.lives += 1
        self.logs = {}
        self.core = NodeCore(self.node_id, transport, simulation.controller, CONFIG, self)
        try:
            self.core.start(clean=self.clean)
        except (WrongClusterError, StaleControllerError):
            self.core.close()
            self.core = None
            simulation.network.crash(self.name)
            return
        self.clean = False

    # --- Store

    def kept(self) -> ClusterState | None:
        return self.state

    def keep(self, state: ClusterState) -> None:
        self.state = state

    def open(self, name: TopicPartition, topic: TopicState) -> WatchedLog:
        if name in self.logs:
            return self.logs[name]  # its settings have changed
        disk = self.disks.setdefault(name, Disk())
        log = WatchedLog(disk, self.simulation.judges[name], (self.node_id, self.lives))
        log.role_epoch = lambda: self.core.replica(name)._role.epoch
        self.logs[name] = log
        return log

    def tidy(self, state: ClusterState) -> None:
        for name in list(self.disks):
            topic = state.topics.get(name.topic)
            moved = topic is not None and self.node_id not in topic.partitions[name.partition].replicas
            if not moved:
                continue
            refusal = self.simulation.state.refusal(state.known)
            if refusal is not None:
                raise ViolationError(
                    f"{self.node_id} removes {name.partition} for a wrong controller: {refusal}"
                )
            self.logs.pop(name, None)
            del self.disks[name]

    # --- what happens to it

    def lose_disk(self) -> None:
        """Crash, and have an empty disk when it comes back."""
        self.crash()
        self.disks, self.state, self.clean = {}, None, False
        self.disk_id = f"{self.disk_id}'"

    def crash(self) -> None:
        self.simulation.network.crash(self.name)
        self.core, self.paused = None, False
        for name, disk in self.disks.items():
            disk.crash(self.simulation.random)
            self.simulation.judges[name].crashed(self.node_id, self.simulation.state.partition(name))

    @property
    def has_failed(self) -> bool:
        """Whether its disk takes nothing any more."""
        return any(log.failure is not None for log in self.logs.values())

    def fail(self) -> None:
        """Let its disk take nothing any more; the node runs on, and has what it has in memory."""
        for name, log in self.logs.items():
            log.failure = "the disk is gone"
            self.simulation.judges[name].crashed(self.node_id, self.simulation.state.partition(name))

    def stop(self, hand_over: bool) -> None:
        """Stop cleanly: everything is on disk, and is all there at the next start."""
        controller = self.simulation.controller
        if hand_over and self.simulation.right is None:
            controller.leave(self.node_id, 100)
        if self.core is None:
            return  # it crashed meanwhile
        if self.has_failed:
            self.crash()  # what is not on disk by now never will be
            self._say_goodbye()
            return
        self.core.close()
        self.simulation.network.crash(self.name)
        for log in self.logs.values():
            log.sync()
            log.checkpoint()
        self._say_goodbye()
        self.core, self.clean = None, True

    def _say_goodbye(self) -> None:
        if self.simulation.right is None:
            self.simulation.controller.gone(self.node_id)


class Simulation:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.network = LocalNetwork(seed, CALM)
        rejoins_clean = self.random.random() < 0.5
        self.controller = SimulatedController(self.network, SESSION_TIMEOUT_MS, rejoins_clean=rejoins_clean)
        self.right: ClusterState | None = None  # while a wrong controller is there
        self.older: list[ClusterState] = []  # states of which there may be a copy
        self.trace: list[str] = []
        self.numbers = count()
        self.acknowledged = 0
        size = self.random.randint(3, 5)
        self.nodes = {node_id: SimulatedNode(self, node_id) for node_id in range(1, size + 1)}
        self.names = [TopicPartition("t", number) for number in range(self.random.randint(1, 2))]
        self.judges = {name: Judge() for name in self.names}
        self.min_insync_replicas = self.random.choice((1, 1, 2))
        self.spares = self.random.random() < 0.7  # let one member of each ISR be, so that nothing may be lost
        self.spite = self.random.choice(
            (0.0, 0.1, 0.3)
        )  # how often a leader crashes just when something has changed
        self.unclean = self.random.random() < 0.1
        self.controller.watchers.append(self._state_changed)

    @property
    def state(self) -> ClusterState:
        """The state of the right controller, also while a wrong one is in its place."""
        return self.controller.state() if self.right is None else self.right

    def running(self) -> list[SimulatedNode]:
        return [node for node in self.nodes.values() if node.core is not None]

    def _state_changed(self, before: ClusterState, after: ClusterState) -> None:
        if self.right is not None:
            return  # what a wrong controller decides is to have no effect
        if self.random.random() < 0.3:
            self.older = [*self.older[-3:], before]
        running = [node.node_id for node in self.running()]
        for name, judge in self.judges.items():
            one = after.partition(name)
            if one is not None and one != before.partition(name):
                judge.state_changed(before.partition(name), one, running, self.unclean)
                self._note(f"  {name.partition}: {one}")
                if self.random.random() < self.spite:
                    self.network.call_later(self.random.randint(0, 20), self._strike)

    def _note(self, what: str) -> None:
        self.trace.append(f"{self.network.now_ms():6} {what}")

    # --- the schedule -------------------------------------------------------------------------------

    def run(self, actions: int) -> None:
        try:
            self._begin()
            weighted = [action for action, weight in ACTIONS for _ in range(weight)]
            for _ in range(actions):
                action = self.random.choice(weighted)
                action(self)
                self.network.run_for(self.random.choice((0, 1, 5, 20, 60)))
            self._heal()
        except (Exception, ViolationError) as error:
            schedule = "\n".join(self.trace)
            raise ViolationError(f"seed {self.seed}: {error!r}\n{schedule}") from error

    def _begin(self) -> None:
        for node in self.nodes.values():
            node.start()
        replicas = self.random.randint(2, len(self.nodes))
        config = {
            "min_insync_replicas": self.min_insync_replicas,
            "unclean_leader_election_enable": self.unclean,
        }
        self.controller.submit(CreateTopic("t", len(self.names), replicas, config))
        self.network.run_for(50)

    def append(self) -> None:
        """At a node that thinks it leads, if one is found."""
        name = self.random.choice(self.names)
        acks = self.random.choice((1, "all", "all"))
        for node in self.random.sample(list(self.nodes.values()), len(self.nodes)):
            if node.core is None or node.paused:
                continue
            try:
                epoch = node.core.check_can_append(name, acks)
            except CommitLogError:
                continue
            with suppress(PartitionFailedError):
                self._append_at(node, name, acks, epoch)
            return

    def _append_at(self, node: SimulatedNode, name: TopicPartition, acks: int | str, epoch: int) -> None:
        number = next(self.numbers)
        start, end = node.logs[name].append(number, self.random.randint(1, 3))
        self._note(f"append {number} at {node.name} [{start}, {end}) acks={acks} epoch {epoch}")
        batch = node.logs[name].disk.batches[-1]
        node.core.appended(name)
        if acks == "all":
            done = partial(self._acknowledged, name, start, batch, epoch)
            node.core.when_acknowledged(name, end, epoch, 500, done)

    def _acknowledged(
        self, name: TopicPartition, start: int, batch: bytes, epoch: int, error: CommitLogError | None
    ) -> None:
        if error is None:
            self.acknowledged += 1
            self._note(f"  acknowledged {BATCH.unpack(batch)}")
            self.judges[name].acknowledge(start, batch, epoch)

    def sync(self) -> None:
        for node in self.running():
            for log in node.logs.values():
                if self.random.random() < 0.5:
                    log.sync()
                if self.random.random() < 0.3:
                    log.checkpoint()

    def _strike(self) -> None:
        if self.spite:  # not when all is to be well again
            self.crash_a_leader()

    def _may_crash(self, node: SimulatedNode) -> bool:
        last = any(judge.intact <= {node.node_id} for judge in self.judges.values())
        return node.core is not None and not (self.spares and last)

    def crash(self) -> None:
        running = [node for node in self.running() if self._may_crash(node)]
        if running:
            node = self.random.choice(running)
            self._note(f"crash of {node.name}")
            node.crash()

    def crash_a_leader(self) -> None:
        one = self.state.partition(self.random.choice(self.names))
        node = self.nodes.get(one.leader)
        if node is not None and self._may_crash(node):
            self._note(f"crash of {node.name}, which leads")
            node.crash()

    def crash_and_restart(self) -> None:
        running = [node for node in self.running() if self._may_crash(node)]
        if running:
            node = self.random.choice(running)
            self._note(f"crash and start of {node.name}")
            node.crash()
            node.start()

    def fail_a_disk(self) -> None:
        running = [node for node in self.running() if self._may_crash(node) and not node.has_failed]
        if running:
            node = self.random.choice(running)
            self._note(f"the disk of {node.name} fails")
            node.fail()

    def restart(self) -> None:
        down = [node for node in self.nodes.values() if node.core is None]
        if down:
            node = self.random.choice(down)
            self._note(f"start of {node.name}, clean={node.clean}")
            node.start()

    def stop(self) -> None:
        running = [node for node in self.running() if not node.paused]
        if running:
            node = self.random.choice(running)
            self._note(f"clean stop of {node.name}")
            node.stop(hand_over=self.random.random() < 0.5)

    def pause(self) -> None:
        running = [node for node in self.running() if not node.paused]
        if running:
            node = self.random.choice(running)
            node.paused = True
            self._note(f"pause of {node.name}")
            self.network.pause(node.name)

    def resume(self) -> None:
        for node in self.running():
            if node.paused and self.random.random() < 0.5:
                node.paused = False
                self._note(f"{node.name} goes on")
                self.network.resume(node.name)

    def cut(self) -> None:
        one, other = self.random.sample([*(node.name for node in self.nodes.values()), CONTROLLER], 2)
        one_way = self.random.random() < 0.3
        self._note(f"cut between {one} and {other}{', one way' if one_way else ''}")
        self.network.partition(one, other, one_way=one_way)

    def mend(self) -> None:
        self._note("the network is whole")
        self.network.heal()
        for node in self.nodes.values():
            node.paused = False

    def weather(self) -> None:
        self.network.faults = self.random.choice(WEATHERS)
        self._note(f"{self.network.faults}")

    def trim(self) -> None:
        name = self.random.choice(self.names)
        for node in self.running():
            log = node.logs.get(name)
            if log is not None and log.leads is not None and not (node.paused or node.has_failed):
                offset = self.random.randint(log.start_offset, log.high_watermark)
                if offset > log.start_offset:
                    self._note(f"{node.name} trims {name.partition} before {offset}")
                    log.trim_before(offset)

    def reassign(self) -> None:
        name = self.random.choice(self.names)
        target = self.random.sample(
            list(self.nodes), self.random.randint(self.min_insync_replicas, len(self.nodes))
        )
        if self.right is not None:
            return
        try:
            self.controller.submit(Reassign(name, tuple(target)))
        except CommitLogError:
            return
        self._note(f"{name.partition} is to move to {target}")

    def prefer(self) -> None:
        if self.right is None:
            self._note("preferred leaders")
            self.controller.submit(ElectPreferred())

    def throttle(self) -> None:
        for node in self.running():
            node.core.throttle(self.random.choice((-1, 500, 5000)))

    def lose_a_disk(self) -> None:
        """Let a node that is down, or crashes now, have an empty disk when it comes back."""
        if self.right is not None:
            return  # it would join whatever is there
        running = [node for node in self.running() if self._may_crash(node)]
        if running:
            node = self.random.choice(running)
            self._note(f"{node.name} loses its disk")
            node.lose_disk()

    def mistake_the_controller(self) -> None:
        """Let an empty controller, one of another cluster, or an older copy take the right one's place."""
        if self.right is not None or not self._somebody_knows():
            return
        self.right = self.controller.state()
        others = ClusterState(cluster_id="another", version=self.right.version + 100)
        wrong = self.random.choice([others, replace(others, topics=self.right.topics), *self.older])
        self._note(f"a wrong controller, with version {wrong.version} and topics {sorted(wrong.topics)}")
        self.controller.restart(wrong)

    def _somebody_knows(self) -> bool:
        """Say whether a node that is heard knows the newest state: nobody else can tell an older copy.

        And all nodes must know some state, or they would join whatever is there.
        """
        controller, newest = self.controller, self.controller.state().known
        sessions = controller._sessions.values()
        if any(session.node.known is None for session in sessions):
            return False
        if any(node.core._known is None for node in self.running()):
            return False
        return any(
            session.node.known == newest
            and controller._hears(session)
            and self.network.reaches(session.node.address, CONTROLLER)
            for session in sessions
        )

    def restore_the_controller(self) -> None:
        if self.right is not None:
            right, self.right = self.right, None
            self._note("the right controller is back")
            self.controller.restart(right)

    # --- the end ------------------------------------------------------------------------------------

    def _heal(self) -> None:
        """Let all be well again, and see that all replicas become the same."""
        self._note("all is well again")
        self.restore_the_controller()
        self.network.faults = CALM
        self.spite = 0.0
        self.mend()
        for node in self.nodes.values():
            if node.core is not None and node.has_failed:
                node.crash()
            if node.core is None:
                node.start()
            node.core.throttle(-1)
        self._give_up_lost_disks()
        self._wait(self._settled, "the replicas do not come in sync")
        for name in self.names:
            self._wait(partial(self._one_more, name, self.acknowledged), "no append is acknowledged")
        self._wait(self._settled, "the replicas do not become the same")
        for name in self.names:
            self._compare(name)

    def _give_up_lost_disks(self) -> None:
        """Let another replica lead where the only one in sync has lost its disk, as an operator would."""
        self.network.run_for(1000)
        if any(self.state.partition(name).awaits is not None for name in self.names):
            self._note("nobody waits for a lost disk any more")
            self.unclean = True
            self.controller.submit(AlterTopic("t", {"unclean_leader_election_enable": True}))

    def _one_more(self, name: TopicPartition, before: int) -> bool:
        """Append a record until one is acknowledged: a replica that lagged before may leave the ISR yet."""
        if self.acknowledged == before:
            leader = self.nodes[self.state.partition(name).leader]
            try:
                epoch = leader.core.check_can_append(name, "all")
            except CommitLogError:
                return False
            self._append_at(leader, name, "all", epoch)
        return self.acknowledged > before

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        for _ in range(400):
            if condition():
                return
            self.network.run_for(25)
        raise ViolationError(f"{otherwise}\n{self._where()}")

    def _where(self) -> str:
        lines = []
        for name in self.names:
            lines.append(f"{name.partition}: {self.state.partition(name)}")
            for node in self.running():
                log = node.logs.get(name)
                if log is not None:
                    offsets = (log.start_offset, log.high_watermark, log.next_offset)
                    lines.append(
                        f"  {node.name}: {offsets} {log.epochs.starts} {node.core.replica(name)._role}"
                    )
        return "\n".join(lines)

    def _settled(self) -> bool:
        for name in self.names:
            one = self.state.partition(name)
            if one.leader is None or one.target is not None or set(one.isr) != set(one.replicas):
                return False
            if {node.node_id for node in self.running() if name in node.logs} != set(one.replicas):
                return False
            logs = [self.nodes[node_id].logs[name] for node_id in one.replicas]
            leader = self.nodes[one.leader].logs[name]
            if self.nodes[one.leader].core.replica(name).standing().isr_size != len(one.isr):
                return False
            ends = {(log.next_offset, log.high_watermark) for log in logs}
            if leader.leads != one.leader_epoch or ends != {(leader.next_offset, leader.next_offset)}:
                return False
        return True

    def _compare(self, name: TopicPartition) -> None:
        one = self.state.partition(name)
        leader = self.nodes[one.leader].logs[name]
        for node_id in one.replicas:
            log = self.nodes[node_id].logs[name]
            start = max(log.start_offset, leader.start_offset)
            if content(log, start) != content(leader, start):
                raise ViolationError(f"{node_id} and {one.leader} differ\n{self._where()}")
        leader.judge.led(leader.life, leader.leads, leader)  # it has all that was acknowledged


def content(log: WatchedLog, start: int) -> list[tuple[int, bytes]]:
    """Return the batches from an offset on, each with its segment."""
    return [
        (base, batch)
        for base, batch, end in zip(log.disk.segment_bases, log.disk.batches, log.disk.ends, strict=True)
        if end > start
    ]


ACTIONS = (
    (Simulation.append, 40),
    (Simulation.sync, 8),
    (Simulation.crash, 2),
    (Simulation.crash_a_leader, 3),
    (Simulation.crash_and_restart, 3),
    (Simulation.fail_a_disk, 2),
    (Simulation.lose_a_disk, 1),
    (Simulation.mistake_the_controller, 1),
    (Simulation.restore_the_controller, 4),
    (Simulation.restart, 8),
    (Simulation.stop, 2),
    (Simulation.pause, 3),
    (Simulation.resume, 4),
    (Simulation.cut, 5),
    (Simulation.mend, 4),
    (Simulation.weather, 3),
    (Simulation.trim, 2),
    (Simulation.reassign, 2),
    (Simulation.prefer, 1),
    (Simulation.throttle, 1),
)


def run(seed: int, actions: int = 60) -> Simulation:
    """Run one schedule; raises ViolationError if something is wrong."""
    simulation = Simulation(seed)
    simulation.run(actions)
    return simulation
