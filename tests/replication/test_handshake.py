"""The handshake: both sides prove that they know the secret, on this connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.errors import AuthenticationError, CommitLogError, ConnectionFailedError, ProtocolError
from commitlog.replication.transports import handshake
from commitlog.replication.transports.streams import PlainStream

SERVER_NONCE, CLIENT_NONCE = b"s" * 32, b"c" * 32


class Recorded(PlainStream):
    """A stream that keeps what was sent on it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self.sent = b""

    def send(self, *pieces: bytes, more: bool = False) -> None:  # type: ignore[override]
        self.sent += b"".join(pieces)
        super().send(*pieces, more=more)


@pytest.fixture
def ends() -> Iterator[tuple[Recorded, Recorded]]:
    """The server's end of a connection and the client's."""
    server, client = socket.socketpair()
    with server, client:
        yield Recorded(server), Recorded(client)


def outcome(greet: Callable[[], None], end: PlainStream) -> CommitLogError | EOFError | None:
    try:
        greet()
    except (CommitLogError, EOFError) as error:
        end.shut_down()
        return error
    return None


def meet(
    ends: tuple[Recorded, Recorded], server_secret: bytes | None, client_secret: bytes | None
) -> tuple[Exception | None, Exception | None]:
    """What becomes of the server and of the client."""
    server, client = ends
    results: list[Exception | None] = []
    thread = threading.Thread(
        target=lambda: results.append(
            outcome(lambda: handshake.greet_client(server, server_secret, SERVER_NONCE, "client"), server)
        )
    )
    thread.start()
    of_client = outcome(lambda: handshake.greet_server(client, client_secret, CLIENT_NONCE, "server"), client)
    thread.join()
    return results[0], of_client


@pytest.mark.parametrize("secret", [None, b"x", b"secret" * 100])
def test_two_that_know_the_same_are_let_through(
    ends: tuple[Recorded, Recorded], secret: bytes | None
) -> None:
    assert meet(ends, secret, secret) == (None, None)


def test_a_client_with_another_secret_is_told_so_and_refused(ends: tuple[Recorded, Recorded]) -> None:
    of_server, of_client = meet(ends, b"right", b"wrong")
    assert isinstance(of_server, AuthenticationError)
    assert isinstance(of_client, AuthenticationError)
    assert "another shared secret" in str(of_client)


def test_a_client_without_a_secret_does_not_talk_to_a_server_that_asks_for_one(
    ends: tuple[Recorded, Recorded],
) -> None:
    _, of_client = meet(ends, b"right", None)
    assert isinstance(of_client, AuthenticationError)
    assert ends[1].sent == b""


def test_a_client_with_a_secret_shows_nothing_to_a_server_that_does_not_ask(
    ends: tuple[Recorded, Recorded],
) -> None:
    _, of_client = meet(ends, None, b"right")
    assert isinstance(of_client, AuthenticationError)
    assert ends[1].sent == b""


def test_the_secret_is_never_sent(ends: tuple[Recorded, Recorded]) -> None:
    secret = b"a secret that would be found"
    meet(ends, secret, secret)
    assert secret not in ends[0].sent + ends[1].sent


def test_a_proof_is_worth_nothing_on_another_connection_or_from_the_other_side() -> None:
    here = handshake.proof(b"x", b"client", SERVER_NONCE, CLIENT_NONCE)
    assert here != handshake.proof(b"x", b"client", b"t" * 32, CLIENT_NONCE)
    assert here != handshake.proof(b"x", b"client", SERVER_NONCE, b"d" * 32)
    assert here != handshake.proof(b"x", b"server", SERVER_NONCE, CLIENT_NONCE)
    assert here != handshake.proof(b"y", b"client", SERVER_NONCE, CLIENT_NONCE)


def test_a_server_that_lets_everybody_in_but_knows_no_secret_is_found_out(
    ends: tuple[Recorded, Recorded],
) -> None:
    server, client = ends
    server.send(handshake._HELLO.pack(b"CLRP", 1, handshake.SECRET, SERVER_NONCE))
    server.send(handshake._VERDICT.pack(b"CLRP", 1, 0, bytes(32)))
    with pytest.raises(AuthenticationError, match="the server does not know"):
        handshake.greet_server(client, b"right", CLIENT_NONCE, "server")


def test_a_proof_handed_back_by_the_server_is_not_taken_for_its_own(ends: tuple[Recorded, Recorded]) -> None:
    server, client = ends
    server.send(handshake._HELLO.pack(b"CLRP", 1, handshake.SECRET, SERVER_NONCE))
    mirrored = handshake.proof(b"right", b"client", SERVER_NONCE, CLIENT_NONCE)
    server.send(handshake._VERDICT.pack(b"CLRP", 1, 0, mirrored))
    with pytest.raises(AuthenticationError):
        handshake.greet_server(client, b"right", CLIENT_NONCE, "server")


def test_a_full_server_says_so(ends: tuple[Recorded, Recorded]) -> None:
    server, client = ends
    server.send(handshake.refusal())
    with pytest.raises(ConnectionFailedError, match="no more connections"):
        handshake.greet_server(client, None, CLIENT_NONCE, "server")


def test_another_version_is_refused_by_both_sides(ends: tuple[Recorded, Recorded]) -> None:
    server, client = ends
    server.send(handshake._HELLO.pack(b"CLRP", 9, 0, SERVER_NONCE))
    with pytest.raises(ProtocolError, match="version 9"):
        handshake.greet_server(client, None, CLIENT_NONCE, "server")
    client.send(handshake._REPLY.pack(b"CLRP", 9, 0, CLIENT_NONCE, bytes(32)))
    with pytest.raises(ProtocolError, match="version 9"):
        handshake.greet_client(server, None, SERVER_NONCE, "client")


@given(st.binary(max_size=200))
def test_garbage_never_passes_for_a_handshake(garbage: bytes) -> None:
    for greet in (handshake.greet_client, handshake.greet_server):
        mine, other = socket.socketpair()
        with mine, other:
            other.sendall(garbage)
            other.shutdown(socket.SHUT_WR)
            with pytest.raises((CommitLogError, EOFError)):
                greet(PlainStream(mine), b"secret", SERVER_NONCE, "peer")
