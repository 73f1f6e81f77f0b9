"""The flush of a log's writes to disk.

Owns the work of one flush, which may block for long and may therefore run on another thread. Never changes a log: a
task holds names, and the one open file that is being written, and its log gets the result from the owner of the log.

There may be thousands of files to flush, so they are opened one after the other. A missing file needs no flush: its
segment was deleted, or compacted into another one that is on disk, or the log was truncated, which makes the task void.
The kernel reports a failed write that nobody has seen to the next opener of the file.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter

from kbroker.log.files import FileHandle, sync_directory, sync_file

_NOT_OPENED = frozenset({errno.EMFILE, errno.ENFILE})
"""Errors that prevent opening a file, and that fsync never returns."""


@dataclass(slots=True)
class FlushTask:
    """The files to flush so that a log is safe up to `end_offset`."""

    active: FileHandle
    paths: Iterable[str]
    """Sealed files, oldest first. There may be many thousands, so each name is only built when needed."""
    directory: str | None
    end_offset: int
    snapshots: list[int]
    """The offsets of the producer snapshots among the files."""
    truncations: int
    """The log's number of truncations when the task was made; one more makes it void."""
    epoch_writes: int = 0
    """The number of writes of the leader epochs, whose file is among the files where it needs a flush."""
    above: str | None = None
    """The parent of `directory`, if the name there may not be on disk yet."""
    error: OSError | None = None
    took: float = 0.0
    """Seconds, once it is done."""

    @property
    def has_lost_nothing(self) -> bool:
        """Whether it failed before any fsync, so that it may simply be repeated later."""
        return self.error is not None and self.error.errno in _NOT_OPENED

    def run(self) -> None:
        """Do the work; a failure is stored in `error`."""
        since = perf_counter()
        try:
            for path in self.paths:
                with contextlib.suppress(FileNotFoundError):
                    sync_file(path)
            os.fsync(self.active.fd)
            if self.directory is not None:
                with contextlib.suppress(FileNotFoundError):  # the partition was deleted meanwhile
                    sync_directory(self.directory)
            if self.above is not None:
                sync_directory(self.above)
        except OSError as error:
            self.error = error
        self.took = perf_counter() - since
