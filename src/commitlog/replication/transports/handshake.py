"""The handshake at the start of a connection: both sides prove that they know a secret.

    server -> client   hello: magic, version, whether it asks for a secret, a nonce
    client -> server   reply: magic, version, whether it has a secret, a nonce, its proof
    server -> client   verdict: magic, version, welcome or not, its proof

A proof is an HMAC-SHA256, keyed with the secret, of the side's name and both nonces. The secret itself is
never sent, a proof is useless on another connection, and neither side can return the other's proof. A server
may have one secret for nodes and one for clients: the secret that the client proves decides its role. The
handshake authenticates the start of a connection; it neither encrypts nor protects what follows. TLS does.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from struct import Struct
from typing import Protocol

from commitlog.errors import AuthenticationError, ConnectionFailedError, ProtocolError
from commitlog.replication.transports.rights import Role
from commitlog.replication.transports.wire import VERSION

NONCE_BYTES = 32
_MAGIC = b"CLRP"
_HELLO = Struct("<4sBBxx32s")
_REPLY = Struct("<4sBBxx32s32s")
_VERDICT = Struct("<4sBBxx32s")
OPEN, SECRET = 0, 1  # what a hello says
WELCOME, WRONG_SECRET, FULL = 0, 1, 2  # what a verdict says
_NO_PROOF = bytes(32)


class NoRoomError(ConnectionFailedError):
    """A connection that we refuse because there are too many."""


class Stream(Protocol):
    """What a handshake needs from a connection."""

    def send(self, *pieces: bytes) -> None:
        """Send all pieces."""

    def receive(self, size: int) -> bytes:
        """Return the next `size` bytes; EOFError if there are fewer."""


def proof(secret: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return a side's proof that it knows the secret, for the connection with these nonces."""
    return hmac.new(secret, b"commitlog " + side + server_nonce + client_nonce, hashlib.sha256).digest()


def greet_client(
    stream: Stream,
    secrets: Mapping[Role, bytes],
    nonce: bytes,
    address: str,
    admit: Callable[[Role], str | None],
) -> None:
    """Perform the server's part of the handshake; raises unless the client is welcome.

    `admit` gets the role whose secret the client knows (without secrets, everybody is a node), and returns
    the reason if there is no room for it.
    """
    asks = SECRET if secrets else OPEN
    stream.send(_HELLO.pack(_MAGIC, VERSION, asks, nonce))
    magic, version, has, client_nonce, shown = _REPLY.unpack(stream.receive(_REPLY.size))
    _check(magic, version, address)
    role, mine = Role.NODE, _NO_PROOF
    is_known = not secrets and hmac.compare_digest(shown, _NO_PROOF)
    for its_role, secret in secrets.items():
        if hmac.compare_digest(shown, proof(secret, b"client", nonce, client_nonce)):
            role, mine, is_known = its_role, proof(secret, b"server", nonce, client_nonce), True
    if has != asks or not is_known:
        stream.send(_VERDICT.pack(_MAGIC, VERSION, WRONG_SECRET, _NO_PROOF))
        raise AuthenticationError(address, "the client does not know the shared secret")
    refusal = admit(role)
    if refusal is not None:
        stream.send(_VERDICT.pack(_MAGIC, VERSION, FULL, _NO_PROOF))
        raise NoRoomError(address, refusal)
    stream.send(_VERDICT.pack(_MAGIC, VERSION, WELCOME, mine))


def greet_server(stream: Stream, secret: bytes | None, nonce: bytes, address: str) -> None:
    """Perform the client's part of the handshake; raises unless the server is authentic and admits us."""
    magic, version, asks, server_nonce = _HELLO.unpack(stream.receive(_HELLO.size))
    _check(magic, version, address)
    if asks != (OPEN if secret is None else SECRET):
        wanted = "asks for a shared secret" if secret is None else "does not ask for the shared secret"
        raise AuthenticationError(address, f"the server {wanted}")
    shown = _NO_PROOF if secret is None else proof(secret, b"client", server_nonce, nonce)
    stream.send(_REPLY.pack(_MAGIC, VERSION, asks, nonce, shown))
    magic, version, verdict, its = _VERDICT.unpack(stream.receive(_VERDICT.size))
    _check(magic, version, address)
    if verdict == FULL:
        raise ConnectionFailedError(address, "it accepts no more connections")
    if verdict != WELCOME:
        raise AuthenticationError(address, "the server has another shared secret")
    expected = _NO_PROOF if secret is None else proof(secret, b"server", server_nonce, nonce)
    if not hmac.compare_digest(its, expected):
        raise AuthenticationError(address, "the server does not know the shared secret")


def _check(magic: bytes, version: int, address: str) -> None:
    if magic != _MAGIC:
        raise ProtocolError(address, f"it does not speak this protocol: its first bytes are {magic!r}")
    if version != VERSION:
        raise ProtocolError(address, f"it speaks version {version} of the protocol, not {VERSION}")
