"""The rules by which a cluster's state changes: who is alive, who leads, who is in sync, where replicas are.

No I/O, no clock, no chance: apply() takes a state and a command and returns the next state, or the same
one if nothing changes. A rule touches the partitions that its command concerns, and no others.

Every partition of a state is settled: nodes that are gone or about to stop are not in its ISR where
another member stays; if the leader is not in the ISR any more, the first living member leads, in a new
epoch; another replica leads only where no member is alive and the topic allows unclean elections. Each
rule settles what it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any

from commitlog.config import TopicConfig
from commitlog.errors import (
    ClusterTooLargeError,
    FencedEpochError,
    InvalidReplicasError,
    IsrRefusedError,
    NotLeaderError,
    StaleNodeError,
    TopicExistsError,
    TopicReplacedError,
    UnknownEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)
from commitlog.ids import is_id
from commitlog.record import TopicPartition
from commitlog.replication.cluster import (
    ClusterState,
    Deletion,
    Member,
    NodeState,
    PartitionState,
    Reign,
    TopicState,
)
from commitlog.replication.commands import (
    AddPartitions,
    AlterTopic,
    ChangeIsr,
    Command,
    CreateTopic,
    DeleteTopic,
    ElectPreferred,
    JoinNode,
    LeaveNode,
    Reassign,
    RegisterNodes,
    Registration,
    RemoveNode,
)
from commitlog.replication.shared_map import SharedMap
from commitlog.topics.catalog import check_topic_name

Nodes = Mapping[int, NodeState]
Change = Callable[[PartitionState, bool], PartitionState]  # of a partition; the flag allows unclean elections
MOST_PARTITIONS = 9999  # of a topic, as in topic_set.py
_RAISED = 1 << 16  # more than the elections that nobody remembers
MOST_REIGNS = 256  # that are remembered; a node that was away for more is refused
MOST_DELETED_BYTES = 256 << 10  # of deletions that are remembered
MOST_TOPICS_BYTES = (4 << 20) - (512 << 10)  # of all topics: the header of a message takes 4 MiB


def apply(state: ClusterState, command: Command) -> ClusterState:
    """Return the state after a command, the same one if it changes nothing; raises why it is refused."""
    return _RULES[type(command)](state, command)


# --- the controller ---------------------------------------------------------------------------------


def begun(state: ClusterState, reign_id: str, epoch: int, version: int) -> ClusterState:
    """Return the state with which another controller, or another life of one, begins or goes on.

    The last one may have stopped in the middle of a change, so every partition is settled.
    """
    settled = _with_partitions(replace(state, version=version - 1), _settling(state.nodes))
    reigns = state.reigns
    if not reigns or reigns[-1].reign_id != reign_id:
        reigns = (*reigns, Reign(reign_id, version))[-MOST_REIGNS:]
    topics = _Topics.of(settled.topics)
    return replace(settled, topics=topics, epoch=epoch, version=version, reigns=reigns)


def epochs_raised(state: ClusterState) -> ClusterState:
    """Return an older state that is to be used again, with epochs above those that nodes have seen since."""
    return _with_partitions(state, lambda one, _: replace(one, leader_epoch=one.leader_epoch + _RAISED))


# --- nodes ------------------------------------------------------------------------------------------


def _join(state: ClusterState, command: JoinNode) -> ClusterState:
    """Let a node begin a new life; its earlier one, if the state still has it, is gone.

    A node that did not stop cleanly may have lost records: it leaves every ISR that has another member.
    What it leads from now on, it leads in a new epoch. A node with another disk than before has lost
    everything. A node that does not know a state of its last life was not clean, whatever it says: its
    directory was restored from an older copy.
    """
    heard_version = None if command.known is None else command.known.version
    joining = Registration(command.address, state.version + 1, command.clean, command.disk_id, heard_version)
    return _register(state, RegisterNodes({**alive(state), command.node_id: joining}))


def alive(state: ClusterState) -> dict[int, Registration]:
    """Return the living nodes, for a RegisterNodes that changes some of them."""
    return {key: Registration(node.address, node.incarnation, True) for key, node in state.nodes.items()}


def _register(state: ClusterState, command: RegisterNodes) -> ClusterState:
    """Let exactly these nodes be alive, all at the same moment.

    Nodes that are gone, and nodes that begin a new life, have no say in who leads. Where every member of
    an ISR is gone, the ISR stays as it is, for only its members have all records; there is no leader
    until one is back.
    """
    nodes: dict[int, NodeState] = {}
    members = dict(state.members)
    restarted: list[tuple[int, str | None, str]] = []
    for node_id, one in sorted(command.alive.items(), key=lambda item: item[1].incarnation):
        known = state.nodes.get(node_id)
        if known is not None and known.incarnation == one.incarnation:
            nodes[node_id] = known
            continue
        nodes[node_id] = NodeState(node_id, one.address, one.incarnation)
        before = members.get(node_id)
        lost_disk = None if before is None or before.disk_id in ("", one.disk_id) else before.disk_id
        last_life = 0 if before is None else before.joined_version
        is_restored = one.heard_version is not None and one.heard_version < last_life
        if known is not None or not one.clean or lost_disk is not None or is_restored:
            restarted.append((node_id, lost_disk, one.disk_id))
        heard = one.heard_version
        if heard is None:  # a new disk has no deletions to hear of; a disk that has lost its state may have
            heard = state.version if before is None or lost_disk is not None else before.heard_version
        members[node_id] = Member(one.disk_id, heard, state.version + 1)
    if nodes == state.nodes:
        return state
    heard_by_all = min((one.heard_version for one in members.values()), default=0)
    deleted = {key: one for key, one in state.deleted.items() if one.version > heard_by_all}
    return replace(_with_nodes(state, nodes, restarted), members=members, deleted=deleted)


def _started_again(one: PartitionState, node_id: int, lost_disk: str | None, disk_id: str) -> PartitionState:
    """Take a restarted node out of an ISR that has another member; it leads nothing.

    Where it is the only member, its records are on the disk that it had before.
    """
    others = tuple(member for member in one.isr if member != node_id)
    awaits = one.awaits
    if one.isr == (node_id,) and lost_disk is not None:
        awaits = None if awaits == disk_id else awaits or lost_disk
    leader = None if one.leader == node_id else one.leader
    return replace(one, isr=others or one.isr, leader=leader, awaits=awaits)


def _remove(state: ClusterState, command: RemoveNode) -> ClusterState:
    node = state.nodes.get(command.node_id)
    if node is None or node.incarnation != command.incarnation:
        return state
    others = {key: one for key, one in alive(state).items() if key != command.node_id}
    return _register(state, RegisterNodes(others))


def _leave(state: ClusterState, command: LeaveNode) -> ClusterState:
    """Let a node hand over what it leads and leave those ISRs.

    It keeps what no other member can take over yet, until a replica comes in sync: see handed_over().
    """
    node = state.nodes.get(command.node_id)
    if node is None or node.incarnation != command.incarnation:
        raise StaleNodeError(command.node_id)
    if node.leaving:
        return state
    return _with_nodes(state, {**state.nodes, command.node_id: replace(node, leaving=True)})


def handed_over(state: ClusterState, node_id: int) -> bool:
    """Say whether a node no longer leads anything that a living replica could take over."""
    return not any(
        one.leader == node_id
        and any(_stays(state.nodes, other) for other in one.replicas if other != node_id)
        for topic in state.topics.values()
        for one in topic.partitions
    )


def without(state: ClusterState, node_id: int) -> ClusterState:
    """Return what a fenced node is shown: it is missing, and nobody leads what it led or seems to lead.

    This is not a state of the cluster: others may lead those partitions, or will.
    """

    def unled(one: PartitionState) -> PartitionState:
        return replace(one, leader=None) if one.leader == node_id else one

    nodes = {other: node for other, node in state.nodes.items() if other != node_id}
    topics = {
        name: replace(topic, partitions=tuple(map(unled, topic.partitions)))
        for name, topic in state.topics.items()
    }
    return replace(state, nodes=nodes, topics=topics)


# --- a partition ------------------------------------------------------------------------------------


def _change_isr(state: ClusterState, change: ChangeIsr) -> ClusterState:
    """Accept a leader's proposal, or raise what is wrong with it.

    This also completes a move of replicas, once all new ones are in sync. A leader that leaves itself out
    resigns: another member leads then.
    """
    one = _partition(state, change.name)
    topic_id = state.topics[change.name.topic].topic_id
    if change.topic_id != topic_id:
        raise TopicReplacedError(change.name.topic, change.topic_id, topic_id)
    _check_leader(one, change)
    if one.version != change.version:
        raise IsrRefusedError(change.name, f"it is of version {change.version}, the current is {one.version}")
    for member in change.isr:
        _check_member(state.nodes, one, change, member)
    if not change.isr:
        raise IsrRefusedError(change.name, "nobody is in it")
    if change.leader not in change.isr and not set(change.isr) <= set(one.isr):
        raise IsrRefusedError(change.name, "its leader resigns, and others are not in sync yet")
    isr = tuple(node_id for node_id in one.replicas if node_id in change.isr)
    return _with_partition(state, change.name, replace(one, isr=isr))


def _check_leader(one: PartitionState, change: ChangeIsr) -> None:
    if change.leader_epoch < one.leader_epoch:
        raise FencedEpochError(change.name, change.leader_epoch, one.leader_epoch)
    if change.leader_epoch > one.leader_epoch:
        raise UnknownEpochError(change.name, change.leader_epoch, one.leader_epoch)
    if change.leader != one.leader:
        raise NotLeaderError(change.name, one.leader)


def _check_member(nodes: Nodes, one: PartitionState, change: ChangeIsr, member: int) -> None:
    node = nodes.get(member)
    if member not in one.replicas:
        raise IsrRefusedError(change.name, f"node {member} has no replica")
    if node is None:
        raise IsrRefusedError(change.name, f"node {member} is not alive")
    if change.incarnations.get(member) != node.incarnation:
        raise IsrRefusedError(change.name, f"node {member} has joined again since")
    if node.leaving and member not in one.isr:
        raise IsrRefusedError(change.name, f"node {member} is about to stop")


def _reassign(state: ClusterState, command: Reassign) -> ClusterState:
    """Start to move a partition; old replicas stay until it has moved.

    This replaces a move that is under way. Moving back to the old replicas ends it at once.
    """
    name, target = command.name, command.replicas
    one = _partition(state, name)
    if not target or len(set(target)) != len(target):
        raise InvalidReplicasError(name, f"replicas {target} must be at least one node, and none twice")
    for node_id in target:
        if node_id not in one.replicas and not _stays(state.nodes, node_id):
            raise InvalidReplicasError(name, f"node {node_id} is not alive, or is about to stop")
    added = tuple(node_id for node_id in target if node_id not in one.replicas)
    moving = replace(one, replicas=(*one.replicas, *added), target=target)
    return _sized(name, _with_partition(state, name, moving))


def _elect_preferred(state: ClusterState, command: ElectPreferred) -> ClusterState:
    def preferring(one: PartitionState, unclean: bool) -> PartitionState:
        first = one.replicas[0]
        if one.leader in (None, first) or first not in one.isr or not _stays(state.nodes, first):
            return one
        return replace(one, leader=first, leader_epoch=one.leader_epoch + 1)

    return _with_partitions(state, preferring)


def _partition(state: ClusterState, name: TopicPartition) -> PartitionState:
    topic = _topic(state, name.topic)
    one = state.partition(name)
    if one is None:
        raise UnknownPartitionError(name.topic, name.partition, len(topic.partitions))
    return one


# --- topics -----------------------------------------------------------------------------------------


def _create_topic(state: ClusterState, command: CreateTopic) -> ClusterState:
    """Create a topic, with its replicas and leaders spread over the nodes in turn."""
    name, topic_id = command.name, command.topic_id
    check_topic_name(name)
    there = state.topics.get(name)
    if there is not None and there.topic_id == topic_id:
        return state  # this command was applied before, and its answer was lost
    if there is not None:
        raise TopicExistsError(name)
    if not is_id(topic_id) or topic_id in state.deleted or topic_id in _Topics.of(state.topics).ids:
        raise InvalidReplicasError(name, f"{topic_id!r:.80} is not the id of a new topic")
    settings = TopicConfig().altered(command.config).overrides()
    topic = TopicState(topic_id, settings, _new(state, name, command.partitions, command.replication_factor))
    return _sized(name, _with_topic(state, name, topic, _topic_bytes(name, topic)))


def _alter_topic(state: ClusterState, command: AlterTopic) -> ClusterState:
    name, topic = command.name, _topic(state, command.name)
    settings = TopicConfig().altered(topic.config).altered(command.changes).overrides()
    if settings == topic.config:
        return state
    altered = _changed(replace(topic, config=settings), _settling(state.nodes), state.version + 1)
    growth = _topic_bytes(name, altered) - _topic_bytes(name, topic)
    return _with_topic(state, name, altered, growth)


def _delete_topic(state: ClusterState, command: DeleteTopic) -> ClusterState:
    """Delete a topic; every member is to hear of that.

    If too many deletions wait for a member that is away, the oldest are forgotten: it keeps those topics.
    """
    name, topic = command.name, _topic(state, command.name)
    deleted = [*state.deleted.items(), (topic.topic_id, Deletion(name, state.version + 1))]
    size = sum(_DELETION_BYTES + len(one.name) for _, one in deleted)
    while size > MOST_DELETED_BYTES:
        size -= _DELETION_BYTES + len(deleted.pop(0)[1].name)
    after = _with_topic(state, name, None, -_topic_bytes(name, topic))
    return replace(after, deleted=dict(deleted))


def _add_partitions(state: ClusterState, command: AddPartitions) -> ClusterState:
    """Add partitions with as many replicas as the first one has."""
    name, partitions = command.name, command.partitions
    topic = _topic(state, name)
    count = len(topic.partitions)
    if partitions < count:
        raise InvalidReplicasError(name, f"it has {count} partitions, and none can be taken away")
    if partitions == count:
        return state
    if partitions > MOST_PARTITIONS:
        raise InvalidReplicasError(name, f"at most {MOST_PARTITIONS} partitions")
    first = topic.partitions[0]
    new = _new(state, name, partitions - count, len(first.target or first.replicas))
    grown = replace(topic, partitions=(*topic.partitions, *new))
    return _sized(name, _with_topic(state, name, grown, sum(map(_partition_bytes, new))))


def _topic(state: ClusterState, name: str) -> TopicState:
    topic = state.topics.get(name)
    if topic is None:
        raise UnknownTopicError(name)
    return topic


def _new(
    state: ClusterState, name: str, partitions: int, replication_factor: int
) -> tuple[PartitionState, ...]:
    """Return new partitions: leaders go round the nodes, and each round followers are further from them.

    So the partitions of a node that dies are not all taken over by the same one. It goes on where the
    last topic ended, so that topics of one partition are spread too.
    """
    nodes = sorted(node_id for node_id in state.nodes if _stays(state.nodes, node_id))
    count = len(nodes)
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidReplicasError(name, f"{partitions} partitions: there must be 1 to {MOST_PARTITIONS}")
    if not 1 <= replication_factor <= count:
        raise InvalidReplicasError(name, f"{replication_factor} replicas on {count} nodes that are alive")
    begun = _Topics.of(state.topics).partitions
    new = []
    for number in range(begun, begun + partitions):
        rounds = number // count
        steps = [1 + (rounds + place) % (count - 1) for place in range(replication_factor - 1)]
        replicas = tuple(nodes[(number + step) % count] for step in (0, *steps))
        new.append(PartitionState(replicas, replicas, replicas[0], 0, state.version + 1))
    return tuple(new)


# --- sizes ------------------------------------------------------------------------------------------

# What a state takes as JSON, with room for what may grow later: numbers, and an ISR that is complete again.
_TOPIC_BYTES, _PARTITION_BYTES, _DISK_BYTES, _DELETION_BYTES = 100, 44, 22, 80


class _Topics(SharedMap[TopicState]):
    """The topics of a state, and totals over all of them, which each change carries on.

    So no rule has to visit every topic. A state that comes from elsewhere is summed up once.
    """

    __slots__ = ("ids", "partitions", "size")

    def __init__(
        self, buckets: tuple[dict[str, TopicState], ...], partitions: int, size: int, ids: SharedMap[str]
    ) -> None:
        super().__init__(buckets)
        self.partitions = partitions
        self.size = size  # as JSON, at most
        self.ids = ids  # to names

    @classmethod
    def of(cls, topics: Mapping[str, TopicState]) -> _Topics:
        if isinstance(topics, cls):
            return topics
        size = sum(_topic_bytes(name, topic) for name, topic in topics.items())
        return _NO_TOPICS.having(topics, size)

    def having(self, changes: Mapping[str, TopicState | None], growth: int) -> _Topics:
        """Return them with topics that are new, changed, or, if None, removed; the size grows by `growth`."""
        before = {name: self[name] for name in changes if name in self}
        after = {name: topic for name, topic in changes.items() if topic is not None}
        ids: dict[str, str | None] = {topic.topic_id: None for topic in before.values()}
        ids.update({topic.topic_id: name for name, topic in after.items()})
        partitions = self.partitions + _count(after.values()) - _count(before.values())
        known = self.ids if before.keys() == after.keys() else SharedMap(self.ids.changed(ids))
        return _Topics(self.changed(changes), partitions, self.size + growth, known)


_NO_TOPICS = _Topics(SharedMap[TopicState]().changed({}), 0, 0, SharedMap())


def _count(topics: Iterable[TopicState]) -> int:
    return sum(len(topic.partitions) for topic in topics)


def _topic_bytes(name: str, topic: TopicState) -> int:
    config = sum(len(f"{item}") + 8 for item in topic.config.items())
    return _TOPIC_BYTES + len(name) + config + sum(map(_partition_bytes, topic.partitions))


def _partition_bytes(one: PartitionState) -> int:
    longest = len(str(max(one.replicas))) + 1
    disk = _DISK_BYTES if len(one.replicas) == 1 else 0
    return _PARTITION_BYTES + disk + longest * (2 * len(one.replicas) + len(one.target or ()) + 1)


def _sized(name: object, state: ClusterState) -> ClusterState:
    """Return the state, if it can be sent to nodes in one message, whatever becomes of its partitions."""
    size = _Topics.of(state.topics).size
    if size > MOST_TOPICS_BYTES:
        raise ClusterTooLargeError(str(name), size, MOST_TOPICS_BYTES)
    return state


# --- changing a state, and settling what was changed --------------------------------------------------


def _with_topic(state: ClusterState, name: str, topic: TopicState | None, growth: int) -> ClusterState:
    """Return the next state, with a topic that is new or changed, or without it."""
    topics = _Topics.of(state.topics).having({name: topic}, growth)
    return replace(state, topics=topics, version=state.version + 1)


def _with_partition(state: ClusterState, name: TopicPartition, one: PartitionState) -> ClusterState:
    """Return the next state, with a partition changed and settled; the same one if that comes to nothing."""
    topic, version = state.topics[name.topic], state.version + 1
    before = topic.partitions[name.partition]
    after = _partition_settled(one, state.nodes, _is_unclean(topic))
    if after == before:
        return state
    after = replace(after, version=version)
    partitions = (*topic.partitions[: name.partition], after, *topic.partitions[name.partition + 1 :])
    growth = _partition_bytes(after) - _partition_bytes(before)
    return _with_topic(state, name.topic, replace(topic, partitions=partitions), growth)


def _with_partitions(state: ClusterState, change: Change) -> ClusterState:
    """Return the next state, with each partition changed; what stays equal stays the same object."""
    version, topics, growth = state.version + 1, {}, 0
    for name, topic in state.topics.items():
        after = _changed(topic, change, version)
        if after is not topic:
            topics[name] = after
            growth += sum(
                _partition_bytes(new) - _partition_bytes(old)
                for old, new in zip(topic.partitions, after.partitions, strict=True)
                if new.replicas is not old.replicas or new.target is not old.target
            )
    if not topics:
        return state
    return replace(state, topics=_Topics.of(state.topics).having(topics, growth), version=version)


def _changed(topic: TopicState, change: Change, version: int) -> TopicState:
    """Return a topic with each partition changed, the same one if that comes to nothing."""
    before, unclean = topic.partitions, _is_unclean(topic)
    after = [change(one, unclean) for one in before]
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if new is not old:
            after[number] = old if new == old else replace(new, version=version)
    return topic if all(map(is_, before, after)) else replace(topic, partitions=tuple(after))


def _with_nodes(
    state: ClusterState, nodes: Nodes, restarted: Sequence[tuple[int, str | None, str]] = ()
) -> ClusterState:
    """Return the next state, with other living nodes, and with the partitions of changed nodes settled."""
    changed = {key for key in {*state.nodes, *nodes} if state.nodes.get(key) is not nodes.get(key)}
    settle = _settling(nodes)

    def change(one: PartitionState, unclean: bool) -> PartitionState:
        if changed.isdisjoint(one.replicas):
            return one
        for node_id, lost_disk, disk_id in restarted:
            if node_id in one.replicas:
                one = _started_again(one, node_id, lost_disk, disk_id)
        return settle(one, unclean)

    return replace(_with_partitions(state, change), nodes=nodes, version=state.version + 1)


def _is_unclean(topic: TopicState) -> bool:
    return bool(topic.config.get("unclean_leader_election_enable", False))


def _settling(nodes: Nodes) -> Change:
    """Return how a partition settles among these nodes."""
    return lambda one, unclean: _partition_settled(one, nodes, unclean)


def _partition_settled(one: PartitionState, nodes: Nodes, unclean: bool) -> PartitionState:
    if one.awaits is not None:
        one = _without_its_disk(one, nodes, unclean)
        if one.awaits is not None:
            return one
    isr = _stay_in(one.isr, nodes)
    if unclean and not any(member in nodes for member in isr):
        isr = tuple(node_id for node_id in _stay_in(one.replicas, nodes) if node_id in nodes)[:1] or isr
    replicas, target, removes = one.replicas, one.target, False
    if target is not None and set(target) <= set(isr):
        removes = not set(replicas) <= set(target)
        replicas, isr, target = target, target, None
    alive = [member for member in isr if member in nodes]
    leader, epoch = one.leader, one.leader_epoch
    if not alive:
        leader = None
    elif leader not in alive or removes:
        # Who is no replica any more removes its records. Should it become one again, a fetch of before that
        # comes late would tell that it has them still: the new epoch fences it.
        leader, epoch = leader if leader in alive else alive[0], epoch + 1
    return PartitionState(replicas, isr, leader, epoch, one.version, target)


def _without_its_disk(one: PartitionState, nodes: Nodes, unclean: bool) -> PartitionState:
    """Let nobody lead a partition whose records were on a disk that is gone, or a replica that has some."""
    others = [node_id for node_id in one.replicas if _stays(nodes, node_id) and node_id not in one.isr]
    able = others or [node_id for node_id in one.isr if node_id in nodes]
    if not unclean or not able:
        return replace(one, leader=None)
    return replace(one, isr=(able[0],), leader=able[0], leader_epoch=one.leader_epoch + 1, awaits=None)


def _stay_in(members: tuple[int, ...], nodes: Nodes) -> tuple[int, ...]:
    """Return those who stay; if there are none, those who are alive; if there are none, all."""
    staying = tuple(member for member in members if _stays(nodes, member))
    return staying or tuple(member for member in members if member in nodes) or members


def _stays(nodes: Nodes, node_id: int) -> bool:
    node = nodes.get(node_id)
    return node is not None and not node.leaving


_RULES: dict[type, Callable[[ClusterState, Any], ClusterState]] = {
    CreateTopic: _create_topic,
    AlterTopic: _alter_topic,
    DeleteTopic: _delete_topic,
    AddPartitions: _add_partitions,
    Reassign: _reassign,
    ElectPreferred: _elect_preferred,
    ChangeIsr: _change_isr,
    LeaveNode: _leave,
    RemoveNode: _remove,
    JoinNode: _join,
    RegisterNodes: _register,
}
