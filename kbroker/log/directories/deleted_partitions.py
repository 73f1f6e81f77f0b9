"""Deleted partitions: first their directories are renamed, later the directories are removed.

Owns deleted partitions until their files are removed, and the thread that removes files and directories: removing one
file may wait for the disk, and there may be tens of thousands of files. Never decides that a partition is deleted or a
file removed: callers pass only paths that are no longer in use. Never removes a file that does not belong to a log:
such a file stays, and its directory also stays.

A topic may have thousands of partitions, so only the first few are renamed immediately, and the others in pieces. The
directory of a deleted partition never keeps a name that a new partition needs: `finish` is called before the new
partition is created. After a crash, the next start removes the remaining directories of deleted topics (`take`).
Callers therefore keep the ids of deleted topics as long as `pending` is true.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Final

from kbroker.failpoints import passed
from kbroker.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA
from kbroker.log.directories.partition_dir_names import DELETE_SUFFIX, Key, new_name
from kbroker.log.files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    HEADERS_SUFFIX,
    SCHEDULES_FILES,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    remove_quietly,
)
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn

_SEGMENTS = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX, HEADERS_SUFFIX)
_OTHERS = (LEADER_EPOCHS, PARTITION_METADATA, *SCHEDULES_FILES)
# suffixes of files that are being written, replaced or removed
_PASSING = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")

logger = logging.getLogger(__name__)


class Remover:
    """Removes paths on its own thread, which starts with the first removal."""

    __slots__ = ("_closing", "_last", "_pool")

    def __init__(self) -> None:
        self._closing = Event()
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files or complete directories on the thread; skip missing files and directories."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-remove")
            self._closing = Event()
        self._last = self._pool.submit(_remove_all, list(paths), self._closing)

    def wait(self) -> None:
        """Wait until all paths are removed."""
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        """End the thread after the current file or directory. The next start removes the remaining paths."""
        if self._pool is not None:
            self._closing.set()
            self._pool.shutdown(cancel_futures=True)
            self._pool, self._last = None, None


def _remove_all(paths: list[str], closing: Event) -> None:
    for path in paths:
        if closing.is_set():
            return
        try:
            if os.path.isdir(path):
                _remove_directory(path)
            else:
                remove_quietly(path)
        except OSError as error:
            logger.error("%s could not be removed: %s", path, error)


def _remove_directory(path: str) -> None:
    """Remove a partition's directory. Raises OSError on failure.

    Files that do not belong to a log stay, and the directory then also stays.
    """
    others = []
    for entry in list(os.scandir(path)):
        if entry.is_file(follow_symlinks=False) and _is_of_a_log(entry.name):
            remove_quietly(entry.path)
        else:
            others.append(entry.name)
    if others:
        logger.warning("%s is kept, as it holds files that belong to no log: %s", path, ", ".join(sorted(others)[:3]))
    else:
        os.rmdir(path)


def _is_of_a_log(name: str) -> bool:
    while name.endswith(_PASSING):
        name = name.rpartition(".")[0]
    stem, dot, suffix = name.rpartition(".")
    return name in _OTHERS or (stem.isdigit() and dot + suffix in _SEGMENTS)


AT_ONCE: Final = 32


class Departures:
    """The deleted partitions of one directory; times in ms.

    `failed` is called with the error of a directory that cannot be renamed.
    """

    __slots__ = ("_directory", "_failed", "_leaving", "_remover", "_renamed", "_stuck")

    def __init__(self, directory: str, remover: Remover, failed: Callable[[OSError], None]) -> None:
        self._directory = directory
        self._remover = remover
        self._failed = failed
        self._leaving: dict[Key, tuple[PartitionLog, int]] = {}
        self._renamed: list[tuple[int, str]] = []
        self._stuck = False

    def add(self, key: Key, log: PartitionLog, now_ms: int) -> None:
        """Add a partition that is no longer in use; remove its files `file.delete.delay.ms` after `now_ms`."""
        self._leaving[key] = log, now_ms

    @property
    def pending(self) -> bool:
        """Whether a deleted partition's directory still has its name: it is not renamed yet, or the rename failed."""
        return self._stuck or bool(self._leaving)

    def take(self, key: Key, path: str, now_ms: int) -> None:
        """Rename the remaining directory of a deleted topic, so that it is removed later."""
        renamed = f"{self._directory}/{new_name(*key, DELETE_SUFFIX)}"
        try:
            os.rename(path, renamed)
        except OSError as error:
            self._stuck = True
            logger.error("%s of a deleted topic cannot be removed: %s", path, error)
        else:
            self.discard(renamed, now_ms)

    def discard(self, path: str, now_ms: int) -> None:
        """Remove an already renamed directory later."""
        self._renamed.append((now_ms, path))

    def finish(self, key: Key) -> None:
        """Rename a deleted partition's directory now. Raises OSError on failure."""
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
        self._renamed.append((now_ms + log.config.file_delete_delay_ms, path))

    def finish_some(self, most: int) -> OSError | None:
        """Rename at most `most` directories of deleted partitions; return one of the errors, or None."""
        failure = None
        for key in list(self._leaving)[:most]:
            try:
                self.finish(key)
            except OSError as error:
                failure = error
        return failure

    async def finish_all(self) -> None:
        """Rename all directories of deleted partitions, in pieces."""
        while self._leaving:
            error = self.finish_some(8)
            if error is not None:
                self._failed(error)
            await turn

    def remove_due(self, now_ms: int) -> None:
        """Let the thread remove the directories whose delay is over."""
        due = [path for when, path in self._renamed if when <= now_ms]
        if due:
            self._renamed = [each for each in self._renamed if each[0] > now_ms]
            self._remover.remove(due)
