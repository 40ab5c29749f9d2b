"""An order service by event sourcing: the events are the truth, and everything else is derived from them.

Customers append orders. Three services, each its own consumer group, validate every order: is it fraud, is
it in stock, are its details valid? An aggregator combines their answers: an order that all three passed is
validated, one that any of them refused has failed. None of them knows the others. All are stopped and
restarted: their state is not stored, they derive it again from the events.

    python examples/order_service.py
"""

import itertools
import json
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import commitlog
from commitlog import TopicPartition

Order = dict[str, Any]
STOCK = {"apples": 12, "pears": 3, "plums": 0}
ORDERS: list[Order] = [
    {"id": "o-1", "customer": "alice", "item": "apples", "quantity": 3, "price": 2},
    {"id": "o-2", "customer": "bob", "item": "plums", "quantity": 1, "price": 3},
    {"id": "o-3", "customer": "carol", "item": "pears", "quantity": 2, "price": 1},
    {"id": "o-4", "customer": "mallory", "item": "apples", "quantity": 1, "price": 1_900},
    {"id": "o-5", "customer": "dave", "item": "pears", "quantity": 2, "price": 1},
    {"id": "o-6", "customer": "mallory", "item": "apples", "quantity": 1, "price": 1_900},
    {"id": "o-7", "customer": "erin", "item": "apples", "quantity": 0, "price": 2},
]


def fraud(spent: Counter[str], order: Order) -> bool:
    """Nobody spends more than 2,000."""
    spent[order["customer"]] += order["quantity"] * order["price"]
    return spent[order["customer"]] <= 2_000


def inventory(sold: Counter[str], order: Order) -> bool:
    """Nothing is sold that is not in stock."""
    enough: bool = sold[order["item"]] + order["quantity"] <= STOCK[order["item"]]
    sold[order["item"]] += order["quantity"] if enough else 0
    return enough


def details(_: Counter[str], order: Order) -> bool:
    """An order is for something, and costs something."""
    return bool(order["quantity"] > 0 and order["price"] > 0)


SERVICES = [fraud, inventory, details]


def validate(
    log: commitlog.CommitLog, passes: Callable[[Counter[str], Order], bool], stop: threading.Event
) -> None:
    """Answer every order once; orders answered before a restart only restore the state."""
    state, name = Counter[str](), passes.__name__
    with log.consumer("orders", group_id=name, enable_auto_commit=False) as consumer:
        answered = consumer.committed(("orders", 0)) or 0
        for earlier in log.topic("orders").partition(0).records(0, answered):
            passes(state, json.loads(earlier.value))
        while not stop.is_set():
            for record in consumer.poll(timeout=0.1).get(TopicPartition("orders", 0), []):
                answer = {"service": name, "passed": passes(state, json.loads(record.value))}
                log.topic("validations").append(json.dumps(answer).encode(), key=record.key)
            consumer.commit()  # after a crash before this, the same order and state give the same answer


def aggregate(log: commitlog.CommitLog, stop: threading.Event) -> None:
    """Read all answers from the first one on; a duplicate changes nothing."""
    answers: dict[bytes, dict[str, bool]] = defaultdict(dict)
    with log.consumer("validations") as consumer:
        while not stop.is_set():
            for record in itertools.chain(*consumer.poll(timeout=0.1).values()):
                answer, known = json.loads(record.value), answers[record.key]
                known[answer["service"]] = answer["passed"]
                if len(known) == len(SERVICES):
                    failed = [name for name in sorted(known) if not known[name]]
                    state = f"failed: {', '.join(failed)}" if failed else "validated"
                    log.topic("states").append(state.encode(), key=record.key)


def take(path: str, orders: list[Order]) -> None:
    """Take orders while all services run, until each has a state."""
    with commitlog.open(path) as log:
        stop = threading.Event()
        parts = [threading.Thread(target=validate, args=(log, service, stop)) for service in SERVICES]
        parts.append(threading.Thread(target=aggregate, args=(log, stop)))
        for part in parts:
            part.start()
        for order in orders:
            log.topic("orders").append(json.dumps(order).encode(), key=order["id"].encode(), sync=True)
        while len(log.topic("states").latest()) < log.topic("orders").partition(0).next_offset:
            time.sleep(0.02)
        stop.set()
        for part in parts:
            part.join()
        for key, state in sorted(log.topic("states").latest().items()):
            print(f"  {key.decode()} {state.decode()}")


def main(path: str) -> None:
    with commitlog.open(path) as log:
        log.create_topic("orders")
        log.create_topic("validations", partitions=3)
        log.create_topic("states", config={"cleanup_policy": "compact"})
    print("four orders")
    take(path, ORDERS[:4])
    print("all services were stopped; three orders more")
    take(path, ORDERS[4:])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
        main(directory)
