"""Publisher: staged files appended to partitions of several topics together, exactly once.

A record in __publications is the commit point. What it lists is appended after it: by the publisher, or, if
that one died, by the next process that publishes or opens the log for writing. Appending again does no harm:
each partition tells how far the last publication came in it (Partition.published). One file and one sequence
are enough, for a lock lets publications come one after another, and files come in the order of the list.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence

from commitlog.batches.staged import (
    FOLDER,
    StagedBatch,
    StagedFile,
    check_staged,
    chunks,
    read_staged,
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
    """Publishes staged files of one log. With `salvage`, files that are lost or damaged are left out when a
    publication is finished that somebody else began; otherwise they are a CorruptionError.
    """

    def __init__(self, log_path: str, topics: TopicSet, *, salvage: bool = False) -> None:
        self._log_path = log_path
        self._topics = topics
        self._salvage = salvage
        self._lock: ProcessLock | None = None
        self._found: Publications | None = None
        self._tidied_at = time.monotonic()

    def published(self, txn_id: str) -> int | None:
        """Return the last epoch that is published, all of it; None if none is."""
        known = self._known()
        latest = None if known is None else known.latest(txn_id)
        if latest is None:
            return None
        return latest.epoch if latest.staged is None else latest.before

    def publish(self, txn_id: str, epoch: int, staged: Sequence[StagedFile]) -> bool:
        """Publish staged files, unless the epoch, or a later one, is published: see CommitLog.publish."""
        _check_arguments(txn_id, epoch, staged)
        with self._process_lock():
            known = self._joined()
            self._finish(known)
            self._tidy()
            latest = known.latest(txn_id)
            if latest is not None and epoch <= latest.epoch:
                remove_staged(self._log_path, staged)
                return False
            checked = self._check(staged)
            before = None if latest is None else latest.epoch
            publication = Publication(txn_id, epoch, before, tuple(staged) or None)
            known.write(publication)
            if staged:
                self._complete(known, publication, checked)
            return True

    def finish_left(self) -> None:
        """Finish what a dead process left, unless somebody publishes just now, and so does it anyway."""
        if self._known() is None and not os.path.isdir(os.path.join(self._log_path, FOLDER)):
            return
        try:
            with ProcessLock(self._lock_path, wait=False):
                known = self._known()
                if known is not None:
                    self._finish(known)
                remove_leftovers(self._log_path, time.time())
        except HeldElsewhereError:
            pass
        except UnfinishedPublicationError as problem:  # a full disk must not keep anybody from making room
            _logger.warning("%s", problem)

    # --- the steps

    def _check(self, staged: Sequence[StagedFile]) -> dict[int, list[StagedBatch]]:
        """Return the batches of staged files by file_id, or raise what could keep them from being appended:
        after the commit point it is too late.
        """
        checked = {}
        for one in staged:
            if one.topic in INTERNAL:
                raise InvalidTopicError(one.topic)
            topic = self._find(one)
            topic.partition(one.partition)
            checked[one.file_id] = check_staged(self._log_path, one, topic.config)
        return checked

    def _finish(self, known: Publications) -> None:
        """Complete what was committed by somebody who did not come to the end of it."""
        for publication in known.unfinished():
            known.sync()  # or a power cut could take the commit away, and leave what is appended now
            try:
                self._complete(known, publication, {}, salvage=self._salvage)
            except UnfinishedPublicationError as problem:
                if isinstance(problem.__cause__, CorruptionError):  # which no waiting makes good
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
        """Bring in what is committed. What is `checked` of it is not read again."""
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
        remove_staged(self._log_path, staged)

    def _find(self, staged: StagedFile) -> Topic:
        """Return the topic that a file was staged for; UnknownTopicError if another has its name now."""
        topic = self._topics.find(staged.topic)
        if staged.topic_id not in (None, topic.topic_id):
            raise UnknownTopicError(staged.topic)
        return topic

    def _append(
        self,
        staged: Sequence[StagedFile],
        checked: Mapping[int, list[StagedBatch]],
        salvage: bool,
    ) -> Partition | None:
        """Append what a partition lacks of staged files; returns it, None if it was deleted since."""
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
        """Append the batches of a file from `sequence` on: the file itself, or a copy of them."""
        path = os.path.join(self._log_path, staged.path)
        if sequence == 0 and partition.adopt(path, staged.size_bytes, batches) is not None:
            return
        for chunk in chunks(path, batches, sequence, partition.config.segment_bytes):
            # crash: committed, part of it appended -> the next publish() or open() appends the rest
            partition.append_published(chunk)

    def _tidy(self) -> None:
        if time.monotonic() - self._tidied_at >= _TIDY_SECONDS:
            self._tidied_at = time.monotonic()
            remove_leftovers(self._log_path, time.time())

    # --- what it works with

    @property
    def _lock_path(self) -> str:
        return os.path.join(self._log_path, LOCK_NAME)

    def _process_lock(self) -> ProcessLock:
        if self._lock is None:
            self._lock = ProcessLock(self._lock_path)
        return self._lock

    def _joined(self) -> Publications:
        """Return the publications, for writing; the topic is made if it is new."""
        if self._found is None:
            self._found = Publications(self._topics.join_internal(TOPIC, TOPIC_CONFIG).partition(0))
        return self._found

    def _known(self) -> Publications | None:
        """Return the publications, None if there never were any."""
        if self._found is None and self._topics.counts([TOPIC]):
            self._found = Publications(self._topics.find(TOPIC).partition(0))
        return self._found


def _check_arguments(txn_id: object, epoch: object, staged: Sequence[StagedFile]) -> None:
    if not isinstance(txn_id, str) or not txn_id:
        raise ConfigError("txn_id", txn_id, "must be a string that is not empty")
    if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
        raise ConfigError("epoch", epoch, "must be an integer from 0 on")
    if len({one.file_id for one in staged}) < len(staged):
        raise ConfigError("staged", len(staged), "must not name a file twice")


def _grouped(staged: Iterable[StagedFile]) -> dict[tuple[str, str | None, int], list[StagedFile]]:
    """Return staged files by partition, in the order given."""
    groups: dict[tuple[str, str | None, int], list[StagedFile]] = {}
    for one in staged:
        groups.setdefault((one.topic, one.topic_id, one.partition), []).append(one)
    return groups
