"""GroupState: the members of a consumer group and their partitions. A state machine: no files, no clock.

A process that changes the group takes its lock, loads the state from the group's file, calls one method and
stores the result. There is no coordinator: each member does this work when it needs to.

A change of membership starts a new generation with a new target: the partitions that each member should own.
Each member moves towards the target on its own: it releases partitions that are no longer in its target, and
takes those that are free. So a partition never has two owners, however slow a member is, and no member waits
for all the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from commitlog.config import MAX_INT64
from commitlog.errors import (
    CommitFailedError,
    FencedMemberError,
    InconsistentGroupError,
    InvalidTopicError,
    RebalanceInProgressError,
)
from commitlog.groups.assignors import Subscription, assign, find_assignor
from commitlog.groups.heartbeats import SLOTS
from commitlog.record import TopicPartition
from commitlog.topics.catalog import check_topic_name


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group. `generation` is the latest one whose target it has reached, or -1."""

    member_id: str
    client_id: str
    instance_id: str | None  # of a static member, which keeps its partitions over a restart
    process: str  # host and process id, for people
    topics: tuple[str, ...]
    strategies: tuple[str, ...]
    session_timeout_ms: int
    slot: int = -1
    token: int = 0
    generation: int = -1


_NEVER = 1 << 62  # no group reaches this generation: the file is damaged
_FIELDS = [field.name for field in fields(Member)]  # asdict() copies every value and takes 20 times as long


class GroupState:
    """The members of a group, their targets and their partitions.

    Every partition of a subscribed topic is in the target of exactly one member. A partition has at most one
    owner, which is a member; only the owner reads it and commits its offset. A member that has reached the
    latest generation owns exactly its target.
    """

    def __init__(self, boot: str) -> None:
        self.boot = boot  # id of the machine's boot: no member survives a reboot
        self.generation = 0
        self.strategy: str | None = None
        self.members: dict[str, Member] = {}  # oldest first
        self.target: dict[str, tuple[TopicPartition, ...]] = {}
        self.owners: dict[TopicPartition, str] = {}
        self.partitions: dict[str, int] = {}  # count per topic when the target was computed

    # --- membership

    def join(self, member: Member, partitions: Mapping[str, int]) -> None:
        """Add a member, or let a static member return; `partitions` has the count of each topic."""
        before = self.instance(member.instance_id)
        others = [one for one in self.members.values() if one is not before]
        if others and not _common(member.strategies, others):
            raise InconsistentGroupError(member.strategies, self.strategy)
        if before is None:
            self.members[member.member_id] = member
            self.rebalance(partitions)
            return
        self._replace(before, member)
        if (before.topics, before.strategies) != (member.topics, member.strategies):
            self.rebalance(partitions)

    def _replace(self, before: Member, member: Member) -> None:
        """Hand a static member's place to its new incarnation; the old one is fenced."""
        old, new = before.member_id, member.member_id
        self.members = {
            new if one == old else one: member if one == old else about for one, about in self.members.items()
        }
        self.target[new] = self.target.pop(old, ())
        self.owners = {partition: new if owner == old else owner for partition, owner in self.owners.items()}

    def subscribe(self, member_id: str, topics: tuple[str, ...], partitions: Mapping[str, int]) -> None:
        """Change the topics that a member reads."""
        self.members[member_id] = replace(self.members[member_id], topics=topics)
        self.rebalance(partitions)

    def remove(self, member_ids: Iterable[str], partitions: Mapping[str, int]) -> None:
        """Remove members and free their partitions."""
        for member_id in member_ids:
            del self.members[member_id]
        self.owners = {one: owner for one, owner in self.owners.items() if owner in self.members}
        self.rebalance(partitions)

    def rebalance(self, partitions: Mapping[str, int]) -> None:
        """Start a new generation: assign the partitions to the current members."""
        self.generation += 1
        self.partitions = {topic: partitions[topic] for topic in sorted(self.topics) if topic in partitions}
        if not self.members:
            self.strategy, self.target = None, {}
            return
        first, *others = self.members.values()
        self.strategy = _common(first.strategies, others)[0]
        subscriptions = [
            Subscription(one.member_id, one.topics, self._had(one.member_id)) for one in self.members.values()
        ]
        self.target = assign(self.strategy, subscriptions, self.partitions)

    def _had(self, member_id: str) -> tuple[TopicPartition, ...]:
        """Return the partitions a member owns, and those in its target that nobody owns."""
        wanted = [one for one in self.target.get(member_id, ()) if one not in self.owners]
        return (*self.owned(member_id), *wanted)

    def instance(self, instance_id: str | None) -> Member | None:
        """Return the static member with this instance id, if there is one."""
        named = (one for one in self.members.values() if one.instance_id == instance_id is not None)
        return next(named, None)

    # --- ownership

    @property
    def cooperative(self) -> bool:
        """Whether members keep their partitions through a rebalance unless these move."""
        return self.strategy is not None and find_assignor(self.strategy).cooperative

    @property
    def topics(self) -> set[str]:
        """All subscribed topics."""
        return {topic for member in self.members.values() for topic in member.topics}

    def owned(self, member_id: str) -> tuple[TopicPartition, ...]:
        """Return the partitions that a member owns."""
        return tuple(partition for partition, owner in self.owners.items() if owner == member_id)

    def to_release(self, member_id: str) -> tuple[TopicPartition, ...]:
        """Return what a member must release at a new generation: everything, or if cooperative what moves."""
        owned, reached = self.owned(member_id), self.members[member_id].generation
        if reached == self.generation:
            return ()
        # a static member that has just returned has read nothing yet, so it may keep what is still its own
        if self.cooperative or reached == -1:
            return tuple(one for one in owned if one not in self.target[member_id])
        return owned

    def release(self, member_id: str, partitions: Iterable[TopicPartition]) -> None:
        """Release partitions, so that others may take them."""
        for partition in partitions:
            if self.owners.get(partition) == member_id:
                del self.owners[partition]

    def take(self, member_id: str) -> None:
        """Take the free partitions in a member's target; all or nothing, unless it is cooperative."""
        target = self.target[member_id]
        held = [one for one in target if self.owners.get(one, member_id) != member_id]
        if held and not self.cooperative:
            return
        self.owners.update({one: member_id for one in target if one not in self.owners})
        if not held and len(self.owned(member_id)) == len(target):
            self.members[member_id] = replace(self.members[member_id], generation=self.generation)

    @property
    def settled(self) -> bool:
        """Whether every member has reached the target."""
        return all(member.generation == self.generation for member in self.members.values())

    def check_member(self, group_id: str, member_id: str, instance_id: str | None) -> None:
        """Raise FencedMemberError or CommitFailedError for a process that is no longer a member."""
        if member_id in self.members:
            return
        if self.instance(instance_id) is not None:
            raise FencedMemberError(group_id, instance_id)
        raise CommitFailedError(group_id, "this member was removed from the group")

    def check_commit(
        self, group_id: str, member: Member | None, partitions: Iterable[TopicPartition]
    ) -> None:
        """Refuse a commit by a member that is not the owner, or by a non-member while there are members."""
        if member is None:
            if self.members:
                raise CommitFailedError(group_id, "the group has members, and only they may commit")
            return
        self.check_member(group_id, member.member_id, member.instance_id)
        for partition in partitions:
            if self.owners.get(partition) != member.member_id:
                if self.members[member.member_id].generation != self.generation:
                    raise RebalanceInProgressError(group_id, self.generation)
                where = f"{partition.topic}-{partition.partition}"
                raise CommitFailedError(group_id, f"{where} is not assigned to this member")

    # --- the file

    def to_json(self) -> bytes:
        """Return the contents of the group's file."""
        stored = {
            "boot": self.boot,
            "generation": self.generation,
            "strategy": self.strategy,
            "members": [{name: getattr(one, name) for name in _FIELDS} for one in self.members.values()],
            "target": self.target,
            "owners": [[*partition, owner] for partition, owner in self.owners.items()],
            "partitions": self.partitions,
        }
        return json.dumps(stored).encode()

    @classmethod
    def from_json(cls, raw: bytes, boot: str) -> Self:
        """Parse the group's file; if it is from an earlier boot, only the generation counts.

        ValueError if to_json() cannot have written it. The file has no checksum, so every field is checked.
        """
        try:
            stored = json.loads(raw)
            state = cls(boot)
            state.generation = _counted(stored["generation"])
            _require(state.generation < _NEVER)
            if stored["boot"] == boot:
                state._load(stored)
        except (KeyError, TypeError, AttributeError, InvalidTopicError, RecursionError) as problem:
            raise ValueError(f"not the state of a group: {problem!r}") from None
        return state

    def _load(self, stored: dict[str, Any]) -> None:
        members = [_member(one) for one in stored["members"]]
        self.members = {one.member_id: one for one in members}
        self.strategy = stored["strategy"]
        self.target = {
            member_id: tuple(_partition(*one) for one in target)
            for member_id, target in stored["target"].items()
        }
        self.owners = {_partition(topic, number): owner for topic, number, owner in stored["owners"]}
        self.partitions = {_topic(name): _counted(count) for name, count in stored["partitions"].items()}
        targets = [one for target in self.target.values() for one in target]
        _require(
            len(self.members) == len({one.slot for one in members}) == len(members),
            self.target.keys() == self.members.keys(),
            len(set(targets)) == len(targets),
            len(self.owners) == len(stored["owners"]),
            all(owner in self.members for owner in self.owners.values()),
            all(one.generation <= self.generation for one in members),
            self.strategy in (_common(members[0].strategies, members[1:]) if members else (None,)),
        )


def _common(strategies: Iterable[str], others: Iterable[Member]) -> list[str]:
    """Return those of a member's strategies that all the others support too."""
    known = list(others)
    return [name for name in strategies if all(name in one.strategies for one in known)]


def _member(stored: dict[str, Any]) -> Member:
    lists = {"topics": tuple(map(_topic, stored["topics"])), "strategies": tuple(stored["strategies"])}
    member = Member(**{**stored, **lists})
    texts = (member.member_id, member.client_id, member.process, *member.strategies)
    _require(
        all(isinstance(one, str) for one in texts),
        isinstance(member.instance_id, str | None),
        _counted(member.session_timeout_ms) > 0,
        _counted(member.slot) < SLOTS,
        _counted(member.token) > 0,
        member.generation == -1 or _counted(member.generation) >= 0,
    )
    return member


def _partition(topic: Any, number: Any) -> TopicPartition:
    return TopicPartition(_topic(topic), _counted(number))


def _topic(name: Any) -> str:
    check_topic_name(name)
    return str(name)


def _counted(value: Any) -> int:
    _require(type(value) is int and 0 <= value <= MAX_INT64)
    return int(value)


def _require(*facts: bool) -> None:
    if not all(facts):
        raise ValueError("not the state of a group")
