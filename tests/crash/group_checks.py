"""What the journals of writers and members must agree on with the log, whoever was killed meanwhile."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from commitlog import CommitLog
from commitlog.groups.offsets import TOPIC as OFFSETS

from .group_kills import PARTITIONS, key_of, read

Contents = list[list[tuple[str, str]]]  # key and value of each record, by partition and offset


def contents(log: CommitLog) -> Contents:
    """Return all records; their offsets are dense, and the files whole."""
    found: Contents = []
    for number in range(PARTITIONS):
        partition = log.topic("t").partition(number)
        records = list(partition.records())
        assert [record.offset for record in records] == list(range(partition.next_offset))
        assert partition.verify().damage == ()
        found.append([(record.key.decode(), record.value.decode()) for record in records])
    return found


def check_no_errors(folder: Path) -> None:
    for path in [*folder.glob("*.writer"), *folder.glob("*.member")]:
        errors = [line for line in read(path) if line[0] == "error"]
        assert errors == [], f"{path.name}: {errors[0][1]}"


# --- writers


def check_numbered(name: str, lines: list[list[Any]], found: Contents) -> None:
    """Every batch is there once, in order, where its writer was told."""
    for partition, records in enumerate(found):
        own = [(key, value) for key, value in records if key.startswith(f"{name}.")]
        assert own == [(key_of(name, partition, number), str(number)) for number in range(len(own))]
    for what, *line in lines:
        if what == "numbered":
            partition, sequence, offset, count = line
            told = [(key_of(name, partition, one), str(one)) for one in range(sequence, sequence + count)]
            assert found[partition][offset : offset + count] == told


def check_sent(name: str, lines: list[list[Any]], found: Contents) -> None:
    """Every record that was acknowledged is where its writer was told; of the others, none twice.

    What a writer sent of a key is there in order and without a gap, up to where it was killed.
    """
    for what, *line in lines:
        if what == "sent":
            partition, offset, key, value = line
            assert found[partition][offset] == (key, value)
    by_key: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for partition, records in enumerate(found):
        for key, value in records:
            if key.startswith(f"{name}."):
                life, number = value.split(".")
                by_key[partition, key].append((int(life), int(number)))
    assert len(by_key) == len({key for _, key in by_key}), "a key belongs to one partition"
    for numbers in by_key.values():
        assert numbers[0][1] == 0
        for before, after in pairwise(numbers):
            assert after == (before[0], before[1] + 1) or (after[0] > before[0] and after[1] == 0)


# --- groups


@dataclass
class Episode:
    """A partition in the hands of a member, from when it was assigned until it went."""

    name: str
    partition: int
    start: int
    delivered: list[tuple[int, int, str, str]] = field(default_factory=list, repr=False)  # time, offset, ...


@dataclass(frozen=True)
class Commit:
    partition: int
    offset: int
    episode: str

    @property
    def member(self) -> str:
        return self.episode.rpartition(".")[0]


def episodes_of(lines: list[list[Any]]) -> list[Episode]:
    """Read a member's journal."""
    current: dict[int, Episode] = {}
    found: dict[str, Episode] = {}
    for what, *line in lines:
        if what == "assigned":
            partition, name, start = line
            found[name] = current[partition] = Episode(name, partition, start)
        elif what == "delivered":
            now, rows = line
            for partition, records in rows.items():
                current[int(partition)].delivered += [(now, *record) for record in records]
    return list(found.values())


def commits_of(log: CommitLog, group: str) -> list[list[Commit]]:
    """Return all that a group has committed, by partition, in order."""
    found: list[list[Commit]] = [[] for _ in range(PARTITIONS)]
    for record in log.topic(OFFSETS).partition(0).records():
        group_id, _, partition = json.loads(record.key)
        if group_id == group:
            value = json.loads(record.value)
            found[partition].append(Commit(partition, value["offset"], value["metadata"]))
    return found


def check_group(log: CommitLog, folder: Path, group: str, found: Contents) -> None:
    journals = {path.name: read(path) for path in folder.glob(f"{group}-*.member")}
    episodes = [one for lines in journals.values() for one in episodes_of(lines)]
    killed = {name for name, lines in journals.items() if lines[-1:] == [] or lines[-1][0] != "ended"}
    commits = commits_of(log, group)
    for partition in range(PARTITIONS):
        own = [one for one in episodes if one.partition == partition]
        records, history = found[partition], commits[partition]
        for one in own:
            check_episode(one, records)
        check_history(own, history)
        if group == "before":
            check_at_most_once(own, history, killed)
        else:
            check_at_least_once(own, len(records))
        if group != "auto":  # where commits tell whose they are
            check_one_owner(own, history)
    told = {Commit(*one) for lines in journals.values() for what, *rest in lines if what == "committed"
            for one in rest[0]}  # fmt: skip
    assert told <= {commit for history in commits for commit in history}


def check_episode(one: Episode, records: list[tuple[str, str]]) -> None:
    """What a member was handed is what the log has, from its start on and without a gap."""
    end = one.start + len(one.delivered)
    assert [offset for _, offset, _, _ in one.delivered] == list(range(one.start, end)), one.name
    assert [(key, value) for _, _, key, value in one.delivered] == records[one.start : end], one.name


def check_history(own: list[Episode], history: list[Commit]) -> None:
    """What is committed never goes back, and is where everybody starts."""
    offsets = [0, *(commit.offset for commit in history)]
    assert offsets == sorted(offsets)
    assert {one.start for one in own} <= set(offsets)


def check_one_owner(own: list[Episode], history: list[Commit]) -> None:
    """Nobody commits once another one has; each started where the one before ended."""
    starts = {one.name: one.start for one in own}
    last = Commit(-1, 0, "")
    seen = {""}
    for commit in history:
        if commit.episode != last.episode:
            assert commit.episode not in seen, f"{commit} after {last}"
            assert starts[commit.episode] == last.offset, f"{commit} after {last}"
            seen.add(commit.episode)
        last = commit


def check_at_least_once(own: list[Episode], end: int) -> None:
    """Everything was delivered; and, but for what was delivered again, in order."""
    seen = 0
    for _, offset in sorted((now, offset) for one in own for now, offset, _, _ in one.delivered):
        assert offset <= seen
        seen = max(seen, offset + 1)
    assert seen == end


def check_at_most_once(own: list[Episode], history: list[Commit], killed: set[str]) -> None:
    """Nothing was delivered twice, or before it was committed. What was not delivered at all was committed
    by a member that was killed right then.
    """
    delivered = [offset for one in own for _, offset, _, _ in one.delivered]
    assert len(delivered) == len(set(delivered))
    committed, there = 0, set(delivered)
    last_of = {commit.member: commit for commit in history}
    for commit in history:
        missing = [offset for offset in range(committed, commit.offset) if offset not in there]
        assert not missing or (commit.member in killed and last_of[commit.member] is commit), (
            commit,
            missing,
        )
        committed = commit.offset
    assert max(delivered, default=-1) < committed
