"""Connection: sends and receives frames over one stream, with a thread for each direction."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from commitlog.errors import ClosedError, ForkedError, ProtocolError
from commitlog.replication.messages import Data, Message
from commitlog.replication.ports import Answered
from commitlog.replication.transports import wire
from commitlog.replication.transports.rights import Peer, Role
from commitlog.replication.transports.streams import InFile, Stream
from commitlog.replication.transports.timer import Entry

_logger = logging.getLogger("commitlog.replication")
_SCRATCH_BYTES = 1 << 14  # receives a small frame with one system call; this much of a large one is copied
_SMALL_BYTES = 1 << 16  # sent by the calling thread if possible; also the most that is sent together


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a connection accepts, and how long it waits."""

    max_frame_bytes: int
    max_waiting_bytes: int
    stall_ms: int


class Question:
    """A pending request. Two threads set `deadline` and `is_over`, in any order."""

    __slots__ = ("answered", "deadline", "is_over")

    def __init__(self, answered: Answered) -> None:
        self.answered = answered
        self.deadline: Entry | None = None
        self.is_over = False

    def set_deadline(self, deadline: Entry) -> None:
        """Set the timer entry that gives up; it is cancelled if the answer has already arrived."""
        self.deadline = deadline
        if self.is_over:
            deadline.cancel()

    def end(self, answer: Message | None) -> None:
        """Deliver the answer; called once."""
        self.is_over = True
        if self.deadline is not None:
            self.deadline.cancel()
        try:
            self.answered(answer)
        except (ClosedError, ForkedError):  # it sent another request although the transport is closed
            pass
        except Exception:  # the caller's mistake, which must not end the connection
            _logger.exception("handling an answer failed")


class Connection:
    """One connection. Its receiving thread opens it, and it is over when that thread ends.

    `_error` says why it is over: once set, nothing more is accepted, and the receiving thread answers all
    pending requests with None.
    """

    def __init__(
        self,
        name: str,
        limits: Limits,
        open_stream: Callable[[Connection], Stream],
        take: Callable[[Connection, wire.Head, Message], None],
        ended: Callable[[Connection, Exception], None],
    ) -> None:
        self.name = name
        self.is_open = False  # the handshake is done
        self.peer = Peer(Role.CLIENT)  # the other side, if it connected to us
        self._limits = limits
        self._open_stream = open_stream
        self._take = take
        self._ended = ended
        self._stream: Stream | None = None
        self._shut_down: Callable[[], None] = lambda: None
        self._error: Exception | None = None
        self._changed = threading.Condition()
        self._frames: deque[wire.Frame] = deque()
        self._waiting_bytes = 0
        self.frames_sent = 0  # or queued; if the other side connected to us, these are answers to it
        self._is_sending = False
        self._sending_since = self._receiving_since = 0.0  # 0: not within a frame
        self._heard_at = time.monotonic()
        self.frames_received = 0
        self._questions: dict[int, Question] = {}
        self._writer = threading.Thread(target=self._write, name=f"commitlog-send-{name}", daemon=True)
        self._reader = threading.Thread(target=self._run, name=f"commitlog-receive-{name}", daemon=True)

    def start(self) -> None:
        """Start to open the connection."""
        self._reader.start()

    @property
    def error(self) -> Exception | None:
        """The reason why it is over; None while it is not."""
        return self._error

    # --- for other threads

    def ask(self, request_id: int, frame: wire.Frame, question: Question) -> bool:
        """Send a request; False if the connection is over."""
        with self._changed:
            if self._error is not None:
                return False
            self._questions[request_id] = question
        self.send(frame)
        return True

    def answer(self, request_id: int, message: Message | None) -> None:
        """Deliver an answer, or None after the deadline. A late answer is dropped."""
        with self._changed:
            question = self._questions.pop(request_id, None)
        if question is not None:
            question.end(message)

    def send(self, frame: wire.Frame) -> None:
        """Queue a frame, or send it at once if it is small and no other thread is sending.

        A peer that does not read is disconnected before too much waits for it.
        """
        with self._changed:
            if self._error is not None:
                return
            self.frames_sent += 1
            at_once = (
                not self._is_sending
                and not self._frames
                and frame.size <= _SMALL_BYTES
                and self._stream is not None
                and not any(isinstance(data, InFile) for data in frame.data)
            )
            if at_once:
                self._is_sending, self._sending_since = True, time.monotonic()
            elif self._waiting_bytes and self._waiting_bytes + frame.size > self._limits.max_waiting_bytes:
                reason = f"it does not read: {self._waiting_bytes} bytes wait for it"
                self._end_locked(ProtocolError(self.name, reason))
            else:
                self._frames.append(frame)
                self._waiting_bytes += frame.size
                self._changed.notify_all()
        if at_once:
            self._send_at_once(frame)

    def _send_at_once(self, frame: wire.Frame) -> None:
        assert self._stream is not None
        # measured: a round trip without thread switches takes a third less
        whole = b"".join([frame.front, *(data.read() for data in frame.data)])
        try:
            sent = self._stream.try_send(whole)
        except BaseException as error:
            with self._changed:
                self._is_sending = False
                self._end_locked(error if isinstance(error, Exception) else OSError("interrupted"))
                self._changed.notify_all()
            if not isinstance(error, OSError):
                raise
            return
        with self._changed:
            self._is_sending = False
            if sent < len(whole):
                self._frames.appendleft(wire.Frame(whole[sent:], (), len(whole) - sent))
                self._waiting_bytes += len(whole) - sent
            if self._frames or self._error is not None:
                self._changed.notify_all()

    def end(self, error: Exception) -> None:
        """End the connection; its threads end soon."""
        with self._changed:
            self._end_locked(error)

    def _end_locked(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            self._frames.clear()
            self._changed.notify_all()
            self._shut_down()

    def join(self, seconds: float) -> bool:
        """Wait until its threads have ended; False if that takes too long."""
        is_started = self._reader.ident is not None
        if is_started and threading.current_thread() not in (self._reader, self._writer):
            self._reader.join(seconds)
            return not self._reader.is_alive()
        return True

    def check_idle(self, now: float, idle_ms: int) -> None:
        """End the connection if it had no request for the idle time."""
        if self.is_open and not self._is_sending and now - self._heard_at > idle_ms / 1000:
            self.end(ClosedError(f"the idle connection of {self.name}"))

    def check_progress(self, now: float) -> None:
        """End the connection if a small frame, or a MiB of a large one, takes too long."""
        stalled = now - self._limits.stall_ms / 1000
        stream, sending, receiving = self._stream, self._sending_since, self._receiving_since
        if stream is not None and self._is_sending and max(sending, stream.moved_at) < stalled:
            self.end(ProtocolError(self.name, "it does not read what it is sent"))
        elif receiving and receiving < stalled:
            self.end(ProtocolError(self.name, "it stalled, or is too slow, in the middle of a message"))

    # --- for opening

    def may_be_shut_down_with(self, shut_down: Callable[[], None]) -> None:
        """Set the call that ends a connection while it opens; it is made at once if that is over already."""
        with self._changed:
            self._shut_down = shut_down
            if self._error is not None:
                shut_down()

    def pause(self, seconds: float) -> None:
        """Wait this long; raises the error if the connection is ended first."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None, seconds)
            if self._error is not None:
                raise self._error

    # --- the thread that receives

    def _run(self) -> None:
        stream: Stream | None = None
        writing = False
        try:
            stream = self._open_stream(self)
            with self._changed:
                if self._error is not None:
                    raise self._error
                self._stream, self.is_open = stream, True
            self._writer.start()
            writing = True
            self._receive_frames(stream)
            self.end(ClosedError(f"the connection of {self.name}"))
        except Exception as error:  # whatever it is, the connection is over
            self.end(error)
        if writing:
            self._writer.join()
        with self._changed:  # wait for a thread that is sending at once
            self._changed.wait_for(lambda: not self._is_sending)
            self._shut_down = lambda: None
        if stream is not None:
            stream.close()
        questions, self._questions = self._questions, {}
        for question in questions.values():
            question.end(None)
        assert self._error is not None
        self._error.__traceback__ = None  # it would keep what was being sent alive
        self._ended(self, self._error)

    def _receive_frames(self, stream: Stream) -> None:
        scratch = memoryview(bytearray(_SCRATCH_BYTES))
        start = end = 0
        while True:
            if end - start < wire.HEAD_BYTES:
                scratch[: end - start] = scratch[start:end]
                start, end = 0, end - start
                # counted from the first byte of a frame: a peer that sends single bytes makes no progress
                self._receiving_since = (self._receiving_since or time.monotonic()) if end else 0.0
                count = stream.receive_into(scratch[end:])
                if count == 0:
                    break
                self._heard_at = time.monotonic()
                end += count
                continue
            self.frames_received += 1
            head = wire.read_head(scratch[start:end], self._limits.max_frame_bytes, self.name)
            raw_head = scratch[start : start + wire.HEAD_BYTES]
            start += wire.HEAD_BYTES
            rest = memoryview(np.empty(head.rest, np.uint8))  # type: ignore[arg-type] # not set to zero first
            have = min(end - start, len(rest))
            rest[:have] = scratch[start : start + have]
            start += have
            self._receive_rest(stream, rest[have:])
            self._take(self, head, wire.decode(head, raw_head, rest, self.name))
        if end:
            raise EOFError("the connection ends within a message")

    def _receive_rest(self, stream: Stream, rest: memoryview) -> None:
        step = 1 << 20
        for place in range(0, len(rest), step):
            self._receiving_since = time.monotonic()
            stream.receive_all(rest[place : place + step])
        self._receiving_since = 0.0

    # --- the thread that sends

    def _write(self) -> None:
        assert self._stream is not None
        try:
            while frames := self._next_frames():
                self._send_frames(self._stream, frames)
                with self._changed:
                    self._is_sending = False
                    self._waiting_bytes -= sum(frame.size for frame in frames)
                frames.clear()  # they must not keep files open while this thread waits
        except Exception as error:  # whatever it is, half a frame may have been sent
            with self._changed:
                self._is_sending = False
                self._end_locked(error)

    def _next_frames(self) -> list[wire.Frame]:
        """Wait for frames, and return those to send together; none once the connection is over."""
        with self._changed:
            self._changed.wait_for(lambda: (self._frames and not self._is_sending) or self._error is not None)
            if self._error is not None:
                return []
            taken = [self._frames.popleft()]
            size = taken[0].size
            while self._frames and not taken[-1].data and size + self._frames[0].size <= _SMALL_BYTES:
                taken.append(self._frames.popleft())
                size += taken[-1].size
            self._is_sending, self._sending_since = True, time.monotonic()
            return taken

    def _send_frames(self, stream: Stream, frames: list[wire.Frame]) -> None:
        """Send frames; only the last one has data."""
        data: tuple[Data, ...] = frames[-1].data
        fronts = [frame.front for frame in frames]
        if any(isinstance(one, InFile) for one in data):
            stream.send(*fronts, more=True)
            for one in data:
                stream.send_data(one)
        else:
            stream.send(*fronts, *(one.read() for one in data))
