"""The files of deleted segments, until their removal.

Owns when they are removed, and that a segment still being read stays open. Never removes a file itself: the caller
removes the returned names, on a thread that may wait for the disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from weakref import ref

from kbroker.log.log_config import LogConfig
from kbroker.log.segment.segment import Segment

_UNDATED = -1  # deleted by a caller without a clock: the delay begins at the next call with one


def _nobody() -> None:
    return None


class DoomedFiles:
    """Files of one log that are removed `file.delete.delay.ms` after their segments; times in ms."""

    __slots__ = ("_files", "_undated")

    def __init__(self) -> None:
        self._files: deque[tuple[int, list[str], Callable[[], Segment | None]]] = deque()
        self._undated = 0

    def add(self, segment: Segment, paths: list[str], config: LogConfig, now_ms: int) -> None:
        """Schedule the removal of a deleted segment's files; `now_ms` is 0 if the time is unknown."""
        self._files.append((now_ms + config.file_delete_delay_ms if now_ms else _UNDATED, paths, ref(segment)))
        self._undated += not now_ms

    def add_garbage(self, paths: list[str]) -> None:
        """Schedule the immediate removal of files that nobody can need."""
        self._files.appendleft((0, paths, _nobody))

    def take(self, config: LogConfig, now_ms: int, most: int) -> list[str]:
        """Return the files of at most `most` due segments, to be removed now."""
        if self._undated:
            due = now_ms + config.file_delete_delay_ms
            self._files = deque((due if each[0] == _UNDATED else each[0], *each[1:]) for each in self._files)
            self._undated = 0
        taken: list[str] = []
        files = self._files
        while files and files[0][0] <= now_ms and most:
            _, paths, of_segment = files.popleft()
            taken += paths
            most -= 1
            segment = of_segment()
            if segment is not None:  # a slice of it is still being sent
                with suppress(OSError):
                    segment.handle  # noqa: B018 - opens it, and it stays open
        return taken

    def clear(self) -> None:
        self._files.clear()
