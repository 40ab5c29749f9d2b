"""Frames and handshakes: what strangers send, and what is made of it before anybody acts on it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from crc32c import crc32c
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from replication.test_wire import EVERY

from commitlog import CommitLogError, TopicConfig
from commitlog.aborted_index import Aborted, AbortedRanges
from commitlog.batches.encode import Rules, encode
from commitlog.batches.format import NO_PRODUCER, TRANSACTIONAL
from commitlog.batches.markers import encode_marker
from commitlog.partitions.slices import received
from commitlog.replication.messages import Append, Bytes, Fetched, FetchedPart, Message, ReadBatches, Refused
from commitlog.replication.refusals import error_of
from commitlog.replication.remote.fetched import FetchedSegment
from commitlog.replication.remote.intake import accepted
from commitlog.replication.transports import wire
from commitlog.replication.transports.handshake import greet_client, greet_server
from commitlog.replication.transports.rights import Role
from fuzz.harness import Input, Target, WrongAnswer
from fuzz.mutations import mutated, mutated_json, number
from fuzz.segment import forged
from fuzz.world import HIGH, LOW, segment_seeds

_PEER = "127.0.0.1:65000"
_LIMIT = 1 << 20


class FrameTarget(Target):
    """A frame, and the batches in it as the one who asked for them reads them."""

    name = "frame"
    forging = 0.6

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.named = ""  # the code that ends the connection knows the peer
        self._known = {self._raw(message): message for kind in EVERY for message in _examples(kind)}
        self._fronts = {_front(raw): message for raw, message in self._known.items()}

    def _raw(self, message: Message) -> bytes:
        return wire.to_bytes(message, wire.ANSWER, 7)

    def seeds(self) -> list[Input]:
        return [Input(raw) for raw in self._known]

    def forge(self, random: Random, data: bytes) -> bytes | None:
        size = int.from_bytes(data[16:20], "little")
        header, rest = data[wire.HEAD_BYTES : wire.HEAD_BYTES + size], data[wire.HEAD_BYTES + size :]
        kind, numbered = data[5:6], data[8:16]
        change = random.random()
        if change < 0.5 or not rest:
            header = mutated_json(random, header) if random.random() < 0.8 else mutated(random, header, data)
        elif change < 0.9:
            rest = forged(random, rest) or mutated(random, rest, data)
            header = _with_sizes(header, len(rest))
        else:
            kind = bytes((random.randrange(30),))
        header = header.ljust((len(header) + 7) // 8 * 8)
        whole = wire.HEAD_BYTES + len(header) + len(rest)
        stated = number(random, 4) if random.random() < 0.05 else len(header)
        head = (
            whole.to_bytes(4, "little")
            + data[4:5]
            + kind
            + data[6:8]
            + numbered
            + stated.to_bytes(4, "little")
        )
        return head + crc32c(header, crc32c(head)).to_bytes(4, "little") + header + rest

    def run(self, given: Input) -> str:
        _, message = wire.from_bytes(given.data, _PEER, _LIMIT)
        if not given.forged and _without_data(message) != _without_data(self._fronts.get(_front(given.data))):
            raise WrongAnswer("another message than the one that was sent")
        try:
            self._use(message)
        except CommitLogError:
            return f"{type(message).__name__} with damaged data"
        again = wire.from_bytes(self._raw(message), _PEER)[1]
        if again != message and "nan" not in repr(message):
            raise WrongAnswer("another message comes back", f"{again!r:.300} for {message!r:.300}")
        return type(message).__name__

    def _use(self, message: Message) -> None:
        if isinstance(message, Refused):
            str(error_of(message))
        elif isinstance(message, Append):
            for config in (TopicConfig(), TopicConfig(cleanup_policy="compact", max_message_bytes=20)):
                accepted(message.data.read(), config, 5)
        elif isinstance(message, ReadBatches) and message.data.size:
            segment = FetchedSegment(_PEER, message.data.read(), HIGH)
            aborted = AbortedRanges(message.aborted)
            for records, _ in segment.record_runs(LOW, HIGH, aborted):
                for count, _ in enumerate(records):
                    if count > 100_000:
                        raise WrongAnswer("more records than there can be")
            for batch, _ in segment.combined_batches(LOW, HIGH, aborted=aborted):
                is_aborted = batch.header.is_transactional and aborted.covers(
                    batch.header.producer_id, batch.header.base_offset
                )
                if len(batch) and is_aborted:
                    raise WrongAnswer("records of an aborted transaction", batch.header)
        elif isinstance(message, Fetched):
            for part in message.parts:
                if part.data.size:
                    received(part.data.read(), part.offset, _PEER)


def _examples(kind: type) -> list[Any]:
    """Some messages of a kind, always the same; batches in those that carry data."""
    found: list[Any] = []

    @settings(max_examples=3, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @drawn(EVERY[kind])
    def collect(message: Any) -> None:
        found.append(message)

    collect()
    batches = [Bytes(one) for one in (*segment_seeds(), _transactions())]
    single = [Bytes(one) for one in (segment_seeds()[6], segment_seeds()[7])]
    last = found[-1]
    if kind is Append:
        found += [replace(last, data=data) for data in single]
    elif kind is ReadBatches:
        found += [replace(last, data=data, aborted=(Aborted(77, LOW, LOW + 4),)) for data in batches]
    elif kind is Fetched:
        parts = [part for one in found for part in one.parts] or [_no_part()]
        found += [Fetched((replace(parts[0], offset=LOW, data=data),)) for data in batches]
    return found


def _transactions() -> bytes:
    """An aborted transaction, one that is committed, and records outside."""
    rules, offset, found = Rules(TopicConfig()), LOW, b""
    for producer_id, flags in ((77, TRANSACTIONAL), (78, TRANSACTIONAL), (-1, 0)):
        producer = (producer_id, 0, 0) if flags else NO_PRODUCER
        (one,) = encode([b"%d" % flags] * 4, None, None, None, rules, 5, producer, flags)
        found += b"".join(map(bytes, one.stamped(offset, 0)))
        offset += 4
        if flags:
            marker = encode_marker(
                producer_id, 0, commits=producer_id == 78, first_offset=offset - 4, timestamp=5
            )
            found += b"".join(map(bytes, marker.stamped(offset, 0)))
            offset += 1
    (rest,) = encode([b"x"] * (HIGH - offset), None, None, None, rules, 5)
    return found + b"".join(map(bytes, rest.stamped(offset, 0)))


def _no_part() -> FetchedPart:
    raise AssertionError("no example has a part")


def _front(raw: bytes) -> bytes:
    return raw[: wire.HEAD_BYTES + int.from_bytes(raw[16:20], "little")]


def _without_data(message: Any) -> Any:
    """A message but for batches, which have checksums of their own."""
    if isinstance(message, Append | ReadBatches):
        return replace(message, data=message.data.size)  # type: ignore[arg-type]
    if isinstance(message, Fetched):
        return tuple(replace(part, data=part.data.size) for part in message.parts)  # type: ignore[arg-type]
    return message


def _with_sizes(header: bytes, size: int) -> bytes:
    try:
        fields = json.loads(header)
        if "parts" in fields:
            fields["parts"][0]["data"] = size
        else:
            fields["data"] = size
        return json.dumps(fields).encode()
    except (ValueError, KeyError, TypeError, IndexError):
        return header


class _Stream:
    """The other side of a connection, which has said all that it will say."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self.heard = b""

    def receive(self, size: int) -> bytes:
        if len(self._said) < size:
            raise EOFError
        found, self._said = self._said[:size], self._said[size:]
        return found

    def send(self, *pieces: bytes) -> None:
        self.heard += b"".join(pieces)


class HandshakeTarget(Target):
    """The first bytes of a connection; who says anything else than the right ones is not let in."""

    name = "handshake"
    kinds = 4
    _secrets = (None, b"secret" * 6)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.named = _PEER
        self._right: dict[tuple[int, bool], bytes] = {}
        for number_, secret in enumerate(self._secrets):
            server, client = _Stream(b""), _Stream(b"")
            with contextlib.suppress(EOFError):
                _serve(server, secret)
            client = _Stream(server.heard)
            with contextlib.suppress(EOFError):
                _connect(client, secret)
            server = _Stream(client.heard)
            _serve(server, secret)
            self._right[number_, True] = client.heard
            self._right[number_, False] = server.heard

    def seeds(self) -> list[Input]:
        return [Input(said, 2 * number_ + is_client) for (number_, is_client), said in self._right.items()]

    def run(self, given: Input) -> str:
        number_, is_client = given.choice // 2 % 2, bool(given.choice % 2)
        secret, stream = self._secrets[number_], _Stream(given.data)
        try:
            (_serve if is_client else _connect)(stream, secret)
        except EOFError:
            return "it ended"
        right = self._right[number_, is_client]
        if secret is not None and _told(given.data[: len(right)]) != _told(right):
            raise WrongAnswer("somebody who does not know the secret is let in", given.data)
        return "welcome"


def _serve(stream: _Stream, secret: bytes | None) -> None:
    secrets = {} if secret is None else {Role.CLIENT: secret}
    greet_client(stream, secrets, bytes(range(32)), _PEER, lambda role: None)


def _connect(stream: _Stream, secret: bytes | None) -> None:
    greet_server(stream, secret, bytes(range(32, 64)), _PEER)


def _told(said: bytes) -> bytes:
    """What one side said, without the bytes that mean nothing: two of a reply, and of hello and verdict."""
    return said[:6] + said[8:46] + said[46 if len(said) == 72 else 48 :]
