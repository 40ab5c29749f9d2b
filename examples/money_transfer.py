"""An order service that moves money from customers to shops: each order completely, or not at all.

Postings of customers are in one topic, those of shops in another, and both topics have several partitions. A
transaction writes both postings. If a customer has too little money, the block raises, and neither posting
is there. The service is killed several times. At the end the sum of all postings is what it was at the
beginning.

    python examples/money_transfer.py
"""

import multiprocessing
import random
import tempfile
from collections import Counter
from pathlib import Path

import commitlog

CUSTOMERS = [f"customer-{number}" for number in range(20)]
SHOPS = [f"shop-{number}" for number in range(5)]
DEPOSIT = 1_000
KILLS = 3


class TooLittleMoney(Exception):  # noqa: N818
    """The customer cannot pay."""


def balances(topic: commitlog.Topic) -> Counter[str]:
    """Add up the postings of each account; open and aborted transactions are not read."""
    found = Counter[str]()
    for posting in topic.records():
        found[posting.key.decode()] += int(posting.value)
    return found


def order(log: commitlog.CommitLog, customer: str, shop: str, price: int, balance: Counter[str]) -> None:
    """Let a customer pay a shop, completely or not at all."""
    with log.transaction() as transaction:
        transaction.append("customers", b"%d" % -price, key=customer.encode())
        transaction.append("shops", b"%d" % price, key=shop.encode())
        if balance[customer] < price:
            raise TooLittleMoney(customer)  # aborts the transaction
    balance[customer] -= price


def serve(path: Path) -> None:
    """Take orders until nobody can pay any more."""
    with commitlog.open(path) as log:
        balance = balances(log.topic("customers"))
        while any(amount > 10 for amount in balance.values()):
            try:
                order(log, random.choice(CUSTOMERS), random.choice(SHOPS), random.randint(1, 50), balance)
            except TooLittleMoney:
                continue


def kill_in_the_middle(path: Path) -> None:
    """Start the service, and kill it after a number of orders that nobody foresees."""
    service = multiprocessing.get_context("spawn").Process(target=serve, args=(path,))
    service.start()
    with commitlog.open(path, mode="r") as log:
        shops = log.topic("shops").partition(0)
        enough = shops.next_offset + random.randint(1, 50)
        while service.is_alive() and shops.next_offset < enough:
            shops.wait_for(enough, 0.01)
    service.kill()
    service.join()


def main(path: Path) -> None:
    with commitlog.open(path) as log:
        log.create_topic("customers", partitions=2)
        log.create_topic("shops", partitions=2)
        deposits = [b"%d" % DEPOSIT] * len(CUSTOMERS)
        log.topic("customers").append_many(deposits, keys=[one.encode() for one in CUSTOMERS])
    for _ in range(KILLS):
        kill_in_the_middle(path)
    serve(path)
    with commitlog.open(path, mode="r") as log:
        customers, shops = balances(log.topic("customers")), balances(log.topic("shops"))
    print(f"the service was killed {KILLS} times")
    print(f"customers have {customers.total()}, shops have {shops.total()}")
    print(f"together {customers.total() + shops.total()}, as at the beginning: {len(CUSTOMERS) * DEPOSIT}")
    print(f"accounts below zero: {sum(amount < 0 for amount in customers.values())}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
        main(Path(directory) / "log")
