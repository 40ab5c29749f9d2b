"""Exactly once: read orders, send an invoice for each, and commit both together, while kills interrupt it.

The invoices and the offset up to which orders were read are one transaction, so a crash keeps both or
neither. The worker is a process of its own. It is killed at random, five times, and started again. It needs
no code for that: opening the log aborts what the killed one left open, and the consumer goes on at the last
offset that was committed.

    python examples/exactly_once.py            # all of it, in a folder that is removed afterwards
    python examples/exactly_once.py FOLDER     # the worker alone: kill it, start it again, it goes on
"""

import itertools
import multiprocessing
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

import commitlog
from commitlog import TopicPartition

ORDERS = 2_000
KILLS = 5


def prepare(path: Path) -> None:
    """Make the topics, and the orders to be worked on."""
    with commitlog.open(path) as log:
        log.create_topic("invoices", partitions=2)
        orders = log.create_topic("orders", partitions=4)
        numbers = range(ORDERS)
        amounts = [b"%d" % (one % 90 + 10) for one in numbers]
        orders.append_many(amounts, keys=[b"o-%d" % one for one in numbers])


def invoice(amount: bytes) -> bytes:
    """Add the tax."""
    return b"%.2f" % (int(amount) * 1.2)


def work(path: Path) -> None:
    """Turn orders into invoices until there are no more orders."""
    with (
        commitlog.open(path) as log,
        log.producer(transactional_id="billing") as producer,
        log.consumer(
            "orders",
            group_id="billing",
            group_instance_id="billing-1",  # so that it need not wait until the killed one is given up
            enable_auto_commit=False,
            max_poll_records=20,
        ) as consumer,
    ):
        ends = {
            TopicPartition("orders", number): partition.next_offset
            for number, partition in enumerate(log.topic("orders").partitions)
        }
        while consumer.positions() != ends:
            found = consumer.poll(timeout=0.1)
            with producer.transaction():  # commits at the end, aborts if something in it raises
                for order in itertools.chain(*found.values()):
                    producer.send("invoices", invoice(order.value), key=order.key)
                producer.send_offsets(consumer)  # in place of consumer.commit()


def kill_at_random(path: Path) -> None:
    """Start the worker and kill it when it has sent a random number of records more, committed or not."""
    worker = multiprocessing.get_context("spawn").Process(target=work, args=(path,))
    worker.start()
    with commitlog.open(path, mode="r") as log:
        invoices = log.topic("invoices").partition(0)
        enough = invoices.next_offset + random.randint(1, ORDERS // KILLS // 3)
        while worker.is_alive() and invoices.next_offset < enough:
            invoices.wait_for(invoices.next_offset, 0.01, isolation_level="read_uncommitted")
    worker.kill()
    worker.join()


def check(path: Path) -> None:
    """Compare the invoices with the orders."""
    with commitlog.open(path, mode="r") as log:
        expected = {order.key: invoice(order.value) for order in log.topic("orders").records()}
        sent = Counter((one.key, one.value) for one in log.topic("invoices").records())
        missing = expected.items() - sent.keys()
        twice = [one for one, times in sent.items() if times > 1]
        print(f"{len(expected)} orders, {sent.total()} invoices: {len(missing)} missing, {len(twice)} twice")
        everything = log.topic("invoices").records(isolation_level="read_uncommitted")
        aborted = sum(1 for _ in everything) - sent.total()
        print(f"{aborted} more were sent in transactions that a kill interrupted; no reader sees those")


def main(path: Path) -> None:
    prepare(path)
    for _ in range(KILLS):
        kill_at_random(path)
    print(f"the worker was killed {KILLS} times")
    work(path)
    check(path)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        if not folder.exists():
            prepare(folder)
        work(folder)
        check(folder)
    else:
        with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
            main(Path(directory) / "log")
