"""The rows of clients beside Kafka's: produce, consume, latency, compaction and size on disk.

Kafka is used through confluent-kafka, the fastest client that Python has, and in an event loop through
aiokafka.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import monotonic, monotonic_ns, sleep
from typing import Any

import compaction
import data
import engine
from data import Batch
from kafka_turns import DEFAULT, TUNED, Content, Row, Run, Taken, check, content_of
from limits import child
from report import OURS

import commitlog
from commitlog import aio

# librdkafka's defaults stop fetching for a second once 100,000 messages wait, so tuned clients fetch ahead.
PRODUCER = {
    "batch.size": 1 << 20, "batch.num.messages": 100_000, "linger.ms": 20,
    "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 20,
}  # fmt: skip
CONSUMER = {
    "queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1 << 20, "fetch.queue.backoff.ms": 1,
    "max.partition.fetch.bytes": 16 << 20, "fetch.max.bytes": 64 << 20,
    "receive.message.max.bytes": 128 << 20, "socket.receive.buffer.bytes": 1 << 20,
}  # fmt: skip
PROMPT = {"linger.ms": 0, "socket.nagle.disable": True}
POLL_RECORDS = 500
TASKS = 100
CLEANER_SECONDS = 600
SILENCE_SECONDS = 60
WARM_UP = 100  # records whose latency is not counted
CLEANER = {"log.cleaner.io.buffer.size": str(16 << 20), "log.cleaner.dedupe.buffer.size": str(512 << 20)}
CLEANER_DEFAULT = {
    "log.cleaner.io.buffer.size": str(512 << 10),
    "log.cleaner.dedupe.buffer.size": str(128 << 20),
}
CLEANED = re.compile(
    r"cleaned log (\S+)-0 .*?\n\s*([\d,.]+) MB of log processed in ([\d,.]+) seconds \(([\d,.]+) MB/sec\)"
)


def pairs_of(batches: Iterable[Batch]) -> Iterator[tuple[bytes, bytes]]:
    for batch in batches:
        yield from zip(batch.keys, batch.values, strict=True)


# --- produce -------------------------------------------------------------------------------------


def produce(run: Run, partitions: int, acks: Any = 1) -> Iterator[Row]:
    """Send keyed records one by one, and wait until the last one is acknowledged."""
    records = run.size(1_000_000, 100_000)
    batches = data.make("produced", records, 90, 90).batches
    expected = content_of(pairs_of(batches))
    turns = run.in_turns(
        run.contenders(
            partial(produce_ours, run, batches, partitions, acks, expected),
            partial(produce_kafka, run, batches, partitions, PRODUCER, expected, TUNED),
            partial(produce_kafka, run, batches, partitions, {}, expected, DEFAULT),
        )
    )
    if acks == "all":
        name, work = "produce_synced", 'produce one by one, `acks="all"`, 1 partition'
        note = "Ours is synced to the disk when the last record is acknowledged; Kafka does not sync."
    else:
        name = f"produce_{partitions}"
        work = f"produce one by one, keyed, {partitions} partition{'s' * (partitions > 1)}"
        note = (
            "Neither is synced: a record survives a killed process. confluent-kafka has acks=all throughout."
        )
    yield run.row(name, work, "rec/s", turns, records, note)


def produce_ours(run: Run, batches: list[Batch], partitions: int, acks: Any, expected: Content) -> Taken:
    with run.bench.scratch("produced") as path, commitlog.open(path) as log:
        topic = log.create_topic(engine.TOPIC, partitions, engine.WRITTEN)
        with log.producer(acks=acks) as producer:
            taken = run.taken(partial(send_all, producer, batches), kafka=False)
        found = content_of((one.key, one.value) for partition in topic for one in partition.records())
    check(OURS, found, expected)
    return taken


def send_all(producer: commitlog.Producer, batches: list[Batch]) -> None:
    send, topic = producer.send, engine.TOPIC
    for batch in batches:
        for key, value in zip(batch.keys, batch.values, strict=True):
            send(topic, value, key)
    producer.flush()


def produce_kafka(
    run: Run, batches: list[Batch], partitions: int, settings: Mapping[str, Any], expected: Content, name: str
) -> Taken:
    topic = run.topic(partitions)
    producer = connected(run, topic, settings)
    taken = run.taken(partial(produce_all, producer, topic, pairs_of(batches)), kafka=True)
    check(name, content_of(consumed(run, topic, partitions)), expected)
    return taken


def connected(run: Run, topic: str, settings: Mapping[str, Any]) -> Any:
    """Return a producer that has found the topic, so that no turn pays for connecting."""
    from confluent_kafka import Producer

    producer = Producer(run.kafka.client(settings))
    producer.list_topics(topic, timeout=60)
    return producer


def produce_all(
    producer: Any, topic: str, pairs: Iterable[tuple[bytes | None, bytes | None]], **more: Any
) -> None:
    produce = producer.produce
    for key, value in pairs:
        while True:
            try:
                produce(topic, value, key, **more)
            except BufferError:  # its queue is full: let it send
                producer.poll(0.01)
            else:
                break
    flush(producer)


def flush(producer: Any) -> None:
    left = producer.flush(120)
    if left:
        raise AssertionError(f"Kafka did not acknowledge {left} records within 120 s")


def consumed(run: Run, topic: str, partitions: int) -> Iterator[tuple[bytes, bytes]]:
    """Read keys and values of a topic to its end."""
    from confluent_kafka import KafkaError, TopicPartition

    reader = consumer(run, CONSUMER | {"enable.partition.eof": True})
    try:
        reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        unfinished, give_up = partitions, monotonic() + SILENCE_SECONDS
        while unfinished:
            found = reader.consume(10_000, 0.2)  # which waits as long for fewer
            if found:
                give_up = monotonic() + SILENCE_SECONDS
            elif monotonic() > give_up:
                raise AssertionError(f"Kafka sent nothing for {SILENCE_SECONDS} s")
            for message in found:
                problem = message.error()
                if problem is None:
                    yield message.key(), message.value()
                elif problem.code() == KafkaError._PARTITION_EOF:
                    unfinished -= 1
                else:
                    raise AssertionError(f"Kafka: {problem}")
    finally:
        reader.close()


def consumer(run: Run, settings: Mapping[str, Any]) -> Any:
    from confluent_kafka import Consumer

    own = {"group.id": "benchmark", "enable.auto.commit": False, "auto.offset.reset": "error"}
    return Consumer(run.kafka.client({**own, **settings}))


# --- produce in an event loop --------------------------------------------------------------------


def produce_awaited(run: Run) -> Iterator[Row]:
    """Send from many tasks of an event loop, each of which awaits its record before it sends the next."""
    records = run.size(100_000, 10_000)
    batches = data.make("awaited", records, 90, 90).batches
    expected = content_of(pairs_of(batches))
    turns = run.in_turns(
        run.contenders(
            partial(awaited_ours, run, batches, expected),
            partial(awaited_kafka, run, batches, {"max_batch_size": 1 << 20}, expected, TUNED),
            partial(awaited_kafka, run, batches, {}, expected, DEFAULT),
        )
    )
    work = f"`await producer.send()` from {TASKS} tasks, 1 partition"
    note = "Neither lingers, and neither is synced. Kafka is used through aiokafka, with acks=1."
    yield run.row("produce_awaited", work, "rec/s", turns, records, note)


def awaited_ours(run: Run, batches: list[Batch], expected: Content) -> Taken:
    async def work() -> None:
        async with aio.CommitLog(log).producer(linger_ms=0) as producer:
            await await_all(partial(producer.send, engine.TOPIC), batches)

    with run.bench.scratch("awaited") as path, commitlog.open(path) as log:
        topic = log.create_topic(engine.TOPIC, 1, engine.WRITTEN)
        taken = run.taken(lambda: asyncio.run(work()), kafka=False)
        found = content_of((one.key, one.value) for partition in topic for one in partition.records())
    check(OURS, found, expected)
    return taken


def awaited_kafka(
    run: Run, batches: list[Batch], settings: Mapping[str, Any], expected: Content, name: str
) -> Taken:
    from aiokafka import AIOKafkaProducer

    topic = run.topic(1)

    async def work() -> None:
        async with AIOKafkaProducer(bootstrap_servers=run.kafka.address, **settings) as producer:
            await await_all(partial(producer.send_and_wait, topic), batches)

    taken = run.taken(lambda: asyncio.run(work()), kafka=True)
    check(name, content_of(consumed(run, topic, 1)), expected)
    return taken


async def await_all(send: Callable[[bytes, bytes], Awaitable[object]], batches: list[Batch]) -> None:
    """Divide the records among tasks; each awaits one after another."""
    pairs = pairs_of(batches)

    async def task() -> None:
        for key, value in pairs:
            await send(value, key)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(TASKS):
            tasks.create_task(task())


# --- consume -------------------------------------------------------------------------------------


def consume(run: Run) -> Iterator[Row]:
    """Read a partition from its beginning, 500 records at a time, and look at each value."""
    records = run.size(1_000_000, 100_000)
    batches = data.make("consumed", records, 90, 90).batches
    size = sum(len(value) for _, value in pairs_of(batches))
    with run.bench.scratch("consumed") as path:
        with commitlog.open(path) as log:
            partition = log.create_topic(engine.TOPIC, config=engine.WRITTEN).partition(0)
            for batch in batches:
                partition.append_many(batch.values, keys=batch.keys)
            expected = content_of((one.key, one.value) for one in partition.records())
        topic = ""
        if run.node is not None:
            topic = run.topic()
            produce_all(connected(run, topic, PRODUCER), topic, pairs_of(batches))
            check(TUNED, content_of(consumed(run, topic, 1)), expected)
        turns = run.in_turns(
            run.contenders(
                partial(consume_ours, run, path, (records, size)),
                partial(consume_kafka, run, topic, CONSUMER, (records, size)),
                partial(consume_kafka, run, topic, {}, (records, size)),
            )
        )
    note = (
        f"{POLL_RECORDS} records a call. Kafka's defaults wait a second whenever 100,000 records are queued "
        "(`fetch.queue.backoff.ms`)."
    )
    yield run.row("consume", "consume 500 at a time", "rec/s", turns, records, note)


def consume_ours(run: Run, path: Path, expected: tuple[int, int]) -> Taken:
    def work() -> None:
        records = read = 0
        while records < expected[0]:
            for found in reader.poll(1, max_records=POLL_RECORDS).values():
                records += len(found)
                for record in found:
                    read += len(record.value)
        check(OURS, (records, read), expected)

    with commitlog.open(path, mode="r") as log, log.consumer(engine.TOPIC) as reader:
        return run.taken(work, kafka=False)


def consume_kafka(run: Run, topic: str, settings: Mapping[str, Any], expected: tuple[int, int]) -> Taken:
    from confluent_kafka import TopicPartition

    def work() -> None:
        records = read = 0
        reader.assign([TopicPartition(topic, 0, 0)])
        while records < expected[0]:
            found = reader.consume(min(POLL_RECORDS, expected[0] - records), 60)
            records += len(found)
            for message in found:
                read += len(message.value())
        check("Kafka", (records, read), expected)

    reader = consumer(run, settings)
    try:
        reader.list_topics(topic, timeout=60)
        return run.taken(work, kafka=True)
    finally:
        reader.close()


# --- latency -------------------------------------------------------------------------------------


def latency(run: Run) -> Iterator[Row]:
    """Send a record a millisecond; another process receives it."""
    count = 1_000 if run.quick else 5_000
    found: dict[str, list[tuple[list[float], Taken]]] = run.in_turns(
        run.contenders(
            partial(latency_ours, run, count),
            partial(latency_kafka, run, count, PROMPT),
            partial(latency_kafka, run, count, {}),
        )
    )
    processor = {
        name: [taken.processor for _, taken in turns if taken.processor is not None]
        for name, turns in found.items()
    }
    note = (
        "From `send()` to the receipt in another process, a record a millisecond. Ours and tuned Kafka do "
        "not linger; Kafka's default is 5 ms."
    )
    for percent in (50, 99):
        costs = {name: [percentile(times, percent) for times, _ in turns] for name, turns in found.items()}
        work = f"latency, process to process, p{percent}"
        yield Row(f"latency_p{percent}", work, "µs", costs, processor, note=note, why=run.why)


def percentile(micros: list[float], percent: int) -> float:
    return sorted(micros)[len(micros) * percent // 100]


def latency_ours(run: Run, count: int) -> tuple[list[float], Taken]:
    with run.bench.scratch("latency") as path:
        log, _ = engine.create(path)
        with log, log.producer(linger_ms=0) as producer:
            send = partial(producer.send, engine.TOPIC)
            return in_a_process(run, count, send, "receive", path, kafka=False)


def latency_kafka(run: Run, count: int, settings: Mapping[str, Any]) -> tuple[list[float], Taken]:
    topic = run.topic()
    producer = connected(run, topic, settings)
    send = partial(producer.produce, topic)
    found = in_a_process(run, count, send, "receive-from-kafka", run.kafka.address, topic, kafka=True)
    flush(producer)
    return found


def in_a_process(
    run: Run, count: int, send: Callable[[bytes], object], *receiver: object, kafka: bool
) -> tuple[list[float], Taken]:
    """Send the time to a child, and return what it measured in microseconds."""
    taken: list[int] = []

    def work() -> None:
        for _ in range(WARM_UP + count):
            send(b"%d" % monotonic_ns())
            sleep(0.001)
        output, _ = process.communicate()
        taken.extend(json.loads(output))

    with child(*receiver, WARM_UP + count) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it is there
            cost = run.taken(work, kafka=kafka, waits=True)
        finally:
            process.kill()
    check("the receiver", len(taken), WARM_UP + count)
    return [one / 1000 for one in taken[WARM_UP:]], cost


# --- compaction ----------------------------------------------------------------------------------


def compact(run: Run) -> Iterator[Row]:
    """Compact records of 100,000 keys once; the segment that is being written is left alone by both."""
    records = run.size(2_000_000, 200_000)
    keys = min(compaction.KEYS, max(records // 10, 1))
    batches = data.make("compacted", records, 90, 90).batches
    names = [b"%010d" % number for number in range(keys)]
    for number, batch in enumerate(batches):
        batch.keys[:] = [names[(number * 7919 + at * 31) % keys] for at in range(len(batch.keys))]
    latest = dict(pairs_of(batches)) | {MARKER: MARKER}
    expected = content_of(latest.items())
    turns = run.in_turns(
        run.contenders(
            partial(compact_ours, run, batches, expected),
            partial(compact_kafka, run, batches, CLEANER, expected),
            partial(compact_kafka, run, batches, CLEANER_DEFAULT, expected),
        )
    )
    note = (
        f"{keys:,} keys, all of it dirty. Kafka's time is what its cleaner reports; the tuned one has larger "
        "buffers."
    )
    yield run.row("compaction", "compaction, one pass", "rec/s", turns, records, note)


MARKER = b"marker"  # the record of the active segment


def compact_ours(run: Run, batches: list[Batch], expected: Content) -> Taken:
    with run.bench.scratch("compaction") as path:
        log, partition = engine.create(path, **engine.WRITTEN, **compaction.SETTINGS)
        with log:
            for batch in batches:
                partition.append_many(batch.values, keys=batch.keys)
            partition.roll()
            partition.append(MARKER, key=MARKER)
            partition.sync()
            taken = run.taken(partition.compact, kafka=False)
            found = content_of((one.key, one.value) for one in partition.records())
    check(OURS, found, expected)
    return taken


def compact_kafka(run: Run, batches: list[Batch], cleaner: Mapping[str, str], expected: Content) -> Taken:
    """Fill a topic that the cleaner leaves alone, let its segment end, and then let the cleaner have it."""
    run.kafka.alter("broker", "1", cleaner)
    topic = run.topic(segment_bytes=str(compaction.SETTINGS["segment_bytes"]))
    producer = connected(run, topic, PRODUCER)
    produce_all(producer, topic, pairs_of(batches))
    run.kafka.alter("topic", topic, {"segment.ms": "1"})
    sleep(1)  # the controller has the setting; the broker follows a moment later
    produce_all(producer, topic, [(MARKER, MARKER)])
    if len(run.kafka.log_files(topic)) < 2:
        raise AssertionError("Kafka did not roll its segment")
    seconds: list[float] = []

    def work() -> None:
        settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        run.kafka.alter("topic", topic, settings)
        give_up = monotonic() + CLEANER_SECONDS
        while not seconds:
            if monotonic() > give_up:
                raise AssertionError(f"Kafka's cleaner did not report within {CLEANER_SECONDS} s")
            sleep(0.05)
            seconds.extend(cleaner_seconds(run.kafka.output.read_text(errors="replace"), topic))

    taken = run.taken(work, kafka=True)
    check("Kafka", content_of(consumed(run, topic, 1)), expected)
    return Taken(sum(seconds), taken.processor)


def cleaner_seconds(output: str, topic: str) -> list[float]:
    """Return the seconds of each pass over a topic; the rate has more digits than the time."""
    return [
        amount(size) / amount(rate) if amount(rate) else amount(seconds)
        for name, size, seconds, rate in CLEANED.findall(output)
        if name == topic
    ]


def amount(text: str) -> float:
    return float(text.replace(",", ""))


# --- size ----------------------------------------------------------------------------------------


def packed(run: Run) -> Iterator[Row]:
    """Send records to topics compressed by zstd, and look at the files."""
    records = run.size(500_000, 50_000)
    for name, dataset in (
        ("random slices", data.make("slices", records, 90, 90)),
        ("JSON", data.json_like(records)),
    ):
        found = run.contenders(
            partial(packed_ours, run, dataset.batches),
            partial(packed_kafka, run, dataset.batches, PRODUCER),
            partial(packed_kafka, run, dataset.batches, {}),
        )
        costs = {engine_name: [size() / records] for engine_name, size in found.items()}
        plain = dataset.payload_bytes / records
        note = f"Keys and values have {plain:.1f} bytes. Both producers were given one record at a time."
        row = f"zstd_{name.split()[-1].lower()}"
        yield Row(row, f"zstd, {name}", "B a record", costs, note=note, why=run.why)


def packed_ours(run: Run, batches: list[Batch]) -> int:
    with run.bench.scratch("packed") as path:
        with commitlog.open(path) as log:
            config = commitlog.TopicConfig(compression_type="zstd", **engine.WRITTEN)
            partition = log.create_topic(engine.TOPIC, config=config).partition(0)
            with log.producer() as producer:
                send_all(producer, batches)
            found = content_of((one.key, one.value) for one in partition.records())
        check(OURS, found, content_of(pairs_of(batches)))
        return engine.log_bytes(path)


def packed_kafka(run: Run, batches: list[Batch], settings: Mapping[str, Any]) -> int:
    topic = run.topic()
    producer = connected(run, topic, {"compression.type": "zstd", **settings})
    produce_all(producer, topic, pairs_of(batches))
    expected = content_of(pairs_of(batches))
    check("Kafka", content_of(consumed(run, topic, 1)), expected)
    return sum(file.stat().st_size for file in run.kafka.log_files(topic))
