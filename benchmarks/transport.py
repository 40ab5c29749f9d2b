"""TcpTransport and commitlog.connect over loopback, beside plain sendfile and a plain ping; two processes.

`python benchmarks/transport.py`: about half a minute. Each figure is the best of three rounds.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from replication.lone_node import Cluster, LoneNode

import commitlog
from commitlog import files
from commitlog.record import TopicPartition
from commitlog.replication.messages import Message, Read, ReadBatches
from commitlog.replication.ports import Reply
from commitlog.replication.remote.router import Pending
from commitlog.replication.transports.tcp import TcpTransport
from commitlog.replication.transports.tls import TlsConfig

MIB = 1 << 20
NAME = TopicPartition("t", 0)
BLOCKS = 64
RECORDS, A_BATCH = 1_000_000, 10_000


class Slice:
    """A piece of a file, as a partition hands it out."""

    def __init__(self, file: files.Descriptor, position: int, size: int) -> None:
        self.file, self.position, self.size = file, position, size

    def read(self) -> bytes:
        return os.pread(self.file.fd, self.size, self.position)


# --- the other process -------------------------------------------------------------------------------


def tls_of(folder: str, secure: str) -> TlsConfig | None:
    names = [os.path.join(folder, name) for name in ("certificate.pem", "key.pem", "ca.pem")]
    return TlsConfig(*names) if secure == "tls" else None


def serve_blocks(folder: str, secure: str) -> None:
    path = os.path.join(folder, "blocks")
    Path(path).write_bytes(os.urandom(BLOCKS * MIB))
    file = files.Descriptor(os.open(path, os.O_RDONLY))

    def handle(message: Message, reply: Reply) -> None:
        assert isinstance(message, Read)
        if message.max_bytes == 0:
            reply(ReadBatches(0, 0, 0, 0, 0, 0))
        else:
            place = message.offset % BLOCKS * MIB
            reply(ReadBatches(0, 0, 0, 0, 0, 0, Slice(file, place, message.max_bytes)))

    transport = TcpTransport(tls=tls_of(folder, secure))
    print(transport.serve(handle), flush=True)
    sys.stdin.read()
    transport.close()


def serve_log(folder: str, secure: str) -> None:
    with commitlog.open(os.path.join(folder, "log")) as log:
        partition = log.create_topic("t").partition(0)
        log.create_topic("w")
        for first in range(0, RECORDS, A_BATCH):
            keys = [b"%010d" % number for number in range(first, first + A_BATCH)]
            partition.append_many([bytes(90)] * A_BATCH, keys=keys)
        node = LoneNode(Cluster(log), TcpTransport(tls=tls_of(folder, secure)))
        print(node.address, flush=True)
        sys.stdin.read()
        node.close()


def serve_plain(folder: str, secure: str) -> None:
    """Plain sendfile of 1 MiB for each byte that is received; an `x` is sent back."""
    path = os.path.join(folder, "plain")
    Path(path).write_bytes(os.urandom(BLOCKS * MIB))
    fd = os.open(path, os.O_RDONLY)
    listener = socket.create_server(("127.0.0.1", 0))
    print(f"127.0.0.1:{listener.getsockname()[1]}", flush=True)
    sock, _ = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    number = 0
    while asked := sock.recv(100):
        if asked[:1] == b"x":
            sock.send(b"x" * 100)
            continue
        for _ in asked:
            position, end = number % BLOCKS * MIB, (number % BLOCKS + 1) * MIB
            while position < end:
                position += os.sendfile(sock.fileno(), fd, position, end - position)
            number += 1


@contextmanager
def other(what: str, folder: str, secure: str = "plain") -> Iterator[str]:
    child = subprocess.Popen(
        [sys.executable, __file__, what, folder, secure],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert child.stdin
    assert child.stdout
    try:
        yield child.stdout.readline().strip()
    finally:
        child.stdin.close()
        child.wait()


# --- this process ------------------------------------------------------------------------------------


def best(run: Callable[[], float]) -> float:
    return max(run() for _ in range(3))


def show(what: str, figure: float, unit: str) -> None:
    print(f"{what:58s} {figure:12,.0f} {unit}")


def plain(folder: str) -> None:
    with other("plain", folder) as address:
        host, port = address.split(":")
        sock = socket.create_connection((host, int(port)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = memoryview(bytearray(MIB))

        def fetch() -> float:
            began = time.perf_counter()
            for _ in range(500):
                sock.send(b"1")
                assert sock.recv_into(buffer, MIB, socket.MSG_WAITALL) == MIB
            return 500 / (time.perf_counter() - began)

        def stream() -> float:
            began = time.perf_counter()
            sock.send(b"1" * 50)
            for _ in range(450):
                sock.recv_into(buffer, MIB, socket.MSG_WAITALL)
                sock.send(b"1")
            for _ in range(50):
                sock.recv_into(buffer, MIB, socket.MSG_WAITALL)
            return 500 / (time.perf_counter() - began)

        def ping() -> None:
            sock.send(b"x" * 100)
            sock.recv(100)

        show("plain sendfile, 1 MiB asked for one by one", best(fetch), "MiB/s")
        show("plain sendfile, always some under way", best(stream), "MiB/s")
        show("plain ping of 100 bytes, median", -best(lambda: -median_us(ping)), "us")
        sock.close()


def median_us(call: Callable[[], object], times: int = 3000) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e6


def transport(folder: str, secure: str) -> None:
    with other("blocks", folder, secure) as address:
        client = TcpTransport(tls=tls_of(folder, secure))

        def ask(message: Message) -> Message | None:
            pending = Pending()
            client.request(address, message, pending, 10_000)
            return pending.wait()

        def fetch(ahead: int) -> float:
            began = time.perf_counter()
            under_way: list[Pending] = []
            for number in range(500 + ahead):
                if number < 500:
                    under_way.append(Pending())
                    client.request(address, Read(NAME, number, MIB, 0), under_way[-1], 10_000)
                if number >= ahead:
                    answer = under_way.pop(0).wait()
                    assert isinstance(answer, ReadBatches)
                    assert answer.data.size == MIB
            return 500 / (time.perf_counter() - began)

        ask(Read(NAME, 0, 0, 0))
        show(f"TcpTransport ({secure}), 1 MiB answers one by one", best(lambda: fetch(0)), "MiB/s")
        show(f"TcpTransport ({secure}), two under way", best(lambda: fetch(1)), "MiB/s")
        trip = -best(lambda: -median_us(lambda: ask(Read(NAME, 0, 0, 0))))
        show(f"TcpTransport ({secure}), small request and answer, median", trip, "us")
        client.close()


def remote(folder: str, secure: str) -> None:
    with (
        other("log", folder, secure) as address,
        commitlog.connect(address, tls=tls_of(folder, secure)) as far,
    ):
        partition, writing = far.topic("t").partition(0), far.topic("w").partition(0)
        size = sum(batch.size_bytes for batch in partition.batches())

        def scan() -> float:
            began = time.perf_counter()
            assert sum(batch.to_arrow().num_rows for batch in partition.batches()) == RECORDS
            return size / MIB / (time.perf_counter() - began)

        def records() -> float:
            began = time.perf_counter()
            assert sum(1 for _ in partition.records()) == RECORDS
            return RECORDS / (time.perf_counter() - began)

        def append() -> float:
            values, keys = [bytes(90)] * A_BATCH, [b"%010d" % number for number in range(A_BATCH)]
            began = time.perf_counter()
            for _ in range(30):
                writing.append_many(values, keys=keys)
            return 30 * A_BATCH / (time.perf_counter() - began)

        show(f"connect ({secure}): scan to Arrow, CRC checked", best(scan), "MiB/s")
        show(f"connect ({secure}): scan to records", best(records), "records/s")
        show(f"connect ({secure}): append_many, 10k a batch", best(append), "records/s")
        one = -best(lambda: -median_us(lambda: writing.append(bytes(100)), 1000))
        show(f"connect ({secure}): append of one record, median", one, "us")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(os.path.join(folder, "certificate.pem"))
        issued.private_key_pem.write_to_path(os.path.join(folder, "key.pem"))
        authority.cert_pem.write_to_path(os.path.join(folder, "ca.pem"))
        plain(folder)
        for secure in ("plain", "tls"):
            transport(folder, secure)
    for secure in ("plain",):
        with tempfile.TemporaryDirectory() as folder:
            remote(folder, secure)


SERVERS = {"blocks": serve_blocks, "log": serve_log, "plain": serve_plain}

if __name__ == "__main__":
    if len(sys.argv) > 1:
        SERVERS[sys.argv[1]](*sys.argv[2:])
    else:
        main()
