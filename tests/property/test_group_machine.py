"""Members of one group, each as in a process of its own, in whatever order they act, die and come back."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from commitlog.config import ConsumerConfig
from commitlog.errors import CommitFailedError, CommitLogError, FencedMemberError, RebalanceInProgressError
from commitlog.groups.directory import GroupDirectory
from commitlog.groups.member import GroupMember
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.groups.state import GroupState
from commitlog.record import TopicPartition

STRATEGIES = ["cooperative-sticky", "range", "roundrobin", "sticky"]
TOPICS = ["a", "b", "c"]
ACTS = [
    "look", "release", "take", "take", "tick", "reconcile", "commit_what_is_read",
    "bring_another", "leave", "fall_silent_or_come_back", "wait",
]  # fmt: skip
INTERVAL_MS, STEP_MS = 100, 200
MOST = 6

topics = st.sets(st.sampled_from(TOPICS), min_size=1)
picks = st.integers(0, 10**6)  # of something that is there


class Player:
    """A process with one member in it, and what the machine knows of it."""

    def __init__(self, member: GroupMember, instance: str | None, session_ms: int) -> None:
        self.member = member
        self.instance = instance
        self.session_ms = session_ms
        self.topics: set[str] = set()
        self.inside = False  # has joined, and had no reason yet to be none any more
        self.silent = False
        self.beat_ms = 0
        self.going: tuple[TopicPartition, ...] = ()
        self.reads: set[TopicPartition] = set()

    @property
    def id(self) -> str:
        assert self.member._member is not None
        return self.member._member.member_id


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp(prefix="commitlog-group-"))
        self.now_ms = 10**6
        self.counts = {"a": 3, "b": 2}
        self.players: list[Player] = []
        self.names = 0
        self.committed: dict[TopicPartition, int] = {}
        self.accepted: dict[TopicPartition, int] = {}
        self.generation = self.offset = 0
        self.observer = GroupDirectory(str(self.home), "g")

    def teardown(self) -> None:
        try:
            if self.alive:
                self.settle()
        finally:
            shutil.rmtree(self.home)

    # --- what the members are given

    def clock(self) -> int:
        return self.now_ms * 1_000_000

    def count(self, names: Iterable[str]) -> dict[str, int]:
        return {name: self.counts[name] for name in names if name in self.counts}

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Stand in for GroupOffsets."""
        self.committed.update((name, value.offset) for name, value in offsets.items())

    # --- what the machine knows

    def state(self) -> GroupState:
        with self.observer.lock:
            state = self.observer.look()
            return state

    def is_member(self, player: Player) -> bool:
        return player.id in self.state().members

    def fenced_by_another(self, player: Player) -> bool:
        return player.instance is not None and self.state().instance(player.instance) is not None

    def attempt(self, player: Player, act: Callable[[], Any]) -> Any:
        """Do what only a member may do; a zombie is told that it is one, and whether it may come back."""
        if self.is_member(player):
            return act()
        refusal = FencedMemberError if self.fenced_by_another(player) else CommitFailedError
        before = self.state().to_json()
        with pytest.raises(refusal) as told:
            act()
        assert not isinstance(told.value, RebalanceInProgressError)
        assert self.state().to_json() == before
        return None

    def pick(self, number: int) -> Player:
        return self.players[number % len(self.players)]

    # --- coming and going

    @initialize(
        common=st.sampled_from(STRATEGIES),
        others=st.permutations(STRATEGIES),
        statics=st.lists(st.booleans(), min_size=1, max_size=3),
    )
    def begin(self, common: str, others: list[str], statics: list[bool]) -> None:
        self.common = common
        for static in statics:
            self.join({"a", "b"}, others, 2, static, 1_000)
        self.settle()

    @precondition(lambda self: len(self.players) < MOST)
    @rule(
        topics=topics,
        others=st.permutations(STRATEGIES),
        known=st.integers(0, 3),
        static=st.booleans(),
        session_ms=st.sampled_from([1_000, 2_000]),
    )
    def one_more(
        self, topics: set[str], others: list[str], known: int, static: bool, session_ms: int
    ) -> None:
        self.join(topics, others, known, static, session_ms)

    def join(self, topics: set[str], others: list[str], known: int, static: bool, session_ms: int) -> None:
        strategies = [one for one in others if one == self.common or others.index(one) < known]
        self.names += 1
        self.add(f"static{self.names}" if static else None, tuple(strategies), session_ms, topics)

    def add(
        self, instance: str | None, strategies: tuple[str, ...], session_ms: int, topics: set[str]
    ) -> Player:
        wanted = ConsumerConfig(
            group_instance_id=instance,
            partition_assignment_strategy=strategies,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=INTERVAL_MS,
            max_poll_interval_ms=10**9,
        )
        offsets: Any = self
        directory = GroupDirectory(str(self.home), "g")
        player = Player(GroupMember(directory, offsets, wanted, self.count, self.clock), instance, session_ms)
        self.players.append(player)
        self.enter(player, topics)
        return player

    def enter(self, player: Player, topics: set[str]) -> None:
        player.member.join(topics)
        player.topics, player.inside, player.silent = topics, True, False
        player.beat_ms, player.reads = self.now_ms, set()

    def bring_another(self, player: Player) -> None:
        """A member like this one; of a static one, it is the same that was started once more."""
        if len(self.players) >= MOST:
            return
        if player.instance is None:
            self.add(None, player.member._config.strategies, player.session_ms, player.topics)
        else:
            self.start_once_more(player)

    def start_once_more(self, old: Player) -> None:
        before = self.state().instance(old.instance)
        had = set() if before is None else set(self.state().owned(before.member_id))
        for player in self.players:
            if player.instance == old.instance:
                player.inside = False
        new = self.add(old.instance, old.member._config.strategies, old.session_ms, old.topics)
        if before is not None and before.member_id not in self.state().members:
            assert set(self.state().owned(new.id)) in (had, set())

    def leave(self, player: Player) -> None:
        if len(self.players) == 1:
            return
        was_member = self.is_member(player)
        generation = self.state().generation
        player.inside = False
        player.member.leave()
        assert self.state().generation == generation + was_member
        self.players.remove(player)

    @precondition(lambda self: self.players)
    @rule(pick=picks, topics=topics)
    def subscribe(self, pick: int, topics: set[str]) -> None:
        player = self.pick(pick)
        player.member.subscribe(topics)
        if self.is_member(player):
            player.topics = topics

    # --- life and death

    @rule(ms=st.sampled_from([1, 90, 500, 1_100, 3_000]))
    def pass_time(self, ms: int) -> None:
        self.now_ms += ms

    def tick(self, player: Player) -> None:
        if self.is_member(player):
            player.beat_ms = self.now_ms
        player.member.tick()
        assert player.member.lost == (not self.is_member(player))

    def fall_silent_or_come_back(self, player: Player) -> None:
        player.silent = not player.silent

    def wait(self, player: Player) -> None:
        self.now_ms += player.session_ms // 3

    @rule()
    def everybody_alive_ticks(self) -> None:
        """Twice, for the first time after a long while one lets the others be heard first."""
        for player in self.alive * 2:
            self.tick(player)
        if any(self.is_member(player) for player in self.alive):
            for player in self.players:
                if self.is_member(player):
                    assert self.now_ms - player.beat_ms <= player.session_ms

    # --- from hand to hand, in steps between which others act

    @precondition(lambda self: self.players)
    @rule(acts=st.lists(st.tuples(picks, st.sampled_from(ACTS)), min_size=10, max_size=40))
    def act(self, acts: list[tuple[int, str]]) -> None:
        for pick, name in acts:
            getattr(self, name)(self.pick(pick))
            self.check()

    def look(self, player: Player) -> None:
        player.going = self.attempt(player, player.member.to_release) or ()
        assert set(player.going) <= set(self.state().owned(player.id))

    def release(self, player: Player) -> None:
        player.reads -= set(player.going)
        self.attempt(player, lambda: player.member.release(player.going))
        assert not set(self.state().owned(player.id)) & set(player.going)

    def take(self, player: Player) -> None:
        before = dict(self.state().owners)
        found = self.attempt(player, player.member.take)
        if found is not None:
            assert found == set(self.state().owned(player.id))
            assert all(before.get(one, player.id) == player.id for one in found)
            player.reads = found

    # --- commits

    @precondition(lambda self: self.players)
    @rule(pick=picks, name=st.sampled_from(TOPICS), number=st.integers(0, 3))
    def commit_one(self, pick: int, name: str, number: int) -> None:
        self.offset += 1
        self.commit_all(self.pick(pick), {TopicPartition(name, number)}, self.offset)

    def commit_what_is_read(self, player: Player) -> None:
        self.offset += 1
        self.commit_all(player, player.reads, self.offset)

    def commit_all(self, player: Player, names: set[TopicPartition], offset: int) -> None:
        owns_all = names <= set(self.state().owned(player.id)) and self.is_member(player)
        try:
            player.member.commit({name: OffsetAndMetadata(offset) for name in names})
        except CommitLogError as refused:
            assert not owns_all
            assert isinstance(refused, FencedMemberError | CommitFailedError)
        else:
            assert owns_all
            self.accepted.update(dict.fromkeys(names, offset))

    # --- topics

    @rule(name=st.sampled_from(TOPICS), more=st.integers(1, 3))
    def grow(self, name: str, more: int) -> None:
        self.counts[name] = min(self.counts.get(name, 0) + more, 5)

    @rule(name=st.sampled_from(TOPICS))
    def vanish(self, name: str) -> None:
        self.counts.pop(name, None)

    # --- in the end

    @precondition(lambda self: any(not player.silent for player in self.players))
    @rule()
    def settle(self) -> None:
        """Those who live go on as consumers do: they tick, and look when they must."""
        self.go_on(rounds=3)
        for _ in range(2_000 // STEP_MS + 2):
            self.now_ms += STEP_MS
            for player in self.alive:
                self.tick(player)
        self.go_on(rounds=4)
        if not self.alive:  # those who were left were fenced
            return
        state = self.state()
        assert not any(player.member.must_look for player in self.alive)
        assert state.settled
        assert set(state.members) == {player.id for player in self.alive}
        subscribed = {topic for player in self.alive for topic in player.topics}
        there = {
            TopicPartition(name, number) for name in subscribed for number in range(self.counts.get(name, 0))
        }
        assert set(state.owners) == there
        for player in self.alive:
            assert player.reads == set(state.owned(player.id))
            assert {one.topic for one in player.reads} <= player.topics

    @property
    def alive(self) -> list[Player]:
        return [player for player in self.players if not player.silent]

    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            for player in self.alive:
                if player.member.must_look:
                    self.reconcile(player)

    def reconcile(self, player: Player) -> None:
        try:
            going = player.member.to_release()
            player.reads -= set(going)
            player.member.release(going)
            player.reads = player.member.take()
        except FencedMemberError:
            player.silent = True  # it has to end
        except CommitFailedError:
            self.enter(player, player.topics)

    # --- always

    @invariant()
    def check(self) -> None:
        self.nobody_is_removed_before_its_time()
        self.a_partition_has_one_owner_who_is_a_member()
        self.what_members_read_is_theirs_alone()
        self.the_target_gives_everything_to_somebody_who_wants_it()
        self.slots_are_not_shared()
        self.generations_only_grow()
        self.offsets_come_from_owners()

    def nobody_is_removed_before_its_time(self) -> None:
        for player in self.players:
            if player.inside and not self.is_member(player):
                assert self.now_ms - player.beat_ms > player.session_ms
                player.inside = False

    def a_partition_has_one_owner_who_is_a_member(self) -> None:
        path = self.home / "groups" / "g.json"
        stored = json.loads(path.read_bytes()) if path.exists() else {"owners": [], "members": []}
        names = [(topic, number) for topic, number, _ in stored["owners"]]
        assert len(names) == len(set(names))
        members = {one["member_id"] for one in stored["members"]}
        assert {owner for _, _, owner in stored["owners"]} <= members
        assert members == set(self.state().members)

    def what_members_read_is_theirs_alone(self) -> None:
        read: set[TopicPartition] = set()
        for player in self.players:
            if self.is_member(player):
                assert player.reads <= set(self.state().owned(player.id))
                assert not player.reads & read
                read |= player.reads

    def the_target_gives_everything_to_somebody_who_wants_it(self) -> None:
        state = self.state()
        given = [one for target in state.target.values() for one in target]
        there = [
            TopicPartition(name, number) for name, many in state.partitions.items() for number in range(many)
        ]
        assert sorted(given) == sorted(there)
        for member_id, target in state.target.items():
            assert {one.topic for one in target} <= set(state.members[member_id].topics)

    def slots_are_not_shared(self) -> None:
        slots = [one.slot for one in self.state().members.values()]
        assert len(slots) == len(set(slots))

    def generations_only_grow(self) -> None:
        assert self.state().generation >= self.generation
        self.generation = self.state().generation

    def offsets_come_from_owners(self) -> None:
        assert self.committed == self.accepted


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(settings(), stateful_step_count=30)
