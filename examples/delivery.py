"""Three ways to consume: at most once, at least once, effectively once. Each worker crashes in the middle.

A worker adds up payments. It is stopped twice in the middle of a payment, and restarted.
"""

import contextlib
import sqlite3
import tempfile
from pathlib import Path

import commitlog

PAYMENTS = [100 + number for number in range(50)]


class Crash(Exception):  # noqa: N818
    """Stands for a power cut: nothing after it happens, not even close()."""


def at_most_once(log: commitlog.CommitLog, database: sqlite3.Connection, crash_at: int | None) -> None:
    """Commit first, then work: a crash in between loses the work that was committed but not done."""
    consumer = log.consumer(
        "payments", group_id="at most once", enable_auto_commit=False, max_poll_records=10
    )
    while found := consumer.poll(0.2):
        consumer.commit()
        for records in found.values():
            for record in records:
                if record.offset == crash_at:
                    raise Crash
                database.execute("INSERT INTO done VALUES ('at most once', ?)", [int(record.value)])
                database.commit()
    consumer.close()


def at_least_once(log: commitlog.CommitLog, database: sqlite3.Connection, crash_at: int | None) -> None:
    """Work first, then commit: a crash in between does the work again."""
    consumer = log.consumer(
        "payments", group_id="at least once", enable_auto_commit=False, max_poll_records=10
    )
    while found := consumer.poll(0.2):
        for records in found.values():
            for record in records:
                if record.offset == crash_at:
                    raise Crash
                database.execute("INSERT INTO done VALUES ('at least once', ?)", [int(record.value)])
                database.commit()
        consumer.commit()
    consumer.close()


class FromDatabase(commitlog.RebalanceListener):
    """Continues at the offsets in the database; the group only distributes the partitions."""

    def __init__(self, consumer: commitlog.Consumer, database: sqlite3.Connection) -> None:
        self.consumer, self.database = consumer, database

    def on_assigned(self, partitions: set[commitlog.TopicPartition]) -> None:
        for partition in partitions:
            row = self.database.execute(
                "SELECT next FROM offsets WHERE topic=? AND part=?", partition
            ).fetchone()
            self.consumer.seek(partition, row[0] if row else 0)


def effectively_once(log: commitlog.CommitLog, database: sqlite3.Connection, crash_at: int | None) -> None:
    """Store the work and the offset in one transaction: a crash undoes both."""
    consumer = log.consumer(group_id="effectively once", enable_auto_commit=False, max_poll_records=10)
    consumer.subscribe("payments", listener=FromDatabase(consumer, database))
    while found := consumer.poll(0.2):
        with database:
            for partition, records in found.items():
                for record in records:
                    if record.offset == crash_at:
                        raise Crash
                    database.execute("INSERT INTO done VALUES ('effectively once', ?)", [int(record.value)])
                database.execute(
                    "INSERT OR REPLACE INTO offsets VALUES (?, ?, ?)",
                    [*partition, consumer.position(partition)],
                )
    consumer.close()


def main(folder: Path) -> None:
    database = sqlite3.connect(folder / "results.sqlite")
    database.execute("CREATE TABLE done (way TEXT, amount INTEGER)")
    database.execute(
        "CREATE TABLE offsets (topic TEXT, part INTEGER, next INTEGER, PRIMARY KEY (topic, part))"
    )
    with commitlog.open(folder / "log") as log:
        log.create_topic("payments").append_many([b"%d" % amount for amount in PAYMENTS])
    for worker in (at_most_once, at_least_once, effectively_once):
        for crash_at in (17, 33, None):
            log = commitlog.open(folder / "log")
            with contextlib.suppress(Crash):
                worker(log, database, crash_at)
            log.close()
        way = worker.__name__.replace("_", " ")
        count, total = database.execute(
            "SELECT count(*), sum(amount) FROM done WHERE way=?", [way]
        ).fetchone()
        print(f"{way:16}  {count} payments of {len(PAYMENTS)}, {total} of {sum(PAYMENTS)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
        main(Path(directory))
