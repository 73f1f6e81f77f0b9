"""The segments of one log (Kafka's LogSegments), and the files of those that were deleted.

Owns which segments there are, which one is appended to, when the files of deleted ones go, and whether the directory
has changed since it was last on disk. Never decides what is rolled, deleted or replaced, and never knows what their
batches mean.
"""

from __future__ import annotations

import os
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import NamedTuple, overload

from kbroker.log.files import LOG_SUFFIX, SEGMENT_SUFFIXES, FileHandle, offset_of, remove_quietly
from kbroker.log.log_config import LogConfig
from kbroker.log.segment.segment import Segment

_UNDATED = -1  # deleted by somebody without a clock: the delay begins when somebody with one comes by


class LogExtent(NamedTuple):
    """What a log knows of itself that its segments' files do not tell; offsets absolute."""

    start_offset: int
    end_offset: int
    latest_epoch: int
    """Of the leader that appends now; -1 without one."""
    may_have_holes: bool
    """Whether the log is compacted, or has been: then offsets between two batches may be missing."""


class Segments:
    """At least one segment, of which the last one is `active`; sizes in bytes, times in ms."""

    __slots__ = ("_directory", "_doomed", "_idle_size", "active", "bases", "directory_changed", "items", "were_none")

    def __init__(self, directory: str, config: LogConfig, now_ms: int) -> None:
        """Open what the directory holds, or begin at offset 0; raises OSError."""
        self._directory = directory
        self.directory_changed = True
        """Whether files came or changed their names since `take_directory`."""
        self._doomed: list[tuple[int, str]] = []
        self._idle_size = -1
        names = os.listdir(directory)
        self.bases = sorted(base for n in names if n.endswith(LOG_SUFFIX) and (base := offset_of(n)) is not None)
        """The base offset of each."""
        for name in names:
            if name.endswith(SEGMENT_SUFFIXES[1:]) and offset_of(name) not in self.bases:
                remove_quietly(f"{directory}/{name}")
        self.items = [Segment.open(directory, base, config, now_ms) for base in self.bases]
        self.were_none = not self.items
        """Whether the directory held no segment."""
        if self.were_none:
            self.add(0, config, now_ms)
        self.active = self.items[-1]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.items)

    @overload
    def __getitem__(self, index: int) -> Segment: ...
    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...
    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self.items[index]

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.items)

    # -- finding ----------------------------------------------------------------------------------------------

    def index_at(self, offset: int) -> int:
        """Return the place of the segment in which `offset` lies, the first one for all before it."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def index_of(self, segment: Segment) -> int:
        """Return a segment's place, -1 if it is not here any more."""
        index = bisect_left(self.bases, segment.base_offset)
        return index if index < len(self.items) and self.items[index] is segment else -1

    def end_of(self, index: int, log_end: int) -> int:
        """Return the base of the next segment, or the end of the log."""
        return self.bases[index + 1] if index + 1 < len(self.bases) else log_end

    def end_position(self, index: int, upper_bound: int) -> int:
        """Return where in a segment's file the first batch begins that reaches to `upper_bound`, or the file's end."""
        segment = self.items[index]
        if index + 1 < len(self.bases) and self.bases[index + 1] <= upper_bound:
            return segment.size
        found = segment.find(upper_bound)
        return segment.size if found is None else found[0]

    # -- changing ---------------------------------------------------------------------------------------------

    def add(self, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
        """Create an empty segment and append to it from now on; raises OSError."""
        most = min(config.segment_jitter_ms, config.segment_ms)
        jitter_ms = random.randrange(most) if most else 0
        segment = Segment.create(self._directory, base_offset, config, now_ms, jitter_ms=jitter_ms)
        self.items.append(segment)
        self.bases.append(base_offset)
        self.active = segment
        self.directory_changed = True
        return segment

    def remove(self, segment: Segment, config: LogConfig, now_ms: int) -> None:
        """Take a segment out; its files are removed `file.delete.delay.ms` later by `purge`."""
        index = self.items.index(segment)
        del self.items[index], self.bases[index]
        if self.items:
            self.active = self.items[-1]
        due = now_ms + config.file_delete_delay_ms if now_ms else _UNDATED
        self._doomed += [(due, path) for path in segment.mark_deleted()]

    def remove_behind(self, index: int) -> None:
        """Take all segments behind one out, and their files at once."""
        for later in self.items[index + 1 :]:
            for path in later.mark_deleted():
                remove_quietly(path)
        del self.items[index + 1 :], self.bases[index + 1 :]
        if self.items:
            self.active = self.items[-1]

    def replace(self, old: list[Segment], doomed: list[str], config: LogConfig, now_ms: int) -> None:
        """Let the files that now stand at the base of the first one serve in the place of `old`, which are neighbours.

        `doomed` are the old files' present names; they are removed as those of deleted segments are. Raises OSError.
        """
        index, base = self.items.index(old[0]), old[0].base_offset
        self.items[index : index + len(old)] = [Segment.open(self._directory, base, config, now_ms)]
        self.bases[index : index + len(old)] = [base]
        self._doomed += [(now_ms + config.file_delete_delay_ms, path) for path in doomed]
        self.directory_changed = True

    def purge(self, config: LogConfig, now_ms: int) -> int:
        """Remove the files of deleted segments that are due; returns how many."""
        delay = config.file_delete_delay_ms
        dated = [(now_ms + delay if when == _UNDATED else when, path) for when, path in self._doomed]
        self._doomed = [(when, path) for when, path in dated if when > now_ms]
        for when, path in dated:
            if when <= now_ms:
                remove_quietly(path)
        return len(dated) - len(self._doomed)

    # -- files ------------------------------------------------------------------------------------------------

    def handles_from(self, offset: int) -> list[FileHandle]:
        """Return the open files that hold what lies at or beyond `offset`."""
        return [segment.handle for segment in self.items[self.index_at(offset) :]]

    def take_directory(self) -> str | None:
        """Return the directory, for a flush, if that is due."""
        changed, self.directory_changed = self.directory_changed, False
        return self._directory if changed else None

    def seal_active(self) -> None:
        """Bring the last segment's files into the form in which they rest; raises OSError."""
        self.active.seal()
        self.directory_changed = True

    def release_idle(self, *, force: bool) -> None:
        """Close the files that nobody has used since the last call, or all; they are opened again when needed."""
        for segment in self.items:
            idle = segment is not self.active or segment.size == self._idle_size
            segment.release_unused(force=force, idle=idle)
        self._idle_size = self.active.size

    def release(self) -> None:
        for segment in self.items:
            segment.release()

    def move(self, directory: str) -> None:
        self._directory = directory
        for segment in self.items:
            segment.move(directory)
        self._doomed = []  # they go with the directory
