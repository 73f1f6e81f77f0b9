"""Bringing what was written to the disk itself.

Owns the work of one flush, which may block for long and may therefore run on another thread. Never changes a log: a
task holds open files and nothing else, and its log hears of it when the owner of the log says so.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from kbroker.log.files import FileHandle, sync_directory, sync_file


@dataclass(slots=True)
class FlushTask:
    """What has to be written to disk so that a log is safe up to `end_offset`."""

    handles: list[FileHandle]
    paths: list[str]
    directory: str | None
    end_offset: int
    truncations: int
    """How often the log had been truncated when the task was made; one more makes it void."""
    error: OSError | None = None

    def run(self) -> None:
        """Do the work; a failure is left in `error`."""
        try:
            for handle in self.handles:
                os.fsync(handle.fd)
            for path in self.paths:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    sync_file(path)
            if self.directory is not None:
                with contextlib.suppress(FileNotFoundError):  # the partition was deleted meanwhile
                    sync_directory(self.directory)
        except OSError as error:
            self.error = error
