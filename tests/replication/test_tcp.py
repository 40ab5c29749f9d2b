"""TcpTransport over real sockets: many requests at once, and peers that behave badly."""

from __future__ import annotations

import gc
import logging
import os
import random
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers import wait_until

from commitlog.errors import (
    AuthenticationError,
    ClosedError,
    ConfigError,
    ConnectionFailedError,
    FrameTooLargeError,
    NotLeaderError,
)
from commitlog.replication.messages import (
    Append,
    Appended,
    Bytes,
    Decided,
    Fetched,
    FetchedPart,
    FoundOffset,
    Message,
    Read,
    ReadBatches,
    Refused,
)
from commitlog.replication.ports import Reply
from commitlog.replication.transports import handshake, wire
from commitlog.replication.transports.tcp import TcpTransport
from commitlog.replication.transports.tls import TlsConfig

from .conftest import MakeTransport
from .talk import NAME, Answers, Authority, InFile, ask, question, raw_socket, receive_to_end

FEW_MS = 50


def echo(message: Message, reply: Reply) -> None:
    """Answer with what tells one request from another."""
    assert isinstance(message, Read)
    reply(FoundOffset(message.offset))


def hold(message: Message, reply: Reply) -> None:
    """Never answer."""


def greeted(address: str, tls: TlsConfig | None = None) -> socket.socket:
    """A raw connection on which frames may be sent."""
    sock = raw_socket(address)
    if tls is not None:
        sock = tls.client_context().wrap_socket(sock, server_hostname="127.0.0.1")
    assert len(sock.recv(40)) == 40
    sock.sendall(handshake._REPLY.pack(b"CLRP", wire.VERSION, 0, bytes(32), bytes(32)))
    assert len(sock.recv(40)) == 40
    return sock


def frame(message: Message, request_id: int = 1) -> bytes:
    packed = wire.encode(message, wire.REQUEST, request_id, 1 << 30)
    return packed.front + b"".join(bytes(one.read()) for one in packed.data)


def our_threads() -> list[str]:
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("commitlog-"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# --- requests and answers ----------------------------------------------------------------------------


def test_a_request_is_answered(make_transport: MakeTransport) -> None:
    address = make_transport().serve(echo)
    assert ask(make_transport(), address, question(42)) == FoundOffset(42)


def test_a_transport_may_ask_itself(make_transport: MakeTransport) -> None:
    transport = make_transport()
    assert ask(transport, transport.serve(echo), question(1)) == FoundOffset(1)


def test_answers_find_their_requests_in_any_order(make_transport: MakeTransport) -> None:
    held: list[tuple[Message, Reply]] = []
    address = make_transport().serve(lambda message, reply: held.append((message, reply)))
    client = make_transport()
    answers = [Answers() for _ in range(20)]
    for number, one in enumerate(answers):
        client.request(address, question(number), one, 30_000)
    wait_until(lambda: len(held) == 20)
    random.Random(1).shuffle(held)
    for message, reply in held:
        echo(message, reply)
    assert [one.wait() for one in answers] == [[FoundOffset(number)] for number in range(20)]
    assert client.counts.outgoing == 1


def test_many_threads_share_one_connection(make_transport: MakeTransport) -> None:
    server = make_transport()
    address = server.serve(echo)
    client = make_transport()

    def run(first: int) -> bool:
        return all(ask(client, address, question(first + n)) == FoundOffset(first + n) for n in range(50))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(0, 8000, 1000)))
    assert server.counts.accepted == 1


def test_large_and_small_answers_go_over_one_connection(make_transport: MakeTransport) -> None:
    blocks = [os.urandom(size) for size in (0, 1, 100, 70_000, 3_000_000)]

    def serve(message: Message, reply: Reply) -> None:
        assert isinstance(message, Read)
        reply(ReadBatches(0, 0, 0, 0, 0, message.offset, Bytes(blocks[message.offset])))

    address = make_transport().serve(serve)
    client = make_transport()
    answers = Answers()
    for number in list(range(5)) * 10:
        client.request(address, question(number), answers, 30_000)
    for answer in answers.wait(50):
        assert isinstance(answer, ReadBatches)
        assert bytes(answer.data.read()) == blocks[answer.end_offset]


def test_large_requests_arrive_whole(make_transport: MakeTransport) -> None:
    got: list[bytes] = []

    def serve(message: Message, reply: Reply) -> None:
        assert isinstance(message, Append)
        got.append(bytes(message.data.read()))
        reply(Appended(0, 1))

    address = make_transport().serve(serve)
    block = os.urandom(5_000_000)
    assert ask(make_transport(), address, Append(NAME, "id", 1, 0, Bytes(block))) == Appended(0, 1)
    assert got == [block]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_slices_of_files_are_sent_from_where_they_lie(
    make_transport: MakeTransport, authority: Authority, tmp_path: Path, secure: bool
) -> None:
    contents = os.urandom(3_000_000)
    path = tmp_path / "segment"
    path.write_bytes(contents)
    ranges = [(0, 10), (5, 2_000_000), (2_999_999, 1), (100, 0)]
    parts = tuple(
        FetchedPart(NAME, 0, position, data=InFile(path, position, size)) for position, size in ranges
    )
    tls = authority.tls() if secure else None
    address = make_transport(tls=tls).serve(lambda message, reply: reply(Fetched(parts)))
    answer = ask(make_transport(tls=tls), address, question())
    assert isinstance(answer, Fetched)
    assert [bytes(part.data.read()) for part in answer.parts] == [
        contents[position : position + size] for position, size in ranges
    ]


def test_a_file_that_is_shorter_than_was_said_ends_the_connection(
    make_transport: MakeTransport, tmp_path: Path
) -> None:
    path = tmp_path / "segment"
    path.write_bytes(b"short")
    answer = ReadBatches(0, 0, 0, 0, 0, 0, InFile(path, 0, 100))
    server = make_transport()
    address = server.serve(lambda message, reply: reply(answer))
    assert ask(make_transport(), address, question()) is None
    wait_until(lambda: server.counts.dropped == 1)


def test_a_refusal_of_a_handler_reaches_the_client(make_transport: MakeTransport) -> None:
    def refuse(message: Message, reply: Reply) -> None:
        raise NotLeaderError("orders-0", 2)

    address = make_transport().serve(refuse)
    assert ask(make_transport(), address, question()) == Refused("NotLeaderError", ("orders-0", 2))


def test_a_handler_that_fails_costs_only_its_request(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(message: Message, reply: Reply) -> None:
        assert isinstance(message, Read)
        reply(FoundOffset(1 // message.offset))

    server = make_transport()
    address = server.serve(fail)
    client = make_transport()
    answer = ask(client, address, question(0))
    assert isinstance(answer, Refused)
    assert "ZeroDivisionError" in str(answer.fields)
    assert ask(client, address, question(1)) == FoundOffset(1)
    assert server.counts.accepted == 1
    assert "handling a Read" in caplog.text


def test_a_second_answer_to_a_request_is_dropped(make_transport: MakeTransport) -> None:
    def twice(message: Message, reply: Reply) -> None:
        reply(Decided(1))
        reply(Decided(1))

    address = make_transport().serve(twice)
    client = make_transport()
    answers = Answers()
    client.request(address, question(), answers, 30_000)
    assert answers.wait() == [Decided(1)]
    assert ask(client, address, question()) == Decided(1)
    assert answers.got == [Decided(1)]


def test_an_answer_above_the_frame_limit_is_refused_and_the_connection_lives(
    make_transport: MakeTransport,
) -> None:
    server = make_transport(max_frame_bytes=10_000)
    address = server.serve(lambda message, reply: reply(ReadBatches(0, 0, 0, 0, 0, 0, Bytes(bytes(20_000)))))
    client = make_transport()
    for _ in range(2):
        answer = ask(client, address, question())
        assert isinstance(answer, Refused)
        assert answer.error == "FrameTooLargeError"
    assert server.counts.accepted == 1


def test_a_request_above_the_frame_limit_is_not_sent(make_transport: MakeTransport) -> None:
    client = make_transport(max_frame_bytes=10_000)
    with pytest.raises(FrameTooLargeError):
        client.request("127.0.0.1:1", Append(NAME, "id", 1, 0, Bytes(bytes(20_000))), Answers(), 1000)
    assert client.counts.outgoing == 0


# --- deadlines and reconnection ----------------------------------------------------------------------


def test_a_request_that_is_not_answered_in_time_gets_none(make_transport: MakeTransport) -> None:
    address = make_transport().serve(hold)
    assert ask(make_transport(), address, question(), timeout_ms=FEW_MS) is None


def test_an_answer_that_comes_too_late_is_dropped_and_the_connection_lives(
    make_transport: MakeTransport,
) -> None:
    held: list[tuple[Message, Reply]] = []

    def first_is_held(message: Message, reply: Reply) -> None:
        held.append((message, reply))
        if len(held) > 1:
            echo(message, reply)

    server = make_transport()
    address = server.serve(first_is_held)
    client = make_transport()
    late = Answers()
    client.request(address, question(1), late, FEW_MS)
    assert late.wait() == [None]
    wait_until(lambda: held)
    echo(*held[0])
    assert ask(client, address, question(2)) == FoundOffset(2)
    assert late.got == [None]
    assert server.counts.accepted == 1


def test_nobody_there_is_told_at_once_and_why(make_transport: MakeTransport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    client = make_transport()
    assert ask(client, address, question()) is None
    assert isinstance(client.last_error(address), ConnectionFailedError)


def test_what_is_under_way_gets_none_when_the_connection_breaks(make_transport: MakeTransport) -> None:
    server = make_transport()
    held: list[Reply] = []
    address = server.serve(lambda message, reply: held.append(reply))
    client = make_transport()
    answers = Answers()
    for number in range(10):
        client.request(address, question(number), answers, 30_000)
    wait_until(lambda: len(held) == 10)
    server.close()
    assert answers.wait(10) == [None] * 10
    held[0](Decided(1))  # nobody minds


def test_the_next_request_connects_again(make_transport: MakeTransport) -> None:
    server = make_transport()
    address = server.serve(echo)
    client = make_transport()
    assert ask(client, address, question(1)) == FoundOffset(1)
    server.close()
    wait_until(lambda: client.counts.outgoing == 0)
    assert ask(client, address, question(2)) is None
    again = make_transport(port=int(address.rpartition(":")[2]))
    again.serve(echo)
    assert ask(client, address, question(3)) == FoundOffset(3)
    assert client.last_error(address) is None


def test_an_answer_may_ask_again(make_transport: MakeTransport) -> None:
    """As a follower does that fetches in a loop."""
    address = make_transport().serve(echo)
    client = make_transport()
    answers = Answers()

    def next_one(answer: Message | None) -> None:
        answers(answer)
        if len(answers.got) < 100:
            client.request(address, question(len(answers.got)), next_one, 30_000)

    client.request(address, question(0), next_one, 30_000)
    assert answers.wait(100) == [FoundOffset(number) for number in range(100)]


def test_an_answer_is_never_given_within_the_request_itself(make_transport: MakeTransport) -> None:
    inside = threading.local()
    broken: list[bool] = []
    answers = Answers()

    def note(answer: Message | None) -> None:
        broken.append(getattr(inside, "requesting", False))
        answers(answer)

    address = make_transport().serve(echo)
    client = make_transport(max_waiting_bytes=1)
    for target in (address, "127.0.0.1:1", "no.such.host.invalid:1"):
        for timeout_ms in (0, 30_000):
            for number in range(20):
                inside.requesting = True
                client.request(target, question(number), note, timeout_ms)
                inside.requesting = False
    answers.wait(120)
    assert broken == [False] * 120


@pytest.mark.parametrize("address", ["", "here", "here:", ":1", "here:x", "here:0", "here:70000"])
def test_an_address_that_is_none_is_told(make_transport: MakeTransport, address: str) -> None:
    client = make_transport()
    with pytest.raises(ConfigError, match="host:port"):
        client.request(address, question(), Answers(), 1000)


def test_an_ipv6_address_stands_in_brackets(make_transport: MakeTransport) -> None:
    try:
        address = make_transport(host="::1").serve(echo)
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert address.startswith("[::1]:")
    assert ask(make_transport(), address, question(1)) == FoundOffset(1)


# --- the clock ---------------------------------------------------------------------------------------


def test_a_call_is_made_again_and_again_even_if_it_fails(make_transport: MakeTransport) -> None:
    calls: list[int] = []

    def call() -> None:
        calls.append(1)
        raise ValueError("this one fails")

    transport = make_transport()
    transport.call_every(1, call)
    wait_until(lambda: len(calls) > 3)
    transport.close()
    assert "commitlog-timer" not in our_threads()


def test_waiting_ends_when_the_condition_holds_when_time_is_over_and_when_closed(
    make_transport: MakeTransport,
) -> None:
    transport = make_transport()
    seen: list[bool] = []
    flag = threading.Event()
    waiter = threading.Thread(target=lambda: seen.append(transport.wait_for(flag.is_set, 30_000)))
    waiter.start()
    flag.set()
    transport.wake()
    waiter.join(30)
    assert seen == [True]
    assert not transport.wait_for(lambda: False, 1)
    waiter = threading.Thread(target=lambda: seen.append(transport.wait_for(lambda: False, 60_000)))
    waiter.start()
    transport.close()
    waiter.join(30)
    assert seen == [True, False]


def test_time_does_not_go_back(make_transport: MakeTransport) -> None:
    transport = make_transport()
    times = [transport.now_ms() for _ in range(1000)]
    assert times == sorted(times)


# --- who is let in -----------------------------------------------------------------------------------


def test_two_with_the_same_secret_talk(make_transport: MakeTransport) -> None:
    address = make_transport(secret=b"one").serve(echo)
    assert ask(make_transport(secret=b"one"), address, question(1)) == FoundOffset(1)


@pytest.mark.parametrize(("mine", "theirs"), [(b"one", b"two"), (b"one", None), (None, b"one")])
def test_another_secret_or_none_is_not_let_in(
    make_transport: MakeTransport, mine: bytes | None, theirs: bytes | None
) -> None:
    asked: list[Message] = []
    address = make_transport(secret=mine).serve(lambda message, reply: asked.append(message))
    client = make_transport(secret=theirs)
    assert ask(client, address, question()) is None
    assert isinstance(client.last_error(address), AuthenticationError)
    assert asked == []


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(ConfigError):
        TcpTransport(secret=b"")


def test_two_with_certificates_of_one_authority_talk(
    make_transport: MakeTransport, authority: Authority
) -> None:
    address = make_transport(tls=authority.tls(), secret=b"as well").serve(echo)
    client = make_transport(tls=authority.tls(), secret=b"as well")
    assert [ask(client, address, question(n)) for n in range(10)] == [FoundOffset(n) for n in range(10)]


def test_many_requests_and_large_answers_at_once_within_tls(
    make_transport: MakeTransport, authority: Authority
) -> None:
    block = os.urandom(1_000_000)
    tls = authority.tls()
    address = make_transport(tls=tls).serve(
        lambda message, reply: reply(ReadBatches(0, 0, 0, 0, 0, 0, Bytes(block)))
    )
    client = make_transport(tls=tls)
    answers = Answers()
    for _ in range(40):
        client.request(address, question(), answers, 30_000)
    for answer in answers.wait(40):
        assert isinstance(answer, ReadBatches)
        assert answer.data.read() == block


def test_a_client_of_another_authority_is_not_let_in(
    make_transport: MakeTransport, authority: Authority, stranger: Authority
) -> None:
    server, asked = make_transport(tls=authority.tls()), []
    address = server.serve(lambda message, reply: asked.append(message))
    theirs, trusted = stranger.tls(), authority.tls()
    config = type(trusted)(theirs.certificate, theirs.key, trusted.ca)
    client = make_transport(tls=config)
    assert ask(client, address, question()) is None
    assert isinstance(client.last_error(address), AuthenticationError | ConnectionFailedError)
    wait_until(lambda: server.counts.dropped == 1)
    assert asked == []


def test_a_server_of_another_authority_is_not_trusted(
    make_transport: MakeTransport, authority: Authority, stranger: Authority
) -> None:
    address = make_transport(tls=stranger.tls()).serve(echo)
    client = make_transport(tls=authority.tls())
    assert ask(client, address, question()) is None
    error = client.last_error(address)
    assert isinstance(error, AuthenticationError)
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)


def test_a_certificate_for_another_host_is_not_trusted_unless_hosts_do_not_matter(
    make_transport: MakeTransport, authority: Authority
) -> None:
    address = make_transport(tls=authority.tls("other.example")).serve(echo)
    strict = make_transport(tls=authority.tls())
    assert ask(strict, address, question()) is None
    assert isinstance(strict.last_error(address), AuthenticationError)
    lenient = make_transport(tls=authority.tls(check_hostname=False))
    assert ask(lenient, address, question(1)) == FoundOffset(1)


def test_a_client_without_tls_does_not_get_through_to_a_server_with_it(
    make_transport: MakeTransport, authority: Authority
) -> None:
    address = make_transport(tls=authority.tls(), handshake_timeout_ms=FEW_MS).serve(echo)
    client = make_transport()
    assert ask(client, address, question()) is None
    assert client.last_error(address) is not None


def test_a_client_with_tls_does_not_get_through_to_a_server_without(
    make_transport: MakeTransport, authority: Authority
) -> None:
    address = make_transport().serve(echo)
    client = make_transport(tls=authority.tls())
    assert ask(client, address, question()) is None
    assert isinstance(client.last_error(address), AuthenticationError)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
def test_without_credentials_nothing_but_this_machine_is_served(
    make_transport: MakeTransport, host: str
) -> None:
    with pytest.raises(ConfigError, match="needs `secret` or `tls`"):
        make_transport(host=host).serve(echo)
    address = make_transport(host="0.0.0.0", advertised_host="127.0.0.1", secret=b"s").serve(echo)
    assert ask(make_transport(secret=b"s"), address, question(1)) == FoundOffset(1)


def test_localhost_is_this_machine(make_transport: MakeTransport) -> None:
    address = make_transport(host="localhost").serve(echo)
    assert ask(make_transport(), address, question(1)) == FoundOffset(1)


# --- peers that behave badly -------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_garbage_instead_of_a_handshake_ends_that_connection_only(
    make_transport: MakeTransport, seed: int
) -> None:
    server = make_transport()
    address = server.serve(echo)
    client = make_transport()
    assert ask(client, address, question(1)) == FoundOffset(1)
    with raw_socket(address) as sock:
        sock.sendall(random.Random(seed).randbytes(200))
        assert len(receive_to_end(sock)) <= 80
    wait_until(lambda: server.counts.dropped == 1)
    assert ask(client, address, question(2)) == FoundOffset(2)
    assert client.counts.outgoing == 1


@pytest.mark.parametrize("seed", range(10))
def test_garbage_instead_of_a_frame_ends_that_connection_only(
    make_transport: MakeTransport, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_transport()
    address = server.serve(echo)
    client = make_transport()
    assert ask(client, address, question(1)) == FoundOffset(1)
    with greeted(address) as sock:
        sock.sendall(frame(question(7)))
        assert len(sock.recv(1000)) > wire.HEAD_BYTES
        sock.sendall(random.Random(seed).randbytes(300))
        receive_to_end(sock)
    wait_until(lambda: server.counts.dropped == 1)
    assert "was dropped" in caplog.text
    assert ask(client, address, question(2)) == FoundOffset(2)


@pytest.mark.parametrize("cut", [1, 23, 24, 30, -1])
def test_a_frame_that_is_cut_off_is_no_request(make_transport: MakeTransport, cut: int) -> None:
    asked: list[Message] = []
    server = make_transport()
    address = server.serve(lambda message, reply: asked.append(message))
    with greeted(address) as sock:
        sock.sendall(frame(question())[:cut])
        sock.shutdown(socket.SHUT_WR)
        assert receive_to_end(sock) == b""
    wait_until(lambda: server.counts.dropped == 1)
    assert asked == []


def test_a_frame_that_comes_byte_by_byte_is_a_request(make_transport: MakeTransport) -> None:
    address = make_transport().serve(echo)
    with greeted(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in frame(question(9)) + frame(question(10)):
            sock.sendall(bytes([byte]))
        sock.shutdown(socket.SHUT_WR)
        assert receive_to_end(sock).count(b"offset") == 2


def test_many_frames_at_once_are_all_answered(make_transport: MakeTransport) -> None:
    address = make_transport().serve(echo)
    with greeted(address) as sock:
        sock.sendall(b"".join(frame(question(number), number) for number in range(500)))
        sock.shutdown(socket.SHUT_WR)
        assert receive_to_end(sock).count(b'"offset"') == 500


def test_a_frame_above_the_limit_ends_the_connection_before_it_is_received(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_transport(max_frame_bytes=1000)
    address = server.serve(echo)
    with greeted(address) as sock:
        sock.sendall(frame(ReadBatches(0, 0, 0, 0, 0, 0, Bytes(bytes(2000))))[:24])
        assert receive_to_end(sock) == b""
    wait_until(lambda: server.counts.dropped == 1)
    assert "max_frame_bytes is 1000" in caplog.text


def test_an_answer_from_the_side_that_connected_ends_the_connection(make_transport: MakeTransport) -> None:
    server = make_transport()
    address = server.serve(echo)
    with greeted(address) as sock:
        sock.sendall(wire.encode(Decided(1), wire.ANSWER, 1, 1000).front)
        assert receive_to_end(sock) == b""
    wait_until(lambda: server.counts.dropped == 1)


@pytest.mark.parametrize("reply", [b"", b"x" * 40, b"HTTP/1.1 400 Bad Request\r\n\r\n" * 4])
def test_a_server_that_speaks_something_else_is_told_from_ours(
    make_transport: MakeTransport, reply: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.sendall(reply)

        thread = threading.Thread(target=serve)
        thread.start()
        client = make_transport()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        assert ask(client, address, question()) is None
        assert client.last_error(address) is not None
        thread.join(30)


def test_who_says_nothing_is_dropped_after_a_while(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_transport(handshake_timeout_ms=FEW_MS)
    address = server.serve(echo)
    with raw_socket(address) as sock:
        assert len(receive_to_end(sock)) == 40
    wait_until(lambda: server.counts.dropped == 1)
    assert "no handshake within 50 ms" in caplog.text


def test_who_stops_within_a_frame_is_dropped_after_a_while(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_transport(stall_timeout_ms=FEW_MS)
    address = server.serve(echo)
    with greeted(address) as sock:
        sock.sendall(frame(question())[:10])
        assert receive_to_end(sock) == b""
    with greeted(address) as sock:
        sock.sendall(frame(question())[:50])
        assert receive_to_end(sock) == b""
    wait_until(lambda: server.counts.dropped == 2)
    assert "in the middle of a message" in caplog.text


def test_who_is_silent_between_frames_is_left_alone(make_transport: MakeTransport) -> None:
    server = make_transport(stall_timeout_ms=4, handshake_timeout_ms=4_000)
    address = server.serve(echo)
    client = make_transport()
    assert ask(client, address, question(1)) == FoundOffset(1)
    rounds: list[int] = []
    server.call_every(5, lambda: rounds.append(1))
    wait_until(lambda: len(rounds) > 10)
    assert ask(client, address, question(2)) == FoundOffset(2)
    assert server.counts.accepted == 1


def test_who_does_not_read_is_dropped_before_much_waits_for_it(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    block = Bytes(bytes(1 << 20))
    server = make_transport(max_waiting_bytes=8 << 20)
    address = server.serve(lambda message, reply: reply(ReadBatches(0, 0, 0, 0, 0, 0, block)))
    client = make_transport()
    with greeted(address) as sock:
        try:
            for _ in range(1000):
                sock.sendall(frame(question()))
        except OSError:
            pass  # it was dropped meanwhile
        wait_until(lambda: server.counts.dropped == 1)
        assert "bytes wait for it" in caplog.text
        answer = ask(client, address, question())
        assert isinstance(answer, ReadBatches)


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_who_reads_late_gets_everything_whole(
    make_transport: MakeTransport, authority: Authority, secure: bool
) -> None:
    """What could not be sent at once goes on where it stopped."""
    sizes = [100, 40_000, 60_000, 200, 70_000, 15]
    blocks = [bytes([number]) * size for number, size in enumerate(sizes)]

    def serve(message: Message, reply: Reply) -> None:
        assert isinstance(message, Read)
        reply(ReadBatches(0, 0, 0, 0, 0, message.offset, Bytes(blocks[message.offset % len(blocks)])))

    tls = authority.tls() if secure else None
    server = make_transport(tls=tls)
    sock = greeted(server.serve(serve), tls)
    with sock:
        sock.sendall(b"".join(frame(question(number), number) for number in range(300)))
        wait_until(lambda: any(one._frames for one in list(server._incoming)))
        received = b""
        for number in range(300):
            while len(received) < wire.HEAD_BYTES:
                received += sock.recv(1 << 20)
            size = wire.read_head(memoryview(received), 1 << 30, "server").size
            while len(received) < size:
                received += sock.recv(1 << 20)
            head, answer = wire.from_bytes(received[:size], "server")
            received = received[size:]
            assert isinstance(answer, ReadBatches)
            assert (head.request_id, answer.end_offset) == (number, number)
            assert answer.data.read() == blocks[number % len(blocks)]


def test_who_stops_reading_is_dropped_after_a_while(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_transport(stall_timeout_ms=FEW_MS)
    address = server.serve(
        lambda message, reply: reply(ReadBatches(0, 0, 0, 0, 0, 0, Bytes(bytes(20 << 20))))
    )
    with greeted(address) as sock:
        sock.sendall(frame(question()))
        wait_until(lambda: server.counts.dropped == 1)
    assert "does not read what it is sent" in caplog.text


def test_a_server_that_does_not_read_costs_the_client_its_requests_only(
    make_transport: MakeTransport,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = make_transport(stall_timeout_ms=FEW_MS)
        answers = Answers()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        client.request(address, Append(NAME, "id", 1, 0, Bytes(bytes(20 << 20))), answers, 30_000)
        sock, _ = listener.accept()
        with sock:
            sock.sendall(handshake._HELLO.pack(b"CLRP", 1, 0, bytes(32)))
            sock.recv(72, socket.MSG_WAITALL)
            sock.sendall(handshake._VERDICT.pack(b"CLRP", 1, 0, bytes(32)))
            assert answers.wait() == [None]


def test_one_connection_too_many_is_told_so_and_counted(make_transport: MakeTransport) -> None:
    server = make_transport(max_connections=2)
    address = server.serve(echo)
    first, second, third = make_transport(), make_transport(), make_transport()
    assert ask(first, address, question(1)) == FoundOffset(1)
    assert ask(second, address, question(2)) == FoundOffset(2)
    assert ask(third, address, question(3)) is None
    assert "no more connections" in str(third.last_error(address))
    assert server.counts.refused == 1
    assert ask(first, address, question(4)) == FoundOffset(4)
    first.close()
    wait_until(lambda: server.counts.incoming == 1)
    wait_until(lambda: ask(third, address, question(5)) == FoundOffset(5))


# --- the end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_closing_leaves_no_thread_socket_or_descriptor(authority: Authority, secure: bool) -> None:
    wait_until(lambda: our_threads() == [])
    gc.collect()
    before = descriptors()
    tls = authority.tls() if secure else None
    server, clients = TcpTransport(tls=tls), [TcpTransport(tls=tls) for _ in range(3)]
    address = server.serve(echo)
    for client in clients:
        assert ask(client, address, question(1)) == FoundOffset(1)
        client.request("127.0.0.1:1", question(), Answers(), 30_000)
    with raw_socket(address):
        wait_until(lambda: server.counts.incoming == 4)
        assert len(our_threads()) > 10
        for one in (clients[0], server, *clients[1:]):
            one.close()
            one.close()
    wait_until(lambda: our_threads() == [])
    gc.collect()
    wait_until(lambda: descriptors() == before)


def test_closing_answers_what_is_under_way_with_none(make_transport: MakeTransport) -> None:
    address = make_transport().serve(hold)
    client = make_transport()
    answers = Answers()
    for _ in range(5):
        client.request(address, question(), answers, 60_000)
    client.close()
    assert answers.wait(5) == [None] * 5
    with pytest.raises(ClosedError):
        client.request(address, question(), answers, 1000)
    with pytest.raises(ClosedError):
        client.serve(echo)


def test_a_transport_may_be_closed_while_it_connects(make_transport: MakeTransport) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:  # it never accepts
        client = make_transport()
        answers = Answers()
        client.request(f"127.0.0.1:{listener.getsockname()[1]}", question(), answers, 60_000)
        client.close()
        assert answers.wait() == [None]


def test_a_handler_may_close_its_transport(make_transport: MakeTransport) -> None:
    server = make_transport()
    address = server.serve(lambda message, reply: server.close())
    assert ask(make_transport(), address, question()) is None
    wait_until(lambda: server.counts.incoming == 0)


def test_asking_again_while_closing_is_no_error(
    make_transport: MakeTransport, caplog: pytest.LogCaptureFixture
) -> None:
    address = make_transport().serve(hold)
    client = make_transport()

    def again(answer: Message | None) -> None:
        client.request(address, question(), again, 60_000)

    with caplog.at_level(logging.INFO, "commitlog"):
        client.request(address, question(), again, 60_000)
        client.close()
    assert "failed" not in caplog.text


FORK = """
import os, sys
sys.path.insert(0, sys.argv[1])
from commitlog.errors import ForkedError
from commitlog.replication.transports.tcp import TcpTransport
from commitlog.replication.transports.tls import TlsConfig
from commitlog.replication.messages import FoundOffset
from replication.talk import ask, question
server, client = TcpTransport(), TcpTransport()
address = server.serve(lambda message, reply: reply(FoundOffset(message.offset)))
assert ask(client, address, question(1)) == FoundOffset(1)
pid = os.fork()
if pid == 0:
    try:
        client.request(address, question(2), print, 1000)
    except ForkedError:
        client.close()
        server.close()
        mine = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if int(fd) > 2
                and os.path.exists(f"/proc/self/fd/{fd}")]
        os._exit(any(one.startswith("socket") for one in mine))
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert ask(client, address, question(3)) == FoundOffset(3)
assert server.counts.accepted == 1
client.close()
server.close()
print("done")
"""


def test_a_forked_child_has_none_of_its_parents_connections(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tests)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_it_is_a_transport() -> None:
    from commitlog.replication.ports import Transport

    for name in (name for name in vars(Transport) if not name.startswith("_")):
        assert callable(getattr(TcpTransport, name))


def test_a_condition_may_take_a_lock_that_whoever_wakes_holds(make_transport: MakeTransport) -> None:
    transport = make_transport()
    lock, ready = threading.Lock(), threading.Event()
    done: list[int] = []

    def condition() -> bool:
        ready.set()
        with lock:
            return bool(done)

    with ThreadPoolExecutor(1) as pool:
        with lock:
            waiting = pool.submit(transport.wait_for, condition, 30_000)
            assert ready.wait(30)
            transport.wake()
            done.append(1)
        assert waiting.result(30)
