"""GroupMember: a consumer's membership in its group, from joining to leaving.

The consumer's own thread (join, release, take, commit) and its background thread (tick) synchronize on the
group's lock.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from commitlog.config import ConsumerConfig
from commitlog.errors import ConfigError
from commitlog.groups.directory import GroupDirectory
from commitlog.groups.heartbeats import SLOTS
from commitlog.groups.offsets import GroupOffsets, OffsetAndMetadata
from commitlog.groups.state import GroupState, Member
from commitlog.record import TopicPartition

_logger = logging.getLogger("commitlog.groups")
_MS = 1_000_000  # nanoseconds
_FAR_NS = 3600 * 1000 * _MS

CountPartitions = Callable[[Iterable[str]], dict[str, int]]  # of those of the topics that exist


class GroupMetadata(NamedTuple):
    """The identity of a consumer in its group, for programs that store offsets with their results."""

    group_id: str
    generation: int
    member_id: str


class GroupMember:
    """A member, from join() to leave()."""

    def __init__(
        self,
        directory: GroupDirectory,
        offsets: GroupOffsets,
        config: ConsumerConfig,
        count_partitions: CountPartitions,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.directory = directory
        self.offsets = offsets
        self._config = config
        self.count_partitions = self._count = count_partitions
        self._clock = clock
        self._member: Member | None = None
        self._seen = -1  # the count of changes at the last take()
        self._ticked_ns = 0
        self._idle_since_ns: int | None = None
        self._lost: Member | None = None

    # --- membership

    @property
    def joined(self) -> bool:
        """Whether the member has joined and not left."""
        return self._member is not None

    @property
    def known(self) -> bool:
        """Whether this is still a member of the group."""
        with self.directory.lock:
            state = self.directory.look()
            return not self.lost and self._member is not None and self._member.member_id in state.members

    @property
    def metadata(self) -> GroupMetadata:
        """The identity of this member, and its generation."""
        member, group_id = self._member, self.directory.group_id
        if member is None:
            return GroupMetadata(group_id, -1, "")
        with self.directory.lock:
            state = self.directory.look()
            known = state.members.get(member.member_id, member)
            return GroupMetadata(group_id, known.generation, member.member_id)

    def join(self, topics: Iterable[str]) -> None:
        """Join the group, to read these topics."""
        wanted = tuple(sorted(topics))
        with self.directory.lock:
            with self.directory.changing() as state:
                self._remove_expired(state)
                member = self._new_member(state, wanted)
                state.join(member, self._count(state.topics.union(wanted)))
            # crash: a new member whose slot is empty or has an old token -> removed as a silent one
            self._ticked_ns = self._clock()
            self.directory.heartbeats.occupy(member.slot, member.token, self._ticked_ns)
            self._member, self._seen = member, -1
        self._log("joined", member, state)

    def _log(self, what: str, member: Member, state: GroupState) -> None:
        _logger.info(
            "%s %s group %s: generation %d has %d members",
            member.member_id, what, self.directory.group_id, state.generation, len(state.members),
        )  # fmt: skip

    def subscribe(self, topics: Iterable[str]) -> None:
        """Change the topics to read, if this is still a member."""
        member, wanted = self._member, tuple(sorted(topics))
        with self.directory.lock, self.directory.changing() as state:
            if member is not None and member.member_id in state.members:
                state.subscribe(member.member_id, wanted, self._count(state.topics.union(wanted)))

    def _new_member(self, state: GroupState, topics: tuple[str, ...]) -> Member:
        config = self._config
        before = state.instance(config.group_instance_id)
        taken = {member.slot for member in state.members.values() if member is not before}
        slot = next((slot for slot in range(SLOTS) if slot not in taken), None)
        if slot is None:
            raise ConfigError("group_id", self.directory.group_id, f"the group has {SLOTS} members already")
        return Member(
            member_id=f"{config.group_instance_id or config.client_id or 'consumer'}-{os.urandom(8).hex()}",
            client_id=config.client_id,
            instance_id=config.group_instance_id,
            process=f"{os.uname().nodename}:{os.getpid()}",
            topics=topics,
            strategies=config.strategies,
            session_timeout_ms=config.session_timeout_ms,
            slot=slot,
            token=(int.from_bytes(os.urandom(8), "little") >> 2) + 1,
        )

    def leave(self) -> None:
        """Leave the group now. A static member that will return calls stop() instead."""
        member = self._member
        if member is not None:
            with self.directory.lock, self.directory.changing() as state:
                if member.member_id in state.members:
                    remove(state, self._count, [member])
            self._log("left", member, state)
            self.stop()

    def stop(self) -> None:
        """Stop sending heartbeats."""
        self._member = None

    @property
    def lost(self) -> bool:
        """Whether this lost its membership without leaving."""
        # after joining again this is another member, and the loss of the first one does not count
        return self._lost is not None and self._lost is self._member

    # --- towards the target

    @property
    def must_look(self) -> bool:
        """Whether the group has changed since take() was called."""
        return self.lost or self.directory.heartbeats.changes != self._seen

    def to_release(self) -> tuple[TopicPartition, ...]:
        """Return the partitions to release; CommitFailedError if this is no longer a member."""
        with self.directory.lock:
            state = self.directory.look()
            return state.to_release(self._known_in(state))

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Release partitions, so that others may take them."""
        with self.directory.lock, self.directory.changing() as state:
            state.release(self._known_in(state), partitions)

    def take(self) -> set[TopicPartition]:
        """Take the free partitions in the target; returns all partitions owned now."""
        with self.directory.lock:
            with self.directory.changing() as state:
                member_id = self._known_in(state)
                state.take(member_id)
                owned = set(state.owned(member_id))
                going = state.to_release(member_id)  # a newer generation may have started meanwhile
            self._seen = -1 if going else self.directory.heartbeats.changes
        return owned

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets; refused unless this member owns all these partitions."""
        with self.directory.lock:
            state = self.directory.look()
            state.check_commit(self.directory.group_id, self._member, offsets)
            # no partition changes hands while the lock is held, so the owner makes this append
            self.offsets.commit(self.directory.group_id, offsets)

    def _known_in(self, state: GroupState) -> str:
        assert self._member is not None
        state.check_member(self.directory.group_id, self._member.member_id, self._member.instance_id)
        return self._member.member_id

    # --- heartbeats, in the background

    def polling(self) -> None:
        """Note that the consumer is inside poll()."""
        self._idle_since_ns = None

    def idle(self) -> None:
        """Note that poll() has returned; it must be called again within max_poll_interval_ms."""
        self._idle_since_ns = self._clock()

    def beat(self) -> float:
        """Send a heartbeat; returns the seconds until the next one.

        It takes no lock, so a process that holds the group's lock for long does not silence the others.
        """
        member, now = self._member, self._clock()
        if member is None or self.lost or self._is_left_alone(now):
            pass  # its silence lets the others notice
        elif not self.directory.heartbeats.beat(member.slot, member.token, now):
            self._lost = member
        return self._config.heartbeat_interval_ms / 1000

    def _is_left_alone(self, now: int) -> bool:
        idle = self._idle_since_ns
        return idle is not None and now - idle > self._config.max_poll_interval_ms * _MS

    def tick(self) -> float:
        """Send a heartbeat and remove silent members; returns the seconds until the next tick."""
        member, now = self._member, self._clock()
        interval = self._config.heartbeat_interval_ms / 1000
        if member is None or self.lost:
            return interval
        if self._is_left_alone(now):
            self._give_up(member)
            return interval
        self.beat()
        if self.lost:
            return interval
        # after the whole machine was suspended everybody was silent: let the others send heartbeats first
        most_ms = (self._config.heartbeat_interval_ms + self._config.session_timeout_ms) // 2
        stood_still = now - self._ticked_ns > most_ms * _MS
        self._ticked_ns = now
        if stood_still:
            return interval
        self._look_after_the_group()
        return min(interval, self._next_expiry() + 0.001)

    def _give_up(self, member: Member) -> None:
        """Leave because the consumer does not poll. A static member falls silent instead."""
        _logger.warning(
            "%s leaves group %s: poll() was not called for max_poll_interval_ms = %d",
            member.member_id, self.directory.group_id, self._config.max_poll_interval_ms,
        )  # fmt: skip
        with self.directory.lock, self.directory.changing() as state:
            if self._member is member:
                self._lost = member
                if member.instance_id is None and member.member_id in state.members:
                    remove(state, self._count, [member])

    def _look_after_the_group(self) -> None:
        with self.directory.lock:
            state = self.directory.look()
            due = (
                expired(state, self.directory, self._clock()) or self._count(state.topics) != state.partitions
            )
        if due:
            with self.directory.lock, self.directory.changing() as state:
                if not self._remove_expired(state) and self._count(state.topics) != state.partitions:
                    state.rebalance(self._count(state.topics))
                    _logger.info(
                        "group %s: generation %d, because the number of partitions changed",
                        self.directory.group_id, state.generation,
                    )  # fmt: skip

    def _remove_expired(self, state: GroupState) -> bool:
        return remove_expired(state, self.directory, self._count, self._clock())

    def _next_expiry(self) -> float:
        """Return the seconds until the first member would have been silent for too long."""
        now, beats = self._clock(), self.directory.heartbeats
        with self.directory.lock:
            state = self.directory.look()
            ends = [
                beats.last_beat(one.slot) + one.session_timeout_ms * _MS for one in state.members.values()
            ]
        return max(min(ends, default=now) - now, 0) / 1e9


def expired(state: GroupState, directory: GroupDirectory, now_ns: int) -> list[Member]:
    """Return the members that have been silent for longer than their session_timeout_ms.

    A heartbeat far ahead of the clock is damage, and counts as silence: its member would never expire.
    """
    beats = directory.heartbeats
    silences = [(one, now_ns - beats.last_beat(one.slot)) for one in state.members.values()]
    return [one for one, silent in silences if not -_FAR_NS < silent <= one.session_timeout_ms * _MS]


def remove_expired(
    state: GroupState, directory: GroupDirectory, count_partitions: CountPartitions, now_ns: int
) -> bool:
    """Remove the members that have been silent for too long; returns whether there were any."""
    silent = expired(state, directory, now_ns)
    for member in silent:
        _logger.warning(
            "%s of group %s was silent for session_timeout_ms = %d: its partitions are free",
            member.member_id, directory.group_id, member.session_timeout_ms,
        )  # fmt: skip
    if silent:
        remove(state, count_partitions, silent)
    return bool(silent)


def remove(state: GroupState, count_partitions: CountPartitions, members: list[Member]) -> None:
    """Remove members, and start a new generation without them."""
    gone = {member.member_id for member in members}
    stay = {topic for one in state.members.values() if one.member_id not in gone for topic in one.topics}
    state.remove(gone, count_partitions(stay))
