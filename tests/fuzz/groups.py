"""Files of consumer groups: heartbeats, members, committed offsets; and what was published."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from commitlog import CommitLogError, ConsumerConfig, Record
from commitlog.errors import InconsistentGroupError
from commitlog.groups.directory import GroupDirectory
from commitlog.groups.heartbeats import SLOTS, Heartbeats
from commitlog.groups.member import GroupMember
from commitlog.groups.offsets import GroupOffsets
from commitlog.groups.state import GroupState, Member
from commitlog.publishing.publications import Publications
from fuzz.harness import Input, Target, WrongAnswer
from fuzz.mutations import mutated, mutated_json

_BOOT, _NOW = "boot", 10**15
_COUNTS = {"t": 4, "u": 2, "v": 1}


def _count(names: Iterable[str]) -> dict[str, int]:
    return {name: _COUNTS[name] for name in names if name in _COUNTS}


class GroupTarget(Target):
    """A group's files; a member joins, takes what is its own, looks after the group and leaves."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        (directory / "groups").mkdir()
        self._state = directory / "groups" / "g.json"
        self._beats = directory / "groups" / "g.beats"
        self._sound = _states()

    def names(self, error: CommitLogError) -> bool:
        return isinstance(error, InconsistentGroupError) or super().names(error)  # that is about its members

    def _live(self) -> str:
        group = GroupDirectory(str(self.directory), "g")
        group._boot = _BOOT
        settings = ConsumerConfig(
            client_id="client",
            partition_assignment_strategy=("range", "cooperative-sticky"),
            session_timeout_ms=10_000,
        )
        member = GroupMember(group, None, settings, _count, lambda: _NOW)
        member.join(["t", "u"])
        owned = member.take()
        member.tick()
        state = group._load()
        _check_state(state)
        settled = state.settled
        member.leave()
        return f"{len(owned)} owned, {settled}"


def _check_state(state: GroupState) -> None:
    if set(state.owners.values()) - set(state.members) or set(state.target) != set(state.members):
        raise WrongAnswer("partitions of somebody who is no member")
    given = [one for some in state.target.values() for one in some]
    if len(given) != len(set(given)) or {one.topic for one in given} - set(_COUNTS):
        raise WrongAnswer("a partition is given twice, or is not there")
    if len({one.slot for one in state.members.values()}) != len(state.members):
        raise WrongAnswer("two members have one slot")


def _states() -> list[bytes]:
    found = [GroupState(_BOOT).to_json()]
    for strategies in (("range",), ("cooperative-sticky", "range")):
        state = GroupState(_BOOT)
        for number in range(3):
            topics = ("t", "u") if number else ("t",)
            instance = "static" if number == 2 else None
            about = Member(
                f"m{number}", "c", instance, "host:1", topics, strategies, 10_000, number, number + 1
            )
            state.join(about, _count(["t", "u"]))
            for member_id in list(state.members):
                state.release(member_id, state.to_release(member_id))
                state.take(member_id)
        found.append(state.to_json())
    return found


class GroupStateTarget(GroupTarget):
    """groups/NAME.json"""

    name = "group-state"

    def seeds(self) -> list[Input]:
        return [Input(data) for data in self._sound]

    def mutate(self, random: Random, data: bytes, donor: bytes) -> bytes:
        return mutated_json(random, data) if random.random() < 0.7 else mutated(random, data, donor)

    def run(self, given: Input) -> str:
        if given.choice % 4:  # without files
            try:
                state = GroupState.from_json(given.data, _BOOT)
            except ValueError:  # then it is as if there were no group
                return "not believed"
            slot = next(
                one for one in range(SLOTS) if one not in {other.slot for other in state.members.values()}
            )
            strategies = ("range", "cooperative-sticky")
            member = Member("new", "c", None, "host:1", ("t", "u"), strategies, 1000, slot, 10)
            state.join(member, _count(["t", "u"]))
            for member_id in list(state.members):
                state.release(member_id, state.to_release(member_id))
                state.take(member_id)
            _check_state(state)
            if state.generation >= 1 << 62:  # just below it, and it will not be believed again
                return "far"
            if GroupState.from_json(state.to_json(), _BOOT).to_json() != state.to_json():
                raise WrongAnswer("another state comes back")
            return f"{len(state.members)} members"
        self._state.write_bytes(given.data)
        beats = Heartbeats.open(str(self._beats))
        for slot in range(5):
            beats.occupy(slot, slot + 1, _NOW)
        return self._live()


class HeartbeatsTarget(GroupTarget):
    """groups/NAME.beats"""

    name = "heartbeats"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        beats = Heartbeats.open(str(self._beats))
        self._seeds = [self._beats.read_bytes()]
        for slot in range(3):
            beats.occupy(slot, slot + 1, _NOW)
        beats.count_change()
        self._seeds.append(self._beats.read_bytes())

    def seeds(self) -> list[Input]:
        return [Input(data) for data in self._seeds]

    def mutate(self, random: Random, data: bytes, donor: bytes) -> bytes:
        if random.random() < 0.7:
            return mutated(random, data[:256], donor[:256])[:256].ljust(256, b"\0") + data[256:]
        return mutated(random, data, donor)

    def run(self, given: Input) -> str:
        self._state.write_bytes(self._sound[given.choice % len(self._sound)])
        self._beats.write_bytes(given.data)
        beats = Heartbeats.open(str(self._beats))
        for slot in (0, 1, given.choice % SLOTS, SLOTS - 1):
            beats.last_beat(slot)
            beats.beat(slot, 1, _NOW)
        beats.count_change()
        return self._live() if given.choice % 4 == 0 else "beats"


class _Records:
    """A partition of these records."""

    start_offset = 0
    high_watermark = 1
    has_transactions = False

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.held: list[Record] = []

    def records(self, start: int, end: int) -> Iterator[Record]:
        return iter(self.held)


class _RecordTarget(Target):
    """A record of an internal topic: JSON, the key in the first line, the value in the second."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._partition = _Records(directory)

    def mutate(self, random: Random, data: bytes, donor: bytes) -> bytes:
        lines = data.split(b"\n")
        place = random.randrange(len(lines))
        kind = random.random()
        if kind < 0.7:
            lines[place] = mutated_json(random, lines[place])
        elif kind < 0.8:
            lines[place] = b""
        else:
            return mutated(random, data, donor)
        return b"\n".join(lines)

    def _hold(self, data: bytes) -> None:
        key, _, value = data.partition(b"\n")
        self._partition.held = [Record(0, 0, key or None, value or None, ())]


class CommittedOffsetsTarget(_RecordTarget):
    """A record of __consumer_offsets."""

    name = "committed-offsets"

    def seeds(self) -> list[Input]:
        value = b'{"offset": 42, "metadata": "note"}'
        return [Input(b'["group", "topic", 0]\n' + value), Input(b'["group", "topic", 3]\n')]

    def run(self, given: Input) -> str:
        self._hold(given.data)
        offsets = GroupOffsets(self._partition)  # type: ignore[arg-type]
        groups = offsets.groups()
        for group_id in groups:
            for name, committed in offsets.committed(group_id).items():
                _check(name.topic, str, name.partition, int, committed.offset, int, committed.metadata, str)
                if committed.offset < 0:
                    raise WrongAnswer("this cannot be committed", f"{committed} {name}")
        return f"{len(groups)} groups"


class PublicationsTarget(_RecordTarget):
    """A record of __publications."""

    name = "publications"

    def seeds(self) -> list[Input]:
        staged = [
            ["orders", 0, "00f3a10000000001", 4096, 17, 123456],
            ["orders", 1, "00f3a10000000002", 8, 1, 0],
        ]
        values: list[Any] = [{"epoch": 7}, {"epoch": 7, "before": 6, "staged": staged}]
        values.append({"epoch": 0, "before": None, "staged": []})
        return [Input(b"transaction\n" + json.dumps(one).encode()) for one in values]

    def run(self, given: Input) -> str:
        self._hold(given.data)
        found = Publications(self._partition).unfinished()  # type: ignore[arg-type]
        for one in found:
            _check(one.txn_id, str, one.epoch, int)
            for staged in one.staged or ():
                _check(staged.topic, str, staged.partition, int, staged.file_id, int, staged.size_bytes, int)
                _check(staged.records, int, staged.checksum, int, staged.path, str)
        return f"{len(found)}"


def _check(*pairs: Any) -> None:
    for value, kind in zip(pairs[::2], pairs[1::2], strict=True):
        if type(value) is not kind:
            raise WrongAnswer(f"not of {kind.__name__}", value)
