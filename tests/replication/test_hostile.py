"""Hostile peers on real sockets: floods, slow bytes, garbage, forged roles."""

from __future__ import annotations

import contextlib
import inspect
import random
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import pytest
from crc32c import crc32c
from helpers import wait_until
from soak import SOAK

import commitlog
from commitlog.errors import (
    AuthenticationError,
    AuthorizationError,
    ConfigError,
    NoControllerError,
    ReplicationTimeoutError,
)
from commitlog.record import TopicPartition
from commitlog.replication.commands import (
    AddPartitions,
    AlterTopic,
    ChangeIsr,
    CreateTopic,
    DeleteTopic,
    ElectPreferred,
    JoinNode,
    LeaveNode,
    Reassign,
    RemoveNode,
    Submitted,
)
from commitlog.replication.controllers.remote_controller import RemoteController
from commitlog.replication.controllers.server import ControllerServer
from commitlog.replication.controllers.static import StaticController
from commitlog.replication.messages import (
    Decided,
    Describe,
    Fetch,
    FetchPart,
    FoundOffset,
    Heartbeat,
    Join,
    Message,
    Refused,
    Submit,
)
from commitlog.replication.node import Node
from commitlog.replication.ports import Reply
from commitlog.replication.refusals import error_of
from commitlog.replication.transports import wire
from commitlog.replication.transports.rights import REQUIRED, Role
from commitlog.replication.transports.tcp import TcpTransport

from .conftest import MakeTransport
from .talk import Authority, ask, question, raw_socket, receive_to_end
from .test_tcp import FEW_MS, echo, frame, greeted, hold, our_threads

NODES, CLIENTS = b"what nodes know", b"what clients know"
ANSWERS = {1, 2, 4, 6, 10, 12, 14, 16, 18, 20, 22}  # kinds that nobody asks for


def serve_nodes_and_clients(make_transport: MakeTransport, **settings: object) -> tuple[TcpTransport, str]:
    server = make_transport(secret=NODES, client_secret=CLIENTS, **settings)
    return server, server.serve(lambda message, reply: reply(Decided(1)))


@contextlib.contextmanager
def strangers(address: str, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(raw_socket(address)) for _ in range(count)]


# --- floods ------------------------------------------------------------------------------------------


def test_strangers_who_say_nothing_keep_nobody_out(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server, address = serve_nodes_and_clients(make_transport, max_connections=8, max_handshakes=16)
    with strangers(address, 300):
        for secret in (NODES, CLIENTS):
            assert ask(make_transport(secret=secret), address, question()) == Decided(1)
        with strangers(address, 100):
            for secret in (NODES, CLIENTS):
                assert ask(make_transport(secret=secret), address, question()) == Decided(1)
        wait_until(lambda: server.counts.refused >= 350)
        assert server.counts.incoming <= 16 + 4
        assert len([name for name in our_threads() if name.startswith("commitlog-receive")]) < 32
    assert len(caplog.records) < 100  # one a second, not one each


def test_strangers_within_tls_keep_nobody_out(make_transport: MakeTransport, authority: Authority) -> None:
    tls = authority.tls()
    address = make_transport(tls=tls, max_handshakes=4).serve(echo)
    with strangers(address, 30):
        assert ask(make_transport(tls=tls), address, question(1)) == FoundOffset(1)


def test_clients_that_use_up_their_connections_keep_no_node_out(make_transport: MakeTransport) -> None:
    _, address = serve_nodes_and_clients(make_transport, max_connections=2)
    clients = [make_transport(secret=CLIENTS) for _ in range(3)]
    assert [ask(one, address, question()) for one in clients] == [Decided(1), Decided(1), None]
    assert "no more connections" in str(clients[2].last_error(address))
    assert ask(make_transport(secret=NODES), address, question()) == Decided(1)


def test_one_address_has_only_so_many_clients(make_transport: MakeTransport) -> None:
    server, address = serve_nodes_and_clients(make_transport, max_client_connections_per_address=1)
    clients = [make_transport(secret=CLIENTS) for _ in range(2)]
    assert [ask(one, address, question()) for one in clients] == [Decided(1), None]
    assert ask(make_transport(secret=NODES), address, question()) == Decided(1)
    assert server.counts.refused == 1


FEW_DESCRIPTORS = """
import logging, resource, sys
logging.basicConfig()
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
from commitlog.replication.messages import FoundOffset
from commitlog.replication.transports.tcp import TcpTransport
server = TcpTransport()
print(server.serve(lambda message, reply: reply(FoundOffset(message.offset))), flush=True)
sys.stdin.read()
server.close()
"""


def test_a_server_without_descriptors_lets_strangers_go_for_others(make_transport: MakeTransport) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", FEW_DESCRIPTORS], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as child:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        client = make_transport()
        with strangers(address, 60):
            wait_until(lambda: ask(client, address, question(1), timeout_ms=2000) == FoundOffset(1))
        _, complaints = child.communicate()
    assert "Too many open files" in complaints
    assert len(complaints.splitlines()) < 60
    assert child.returncode == 0


# --- slow and silent peers ---------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, wire.HEAD_BYTES + 1], ids=["head", "rest"])
def test_who_sends_one_byte_after_another_is_dropped(make_transport: MakeTransport, start: int) -> None:
    server = make_transport(stall_timeout_ms=FEW_MS)
    whole = frame(Describe(("t" * 5000,)))
    with greeted(server.serve(echo)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(whole[:start])
        pause = threading.Event()
        with contextlib.suppress(OSError):
            for byte in whole[start:]:
                sock.sendall(bytes([byte]))
                pause.wait(0.005)  # far more often than it would be missed
        receive_to_end(sock)
    wait_until(lambda: server.counts.dropped == 1)


def test_a_handshake_that_comes_byte_by_byte_is_ended_when_its_time_is_over(
    make_transport: MakeTransport,
) -> None:
    server = make_transport(handshake_timeout_ms=FEW_MS)
    with raw_socket(server.serve(echo)) as sock:
        pause = threading.Event()
        with contextlib.suppress(OSError):
            for _ in range(72):
                sock.sendall(b"C")
                pause.wait(0.005)
        receive_to_end(sock)
    wait_until(lambda: server.counts.dropped == 1)


def test_a_peer_that_vanishes_is_looked_for(make_transport: MakeTransport) -> None:
    server = make_transport()
    address = server.serve(echo)
    assert ask(make_transport(), address, question(1)) == FoundOffset(1)
    (connection,) = server._incoming
    assert connection._stream is not None
    sock = connection._stream._sock
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


def test_who_asks_nothing_for_long_is_let_go_and_may_come_back(make_transport: MakeTransport) -> None:
    server = make_transport(idle_timeout_ms=1, stall_timeout_ms=40)
    address = server.serve(echo)
    client = make_transport()
    for offset in (1, 2):
        wait_until(lambda: ask(client, address, question(offset)) == FoundOffset(offset))  # noqa: B023
        wait_until(lambda: server.counts.incoming == client.counts.outgoing == 0)
    assert server.counts.dropped == 0


def test_who_asks_more_and_more_before_it_is_answered_is_dropped(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_transport()
    address = server.serve(hold)
    with greeted(address) as sock:
        with contextlib.suppress(OSError):
            sock.sendall(frame(question()) * 5000)
        receive_to_end(sock)
    wait_until(lambda: server.counts.dropped == 1)
    assert "of its requests wait" in caplog.text


def test_any_number_of_requests_may_be_made_one_after_another(make_transport: MakeTransport) -> None:
    address = make_transport().serve(echo)
    with greeted(address) as sock:
        for _ in range(12):
            sock.sendall(frame(question(5)) * 500)
            answers = 0
            while answers < 500:
                answers += sock.recv(1 << 16).count(b'"offset"')


# --- garbage -----------------------------------------------------------------------------------------


def garbage(chance: random.Random) -> bytes:
    """A frame with one thing wrong, or plain noise."""
    raw = bytearray(frame(question(chance.randrange(1 << 40))))
    match chance.randrange(5):
        case 0:
            return chance.randbytes(chance.randrange(1, 200))
        case 1:
            raw[:4] = struct.pack("<I", chance.choice([0, 1, 23, 0x7FFFFFFF, 0xFFFFFFFF]))
        case 2:
            raw[16:20] = struct.pack("<I", chance.choice([8, 1 << 22, 0xFFFFFFF8, 0xFFFFFFFF]))
        case 3:
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        case _:
            raw[5] = chance.randrange(256)
    return bytes(raw)


def test_garbage_is_neither_asked_nor_does_it_harm_others(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Message] = []

    def handle(message: Message, reply: Reply) -> None:
        asked.append(message)
        echo(message, reply)

    server = make_transport(max_frame_bytes=1 << 20)
    address = server.serve(handle)
    client = make_transport()
    chance = random.Random(20)
    for number in range(100_000 if SOAK else 400):
        sent = garbage(chance)
        with greeted(address) as sock:
            with contextlib.suppress(OSError):
                sock.sendall(sent)
                sock.shutdown(socket.SHUT_WR)
            receive_to_end(sock)
        if number % 100 == 0:
            assert ask(client, address, question(7)) == FoundOffset(7)
    wait_until(lambda: server.counts.incoming == 1)
    assert {type(one).__name__ for one in asked} <= {"Read"}
    assert server.counts.dropped > 300
    assert len(caplog.records) < server.counts.dropped / 10


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 1_000_000,
        b'{"topics":' * 100_000,
        b'{"topics": ["' + b"9" * 100_000 + b'"]',
        b'{"topics": [' + b"9" * 100_000 + b"]}",
        b'{"topics": [], "topics": 1, "more": {}}',
        b'{"topics": "\\ud800"}',
        b"\xff\xfe",
        b"NaN",
    ],
    ids=["deep list", "deep object", "cut", "long number", "twice", "no list", "no text", "no number"],
)
def test_a_header_that_is_made_to_hurt_ends_its_connection(
    make_transport: MakeTransport, header: bytes
) -> None:
    server = make_transport()
    address = server.serve(echo)
    header = header.ljust(-(-len(header) // 8) * 8)
    head = wire._HEAD.pack(wire.HEAD_BYTES + len(header), wire.VERSION, 5, wire.REQUEST, 0, 1, len(header))
    with greeted(address) as sock:
        sock.sendall(head + wire._CHECKSUM.pack(crc32c(header, crc32c(head))) + header)
        assert receive_to_end(sock) == b""
    wait_until(lambda: server.counts.dropped == 1)


def test_what_is_only_ever_an_answer_is_no_request(make_transport: MakeTransport) -> None:
    server = make_transport()
    address = server.serve(lambda message, reply: reply(Decided(1)))
    with greeted(address) as sock:
        sock.sendall(frame(Decided(1)))
        assert receive_to_end(sock) == b""
    wait_until(lambda: server.counts.dropped == 1)


# --- roles -------------------------------------------------------------------------------------------


def test_every_message_is_an_answer_or_has_a_role_that_may_ask_it() -> None:
    asked = {one for kind, (one, _) in wire.KINDS.items() if kind not in ANSWERS}
    assert asked - {Submit} | set(get_args(Submitted)) == set(REQUIRED)


FOR_NODES: list[Message] = [
    Fetch(2, 1, 1000, 0, ()),
    Join(JoinNode(2, "127.0.0.1:1", clean=True), "token"),
    Heartbeat(2, 1, -1, 0),
    Submit(LeaveNode(2, 1)),
    Submit(RemoveNode(2, 1)),
]
FOR_ADMINISTRATORS: list[Message] = [
    Submit(CreateTopic("t")),
    Submit(DeleteTopic("t")),
    Submit(AlterTopic("t", {})),
    Submit(AddPartitions("t", 2)),
    Submit(Reassign(TopicPartition("t", 0), (1,))),
    Submit(ElectPreferred()),
]


def kind(message: Message) -> str:
    return type(message.command if isinstance(message, Submit) else message).__name__


def refusal(answer: Message | None) -> str:
    assert isinstance(answer, Refused)
    error = error_of(answer)
    assert isinstance(error, AuthorizationError)
    return str(error)


@pytest.mark.parametrize("message", [*FOR_NODES, *FOR_ADMINISTRATORS], ids=kind)
def test_a_client_is_refused_what_is_not_for_clients(make_transport: MakeTransport, message: Message) -> None:
    _, address = serve_nodes_and_clients(make_transport)
    client, node = make_transport(secret=CLIENTS), make_transport(secret=NODES)
    assert "the rights of a client" in refusal(ask(client, address, message))
    assert ask(client, address, question()) == Decided(1)  # the connection lives
    assert ask(node, address, message) == Decided(1)


def test_clients_may_administer_where_the_node_says_so(make_transport: MakeTransport) -> None:
    _, address = serve_nodes_and_clients(make_transport, clients_may_administer=True)
    client = make_transport(secret=CLIENTS)
    assert [ask(client, address, one) for one in FOR_ADMINISTRATORS] == [Decided(1)] * len(FOR_ADMINISTRATORS)
    for message in FOR_NODES:
        assert "needs the rights of a node" in refusal(ask(client, address, message))


def test_refused_requests_are_logged_once_a_second(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    _, address = serve_nodes_and_clients(make_transport)
    client = make_transport(secret=CLIENTS)
    for _ in range(200):
        refusal(ask(client, address, Submit(DeleteTopic("t"))))
    assert 1 <= len(caplog.records) < 100


def test_with_certificates_the_names_of_nodes_decide(
    make_transport: MakeTransport, authority: Authority
) -> None:
    names = ("127.0.0.1", "Node2.example")
    server = make_transport(tls=authority.tls(node_names=names))
    address = server.serve(lambda message, reply: reply(Decided(1)))
    node = make_transport(tls=authority.tls("node2.example"))
    client = make_transport(tls=authority.tls("laptop.example"))
    assert ask(node, address, FOR_NODES[0]) == Decided(1)
    assert "the rights of a client" in refusal(ask(client, address, FOR_NODES[0]))
    assert ask(client, address, question()) == Decided(1)


def test_a_nodes_certificate_does_not_make_up_for_a_clients_secret_nor_the_other_way_round(
    make_transport: MakeTransport, authority: Authority
) -> None:
    server = make_transport(tls=authority.tls(node_names=["127.0.0.1"]), secret=NODES, client_secret=CLIENTS)
    address = server.serve(lambda message, reply: reply(Decided(1)))
    for tls, secret in [(authority.tls(), CLIENTS), (authority.tls("laptop.example"), NODES)]:
        refusal(ask(make_transport(tls=tls, secret=secret), address, FOR_NODES[0]))
    assert ask(make_transport(tls=authority.tls(), secret=NODES), address, FOR_NODES[0]) == Decided(1)


def test_a_node_does_not_take_a_clients_certificate_for_that_of_a_node(
    make_transport: MakeTransport, authority: Authority
) -> None:
    address = make_transport(tls=authority.tls("laptop.example")).serve(echo)
    trusting = make_transport(tls=authority.tls(check_hostname=False))
    assert ask(trusting, address, question(1)) == FoundOffset(1)
    node = make_transport(tls=authority.tls(check_hostname=False, node_names=["node1.example"]))
    assert ask(node, address, question()) is None
    error = node.last_error(address)
    assert isinstance(error, AuthenticationError)
    assert "does not name a node" in str(error)


def proposal(leader: int) -> Submit:
    return Submit(ChangeIsr(TopicPartition("t", 0), "", leader, 0, 1, (leader,), {}))


def test_with_names_and_ids_no_node_speaks_for_another(
    make_transport: MakeTransport, authority: Authority
) -> None:
    server = make_transport(tls=authority.tls(node_names={"127.0.0.1": 1, "node2.example": 2}))
    address = server.serve(lambda message, reply: reply(Decided(1)))
    node = make_transport(tls=authority.tls("node2.example"))
    for message in [*FOR_NODES, *FOR_ADMINISTRATORS, proposal(2), Heartbeat(-1, 0, -1, 0), question()]:
        assert ask(node, address, message) == Decided(1)
    other = make_transport(tls=authority.tls("127.0.0.1"))
    for message in [*FOR_NODES, proposal(2)]:
        assert "the rights of node 2; this connection has the rights of node 1" in refusal(
            ask(other, address, message)
        )
    assert ask(other, address, proposal(1)) == Decided(1)


def test_names_of_nodes_are_several(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="collection"):
        authority.tls(node_names="node1.example")


@pytest.mark.parametrize(
    "settings",
    [
        {"secret": "hush hush"},
        {"secret": bytearray(b"hush hush")},
        {"client_secret": b"hush hush"},
        {"secret": b"hush hush", "client_secret": b"hush hush"},
        {"secret": b"hush hush", "client_secret": b""},
    ],
)
def test_secrets_that_make_no_sense_are_refused_and_not_shown(settings: dict[str, bytes]) -> None:
    with pytest.raises(ConfigError) as refused:
        TcpTransport(**settings)  # type: ignore[arg-type]
    assert "hush" not in str(refused.value) + repr(refused.value)


def test_secrets_are_neither_shown_nor_logged(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    server, address = serve_nodes_and_clients(make_transport)
    client = make_transport(secret=b"something else")
    assert ask(client, address, question()) is None
    shown = caplog.text + repr(server) + repr(client) + str(client.last_error(address))
    for secret in (NODES, CLIENTS, b"something else"):
        assert secret.decode() not in shown
        assert secret.hex() not in shown


def test_a_secret_that_spark_cannot_read_is_named_by_its_file_only(
    make_transport: MakeTransport, tmp_path: Path
) -> None:
    opening = pytest.importorskip("commitlog.spark.readable")
    _, address = serve_nodes_and_clients(make_transport)
    file = tmp_path / "secret"
    with pytest.raises(ConfigError, match=str(file)):
        opening.open_readable(f"commitlog://{address}?secret={file}")
    file.write_text("something else\n")
    with pytest.raises(AuthenticationError) as refused:
        opening.open_readable(f"commitlog://{address}?secret={file}")
    assert "something else" not in str(refused.value)


# --- forged replicas ---------------------------------------------------------------------------------

ORDERS = TopicPartition("orders", 0)


@pytest.fixture
def lonely(tmp_path: Path, make_transport: MakeTransport) -> Iterator[tuple[Node, int]]:
    """A node that leads a topic of two replicas; the other one is known as alive, and is not there.

    With it comes the other one's incarnation.
    """
    controller = StaticController()
    log = commitlog.open(tmp_path / "log")
    transport = make_transport(secret=NODES, client_secret=CLIENTS)
    node = Node(log, transport, controller, 1, {"replica_lag_time_max_ms": 600_000}).start()
    incarnation = controller.register(JoinNode(2, "127.0.0.1:1", clean=True))
    node.create_topic("orders", 1, 2, {"min_insync_replicas": 2})
    yield node, incarnation
    node.stop(hand_over=False)
    transport.close()
    log.close()
    controller.close()


def forge_fetches(transport: TcpTransport, node: Node, incarnation: int, ended: Callable[[], bool]) -> bool:
    """Ask as if the other replica had everything; returns whether that was ever answered."""
    assert node.address is not None
    topic = node.state().topics[ORDERS.topic]
    (state,) = topic.partitions
    taken = False
    while not ended():
        part = FetchPart(ORDERS, topic.topic_id, state.leader_epoch, 1, state.leader_epoch, 0)
        answer = ask(transport, node.address, Fetch(2, incarnation, 1000, 0, (part,)))
        taken = taken or not isinstance(answer, Refused)
    return taken


@pytest.mark.parametrize("secret", [CLIENTS, NODES], ids=["clients", "nodes"])
def test_forged_fetches_of_a_client_do_not_acknowledge_a_record_that_has_one_copy(
    lonely: tuple[Node, int], make_transport: MakeTransport, secret: bytes
) -> None:
    node, incarnation = lonely
    assert node.address is not None
    outcome: list[object] = []

    def append() -> None:
        try:
            with commitlog.connect(node.address or "", secret=CLIENTS, timeout_ms=1500) as log:
                outcome.append(log.topic("orders").partition(0).append(b"precious", acks="all"))
        except commitlog.CommitLogError as error:
            outcome.append(error)

    thread = threading.Thread(target=append)
    thread.start()
    taken = forge_fetches(make_transport(secret=secret), node, incarnation, lambda: bool(outcome))
    thread.join()
    if secret == CLIENTS:
        assert not taken
        assert isinstance(outcome[0], ReplicationTimeoutError)
    else:  # a node is believed: that is what its secret is for
        assert taken
        assert outcome == [0]


def test_a_client_can_neither_create_nor_delete_topics_of_a_real_node(lonely: tuple[Node, int]) -> None:
    node, _ = lonely
    assert node.address is not None
    with commitlog.connect(node.address, secret=CLIENTS) as log:
        with pytest.raises(AuthorizationError):
            log.create_topic("mine")
        with pytest.raises(AuthorizationError):
            log.delete_topic("orders")
        assert log.topics() == ["orders"]
        assert log.topic("orders").append(b"but append", acks=1) == (0, 0)


def test_a_node_passes_on_the_commands_of_administrators_and_no_others(
    lonely: tuple[Node, int], make_transport: MakeTransport
) -> None:
    node, incarnation = lonely
    assert node.address is not None
    peer = make_transport(secret=NODES)
    altered = ask(peer, node.address, Submit(AlterTopic("orders", {"retention_ms": 5})))
    assert altered == Decided(node.state().version)
    assert node.state().topics["orders"].config["retention_ms"] == 5
    for command in (RemoveNode(2, incarnation), LeaveNode(2, incarnation)):
        answer = ask(peer, node.address, Submit(command))
        assert isinstance(answer, Refused) and answer.error == "ProtocolError"
    assert set(node.state().nodes) == {1, 2}


def test_a_node_with_the_clients_secret_does_not_join(make_transport: MakeTransport) -> None:
    controller = StaticController()
    transport = make_transport(secret=NODES, client_secret=CLIENTS)
    server = ControllerServer(controller, transport)
    address = server.serve()
    for secret in (CLIENTS, b"neither"):
        remote = RemoteController(make_transport(secret=secret), address, request_timeout_ms=500)
        with pytest.raises((AuthorizationError, NoControllerError)):
            remote.join(JoinNode(7, "127.0.0.1:1", clean=True), lambda state: None)
        remote.close()
    assert controller.state().nodes == {}
    server.close()
    controller.close()


def test_roles_are_a_ladder() -> None:
    assert Role.CLIENT < Role.ADMINISTRATOR < Role.NODE


def test_the_pages_name_every_setting_of_the_transport_and_its_default() -> None:
    docs = Path(__file__).parents[2] / "docs"
    transports, limits = (docs / "transports.md").read_text(), (docs / "wire.md").read_text()
    settings = inspect.signature(TcpTransport).parameters
    assert [name for name in settings if f"{name}=" not in transports] == []
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| ([^|]+) \|", limits, re.MULTILINE))
    units = {"MiB": 1 << 20, "s": 1000, "min": 60_000}
    for name, text in rows.items():
        number, _, unit = text.partition(" ")
        assert settings[name].default == int(number) * units.get(unit, 1), name
    assert set(rows) == {name for name in settings if name.startswith("max_") or name.endswith("_ms")}
