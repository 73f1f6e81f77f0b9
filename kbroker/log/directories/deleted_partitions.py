"""Deleted partitions: first their directories are renamed, later they are removed.

Owns them from the deletion until the files are removed. Never decides that a partition is deleted.

A topic may have thousands of partitions, so only the first few are renamed at once, the others in pieces. A directory
never keeps a name that a new partition needs: `finish` is called before one of that name is created. The next start
removes what a crash left of deleted topics (`take`); it gets their ids as long as `pending` is true.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Final

from kbroker.failpoints import passed
from kbroker.log.directories.partition_dir_names import DELETE_SUFFIX, Key, new_name
from kbroker.log.directories.remover import Remover
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn

AT_ONCE: Final = 32

logger = logging.getLogger(__name__)


class Departures:
    """The deleted partitions of one directory; times in ms.

    `failed` gets the error of a directory that cannot be renamed.
    """

    __slots__ = ("_directory", "_doomed", "_failed", "_leaving", "_remover", "_stuck")

    def __init__(self, directory: str, remover: Remover, failed: Callable[[OSError], None]) -> None:
        self._directory = directory
        self._remover = remover
        self._failed = failed
        self._leaving: dict[Key, tuple[PartitionLog, int]] = {}
        self._doomed: list[tuple[int, str]] = []
        self._stuck = False

    def add(self, key: Key, log: PartitionLog, now_ms: int) -> None:
        """Take over a partition no longer in use; its files are removed `file.delete.delay.ms` after `now_ms`."""
        self._leaving[key] = log, now_ms

    @property
    def pending(self) -> bool:
        """Whether a deleted partition still has its name: its turn is still to come, or the rename failed."""
        return self._stuck or bool(self._leaving)

    def take(self, key: Key, path: str, now_ms: int) -> None:
        """Have the leftover directory of a deleted topic removed."""
        doomed = f"{self._directory}/{new_name(*key, DELETE_SUFFIX)}"
        try:
            os.rename(path, doomed)
        except OSError as error:
            self._stuck = True
            logger.error("%s of a deleted topic cannot be taken away: %s", path, error)
        else:
            self.discard(doomed, now_ms)

    def discard(self, path: str, now_ms: int) -> None:
        """Have a directory removed that is already renamed."""
        self._doomed.append((now_ms, path))

    def finish(self, key: Key) -> None:
        """Rename a deleted partition's directory now; raises OSError."""
        leaving = self._leaving.pop(key, None)
        if leaving is None:
            return
        log, now_ms = leaving
        log.close(clean=False)
        path = f"{self._directory}/{new_name(*key, DELETE_SUFFIX)}"
        try:
            os.rename(log.directory, path)
        except OSError:
            self._stuck = True
            raise
        passed("partition.renamed")
        log.move(path)
        self._doomed.append((now_ms + log.config.file_delete_delay_ms, path))

    def finish_some(self, most: int) -> OSError | None:
        """Do so for at most `most`; return one of the errors."""
        failure = None
        for key in list(self._leaving)[:most]:
            try:
                self.finish(key)
            except OSError as error:
                failure = error
        return failure

    async def finish_all(self) -> None:
        """Do so for all, in pieces."""
        while self._leaving:
            error = self.finish_some(8)
            if error is not None:
                self._failed(error)
            await turn

    def remove_due(self, now_ms: int) -> None:
        """Have the due directories removed."""
        due = [path for when, path in self._doomed if when <= now_ms]
        if due:
            self._doomed = [doomed for doomed in self._doomed if doomed[0] > now_ms]
            self._remover.remove(due)
