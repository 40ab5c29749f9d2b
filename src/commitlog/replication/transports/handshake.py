"""The first bytes of a connection: both sides speak this protocol, and prove that they know the secret.

    server -> client   hello: magic, version, whether it asks for the secret, a nonce
    client -> server   reply: magic, version, whether it has a secret, a nonce, its proof
    server -> client   verdict: magic, version, welcome or not, its proof

A proof is an HMAC-SHA256, with the secret as its key, of the side's name and both nonces. So the secret
itself is never sent, a proof is worth nothing on another connection, and neither side can hand the other's
back. It says who is there when the connection begins; it does not hide or seal what follows: TLS does.
"""

from __future__ import annotations

import hashlib
import hmac
from struct import Struct
from typing import Protocol

from commitlog.errors import AuthenticationError, ConnectionFailedError, ProtocolError
from commitlog.replication.transports.wire import VERSION

NONCE_BYTES = 32
_MAGIC = b"CLRP"
_HELLO = Struct("<4sBBxx32s")
_REPLY = Struct("<4sBBxx32s32s")
_VERDICT = Struct("<4sBBxx32s")
OPEN, SECRET, FULL = 0, 1, 2  # what a hello says
_WELCOME, _WRONG_SECRET = 0, 1  # what a verdict says
_NO_PROOF = bytes(32)


class Stream(Protocol):
    """What a handshake asks of a connection."""

    def send(self, *pieces: bytes) -> None:
        """Send all of it."""

    def receive(self, size: int) -> bytes:
        """Return the next `size` bytes; EOFError if there are not so many."""


def proof(secret: bytes, side: bytes, server_nonce: bytes, client_nonce: bytes) -> bytes:
    """Return what a side shows of the secret on the connection of these nonces."""
    return hmac.new(secret, b"commitlog " + side + server_nonce + client_nonce, hashlib.sha256).digest()


def refusal() -> bytes:
    """Return the hello of a server that takes no more connections."""
    return _HELLO.pack(_MAGIC, VERSION, FULL, bytes(NONCE_BYTES))


def greet_client(stream: Stream, secret: bytes | None, nonce: bytes, address: str) -> None:
    """Do the server's part; raises unless the client is welcome."""
    asks = OPEN if secret is None else SECRET
    stream.send(_HELLO.pack(_MAGIC, VERSION, asks, nonce))
    magic, version, has, client_nonce, shown = _REPLY.unpack(stream.receive(_REPLY.size))
    _check(magic, version, address)
    expected = _NO_PROOF if secret is None else proof(secret, b"client", nonce, client_nonce)
    if has != asks or not hmac.compare_digest(shown, expected):
        stream.send(_VERDICT.pack(_MAGIC, VERSION, _WRONG_SECRET, _NO_PROOF))
        raise AuthenticationError(address, "the client does not know the shared secret")
    mine = _NO_PROOF if secret is None else proof(secret, b"server", nonce, client_nonce)
    stream.send(_VERDICT.pack(_MAGIC, VERSION, _WELCOME, mine))


def greet_server(stream: Stream, secret: bytes | None, nonce: bytes, address: str) -> None:
    """Do the client's part; raises unless the server is the right one and lets it in."""
    magic, version, asks, server_nonce = _HELLO.unpack(stream.receive(_HELLO.size))
    _check(magic, version, address)
    if asks == FULL:
        raise ConnectionFailedError(address, "it takes no more connections")
    if asks != (OPEN if secret is None else SECRET):
        wanted = "asks for a shared secret" if secret is None else "does not ask for the shared secret"
        raise AuthenticationError(address, f"the server {wanted}")
    shown = _NO_PROOF if secret is None else proof(secret, b"client", server_nonce, nonce)
    stream.send(_REPLY.pack(_MAGIC, VERSION, asks, nonce, shown))
    magic, version, verdict, its = _VERDICT.unpack(stream.receive(_VERDICT.size))
    _check(magic, version, address)
    if verdict != _WELCOME:
        raise AuthenticationError(address, "the server has another shared secret")
    expected = _NO_PROOF if secret is None else proof(secret, b"server", server_nonce, nonce)
    if not hmac.compare_digest(its, expected):
        raise AuthenticationError(address, "the server does not know the shared secret")


def _check(magic: bytes, version: int, address: str) -> None:
    if magic != _MAGIC:
        raise ProtocolError(address, f"it begins with {magic!r}: that is not this protocol")
    if version != VERSION:
        raise ProtocolError(address, f"version {version} of the protocol; this is version {VERSION}")
