"""Groups: list, describe, reset and delete the consumer groups of a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from commitlog.config import ConsumerConfig
from commitlog.errors import (
    CommitFailedError,
    ConfigError,
    GroupNotEmptyError,
    InvalidTopicError,
    UnknownGroupError,
    UnknownTopicError,
)
from commitlog.groups.directory import GroupDirectory, is_known_group, known_groups
from commitlog.groups.member import CountPartitions, GroupMember, GroupMetadata, remove_expired
from commitlog.groups.offsets import TOPIC, GroupOffsets, OffsetAndMetadata, encoded
from commitlog.partition import Partition
from commitlog.partitions.reader import LogReader
from commitlog.record import TopicPartition
from commitlog.topic import TopicSource


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group, and its partitions; `process` is its host and process id."""

    member_id: str
    client_id: str
    instance_id: str | None
    process: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """A group's progress in a partition; fields are None if nothing is committed, or nobody reads it."""

    topic: str
    partition: int
    committed: int | None
    end_offset: int
    lag: int | None
    member_id: str | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group at one moment."""

    group_id: str
    state: Literal["Empty", "Rebalancing", "Stable"]
    generation: int
    strategy: str | None
    members: tuple[MemberDescription, ...]
    partitions: tuple[PartitionDescription, ...]


class Groups:
    """The consumer groups of a log. The topic of committed offsets is opened on first use."""

    def __init__(
        self, path: str, log: TopicSource, count: CountPartitions, open_offsets: Callable[[], Partition]
    ) -> None:
        self._path = path
        self._log = log
        self._count = count
        self._open_offsets = open_offsets
        self._lock = threading.Lock()
        self._offsets: GroupOffsets | None = None

    def offsets(self) -> GroupOffsets:
        """Return the committed offsets of all groups."""
        with self._lock:
            if self._offsets is None:
                self._offsets = GroupOffsets(self._open_offsets())
            return self._offsets

    def member(self, config: ConsumerConfig) -> GroupMember:
        """Return a member that has not joined its group yet."""
        assert config.group_id is not None
        directory = GroupDirectory(self._path, config.group_id)
        return GroupMember(directory, self.offsets(), config, self._count)

    def commit_with(
        self,
        append: Callable[[Partition, list[bytes], list[bytes]], object],
        group: GroupMetadata,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> None:
        """Let `append` store offsets, given the partition and the keys and values of their records.

        No partition changes hands meanwhile. CommitFailedError if the group has moved on since `group` was
        asked for.
        """
        directory = GroupDirectory(self._path, group.group_id)
        with directory.lock:
            state = directory.look()
            member = state.members.get(group.member_id)
            if member is None and (group.member_id or group.generation != -1):
                raise CommitFailedError(group.group_id, f"{group.member_id!r} is no longer a member")
            if member is not None and member.generation != group.generation:
                reason = f"generation {group.generation} is over, the member has {member.generation}"
                raise CommitFailedError(group.group_id, reason)
            state.check_commit(group.group_id, member, offsets)
            append(self.offsets().partition, *encoded(group.group_id, offsets))

    # --- inspection

    def names(self) -> list[str]:
        """Return the groups that have or had members, or have committed offsets."""
        return sorted(known_groups(self._path) | self._committing())

    def _committing(self) -> set[str]:
        return self.offsets().groups() if self._count([TOPIC]) else set()

    def describe(self, group_id: str) -> GroupDescription:
        """Describe the members, committed offsets and lag of a group."""
        return self._described(self._known(group_id))

    def describe_all(self) -> list[GroupDescription]:
        """Describe every group."""
        return [self._described(GroupDirectory(self._path, group_id)) for group_id in self.names()]

    def _described(self, directory: GroupDirectory) -> GroupDescription:
        with directory.lock, directory.changing() as state:
            remove_expired(state, directory, self._count, time.monotonic_ns())
            committed = self.offsets().committed(directory.group_id)
            members = tuple(
                MemberDescription(
                    one.member_id, one.client_id, one.instance_id, one.process, one.topics,
                    tuple(sorted(state.owned(one.member_id))),
                )
                for one in state.members.values()
            )  # fmt: skip
            names = sorted(
                {*committed, *state.owners, *(one for some in state.target.values() for one in some)}
            )
            # measured: looking the topic up again for each partition takes 100 us
            topics = {topic: self._partitions_of(topic) for topic in {name.topic for name in names}}
            partitions = [
                _progress(
                    name, topics[name.topic][name.partition], committed.get(name), state.owners.get(name)
                )
                for name in names
                if 0 <= name.partition < len(topics[name.topic])
            ]
            situation: Literal["Empty", "Rebalancing", "Stable"]
            situation = "Empty" if not members else "Stable" if state.settled else "Rebalancing"
            return GroupDescription(
                directory.group_id, situation, state.generation, state.strategy, members, tuple(partitions)
            )  # fmt: skip

    def _partitions_of(self, topic: str) -> Sequence[LogReader]:
        """Return the partitions of a topic, or none if it was deleted: its offsets may remain."""
        with suppress(InvalidTopicError, UnknownTopicError):
            return self._log.topic(topic).partitions
        return ()

    # --- changes

    def reset(
        self,
        group_id: str,
        to: Literal["earliest", "latest"] | None = None,
        *,
        offset: int | None = None,
        timestamp: int | None = None,
        shift_by: int | None = None,
        topics: Iterable[str | tuple[str, int]] | None = None,
        dry_run: bool = False,
    ) -> dict[TopicPartition, int]:
        """Set the committed offsets of an empty group, clipped to the log; returns the new offsets."""
        ways = (to, offset, timestamp, shift_by)
        if sum(way is not None for way in ways) != 1 or to not in (None, "earliest", "latest"):
            raise ConfigError(
                "to", to, "pass exactly one of 'earliest', 'latest', offset=, timestamp= and shift_by="
            )
        directory = GroupDirectory(self._path, group_id) if topics is not None else self._known(group_id)
        with directory.lock:
            self._check_empty(directory)
            committed = self.offsets().committed(group_id)
            names = sorted(filter(self._is_there, committed)) if topics is None else self._named(topics)
            chosen: dict[TopicPartition, int] = {}
            for name in names:
                partition: LogReader = self._log.topic(name.topic).partition(name.partition)
                low, high = partition.start_offset, partition.last_stable_offset
                wanted = offset
                if to is not None:
                    wanted = low if to == "earliest" else high
                elif timestamp is not None:
                    wanted = partition.offset_for_timestamp(timestamp)
                elif shift_by is not None:
                    wanted = (committed[name].offset if name in committed else low) + shift_by
                chosen[name] = high if wanted is None else min(max(wanted, low), high)
            if chosen and not dry_run:
                stored = {name: OffsetAndMetadata(value) for name, value in chosen.items()}
                self.offsets().commit(group_id, stored, sync=True)
        return chosen

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for an empty group: for a reader that keeps its own progress and shows it here."""
        directory = GroupDirectory(self._path, group_id)
        with directory.lock:
            self._check_empty(directory)
            stored = {TopicPartition(*name): OffsetAndMetadata(offset) for name, offset in offsets.items()}
            self.offsets().commit(group_id, stored)

    def delete(self, group_id: str) -> None:
        """Delete an empty group and its committed offsets."""
        directory = self._known(group_id)
        with directory.lock:
            self._check_empty(directory)
            committed = self.offsets().committed(group_id)
            if committed:
                self.offsets().forget(group_id, committed)
            # crash: a group without offsets whose file remains -> delete it again
            directory.remove()

    def forget_topic(self, topic: str) -> None:
        """Delete the offsets that groups have committed for a topic, before the topic is deleted."""
        for group_id in self._committing():
            gone = [name for name in self.offsets().committed(group_id) if name.topic == topic]
            if gone:
                self.offsets().forget(group_id, gone)

    def _known(self, group_id: str) -> GroupDirectory:
        commits = isinstance(group_id, str) and self._count([TOPIC]) and self.offsets().committed(group_id)
        if not commits and not is_known_group(self._path, group_id):
            raise UnknownGroupError(group_id)
        return GroupDirectory(self._path, group_id)

    def _check_empty(self, directory: GroupDirectory) -> None:
        """Raise GroupNotEmptyError if a group has members; with its lock held, so that nobody joins."""
        with directory.changing() as state:
            remove_expired(state, directory, self._count, time.monotonic_ns())
            if state.members:
                raise GroupNotEmptyError(directory.group_id, len(state.members))

    def _named(self, topics: Iterable[str | tuple[str, int]]) -> list[TopicPartition]:
        """Return all partitions of the given topics, and the partitions given by number."""
        found: list[TopicPartition] = []
        for one in [topics] if isinstance(topics, str) else topics:
            if isinstance(one, str):
                found += [
                    TopicPartition(one, number) for number in range(len(self._log.topic(one).partitions))
                ]
            else:
                found.append(TopicPartition(*one))
        return found

    def _is_there(self, name: TopicPartition) -> bool:
        """Return whether a partition exists; offsets may be left of deleted ones."""
        with suppress(InvalidTopicError):
            return 0 <= name.partition < self._count([name.topic]).get(name.topic, 0)
        return False


def _progress(
    name: TopicPartition, partition: LogReader, committed: OffsetAndMetadata | None, owner: str | None
) -> PartitionDescription:
    offset = None if committed is None else committed.offset
    lag = None if offset is None else partition.lag(offset)
    return PartitionDescription(*name, offset, partition.last_stable_offset, lag, owner)
