"""The rules by which a cluster's state changes: who is alive, who leads, who is in sync, where replicas are.

No I/O, no clock, no randomness: apply() returns the next state after a command, or the same object if nothing
changes. A rule touches only the partitions that its command concerns.

Every partition of a state is settled: nodes that are gone or leaving are not in its ISR if another member
stays; if the leader has left the ISR, the first living member leads, in a new epoch; another replica leads
only if no member is alive and the topic allows unclean elections. Each rule settles what it changes.
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
Change = Callable[[PartitionState, bool], PartitionState]  # the flag allows unclean elections
MOST_PARTITIONS = 9999  # of a topic, as in topic_set.py
_RAISED = 1 << 16  # more than the number of elections that may have been forgotten
MOST_REIGNS = 256  # remembered; a node that was away for more is refused
MOST_DELETED_BYTES = 256 << 10  # of remembered deletions
MOST_TOPICS_BYTES = (4 << 20) - (512 << 10)  # of all topics: the header of a message is at most 4 MiB


def apply(state: ClusterState, command: Command) -> ClusterState:
    """Return the state after a command, the same object if nothing changes; raises if it is refused."""
    return _RULES[type(command)](state, command)


# --- the controller ---------------------------------------------------------------------------------


def begun(state: ClusterState, reign_id: str, epoch: int, version: int) -> ClusterState:
    """Return the first state of a new reign, or the next state of the same one, with all partitions settled.

    The last controller may have stopped in the middle of a change.
    """
    settled = _with_partitions(replace(state, version=version - 1), _settling(state.nodes))
    reigns = state.reigns
    if not reigns or reigns[-1].reign_id != reign_id:
        reigns = (*reigns, Reign(reign_id, version))[-MOST_REIGNS:]
    topics = _Topics.of(settled.topics)
    return replace(settled, topics=topics, epoch=epoch, version=version, reigns=reigns)


def epochs_raised(state: ClusterState) -> ClusterState:
    """Return an older state for reuse, with leader epochs above those that nodes have seen since."""
    return _with_partitions(state, lambda one, _: replace(one, leader_epoch=one.leader_epoch + _RAISED))


# --- nodes ------------------------------------------------------------------------------------------


def _join(state: ClusterState, command: JoinNode) -> ClusterState:
    """Start a new life of a node and end its earlier one.

    A node that did not stop cleanly may have lost records: it leaves every ISR that has another member.
    What it leads from now on, it leads in a new epoch. A node with a different disk has lost everything. A
    node that knows no state of its last life counts as not clean, whatever it says: its directory was
    restored from an older copy.
    """
    heard_version = None if command.known is None else command.known.version
    joining = Registration(command.address, state.version + 1, command.clean, command.disk_id, heard_version)
    return _register(state, RegisterNodes({**alive(state), command.node_id: joining}))


def alive(state: ClusterState) -> dict[int, Registration]:
    """Return registrations of the living nodes, for a RegisterNodes that changes some of them."""
    return {key: Registration(node.address, node.incarnation, True) for key, node in state.nodes.items()}


def _register(state: ClusterState, command: RegisterNodes) -> ClusterState:
    """Make exactly these nodes alive, all at once.

    Nodes that are gone, and nodes that start a new life, stop leading. If every member of an ISR is gone,
    the ISR stays as it is, because only its members have all records; there is no leader until one is back.
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
        if heard is None:  # a new disk has nothing to delete; one that has lost its state may have
            heard = state.version if before is None or lost_disk is not None else before.heard_version
        members[node_id] = Member(one.disk_id, heard, state.version + 1)
    if nodes == state.nodes:
        return state
    heard_by_all = min((one.heard_version for one in members.values()), default=0)
    deleted = {key: one for key, one in state.deleted.items() if one.version > heard_by_all}
    return replace(_with_nodes(state, nodes, restarted), members=members, deleted=deleted)


def _started_again(one: PartitionState, node_id: int, lost_disk: str | None, disk_id: str) -> PartitionState:
    """Remove a restarted node from an ISR that has another member; it stops leading.

    If it is the only member, the records are on its previous disk.
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
    """Make a node hand over what it leads, and leave its ISRs.

    It keeps what no other member can take over until a replica comes into sync; see handed_over().
    """
    node = state.nodes.get(command.node_id)
    if node is None or node.incarnation != command.incarnation:
        raise StaleNodeError(command.node_id)
    if node.leaving:
        return state
    return _with_nodes(state, {**state.nodes, command.node_id: replace(node, leaving=True)})


def handed_over(state: ClusterState, node_id: int) -> bool:
    """Return whether a leaving node no longer leads anything that a living replica could take over."""
    node = state.nodes.get(node_id)
    return (node is None or node.leaving) and not any(
        one.leader == node_id
        and any(_stays(state.nodes, other) for other in one.replicas if other != node_id)
        for topic in state.topics.values()
        for one in topic.partitions
    )


def without(state: ClusterState, node_id: int) -> ClusterState:
    """Return the state shown to a fenced node: without the node, and with no leader of what it led.

    This is not a real state of the cluster: others may lead those partitions, now or soon.
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
    """Accept a leader's proposal, or raise the reason why not.

    This also completes a move once all new replicas are in sync. A leader that leaves itself out resigns,
    and another member leads.
    """
    one = _partition(state, change.name)
    topic_id = state.topics[change.name.topic].topic_id
    if change.topic_id != topic_id:
        raise TopicReplacedError(change.name.topic, change.topic_id, topic_id)
    _check_leader(one, change)
    if one.version != change.version:
        raise IsrRefusedError(change.name, f"it is for version {change.version}; current is {one.version}")
    for member in change.isr:
        _check_member(state.nodes, one, change, member)
    if not change.isr:
        raise IsrRefusedError(change.name, "it is empty")
    if change.leader not in change.isr and not set(change.isr) <= set(one.isr):
        raise IsrRefusedError(change.name, "its leader resigns, but it names replicas that are not in sync")
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
    """Start to move a partition; the old replicas stay until the move is complete.

    This replaces a move in progress. Moving back to the old replicas ends that at once.
    """
    name, target = command.name, command.replicas
    one = _partition(state, name)
    if not target or len(set(target)) != len(target):
        raise InvalidReplicasError(name, f"replicas {target} must be one or more distinct nodes")
    for node_id in target:
        if node_id not in one.replicas and not _stays(state.nodes, node_id):
            raise InvalidReplicasError(name, f"node {node_id} is not alive or is about to stop")
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
    """Create a topic, with its replicas and leaders spread over the nodes round-robin."""
    name, topic_id = command.name, command.topic_id
    check_topic_name(name)
    there = state.topics.get(name)
    if there is not None and there.topic_id == topic_id:
        return state  # this command was applied before, but its answer was lost
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
    after = _with_topic(state, name, altered, growth)
    return _sized(name, after) if growth > 0 else after


def _delete_topic(state: ClusterState, command: DeleteTopic) -> ClusterState:
    """Delete a topic, and remember that until every member has seen it.

    If too many deletions wait for an absent member, the oldest are forgotten: that member keeps those topics.
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
        raise InvalidReplicasError(name, f"it has {count} partitions; their number cannot be reduced")
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
    """Return new partitions: leaders rotate over the nodes, and followers are one step further each round.

    So the partitions of a node that dies are taken over by different nodes. The rotation continues where the
    last topic ended, so that topics with one partition are spread as well.
    """
    nodes = sorted(node_id for node_id in state.nodes if _stays(state.nodes, node_id))
    count = len(nodes)
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidReplicasError(name, f"{partitions} partitions; allowed are 1 to {MOST_PARTITIONS}")
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

# Sizes as JSON, with room for later growth: of numbers, and of an ISR that becomes complete again.
_TOPIC_BYTES, _PARTITION_BYTES, _DISK_BYTES, _DELETION_BYTES = 100, 44, 22, 80


class _Topics(SharedMap[TopicState]):
    """The topics of a state with running totals, so that no rule has to visit every topic.

    The totals of a state from elsewhere are computed once.
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
        """Return a copy with topics added, changed or, if None, removed; the size grows by `growth`."""
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
    """Return the state if it fits in one message to the nodes, however its partitions change later."""
    size = _Topics.of(state.topics).size
    if size > MOST_TOPICS_BYTES:
        raise ClusterTooLargeError(str(name), size, MOST_TOPICS_BYTES)
    return state


# --- changing a state, and settling what was changed --------------------------------------------------


def _with_topic(state: ClusterState, name: str, topic: TopicState | None, growth: int) -> ClusterState:
    """Return the next state, with a topic added, changed or, if None, removed."""
    topics = _Topics.of(state.topics).having({name: topic}, growth)
    return replace(state, topics=topics, version=state.version + 1)


def _with_partition(state: ClusterState, name: TopicPartition, one: PartitionState) -> ClusterState:
    """Return the next state, with a partition changed and settled; the same object if nothing changes."""
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
    """Return the next state, with each partition changed; equal parts stay the same objects."""
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
    """Return a topic with each partition changed, the same object if nothing changes."""
    before, unclean = topic.partitions, _is_unclean(topic)
    after = [change(one, unclean) for one in before]
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        if new is not old:
            after[number] = old if new == old else replace(new, version=version)
    return topic if all(map(is_, before, after)) else replace(topic, partitions=tuple(after))


def _with_nodes(
    state: ClusterState, nodes: Nodes, restarted: Sequence[tuple[int, str | None, str]] = ()
) -> ClusterState:
    """Return the next state, with these living nodes, and with the partitions of changed nodes settled."""
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
        # A node that is no longer a replica removes its records. If it becomes one again, a late fetch from
        # before would claim that it still has them: the new epoch fences that fetch.
        leader, epoch = leader if leader in alive else alive[0], epoch + 1
    return PartitionState(replicas, isr, leader, epoch, one.version, target)


def _without_its_disk(one: PartitionState, nodes: Nodes, unclean: bool) -> PartitionState:
    """Leave a partition whose records were on a lost disk without a leader, or elect one uncleanly."""
    others = [node_id for node_id in one.replicas if _stays(nodes, node_id) and node_id not in one.isr]
    able = others or [node_id for node_id in one.isr if node_id in nodes]
    if not unclean or not able:
        return replace(one, leader=None)
    return replace(one, isr=(able[0],), leader=able[0], leader_epoch=one.leader_epoch + 1, awaits=None)


def _stay_in(members: tuple[int, ...], nodes: Nodes) -> tuple[int, ...]:
    """Return the members that stay; if none, those that are alive; if none, all."""
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
