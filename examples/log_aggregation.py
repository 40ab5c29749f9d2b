"""Log lines of several processes in one place, through Python's own logging, and a search for an error.

Each service is a process that opens the log with mode="shared": there is no agent and no server. A reader
opens it with mode="r", finds the first error, and merges the lines of all services around that time.

    python examples/log_aggregation.py
"""

import heapq
import logging
import multiprocessing
import tempfile

import commitlog

SERVICES = ["web", "basket", "payment"]
NOON = 1_785_585_600_000  # 2026-08-01 12:00, in milliseconds


class CommitLogHandler(logging.Handler):
    """Appends each line to a topic, with the service as key, the level as header, and the line's time."""

    def __init__(self, log: commitlog.CommitLog, topic: str, service: str) -> None:
        super().__init__()
        self.producer, self.topic, self.service = log.producer(linger_ms=20), topic, service.encode()
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record).encode()
        headers = [("level", record.levelname.encode())]
        self.producer.send(self.topic, line, self.service, headers, timestamp=int(record.created * 1000))

    def flush(self) -> None:
        self.producer.flush()

    def close(self) -> None:
        self.producer.close()
        super().close()


def run_service(path: str, service: str) -> None:
    """One of the processes: it logs as usual, every second for ten minutes, and does not know the others."""
    with commitlog.open(path, mode="shared") as log:
        logger = logging.Logger(service)
        logger.addHandler(CommitLogHandler(log, "logs", service))
        for second in range(600):
            what, level = f"request {second} done", logging.INFO
            if service == "payment" and 300 <= second < 303:
                what, level = "the bank does not answer", logging.ERROR
            elif service == "basket" and second == 304:
                what, level = "order 304 is not paid, trying again", logging.WARNING
            line = logger.makeRecord(service, level, __file__, 0, what, (), None)
            line.created = NOON / 1000 + second  # the example's clock; yours is the real one
            logger.handle(line)
        logger.handlers[0].close()


def is_error(record: commitlog.Record) -> bool:
    return ("level", b"ERROR") in record.headers


def investigate(log: commitlog.CommitLog) -> None:
    """Find the first error, and the lines of all services in the seconds around it."""
    logs = log.topic("logs")
    first = min(one.timestamp for part in logs.partitions for one in part.records() if is_error(one))
    start, end = first - 1_000, first + 5_000
    around = []
    for partition in logs.partitions:  # each is in order of time, so merging is enough
        offset = partition.offset_for_timestamp(start)
        if offset is not None:
            around.append(one for one in partition.records(offset) if one.timestamp < end)
    for one in heapq.merge(*around, key=lambda one: (one.timestamp, one.key)):
        level = dict(one.headers)["level"].decode()
        if level != "INFO":
            second, service, line = (one.timestamp - NOON) // 1000, one.key.decode(), one.value.decode()
            print(f"  {second:4} s  {service:8} {level:8} {line}")


def main(path: str) -> None:
    with commitlog.open(path) as log:
        keep = {"retention_ms": -1, "retention_bytes": 1 << 30, "compression_type": "zstd"}
        log.create_topic("logs", partitions=4, config=keep)

    spawn = multiprocessing.get_context("spawn")
    services = [spawn.Process(target=run_service, args=(path, service)) for service in SERVICES]
    for service in services:
        service.start()
    for service in services:
        service.join()

    with commitlog.open(path, mode="r") as log:
        partitions = log.topic("logs").partitions
        lines = sum(partition.next_offset for partition in partitions)
        print(f"{lines} lines of {len(SERVICES)} processes")
        print("what went wrong")
        investigate(log)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="commitlog-") as directory:
        main(directory)
