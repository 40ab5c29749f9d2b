"""GroupSession: what a consumer does for its group, inside poll() and in the background."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from commitlog.clients.fetcher import Fetcher
from commitlog.config import ConsumerConfig
from commitlog.errors import CommitFailedError, CommitLogError, FencedMemberError
from commitlog.groups.member import GroupMember
from commitlog.groups.offsets import OffsetAndMetadata
from commitlog.record import TopicPartition
from commitlog.tasks import Task, TaskHealth

_logger = logging.getLogger("commitlog.groups")

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
OnCommit = Callable[[Offsets, Exception | None], None]


class RebalanceListener:
    """Callbacks for a rebalance, called inside poll() and close(). Override those you need."""

    def on_assigned(self, partitions: set[TopicPartition]) -> None:
        """Called when partitions are assigned; seek() may be called for them."""

    def on_revoked(self, partitions: set[TopicPartition]) -> None:
        """Called before partitions are released; commit() may still be called for them."""

    def on_lost(self, partitions: set[TopicPartition]) -> None:
        """Called when partitions are lost: another member may own them, and commit() would be refused."""
        self.on_revoked(partitions)


class GroupSession:
    """A consumer's membership in its group. Apart from its own threads, one thread at a time calls it."""

    def __init__(
        self, member: GroupMember, config: ConsumerConfig, fetcher: Fetcher, consumer: object
    ) -> None:
        self.member = member
        self._config = config
        self._fetcher = fetcher
        self._consumer = consumer  # kept alive while the threads run, so that closing the log closes it
        self._topics: Callable[[], set[str]] = set
        self._joined_topics: set[str] = set()
        self._listener = RebalanceListener()
        self._told: set[TopicPartition] = set()  # partitions that the listener knows to be assigned
        self._fenced: FencedMemberError | None = None
        self._leaving = False
        self._commits: deque[tuple[Offsets, OnCommit | None]] = deque()
        self._outcomes: deque[Callable[[], None]] = deque()  # callbacks still to be called
        self._commit_lock = threading.Lock()
        self._committed: dict[TopicPartition, int] = {}
        self._commit_at = 0.0
        self._task: Task | None = None
        self._heart: Task | None = None  # a separate thread: heartbeats must not wait for the group's lock

    # --- membership

    def subscribe(self, topics: Callable[[], set[str]], listener: RebalanceListener) -> None:
        """Join the group and read `topics()`, which is called repeatedly."""
        self._check_fenced()
        self._topics, self._listener = topics, listener
        self.member.idle()  # from here on, poll() is due
        self._join()
        self._start_task()
        self._commit_at = time.monotonic() + self._config.auto_commit_interval_ms / 1000

    def _join(self) -> None:
        self._joined_topics = self._topics()
        self.member.join(self._joined_topics)

    def leave(self) -> None:
        """Commit, release everything and leave; a static member remains for its session_timeout_ms."""
        if self._leaving:  # a listener called close()
            return
        self._leaving = True
        try:
            self.commit_pending()
            if self.member.lost:
                self._lose()
            else:
                self._revoke(self._told.union(self._fetcher.places))
        finally:
            self._leaving = False
            if self._config.group_instance_id is None:
                self.member.leave()
            self.member.stop()
            self._call_back()

    @property
    def commits_at_each_poll(self) -> bool:
        """Whether each poll() commits at its start."""
        return self._config.enable_auto_commit and self._config.auto_commit_interval_ms == 0

    @property
    def must_keep_up(self) -> bool:
        """Whether keep_up() has something to do."""
        # with an interval of 0 each poll() commits at its start, and positions do not move while it waits
        interval = self._config.auto_commit_interval_ms if self._config.enable_auto_commit else 0
        due = interval > 0 and time.monotonic() >= self._commit_at
        return due or bool(self._outcomes) or (self.member.joined and self.member.must_look)

    def keep_up(self) -> set[TopicPartition]:
        """Move towards the group's target, and commit if that is due: the first step of poll().

        Returns the gained partitions; the caller calls assigned() once the consumer reads them.
        """
        self._check_fenced()
        self._call_back()
        gained: set[TopicPartition] = set()
        if self.member.joined and self.member.must_look:
            try:
                gained = self._reconcile()
            except FencedMemberError as fenced:
                self._fenced = fenced
                self._lose()
                raise
            except CommitFailedError:
                if self.member.known:  # a listener's own commit was refused
                    raise
                self._lose()
                if self.member.joined:  # unless the listener has closed the consumer
                    self._join()
        if self._config.enable_auto_commit and time.monotonic() >= self._commit_at:
            self._auto_commit(self._fetcher.places)
        return gained

    def assigned(self, gained: set[TopicPartition]) -> None:
        """Tell the listener about partitions that the consumer now reads."""
        self._told |= gained
        self._listener.on_assigned(gained)

    def _check_fenced(self) -> None:
        if self._fenced is not None:
            raise FencedMemberError(*self._fenced.args)

    def _reconcile(self) -> set[TopicPartition]:
        """Release the partitions of other members; returns those that this member has gained."""
        going = set(self.member.to_release())  # FencedMemberError if this must not join again
        if self.member.lost:
            raise CommitFailedError(self.member.directory.group_id, "this member was silent for too long")
        if going:
            try:
                self._revoke(going)
            finally:
                if self.member.joined:  # they are no longer read, whatever the listener did
                    self.member.release(going)
        return self.member.take() - self._told if self.member.joined else set()

    def _revoke(self, going: set[TopicPartition]) -> None:
        try:
            if self._config.enable_auto_commit:
                self._auto_commit(going)
            self.commit_pending()
            told = going & self._told
            if told:
                self._listener.on_revoked(told)
        finally:
            self._told -= going
            self._fetcher.drop(going)
            for name in going:  # from here on others commit
                self._committed.pop(name, None)

    def _lose(self) -> None:
        self.commit_pending()  # refused now; after joining again it might not be
        lost, self._told = self._told, set()
        self._fetcher.drop(list(self._fetcher.places))
        self._committed.clear()
        if lost:
            self._listener.on_lost(lost)

    # --- commits

    def committed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of the group."""
        return self.member.offsets.committed(self.member.directory.group_id)

    def decided(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of the group, once its open transactions are decided."""
        return self.member.offsets.stable(self.member.directory.group_id)

    def commit(self, offsets: Offsets) -> None:
        """Commit offsets, after all pending asynchronous commits."""
        self.commit_pending()
        self._call_back()
        with self._commit_lock:
            self._commit(offsets)

    def commit_async(self, offsets: Offsets, on_commit: OnCommit | None) -> None:
        """Commit offsets in the background."""
        self._commits.append((offsets, on_commit))
        self._start_task().wake()

    def commit_pending(self) -> None:
        """Make all pending asynchronous commits."""
        with self._commit_lock:
            while self._commits:
                offsets, on_commit = self._commits.popleft()
                problem: Exception | None = None
                try:
                    self._commit(offsets)
                except CommitLogError as error:
                    problem = error
                    _logger.warning("offsets were not committed: %s", error)
                if on_commit is not None:
                    self._outcomes.append(partial(on_commit, offsets, problem))

    def _call_back(self) -> None:
        """Call commit callbacks, in the caller's thread: they may use the consumer, or be slow."""
        while self._outcomes:
            try:
                self._outcomes.popleft()()
            except Exception:  # the application's
                _logger.exception("a commit callback of group %s failed", self.member.directory.group_id)

    def _commit(self, offsets: Offsets) -> None:
        if offsets:
            self.member.commit(offsets)
            self._committed.update((name, value.offset) for name, value in offsets.items())

    def _auto_commit(self, names: Iterable[TopicPartition]) -> None:
        """Commit the positions; a failure is logged, as in Kafka."""
        self._commit_at = time.monotonic() + self._config.auto_commit_interval_ms / 1000
        positions = self._fetcher.positions()
        moved = {
            name: OffsetAndMetadata(positions[name])
            for name in names
            if name in positions and self._committed.get(name) != positions[name]
        }
        try:
            self.commit(self.of_topics_there(moved))
        except (CommitFailedError, FencedMemberError) as error:
            _logger.warning("offsets were not committed: %s", error)

    def of_topics_there(self, offsets: Offsets) -> Offsets:
        """Return the offsets without those of deleted topics: a new topic of that name has other records."""
        counts = self.member.count_partitions({name.topic for name in offsets})
        return {name: value for name, value in offsets.items() if name.partition < counts.get(name.topic, 0)}

    # --- in the background

    def _start_task(self) -> Task:
        if self._task is None:
            self._task = Task("consumer", self._tick)
            self._task.start()
            self._heart = Task("heartbeat", self.member.beat)
            self._heart.start()
        return self._task

    def _tick(self) -> float:
        pause = self.member.tick()
        self.commit_pending()
        topics = self._topics()
        if topics != self._joined_topics:  # the pattern matches other topics now
            self._joined_topics = topics
            self.member.subscribe(topics)
        return pause

    def health(self) -> tuple[TaskHealth, ...]:
        """Return the health of the background threads."""
        return tuple(task.health() for task in (self._task, self._heart) if task is not None)

    def stop(self) -> None:
        """Make the pending commits and end the threads."""
        self.commit_pending()
        for task in (self._task, self._heart):
            if task is not None:
                task.stop()
        self._call_back()
