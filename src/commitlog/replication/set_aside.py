"""SetAside: keeps the files of removed replicas for a while before they are deleted.

The directory set-aside/NAME-NUMBER.TOPIC_ID.DUE_MS has hard links to the files of one replica, which are
deleted at DUE_MS. To get the records back, move the directory elsewhere before that time.
"""

from __future__ import annotations

import logging
import os
import shutil
import time

from commitlog import files
from commitlog.partition import Partition

DIRECTORY = "set-aside"
_NEW = ".new"
_STATE = "state"  # the open partition keeps writing to it; recovery makes a new one
_logger = logging.getLogger("commitlog.replication")


class SetAside:
    """The removed replicas of a log."""

    def __init__(self, log_path: str) -> None:
        self._path = os.path.join(log_path, DIRECTORY)

    def keep(self, partition: Partition, topic_id: str) -> None:
        """Set aside all files of a replica that is about to be removed, or raise OSError."""
        due_ms = time.time_ns() // 1_000_000 + partition.config.file_delete_delay_ms
        target = os.path.join(self._path, f"{partition.name}.{topic_id}.{due_ms}")
        files.make_directories(self._path)
        shutil.rmtree(target + _NEW, ignore_errors=True)
        os.mkdir(target + _NEW)
        with os.scandir(partition.path) as found:
            names = [one.name for one in found if one.is_file(follow_symlinks=False) and one.name != _STATE]
        for name in names:
            try:
                files.link(os.path.join(partition.path, name), os.path.join(target + _NEW, name))
            except FileNotFoundError:
                continue  # retention removed it just now
        files.sync_directory(target + _NEW)
        # crash: some of the files, under a name that ends in .new -> empty() removes them; it is done again
        files.replace(target + _NEW, target)
        files.sync_directory(self._path)
        # crash: the files are set aside, the replica is still there -> it is set aside again and removed
        _logger.warning("%s is set aside as %s", partition.name, target)

    def empty(self) -> None:
        """Remove the replicas that are due, and incomplete ones that a crash left."""
        now_ms = time.time_ns() // 1_000_000
        try:
            names = os.listdir(self._path)
        except FileNotFoundError:
            return
        for name in names:
            due = name.rpartition(".")[2]
            if name.endswith(_NEW) or (due.isdecimal() and int(due) <= now_ms):
                shutil.rmtree(os.path.join(self._path, name), ignore_errors=True)
                _logger.info("removed %s, which had been set aside", name)
