"""The segments of one log (Kafka's LogSegments).

Owns the list of segments, the choice of the active segment, and whether the directory has changed since its last sync.
Also owns the choice of the segments that exceed a size or an age. Owns the files of deleted segments until a caller
removes them on a thread that may wait for the disk. Never rolls, deletes or replaces a segment by itself, and never
reads batches. A log may have many thousands of segments, so each segment is opened only when it is needed.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple, overload
from weakref import ref

from kbroker.log.files import HEADERS_SUFFIX, LOG_SUFFIX, SEGMENT_SUFFIXES, offset_name, offset_of, remove_quietly
from kbroker.log.log_config import LogConfig
from kbroker.log.open_files import OpenFiles
from kbroker.log.segment.segment import Segment

_UNDATED = -1  # the deletion has no time yet: its delay starts when the next call passes a time


def _no_segment() -> None:
    return None


class DeletedFiles:
    """The files of a log's deleted segments, which are removed `file.delete.delay.ms` later; times in ms."""

    __slots__ = ("_files", "_undated")

    def __init__(self) -> None:
        self._files: deque[tuple[int, list[str], Callable[[], Segment | None]]] = deque()
        self._undated = 0

    def add(self, segment: Segment, paths: list[str], config: LogConfig, now_ms: int) -> None:
        """Schedule the removal of a deleted segment's files; `now_ms` is 0 if the time is unknown."""
        self._files.append((now_ms + config.file_delete_delay_ms if now_ms else _UNDATED, paths, ref(segment)))
        self._undated += not now_ms

    def add_garbage(self, paths: list[str]) -> None:
        """Schedule the immediate removal of files that are not needed."""
        self._files.appendleft((0, paths, _no_segment))

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
            if segment is not None:  # a slice of the segment is still being sent
                with suppress(OSError):
                    segment.handle  # noqa: B018 - opens it, and it stays open
        return taken

    def clear(self) -> None:
        self._files.clear()


class LogExtent(NamedTuple):
    """The facts about a log that are not in its segments' files. Offsets are absolute."""

    start_offset: int
    end_offset: int
    latest_epoch: int
    """The leader epoch of the current leader; -1 if there is none."""
    may_have_holes: bool
    """Whether the log is or was compacted: offsets between two batches may then be missing."""


class Segments:
    """At least one segment. The last segment is `active`. Sizes are in bytes, times in ms."""

    __slots__ = (
        "_aborting",
        "_directory",
        "_files",
        "_idle_size",
        "_sealed_size",
        "active",
        "bases",
        "deleted_files",
        "directory_changed",
        "had_headers",
        "items",
        "were_none",
    )

    def __init__(self, directory: str, config: LogConfig, now_ms: int, files: OpenFiles) -> None:
        """Open the segments in the directory; if there is none, create a segment at offset 0. Raises OSError."""
        self._directory = directory
        self._files = files
        self.directory_changed = True
        """Whether files were created or renamed since `take_directory`."""
        self.deleted_files = DeletedFiles()
        """The files of deleted segments."""
        self._idle_size = -1
        self._sealed_size: int | None = None  # bytes of all sealed segments; None if not summed yet
        names = os.listdir(directory)
        bases = {base for n in names if n.endswith(LOG_SUFFIX) and (base := offset_of(n)) is not None}
        self.bases = sorted(bases)
        """The base offset of each segment."""
        for name in names:
            if name.endswith((*SEGMENT_SUFFIXES[1:], HEADERS_SUFFIX)) and offset_of(name) not in bases:
                remove_quietly(f"{directory}/{name}")
        self.had_headers = any(name.endswith(HEADERS_SUFFIX) for name in names)
        """Whether the directory had indexes of headers, and no caller has examined them yet."""
        # bases of segments that may have aborted transactions, and bases of some removed segments
        self._aborting: list[int] = []
        self.items = [self._watched(Segment.open(directory, base, config, now_ms, files)) for base in self.bases]
        self.were_none = not self.items
        """Whether the directory contained no segment."""
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
        sealed = self._sealed_size
        if sealed is None:
            sealed = self._sealed_size = sum(segment.size for segment in self.items) - self.active.size
        return sealed + self.active.size

    # -- finding ----------------------------------------------------------------------------------------------

    def index_at(self, offset: int) -> int:
        """Return the index of the segment that contains `offset`, or 0 if `offset` is before the first segment."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def index_of(self, segment: Segment) -> int:
        """Return a segment's index; -1 if it was removed."""
        index = bisect_left(self.bases, segment.base_offset)
        return index if index < len(self.items) and self.items[index] is segment else -1

    def end_of(self, index: int, log_end: int) -> int:
        """Return the base offset of the next segment, or the end of the log."""
        return self.bases[index + 1] if index + 1 < len(self.bases) else log_end

    def end_position(self, index: int, upper_bound: int) -> int:
        """Return the position in a segment's file of the first batch that reaches `upper_bound`, or the file's end."""
        segment = self.items[index]
        if index + 1 < len(self.bases) and self.bases[index + 1] <= upper_bound:
            return segment.size
        found = segment.find(upper_bound)
        return segment.size if found is None else found[0]

    def aborting_from(self, index: int) -> Iterator[int]:
        """Yield the indexes, from `index` on, of the segments (usually few) that may contain aborted transactions."""
        base = self.bases[index]
        while (place := bisect_left(self._aborting, base)) < len(self._aborting):
            base = self._aborting[place]
            index = bisect_left(self.bases, base)
            if index < len(self.bases) and self.bases[index] == base:
                yield index
                base += 1
            else:
                del self._aborting[place]

    def _watched(self, segment: Segment) -> Segment:
        """Note a segment when it gets its first aborted transaction, or now if it may already have one."""
        segment.txns.on_first = self._note_aborting
        if not segment.txns.is_void():
            self._note_aborting(segment.base_offset)
        return segment

    def _note_aborting(self, base: int) -> None:
        place = bisect_left(self._aborting, base)
        if self._aborting[place : place + 1] != [base]:
            self._aborting.insert(place, base)

    # -- changing ---------------------------------------------------------------------------------------------

    def add(self, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
        """Create an empty segment and make it the active segment. Raises OSError."""
        jitter_ms = config.random_jitter_ms()
        segment = Segment.create(self._directory, base_offset, config, now_ms, self._files, jitter_ms=jitter_ms)
        if self.items and self._sealed_size is not None:
            self._sealed_size += self.active.size
        self.items.append(self._watched(segment))
        self.bases.append(base_offset)
        self.active = segment
        self.directory_changed = True
        return segment

    def remove(self, segment: Segment, config: LogConfig, now_ms: int) -> None:
        """Remove a segment from the list, and add its files to `deleted_files`.

        Raises OSError. Even then, the segment is removed from the list.
        """
        index = self.index_of(segment)
        del self.items[index], self.bases[index]
        if self.items:
            self.active = self.items[-1]
        self._sealed_size = None
        self.deleted_files.add(segment, segment.mark_deleted(), config, now_ms)

    def remove_first(self, count: int, config: LogConfig, now_ms: int) -> list[Segment]:
        """Remove the first `count` segments, like `remove`. The active segment must not be one of these segments.

        Raises OSError if a file cannot be renamed. Its segment and the later segments then stay for another attempt.
        """
        removed: list[Segment] = []
        try:
            for segment in self.items[:count]:
                self.deleted_files.add(segment, segment.mark_deleted(), config, now_ms)
                removed.append(segment)
        finally:
            del self.items[: len(removed)], self.bases[: len(removed)]
            if self._sealed_size is not None:
                self._sealed_size -= sum(segment.size for segment in removed)
            del self._aborting[: bisect_left(self._aborting, self.bases[0])]
        return removed

    def remove_behind(self, index: int) -> None:
        """Remove all segments after the given segment, and remove their files immediately."""
        for later in self.items[index + 1 :]:
            for path in later.mark_deleted():
                remove_quietly(path)
        del self.items[index + 1 :], self.bases[index + 1 :]
        self._sealed_size = None
        if self.items:
            self.active = self.items[-1]

    def replace(self, old: list[Segment], renamed: list[list[str]], config: LogConfig, now_ms: int) -> None:
        """Replace the neighbours `old` by one segment. Its files now have the base offset of the first old segment.

        `renamed` contains the current names of the old segments' files, which are removed like the files of deleted
        segments. Raises OSError.
        """
        index, base = self.index_of(old[0]), old[0].base_offset
        segment = Segment.open(self._directory, base, config, now_ms, self._files)
        self.items[index : index + len(old)] = [self._watched(segment)]
        self.bases[index : index + len(old)] = [base]
        self._sealed_size = None
        for segment, paths in zip(old, renamed, strict=True):
            self.deleted_files.add(segment, paths, config, now_ms)
        self.directory_changed = True

    # -- retention --------------------------------------------------------------------------------------------

    def beyond_size(self, kept_bytes: int, log_end: int, limit: int, most: int) -> int:
        """Return how many of the first `most` segments to delete so that at least `kept_bytes` remain (-1: keep all).

        A segment is deleted only if it ends at or before the offset `limit`.
        """
        excess = self.size - kept_bytes

        def is_excess(segment: Segment) -> bool:
            nonlocal excess
            excess -= segment.size
            return excess >= 0

        return self._count(log_end, limit, most, is_excess) if kept_bytes >= 0 else 0

    def too_old(self, oldest_ms: int, log_end: int, limit: int, most: int) -> int:
        """Return how many of the first `most` segments are older than a time in ms. Raises OSError."""
        return self._count(log_end, limit, most, lambda segment: segment.written_ms() < oldest_ms)

    def _count(self, log_end: int, limit: int, most: int, is_due: Callable[[Segment], bool]) -> int:
        """Return how many of the first `most` segments are due, and end at or before the offset `limit`."""
        for index, segment in enumerate(self.items[:most]):
            if self.end_of(index, log_end) > limit or segment.size == 0 or not is_due(segment):
                return index
        return min(most, len(self.items))

    # -- files ------------------------------------------------------------------------------------------------

    def sealed_paths_from(self, offset: int) -> Iterator[str]:
        """Return the log files of closed segments with data at or after `offset`; any thread may use the result."""
        # The paths are computed from offsets: a reference to a segment object would keep the file of a deleted segment
        # open.
        directory, bases = self._directory, self.bases[self.index_at(offset) : -1]
        return (offset_name(directory, base, LOG_SUFFIX) for base in bases)

    def use(self, files: OpenFiles) -> None:
        """Close all files; from now on `files` limits the number of open files."""
        self.release()
        self._files = files
        for segment in self.items:
            segment.files = files

    def take_directory(self) -> str | None:
        """Return the directory for a flush if it has changed; otherwise None."""
        changed, self.directory_changed = self.directory_changed, False
        return self._directory if changed else None

    def seal_active(self) -> None:
        """Seal the last segment's files. Raises OSError."""
        self.active.seal()
        self.directory_changed = True

    def release_idle(self, *, force: bool) -> None:
        """Close the files not used since the last call, or all files; they are opened again when needed."""
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
        self.deleted_files.clear()  # these files are removed with the directory
