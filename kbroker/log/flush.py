"""Bringing what was written to the disk itself.

Owns the work of one flush, which may block for long and may therefore run on another thread. Never changes a log: a
task holds open files and nothing else, and its log hears of it when the owner of the log says so.
"""

from __future__ import annotations

import contextlib
import os

from kbroker.log.files import FileHandle, sync_directory, sync_file


class FlushTask:
    """What has to be written to disk so that a log is safe up to `end_offset`."""

    __slots__ = ("_directory", "_handles", "_paths", "end_offset", "error", "truncations")

    def __init__(
        self, handles: list[FileHandle], paths: list[str], directory: str | None, end_offset: int, truncations: int
    ) -> None:
        self._handles = handles
        self._paths = paths
        self._directory = directory
        self.end_offset = end_offset
        self.truncations = truncations
        """How often the log had been truncated when the task was made; one more makes it void."""
        self.error: OSError | None = None

    def run(self) -> None:
        """Do the work; a failure is left in `error`."""
        try:
            for handle in self._handles:
                os.fsync(handle.fd)
            for path in self._paths:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    sync_file(path)
            if self._directory is not None:
                with contextlib.suppress(FileNotFoundError):  # the partition was deleted meanwhile
                    sync_directory(self._directory)
        except OSError as error:
            self.error = error
