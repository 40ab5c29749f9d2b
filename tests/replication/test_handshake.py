"""The handshake: both sides prove that they know the secret, on this connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commitlog.errors import AuthenticationError, CommitLogError, ConnectionFailedError, ProtocolError
from commitlog.replication.transports import handshake, wire
from commitlog.replication.transports.rights import Role
from commitlog.replication.transports.streams import Stream, shut_down

SERVER_NONCE, CLIENT_NONCE = b"s" * 32, b"c" * 32


class Recorded(Stream):
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


def outcome(greet: Callable[[], None], end: Stream) -> CommitLogError | EOFError | None:
    try:
        greet()
    except (CommitLogError, EOFError) as error:
        shut_down(end._sock)
        return error
    return None


def anybody(role: Role) -> None:
    """There is room for all."""


def meet(
    ends: tuple[Recorded, Recorded],
    server_secret: bytes | dict[Role, bytes] | None,
    client_secret: bytes | None,
    admit: Callable[[Role], str | None] = anybody,
) -> tuple[Exception | None, Exception | None]:
    """What becomes of the server and of the client."""
    server, client = ends
    if not isinstance(server_secret, dict):
        server_secret = {} if server_secret is None else {Role.NODE: server_secret}
    results: list[Exception | None] = []
    thread = threading.Thread(
        target=lambda: results.append(
            outcome(
                lambda: handshake.greet_client(server, server_secret, SERVER_NONCE, "client", admit), server
            )
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
    server.send(handshake._HELLO.pack(b"CLRP", wire.VERSION, handshake.SECRET, SERVER_NONCE))
    server.send(handshake._VERDICT.pack(b"CLRP", wire.VERSION, 0, bytes(32)))
    with pytest.raises(AuthenticationError, match="the server does not know"):
        handshake.greet_server(client, b"right", CLIENT_NONCE, "server")


def test_a_proof_handed_back_by_the_server_is_not_taken_for_its_own(ends: tuple[Recorded, Recorded]) -> None:
    server, client = ends
    server.send(handshake._HELLO.pack(b"CLRP", wire.VERSION, handshake.SECRET, SERVER_NONCE))
    mirrored = handshake.proof(b"right", b"client", SERVER_NONCE, CLIENT_NONCE)
    server.send(handshake._VERDICT.pack(b"CLRP", wire.VERSION, 0, mirrored))
    with pytest.raises(AuthenticationError):
        handshake.greet_server(client, b"right", CLIENT_NONCE, "server")


@pytest.mark.parametrize(("known", "role"), [(b"nodes", Role.NODE), (b"clients", Role.CLIENT)])
def test_of_two_secrets_the_one_that_is_known_decides_the_role(
    ends: tuple[Recorded, Recorded], known: bytes, role: Role
) -> None:
    roles: list[Role] = []
    both = {Role.NODE: b"nodes", Role.CLIENT: b"clients"}
    assert meet(ends, both, known, roles.append) == (None, None)
    assert roles == [role]


def test_a_server_without_a_secret_takes_everybody_for_a_node(ends: tuple[Recorded, Recorded]) -> None:
    roles: list[Role] = []
    meet(ends, None, None, roles.append)
    assert roles == [Role.NODE]


def test_a_wrong_secret_is_not_asked_whether_there_is_room(ends: tuple[Recorded, Recorded]) -> None:
    roles: list[Role] = []
    meet(ends, {Role.NODE: b"nodes", Role.CLIENT: b"clients"}, b"neither", roles.append)
    assert roles == []


def test_a_full_server_says_so(ends: tuple[Recorded, Recorded]) -> None:
    of_server, of_client = meet(ends, b"right", b"right", lambda role: "there are 256")
    assert isinstance(of_server, handshake.NoRoomError)
    assert isinstance(of_client, ConnectionFailedError)
    assert "no more connections" in str(of_client)


def test_a_handshake_that_was_overheard_is_worth_nothing_later(ends: tuple[Recorded, Recorded]) -> None:
    meet(ends, b"right", b"right")
    overheard = ends[1].sent
    server, client = socket.socketpair()
    with server, client:
        client.sendall(overheard)
        with pytest.raises(AuthenticationError):
            handshake.greet_client(
                Stream(server), {Role.NODE: b"right"}, b"another nonce".ljust(32), "client", anybody
            )


def test_another_version_is_refused_by_both_sides(ends: tuple[Recorded, Recorded]) -> None:
    server, client = ends
    server.send(handshake._HELLO.pack(b"CLRP", 9, 0, SERVER_NONCE))
    with pytest.raises(ProtocolError, match="version 9"):
        handshake.greet_server(client, None, CLIENT_NONCE, "server")
    client.send(handshake._REPLY.pack(b"CLRP", 9, 0, CLIENT_NONCE, bytes(32)))
    with pytest.raises(ProtocolError, match="version 9"):
        handshake.greet_client(server, {}, SERVER_NONCE, "client", anybody)


@given(st.binary(max_size=200))
def test_garbage_never_passes_for_a_handshake(garbage: bytes) -> None:
    def greet_client(stream: Stream) -> None:
        handshake.greet_client(stream, {Role.NODE: b"secret"}, SERVER_NONCE, "peer", anybody)

    def greet_server(stream: Stream) -> None:
        handshake.greet_server(stream, b"secret", SERVER_NONCE, "peer")

    for greet in (greet_client, greet_server):
        mine, other = socket.socketpair()
        with mine, other:
            other.sendall(garbage)
            other.shutdown(socket.SHUT_WR)
            with pytest.raises((CommitLogError, EOFError)):
                greet(Stream(mine))
