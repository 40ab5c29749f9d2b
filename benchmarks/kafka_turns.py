"""Ours and Kafka in turns: the run, its stopwatch of clock and processors, and the table of the results."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import xxhash
from bench import Bench
from kafka_node import Node, NotMeasuredError
from report import OURS, human
from spark_cpu import Process, taken_between, taken_by_process
from spark_cpu import Taken as ProcessTime

TUNED, DEFAULT = "Kafka, tuned", "Kafka, default"
ENGINES = (OURS, TUNED, DEFAULT)
COLUMNS = (
    "work", OURS, TUNED, DEFAULT, "ratio to tuned; default", "… in processor time"
)  # fmt: skip

T = TypeVar("T")


class Taken(NamedTuple):
    """What a turn took; the processor time is None if a process ended and took its figure along."""

    seconds: float
    processor: float | None


class Content(NamedTuple):
    """The number of records and a hash over them that does not depend on their order."""

    records: int
    digest: int


def content_of(pairs: Iterable[tuple[bytes | None, bytes | None]]) -> Content:
    """Count keys and values, and hash them."""
    records = digest = 0
    hashed = xxhash.xxh64_intdigest
    for key, value in pairs:
        records += 1
        digest += hashed(b"%d " % len(key or b"") + (key or b"") + (value or b""))
    return Content(records, digest % (1 << 64))


def check(engine: str, found: object, expected: object) -> None:
    """Refuse figures of work that was not done."""
    if found != expected:
        raise AssertionError(f"{engine} has {found}, not {expected}")


@dataclass(frozen=True, slots=True)
class Row:
    """What the engines made of one kind of work; costs are in seconds, microseconds or bytes, one a round."""

    name: str
    work: str
    unit: str
    costs: dict[str, list[float]]
    processor: dict[str, list[float]] = field(default_factory=dict)
    amount: float | None = None  # of records a round, where the unit is a rate
    note: str = ""
    why: str = ""  # an engine without costs was not measured

    def cells(self) -> list[str]:
        figures = [self._figure(engine) for engine in ENGINES]
        return [self.work, *figures, self._ratios(self.costs), self._ratios(self.processor)]

    def _figure(self, engine: str) -> str:
        costs = self.costs.get(engine)
        if not costs:
            return f"not measured: {self.why}"
        shown = [self.amount / cost for cost in costs] if self.amount else list(costs)
        return f"{human(median(shown))} {self.unit} ({human(min(shown))} to {human(max(shown))})"

    def _ratios(self, costs: dict[str, list[float]]) -> str:
        """Say how many times less we take than tuned Kafka and than Kafka as it comes."""
        return "; ".join(filter(None, (ratio_of(costs, engine) for engine in (TUNED, DEFAULT))))

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def ratio_of(costs: dict[str, list[float]], engine: str) -> str:
    ours, theirs = costs.get(OURS), costs.get(engine)
    if not ours or not theirs or not median(ours):
        return ""
    return f"{median(theirs) / median(ours):.2f}"


def not_measured(name: str, work: str, why: str) -> Row:
    """Return the row of work that cannot be done here at all."""
    return Row(name, work, "", {}, why=why)


def end_children() -> None:
    """Kill every process that this one has started and that still runs, with those they have started."""
    for number, _ in taken_by_process(os.getpid()):
        if number != os.getpid():
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def markdown(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def heading() -> str:
    """Return the first two lines of the table."""
    return "\n".join([markdown(COLUMNS), markdown(["---", *["---:"] * (len(COLUMNS) - 1)])])


@dataclass
class Run:
    """What a row needs: folders, sizes, rounds, and the node of Kafka or the reason why there is none."""

    bench: Bench
    rows: int | None  # of every row, if given
    node: Node | None
    why: str = ""
    _topics: int = 0

    @property
    def quick(self) -> bool:
        return self.bench.quick

    @property
    def rounds(self) -> int:
        return 3 if self.quick else 5

    def size(self, full: int, quick: int) -> int:
        """Return the number of records of a row."""
        return self.rows or self.bench.pick(full, quick)

    @property
    def kafka(self) -> Node:
        if self.node is None:
            raise NotMeasuredError(self.why)
        return self.node

    def topic(self, partitions: int = 1, **settings: str) -> str:
        """Create a topic of Kafka, which stays until the end: clients that Spark caches may still know it."""
        self._topics += 1
        named = {name.replace("_", "."): value for name, value in settings.items()}
        return self.kafka.create_topic(f"bench-{self._topics}", partitions, named)

    def contenders(self, ours: T, tuned: T, default: T) -> dict[str, T]:
        """Return those that can be measured here."""
        found = {OURS: ours}
        return found if self.node is None else found | {TUNED: tuned, DEFAULT: default}

    def in_turns(self, contenders: Mapping[str, Callable[[], T]], warm_up: int = 0) -> dict[str, list[T]]:
        """Run every contender once a round, starting with another one each time; drop the first rounds."""
        found: dict[str, list[T]] = {name: [] for name in contenders}
        names = list(contenders)
        for number in range(warm_up + self.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                gc.collect()
                result = contenders[name]()
                if number >= warm_up:
                    found[name].append(result)
        return found

    def taken(self, work: Callable[[], object], *, kafka: bool, waits: bool = False) -> Taken:
        """Time this process, its children, and the broker where it is Kafka's turn.

        `waits` says that the work waits for each process that ends, so that no time is lost with it.
        """
        before, began = self._processors(kafka), perf_counter()
        work()
        seconds, after = perf_counter() - began, self._processors(kafka)
        if waits:
            return Taken(seconds, sum(map(sum, after.values())) - sum(map(sum, before.values())))
        used = taken_between(os.getpid(), before, after)
        return Taken(seconds, None if used is None else sum(used))

    def _processors(self, kafka: bool) -> dict[Process, ProcessTime]:
        found = taken_by_process(os.getpid())
        broker = -1 if kafka or self.node is None else self.node.process.pid
        return {process: taken for process, taken in found.items() if process[0] != broker}

    def row(
        self, name: str, work: str, unit: str, turns: dict[str, list[Taken]], amount: float | None = None,
        note: str = "",
    ) -> Row:  # fmt: skip
        """Make a row of what in_turns() found."""
        costs = {engine: [one.seconds for one in found] for engine, found in turns.items()}
        processor = {
            engine: [one.processor for one in found if one.processor is not None]
            for engine, found in turns.items()
        }
        return Row(name, work, unit, costs, processor, amount, note, self.why)
