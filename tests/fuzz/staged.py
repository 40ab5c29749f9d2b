"""Staged files: read before they are published, checked against what their writer said of them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

from crc32c import crc32c
from helpers import CODECS, stage

import commitlog
from commitlog import CommitLogError, InvalidRecordError, StagedFile, TopicConfig
from commitlog.batches.format import STAMP
from commitlog.batches.staged import FOLDER, chained, check_staged, chunks, read_staged
from commitlog.errors import BatchTooLargeError
from fuzz.harness import Input, Target, WrongAnswer
from fuzz.segment import batches_of, forged

_WHOLE_LOG = 200
_CONFIGS = (TopicConfig(), TopicConfig(cleanup_policy="compact"), TopicConfig(segment_bytes=1024))
_TOPIC = "t"


class StagedTarget(Target):
    """A .staged file, and what is known of it."""

    name = "staged-file"
    kinds = 30

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._log = directory / "log"
        self._files: list[tuple[StagedFile, bytes, list[object]]] = []
        with commitlog.open(self._log) as log:
            for codec in CODECS:
                log.create_topic(codec, config={"compression_type": codec})
                for count in (1, 30):
                    self._add(stage(log, codec, 0, [b"value %d" % one * 5 for one in range(count)]))
        self._bare = directory / "bare"
        shutil.copytree(self._log, self._bare)

    def _add(self, staged: StagedFile) -> None:
        path = self._log / staged.path
        data = path.read_bytes()
        path.unlink()
        fixed = replace(staged, file_id=0x00F3_A100_0000_0001)
        data = b"".join(_sealed(_named(one, fixed.file_id)) for one in batches_of(data))
        fixed = _described(fixed, data)
        self._files.append((fixed, data, []))

    def seeds(self) -> list[Input]:
        return [Input(data, number * len(_CONFIGS)) for number, (_, data, _) in enumerate(self._files)]

    def names(self, error: CommitLogError) -> bool:
        """What a topic's settings refuse is about a record, or a size."""
        return isinstance(error, InvalidRecordError | BatchTooLargeError) or super().names(error)

    def forge(self, random: Random, data: bytes) -> bytes | None:
        return forged(random, data)

    def run(self, given: Input) -> str:
        staged, data, _ = self._files[given.choice // len(_CONFIGS) % len(self._files)]
        config = _CONFIGS[given.choice % len(_CONFIGS)]
        if given.forged:
            staged = _described(staged, given.data)
        path = self._log / staged.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(given.data)
        if given.choice // 100 % _WHOLE_LOG == 0:
            return self._publish(staged, given)
        found = read_staged(str(self._log), staged)
        if not given.forged and _unstamped(given.data, staged.size_bytes) != _unstamped(data, len(data)):
            raise WrongAnswer("another file than the one that was staged")
        if sum(one.span for one in found) != staged.records:
            raise WrongAnswer("another number of records", staged.records)
        if given.choice % 2:
            check_staged(str(self._log), staged, config)
        for chunk in chunks(str(path), found, 0, config.segment_bytes):
            for one in chunk:
                b"".join(one.stamped(7, 0))
        return f"{len(found)} batches"

    def _publish(self, staged: StagedFile, given: Input) -> str:
        shutil.rmtree(self._log)
        shutil.copytree(self._bare, self._log)
        path = self._log / staged.path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(given.data)
        with commitlog.open(self._log) as log:
            log.publish("transaction", 1, [staged])
            partition = log.topic(staged.topic).partition(0)
            values = [one.value for one in partition.records()]
            if not given.forged and values != [b"value %d" % one * 5 for one in range(staged.records)]:
                raise WrongAnswer("other records than those that were staged")
        return "published"


def _named(batch: bytes, file_id: int) -> bytes:
    return batch[:24] + file_id.to_bytes(8, "little") + batch[32:]


def _sealed(batch: bytes) -> bytes:
    base_offset, epoch, _ = STAMP.unpack_from(batch)
    from commitlog.batches.format import stamp

    return stamp(base_offset, epoch, crc32c(batch[STAMP.size :])) + batch[STAMP.size :]


def _unstamped(data: bytes, size: int) -> list[bytes]:
    return [one[STAMP.size :] for one in batches_of(data[:size])]


def _described(staged: StagedFile, data: bytes) -> StagedFile:
    """What the writer of these bytes would have said of them."""
    batches = batches_of(data)
    checksum = records = 0
    for one in batches:
        checksum = chained(checksum, crc32c(one[STAMP.size :]))
        records += int.from_bytes(one[56:60], "little") + 1
    return replace(staged, size_bytes=sum(map(len, batches)), records=records, checksum=checksum)


assert FOLDER
