"""Publisher: appends staged files to partitions of several topics, all or nothing and exactly once.

A record in __publications is the commit point. Afterwards the files that it lists are appended: by the
publisher or, if that dies, by the next process that publishes or opens the log for writing. Repeating this is
harmless, because each partition knows how far the last publication came (Partition.published). One file and
one sequence are enough: a lock orders publications, and files are appended in the order of the list.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence

from commitlog.batches.staged import (
    FOLDER,
    Claim,
    StagedBatch,
    StagedFile,
    check_staged,
    chunks,
    read_staged,
    remove_claimed,
    remove_leftovers,
    remove_staged,
)
from commitlog.errors import (
    CommitLogError,
    ConfigError,
    CorruptionError,
    InvalidTopicError,
    UnfinishedPublicationError,
    UnknownPartitionError,
    UnknownTopicError,
)
from commitlog.locks import HeldElsewhereError, ProcessLock
from commitlog.partition import Partition
from commitlog.publishing.publications import TOPIC, TOPIC_CONFIG, Publication, Publications
from commitlog.topic import Topic
from commitlog.topics.catalog import INTERNAL
from commitlog.topics.topic_set import TopicSet

LOCK_NAME = ".publish-lock"
_TIDY_SECONDS = 60 * 60
_logger = logging.getLogger("commitlog.publishing")


class Publisher:
    """Publishes staged files of one log. When it finishes a publication of another process, lost or damaged
    files are a CorruptionError; with `salvage` they are left out.
    """

    def __init__(self, log_path: str, topics: TopicSet, *, salvage: bool = False) -> None:
        self._log_path = log_path
        self._topics = topics
        self._salvage = salvage
        self._lock: ProcessLock | None = None
        self._found: Publications | None = None
        self._tidied_at = time.monotonic()

    def published(self, txn_id: str) -> int | None:
        """Return the last epoch that is completely published; None if there is none."""
        known = self._known()
        latest = None if known is None else known.latest(txn_id)
        if latest is None:
            return None
        return latest.epoch if latest.staged is None else latest.before

    def publish(self, txn_id: str, epoch: int, staged: Sequence[StagedFile]) -> bool:
        """Publish staged files, unless this epoch or a later one is committed; see CommitLog.publish()."""
        _check_arguments(txn_id, epoch, staged)
        with self._process_lock():
            known = self._joined()
            self._finish(known)
            self._tidy()
            latest = known.latest(txn_id)
            if latest is not None and epoch <= latest.epoch:
                with self._cleaning():
                    remove_staged(self._log_path, staged)
                return False
            checked = self._check(staged)
            before = None if latest is None else latest.epoch
            publication = Publication(txn_id, epoch, before, tuple(staged) or None)
            known.write(publication)
            if staged:
                self._complete(known, publication, checked)
            with self._cleaning():
                remove_claimed(self._log_path, known.is_over)
            return True

    def discard(self, txn_id: str, epoch: int) -> None:
        """Remove what was staged for an epoch, unless it is committed; see CommitLog.discard()."""
        claim = Claim.of(txn_id, epoch)
        with self._process_lock():
            known = self._known()
            latest = None if known is None else known.latest(txn_id)
            if latest is None or latest.epoch != epoch or latest.staged is None:
                remove_claimed(self._log_path, lambda one: one == claim)

    def unfinished(self) -> list[tuple[str, int]]:
        """Return the transactions and epochs that are committed but perhaps not completely appended."""
        known = self._known()
        return [] if known is None else [(one.txn_id, one.epoch) for one in known.unfinished()]

    def finish_left(self) -> None:
        """Finish what a dead process left, unless another process is publishing, which does this anyway."""
        if self._known() is None and not os.path.isdir(os.path.join(self._log_path, FOLDER)):
            return
        try:
            with ProcessLock(self._lock_path, wait=False):
                known = self._known()
                if known is not None:
                    self._finish(known)
                    with self._cleaning():
                        remove_claimed(self._log_path, known.is_over)
                with self._cleaning():
                    remove_leftovers(self._log_path, time.time())
        except HeldElsewhereError:
            pass
        except UnfinishedPublicationError as problem:  # an open must succeed on a full disk, to make room
            _logger.warning("%s", problem)

    # --- the steps

    def _check(self, staged: Sequence[StagedFile]) -> dict[int, list[StagedBatch]]:
        """Return the batches of staged files by file_id; after the commit it is too late to refuse them."""
        checked = {}
        for one in staged:
            if one.topic in INTERNAL:
                raise InvalidTopicError(one.topic)
            topic = self._find(one)
            topic.partition(one.partition)
            checked[one.file_id] = check_staged(self._log_path, one, topic.config)
        return checked

    def _finish(self, known: Publications) -> None:
        """Complete what another process committed but did not finish."""
        for publication in known.unfinished():
            known.sync()  # otherwise a power cut could lose the commit and keep what is appended now
            try:
                self._complete(known, publication, {}, salvage=self._salvage)
            except UnfinishedPublicationError as problem:
                if isinstance(problem.__cause__, CorruptionError):  # trying again would not help
                    raise problem.__cause__ from None
                raise

    def _complete(
        self,
        known: Publications,
        publication: Publication,
        checked: Mapping[int, list[StagedBatch]],
        *,
        salvage: bool = False,
    ) -> None:
        """Append what is committed; files that are `checked` are not read again."""
        staged = publication.staged or ()
        try:
            # crash: committed, nothing appended -> the next publish() or open() appends it
            partitions = [self._append(ones, checked, salvage) for ones in _grouped(staged).values()]
            for partition in partitions:
                if partition is not None:
                    partition.sync()
            # crash: all appended, still listed -> the next publish() or open() finds nothing missing
            known.write(Publication(publication.txn_id, publication.epoch))
        except (CommitLogError, OSError) as error:
            raise UnfinishedPublicationError(publication.txn_id, publication.epoch, str(error)) from error
        # crash: published, staged files still there -> remove_leftovers() after a day
        # or sooner: the next publish() or open() removes those that have a claim
        with self._cleaning():
            remove_staged(self._log_path, staged)

    def _find(self, staged: StagedFile) -> Topic:
        """Return the topic that a file was staged for; UnknownTopicError if it has been replaced."""
        topic = self._topics.find(staged.topic)
        if staged.topic_id not in (None, topic.topic_id):
            raise UnknownTopicError(staged.topic)
        return topic

    def _append(
        self, staged: Sequence[StagedFile], checked: Mapping[int, list[StagedBatch]], salvage: bool
    ) -> Partition | None:
        """Append the parts of staged files that their partition lacks; returns it, None if it was deleted."""
        try:
            partition: Partition = self._find(staged[0]).partition(staged[0].partition)
            done = partition.published
        except (UnknownTopicError, UnknownPartitionError):
            return None
        ids, sequence = [one.file_id for one in staged], 0
        if done is not None and done.file_id in ids:
            staged, sequence = staged[ids.index(done.file_id) :], done.next_sequence
        for one in staged:
            try:
                if sequence < one.records:
                    batches = checked.get(one.file_id) or read_staged(self._log_path, one)
                    self._append_file(partition, one, batches, sequence)
            except CorruptionError as problem:
                if not salvage:
                    raise
                _logger.warning("left out of a publication: %s", problem)
            sequence = 0
        return partition

    def _append_file(
        self, partition: Partition, staged: StagedFile, batches: Sequence[StagedBatch], sequence: int
    ) -> None:
        """Append the batches of a file from `sequence` on: adopt the file, or copy them."""
        path = os.path.join(self._log_path, staged.path)
        if sequence == 0 and partition.adopt(path, staged.size_bytes, batches) is not None:
            return
        for chunk in chunks(path, batches, sequence, partition.config.segment_bytes):
            # crash: committed, part of it appended -> the next publish() or open() appends the rest
            partition.append_published(chunk)

    @contextlib.contextmanager
    def _cleaning(self) -> Iterator[None]:
        """Only report that a file cannot be removed: what is published must not look as if it were not."""
        try:
            yield
        except OSError as problem:
            _logger.warning("%s: staged files that are not needed stay for now: %s", self._log_path, problem)

    def _tidy(self) -> None:
        if time.monotonic() - self._tidied_at >= _TIDY_SECONDS:
            self._tidied_at = time.monotonic()
            with self._cleaning():
                remove_leftovers(self._log_path, time.time())

    # --- what it uses

    @property
    def _lock_path(self) -> str:
        return os.path.join(self._log_path, LOCK_NAME)

    def _process_lock(self) -> ProcessLock:
        if self._lock is None:
            self._lock = ProcessLock(self._lock_path)
        return self._lock

    def _joined(self) -> Publications:
        """Return the publications for writing; create the topic if it is new."""
        if self._found is None:
            self._found = Publications(self._topics.join_internal(TOPIC, TOPIC_CONFIG).partition(0))
        return self._found

    def _known(self) -> Publications | None:
        """Return the publications; None if there never were any."""
        if self._found is None and self._topics.counts([TOPIC]):
            self._found = Publications(self._topics.find(TOPIC).partition(0))
        return self._found


def _check_arguments(txn_id: str, epoch: int, staged: Sequence[StagedFile]) -> None:
    claim = Claim.of(txn_id, epoch)
    if len({one.file_id for one in staged}) < len(staged):
        raise ConfigError("staged", len(staged), "must not name a file twice")
    for one in staged:
        if one.claim not in (None, claim):
            raise ConfigError("staged", one.path, f"was not staged for epoch {epoch} of {txn_id!r}")


def _grouped(staged: Iterable[StagedFile]) -> dict[tuple[str, str | None, int], list[StagedFile]]:
    """Return staged files by partition, in the order given."""
    groups: dict[tuple[str, str | None, int], list[StagedFile]] = {}
    for one in staged:
        groups.setdefault((one.topic, one.topic_id, one.partition), []).append(one)
    return groups
