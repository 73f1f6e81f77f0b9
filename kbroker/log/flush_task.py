"""Bringing what was written to the disk itself.

Owns the work of one flush, which may block for long and may therefore run on another thread. Never changes a log: a
task holds names, and the one open file that is being written, and its log hears of it when the owner of the log says
so.

There may be thousands of files to flush, so they are opened one after the other. One that has gone needs no flush: its
segment was deleted, or compacted into another one that is on disk, or the log was cut off, which makes the task void.
A failed write that nobody has heard of is told to whoever opens the file next.
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
"""What keeps a file from being opened, and no fsync ever says."""


@dataclass(slots=True)
class FlushTask:
    """What has to be written to disk so that a log is safe up to `end_offset`."""

    active: FileHandle
    paths: Iterable[str]
    """Sealed files, oldest first. There may be many thousands, so each gets its name when its turn comes."""
    directory: str | None
    end_offset: int
    snapshots: list[int]
    """Of the producers, by offset, which are among the files."""
    truncations: int
    """How often the log had been truncated when the task was made; one more makes it void."""
    epoch_writes: int = 0
    """How often the leader epochs, which are among the files where that is due, had been written."""
    above: str | None = None
    """The directory that `directory` lies in, where its name there may not be on the disk yet."""
    error: OSError | None = None
    took: float = 0.0
    """Seconds, once it is done."""

    @property
    def has_lost_nothing(self) -> bool:
        """Whether it has failed, but before an fsync: it may simply be done again, later."""
        return self.error is not None and self.error.errno in _NOT_OPENED

    def run(self) -> None:
        """Do the work; a failure is left in `error`."""
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
