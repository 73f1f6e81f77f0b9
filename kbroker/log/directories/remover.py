"""The thread that removes files and directories.

Owns the queue of paths to remove. Never decides what is removed: nothing refers to the paths given here any more. Never
removes a file that does not belong to a log: its directory stays, with that file.
Removing one file may wait for the disk, and there may be tens of thousands of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

from kbroker.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA
from kbroker.log.files import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    remove_quietly,
)

_SEGMENTS = (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)
_PASSING = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")  # of a file that is being written, swapped, removed

logger = logging.getLogger(__name__)


class Remover:
    """Removes paths on its own thread, which starts with the first removal."""

    __slots__ = ("_closing", "_last", "_pool")

    def __init__(self) -> None:
        self._closing = Event()
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def remove(self, paths: Iterable[str]) -> None:
        """Have files or whole directories removed; missing ones are skipped."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="kbroker-remove")
            self._closing = Event()
        self._last = self._pool.submit(_remove_all, list(paths), self._closing)

    def wait(self) -> None:
        """Wait until everything is removed."""
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        """End the thread after the current file or directory; the next start removes the rest."""
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
    """Remove a partition's directory; raises OSError.

    Files that do not belong to a log stay, and so does the directory.
    """
    others = []
    for entry in list(os.scandir(path)):
        if entry.is_file(follow_symlinks=False) and _is_of_a_log(entry.name):
            remove_quietly(entry.path)
        else:
            others.append(entry.name)
    if others:
        logger.warning("%s is kept, as it holds what is no file of a log: %s", path, ", ".join(sorted(others)[:3]))
    else:
        os.rmdir(path)


def _is_of_a_log(name: str) -> bool:
    while name.endswith(_PASSING):
        name = name.rpartition(".")[0]
    stem, dot, suffix = name.rpartition(".")
    return name in (LEADER_EPOCHS, PARTITION_METADATA) or (stem.isdigit() and dot + suffix in _SEGMENTS)
