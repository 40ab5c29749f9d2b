"""All targets, and how they are run."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz.groups import CommittedOffsetsTarget, GroupStateTarget, HeartbeatsTarget, PublicationsTarget
from fuzz.harness import Report, Target, alarms, fuzz
from fuzz.index import IndexTarget
from fuzz.segment import SegmentTarget
from fuzz.settings import CatalogTarget, ClusterFilesTarget, QuotasTarget
from fuzz.snapshots import EpochsTarget, SnapshotTarget
from fuzz.staged import StagedTarget
from fuzz.state_page import StatePageTarget
from fuzz.wire import FrameTarget, HandshakeTarget

_ALL: tuple[type[Target], ...] = (
    SegmentTarget, IndexTarget, StatePageTarget, SnapshotTarget, EpochsTarget, StagedTarget, HeartbeatsTarget,
    GroupStateTarget, CommittedOffsetsTarget, PublicationsTarget, QuotasTarget, CatalogTarget,
    ClusterFilesTarget, FrameTarget, HandshakeTarget,
)  # fmt: skip
TARGETS: dict[str, type[Target]] = {one.name: one for one in _ALL}


@contextmanager
def open_target(name: str) -> Iterator[Target]:
    """Make a target; its files are in memory, for they are written thousands of times a second."""
    memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
    logger = logging.getLogger("commitlog")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # or each input would be logged
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory) as directory, alarms():
        target = TARGETS[name](Path(directory))
        try:
            yield target
        finally:
            target.close()
            logger.setLevel(level)


def run_target(name: str, inputs: int, seed: int) -> Report:
    """Feed one target, in this process."""
    with open_target(name) as target:
        return fuzz(target, inputs, seed)
