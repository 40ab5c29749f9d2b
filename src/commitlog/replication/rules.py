"""The rules by which a cluster's state changes: who is alive, who leads, who is in sync, where replicas are.

No I/O, no clock: each function takes a state and returns the next, the same one if nothing is to change.
Each makes its change and then lets every partition settle: who is gone or leaves is taken out of the ISR
where another member stays; if the leader is not in it any more, the first member that is alive leads, in a
new epoch; another replica does only where no member is alive and the topic allows unclean elections.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from commitlog.config import TopicConfig
from commitlog.errors import (
    ClusterTooLargeError,
    FencedEpochError,
    InvalidReplicasError,
    IsrRefusedError,
    NotLeaderError,
    TopicExistsError,
    TopicReplacedError,
    UnknownEpochError,
    UnknownPartitionError,
    UnknownTopicError,
)
from commitlog.record import TopicPartition
from commitlog.replication.cluster import (
    ClusterState,
    Deletion,
    IsrChange,
    Known,
    Member,
    NodeState,
    PartitionState,
    Reign,
    TopicState,
)
from commitlog.topics.catalog import check_topic_name

Nodes = Mapping[int, NodeState]
MOST_PARTITIONS = 9999  # of a topic, as in topic_set.py
_RAISED = 1 << 16  # elections that nobody remembers are taken to be fewer
MOST_REIGNS = 256  # that are remembered; a node that was away for more is refused
MOST_DELETED_BYTES = 256 << 10  # of deletions that are remembered
MOST_TOPICS_BYTES = (4 << 20) - (512 << 10)  # of all topics: the header of a message takes 4 MiB


class Registration(NamedTuple):
    """A node that says that it is alive, and whether it stopped clean the last time.

    `disk_id` is that of its disk, and `heard_version` the state that it took in last; None if it knows none.
    """

    address: str
    incarnation: int
    clean: bool
    disk_id: str = ""
    heard_version: int | None = None


# --- the controller ---------------------------------------------------------------------------------


def begun(state: ClusterState, reign_id: str, epoch: int, version: int) -> ClusterState:
    """Return the state with which another controller, or another life of one, begins, or goes on."""
    reigns = state.reigns
    if not reigns or reigns[-1].reign_id != reign_id:
        reigns = (*reigns, Reign(reign_id, version))[-MOST_REIGNS:]
    return replace(state, epoch=epoch, version=version, reigns=reigns)


def epochs_raised(state: ClusterState) -> ClusterState:
    """Return an older state that is to count again: its epochs are above those that nodes have seen since."""

    def raised(topic: TopicState) -> TopicState:
        partitions = (replace(one, leader_epoch=one.leader_epoch + _RAISED) for one in topic.partitions)
        return replace(topic, partitions=tuple(partitions))

    topics = {name: raised(topic) for name, topic in state.topics.items()}
    return _settled(state, state.nodes, topics)


# --- nodes ------------------------------------------------------------------------------------------


def joined(
    state: ClusterState,
    node_id: int,
    address: str,
    *,
    clean: bool,
    disk_id: str = "",
    known: Known | None = None,
) -> ClusterState:
    """Return the state once a node is alive, in a new life: its earlier one, if it is known, is gone.

    A node that did not stop `clean` may have lost records that it had: it leaves every ISR, but where it is
    the only member. Whatever it leads from now on, it leads in a new epoch. One that comes with another disk
    than before has lost everything. One that knows no state of its last life was not clean, whatever it says:
    its directory was restored from an older copy.
    """
    alive = {other: Registration(node.address, node.incarnation, True) for other, node in state.nodes.items()}
    heard_version = None if known is None else known.version
    alive[node_id] = Registration(address, state.version + 1, clean, disk_id, heard_version)
    return registered(state, alive)


def registered(state: ClusterState, alive: Mapping[int, Registration]) -> ClusterState:
    """Return the state once exactly these nodes are alive; with another incarnation they have joined anew.

    Everything happens at the same moment: who is gone and who begins a new life has no say in who leads.
    """
    nodes: dict[int, NodeState] = {}
    topics, members = state.topics, dict(state.members)
    for node_id, one in sorted(alive.items(), key=lambda item: item[1].incarnation):
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
            topics = _started_again(topics, node_id, lost_disk, one.disk_id)
        heard = one.heard_version
        if heard is None:  # a disk that is new has nothing to hear of; one that has lost its state may have
            heard = state.version if before is None or lost_disk is not None else before.heard_version
        members[node_id] = Member(one.disk_id, heard, state.version + 1)
    if nodes == state.nodes:
        return state
    heard_by_all = min((one.heard_version for one in members.values()), default=0)
    deleted = {key: one for key, one in state.deleted.items() if one.version > heard_by_all}
    return replace(_settled(state, nodes, topics), members=members, deleted=deleted)


def _started_again(
    topics: Mapping[str, TopicState], node_id: int, lost_disk: str | None, disk_id: str
) -> Mapping[str, TopicState]:
    """Return the topics, the node taken out of every ISR that has another member, and leading nothing.

    Where it is the only member, what it had is on the disk that it had before.
    """

    def again(one: PartitionState) -> PartitionState:
        others = tuple(member for member in one.isr if member != node_id)
        awaits = one.awaits
        if one.isr == (node_id,) and lost_disk is not None:
            awaits = None if awaits == disk_id else awaits or lost_disk
        leader = None if one.leader == node_id else one.leader
        return replace(one, isr=others or one.isr, leader=leader, awaits=awaits)

    return {
        name: replace(topic, partitions=tuple(map(again, topic.partitions))) for name, topic in topics.items()
    }


def gone(state: ClusterState, *node_ids: int) -> ClusterState:
    """Return the state once nodes are gone, all at the same moment.

    Where every member of an ISR is gone it stays as it is, for only they have all records; there is no
    leader until one of them is back.
    """
    if not any(node_id in state.nodes for node_id in node_ids):
        return state
    nodes = {node_id: node for node_id, node in state.nodes.items() if node_id not in node_ids}
    return _settled(state, nodes, state.topics)


def leaving(state: ClusterState, node_id: int) -> ClusterState:
    """Return the state once a node is about to stop: it hands over what it leads and leaves those ISRs.

    It keeps what no other member can take over yet, until a replica comes in sync: see handed_over().
    """
    node = state.nodes.get(node_id)
    if node is None or node.leaving:
        return state
    return _settled(state, {**state.nodes, node_id: replace(node, leaving=True)}, state.topics)


def handed_over(state: ClusterState, node_id: int) -> bool:
    """Say whether a node leads nothing any more that a living replica could take over."""
    return not any(
        one.leader == node_id
        and any(_stays(state.nodes, other) for other in one.replicas if other != node_id)
        for topic in state.topics.values()
        for one in topic.partitions
    )


def without(state: ClusterState, node_id: int) -> ClusterState:
    """Return what a fenced node is told: it is not there, and nobody leads what it led or seems to lead.

    It is no state of the cluster: others may lead those partitions, or will.
    """

    def unled(one: PartitionState) -> PartitionState:
        return replace(one, leader=None) if one.leader == node_id else one

    nodes = {other: node for other, node in state.nodes.items() if other != node_id}
    topics = {
        name: replace(topic, partitions=tuple(map(unled, topic.partitions)))
        for name, topic in state.topics.items()
    }
    return replace(state, nodes=nodes, topics=topics)


def preferred_elected(state: ClusterState) -> ClusterState:
    """Return the state once the first replica of each partition leads, where it is in sync and stays."""

    def preferring(one: PartitionState) -> PartitionState:
        first = one.replicas[0]
        if one.leader in (None, first) or first not in one.isr or not _stays(state.nodes, first):
            return one
        return replace(one, leader=first, leader_epoch=one.leader_epoch + 1)

    topics = {
        name: replace(topic, partitions=tuple(map(preferring, topic.partitions)))
        for name, topic in state.topics.items()
    }
    return _settled(state, state.nodes, topics)


# --- a partition ------------------------------------------------------------------------------------


def isr_changed(state: ClusterState, change: IsrChange) -> ClusterState:
    """Return the state once a leader's proposal counts; raises what is wrong with it.

    With it a move of replicas is completed, if all new ones are in sync. A leader that leaves itself out
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


def _check_leader(one: PartitionState, change: IsrChange) -> None:
    if change.leader_epoch < one.leader_epoch:
        raise FencedEpochError(change.name, change.leader_epoch, one.leader_epoch)
    if change.leader_epoch > one.leader_epoch:
        raise UnknownEpochError(change.name, change.leader_epoch, one.leader_epoch)
    if change.leader != one.leader:
        raise NotLeaderError(change.name, one.leader)


def _check_member(nodes: Nodes, one: PartitionState, change: IsrChange, member: int) -> None:
    node = nodes.get(member)
    if member not in one.replicas:
        raise IsrRefusedError(change.name, f"node {member} has no replica")
    if node is None:
        raise IsrRefusedError(change.name, f"node {member} is not alive")
    if change.incarnations.get(member) != node.incarnation:
        raise IsrRefusedError(change.name, f"node {member} has joined again since")
    if node.leaving and member not in one.isr:
        raise IsrRefusedError(change.name, f"node {member} is about to stop")


def reassigned(state: ClusterState, name: TopicPartition, replicas: Sequence[int]) -> ClusterState:
    """Return the state once a partition is on its way to other nodes; old replicas stay until it is there.

    A move under way is replaced by this one. Moving back to where it was ends it at once.
    """
    one, target = _partition(state, name), tuple(replicas)
    if not target or len(set(target)) != len(target):
        raise InvalidReplicasError(name, f"replicas {target} must be at least one node, and none twice")
    for node_id in target:
        if node_id not in one.replicas and not _stays(state.nodes, node_id):
            raise InvalidReplicasError(name, f"node {node_id} is not alive, or is about to stop")
    added = tuple(node_id for node_id in target if node_id not in one.replicas)
    return _sized(
        name,
        _with_partition(state, name, replace(one, replicas=(*one.replicas, *added), target=target)),
    )


def _partition(state: ClusterState, name: TopicPartition) -> PartitionState:
    topic = _topic(state, name.topic)
    one = state.partition(name)
    if one is None:
        raise UnknownPartitionError(name.topic, name.partition, len(topic.partitions))
    return one


def _with_partition(state: ClusterState, name: TopicPartition, one: PartitionState) -> ClusterState:
    topic = state.topics[name.topic]
    partitions = (*topic.partitions[: name.partition], one, *topic.partitions[name.partition + 1 :])
    return _settled(state, state.nodes, {**state.topics, name.topic: replace(topic, partitions=partitions)})


# --- topics -----------------------------------------------------------------------------------------


def topic_created(
    state: ClusterState,
    name: str,
    partitions: int,
    replication_factor: int,
    config: Mapping[str, Any],
    topic_id: str,
) -> ClusterState:
    """Return the state once there is a topic, its replicas and its leaders spread over the nodes in turn."""
    check_topic_name(name)
    if name in state.topics:
        raise TopicExistsError(name)
    settings = TopicConfig().altered(config).overrides()
    topic = TopicState(topic_id, settings, ())
    spread = _spread(state, name, partitions, replication_factor)
    return _sized(name, _settled(state, state.nodes, {**state.topics, name: _grown(state, topic, spread)}))


def topic_altered(state: ClusterState, name: str, changes: Mapping[str, Any]) -> ClusterState:
    """Return the state once a topic has other settings; those that are not named stay."""
    topic = _topic(state, name)
    settings = TopicConfig().altered(topic.config).altered(changes).overrides()
    return _settled(state, state.nodes, {**state.topics, name: replace(topic, config=settings)})


def topic_deleted(state: ClusterState, name: str) -> ClusterState:
    """Return the state once there is no such topic any more, and every member is to hear that it is deleted.

    If too many deletions wait for a member that is away, the oldest are forgotten: it keeps those topics.
    """
    topic_id = _topic(state, name).topic_id
    topics = {other: topic for other, topic in state.topics.items() if other != name}
    version = state.version + 1
    deleted = [*state.deleted.items(), (topic_id, Deletion(name, version))]
    size = sum(_DELETION_BYTES + len(one.name) for _, one in deleted)
    while size > MOST_DELETED_BYTES:
        size -= _DELETION_BYTES + len(deleted.pop(0)[1].name)
    return replace(state, topics=topics, version=version, deleted=dict(deleted))


def partitions_added(state: ClusterState, name: str, partitions: int) -> ClusterState:
    """Return the state once a topic has so many partitions, new ones with as many replicas as the first."""
    topic = _topic(state, name)
    count = len(topic.partitions)
    if partitions < count:
        raise InvalidReplicasError(name, f"it has {count} partitions, and none can be taken away")
    if partitions == count:
        return state
    first = topic.partitions[0]
    spread = _spread(state, name, partitions - count, len(first.target or first.replicas))
    if partitions > MOST_PARTITIONS:
        raise InvalidReplicasError(name, f"at most {MOST_PARTITIONS} partitions")
    return _sized(name, _settled(state, state.nodes, {**state.topics, name: _grown(state, topic, spread)}))


# What a state takes as JSON, with room for what may grow later: numbers, and an ISR that is complete again.
_TOPIC_BYTES, _PARTITION_BYTES, _DISK_BYTES, _DELETION_BYTES = 100, 44, 22, 80


def _sized(name: object, state: ClusterState) -> ClusterState:
    """Return the state, if it can be sent to nodes in one message, whatever becomes of its partitions."""
    size = 0
    for topic_name, topic in state.topics.items():
        size += _TOPIC_BYTES + len(topic_name) + sum(len(f"{item}") + 8 for item in topic.config.items())
        size += sum(map(_partition_bytes, topic.partitions))
    if size > MOST_TOPICS_BYTES:
        raise ClusterTooLargeError(str(name), size, MOST_TOPICS_BYTES)
    return state


def _partition_bytes(one: PartitionState) -> int:
    longest = len(str(max(one.replicas))) + 1
    disk = _DISK_BYTES if len(one.replicas) == 1 else 0
    return _PARTITION_BYTES + disk + longest * (2 * len(one.replicas) + len(one.target or ()) + 1)


def _topic(state: ClusterState, name: str) -> TopicState:
    topic = state.topics.get(name)
    if topic is None:
        raise UnknownTopicError(name)
    return topic


def _grown(state: ClusterState, topic: TopicState, spread: Sequence[tuple[int, ...]]) -> TopicState:
    new = (PartitionState(replicas, replicas, replicas[0], 0, state.version + 1) for replicas in spread)
    return replace(topic, partitions=(*topic.partitions, *new))


def _spread(
    state: ClusterState, name: str, partitions: int, replication_factor: int
) -> list[tuple[int, ...]]:
    """Choose replicas: leaders go round the nodes; the distance of followers from them grows every round.

    So those who take over from a node that dies are not all the same one. It goes on where the last topic
    ended, so that topics of one partition are spread too.
    """
    nodes = sorted(node_id for node_id in state.nodes if _stays(state.nodes, node_id))
    count = len(nodes)
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise InvalidReplicasError(name, f"{partitions} partitions: there must be 1 to {MOST_PARTITIONS}")
    if not 1 <= replication_factor <= count:
        raise InvalidReplicasError(name, f"{replication_factor} replicas on {count} nodes that are alive")
    begun = sum(len(topic.partitions) for topic in state.topics.values())
    chosen = []
    for number in range(begun, begun + partitions):
        rounds = number // count
        steps = [1 + (rounds + place) % (count - 1) for place in range(replication_factor - 1)]
        chosen.append(tuple(nodes[(number + step) % count] for step in (0, *steps)))
    return chosen


# --- how a partition settles ------------------------------------------------------------------------


def _settled(state: ClusterState, nodes: Nodes, topics: Mapping[str, TopicState]) -> ClusterState:
    """Return the next state, every partition settled; what has not changed stays the same object."""
    version = state.version + 1
    settled = {name: _topic_settled(topic, state, name, nodes, version) for name, topic in topics.items()}
    if nodes is state.nodes and settled == state.topics:
        return state
    return replace(state, nodes=nodes, topics=settled, version=version)


def _topic_settled(
    topic: TopicState, state: ClusterState, name: str, nodes: Nodes, version: int
) -> TopicState:
    unclean = topic.config.get("unclean_leader_election_enable", False)
    settled = tuple(_partition_settled(one, nodes, unclean) for one in topic.partitions)
    before = state.topics.get(name)
    if before is not None and before.partitions == settled:
        return before if before.config == topic.config else replace(topic, partitions=before.partitions)
    known = before.partitions if before is not None else ()
    partitions = tuple(
        one if number < len(known) and one == known[number] else replace(one, version=version)
        for number, one in enumerate(settled)
    )
    return replace(topic, partitions=partitions)


def _partition_settled(one: PartitionState, nodes: Nodes, unclean: bool) -> PartitionState:
    if one.awaits is not None:
        return _without_its_disk(one, nodes, unclean)
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
