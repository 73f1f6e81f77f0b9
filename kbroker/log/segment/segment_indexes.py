"""The offset index and the time index of one segment, kept consistent with its log file.

Decides the times at which the indexes are opened, compared with the log, completed, emptied and rebuilt, and the
batches for which an entry is added. Owns the segment's largest timestamp, which is read from the time index. Never
changes the log.
"""

from __future__ import annotations

from typing import NamedTuple

from kbroker.log.batch_scan import is_intact, read_header, scan_headers
from kbroker.log.files import INDEX_SUFFIX, TIME_INDEX_SUFFIX, OpenFile, offset_name
from kbroker.log.open_files import retried
from kbroker.log.segment.index_files import OffsetIndex, TimeIndex


class SegmentIndexes:
    """Both indexes of a segment; positions in bytes, times in ms. While closed, they keep no file open."""

    __slots__ = (
        "_base",
        "_closed",
        "_directory",
        "_indexed",
        "_interval",
        "_max_bytes",
        "_open",
        "damaged",
        "full",
        "known",
        "max_offset",
        "max_timestamp",
    )

    def __init__(self, directory: str, base_offset: int, interval: int, max_bytes: int) -> None:
        self._directory = directory
        self._base = base_offset
        self._interval = interval
        self._max_bytes = max_bytes
        self._open: tuple[OffsetIndex, TimeIndex] | None = None
        # the numbers of entries of both indexes, if both were complete when they were closed
        self._closed: tuple[int, int] | None = None
        self._indexed = 0  # position of the batch with the last entry
        self.full = False
        self.damaged = False
        """Whether a check found an incomplete or changed batch in the log."""
        self.known = True
        """Whether the largest timestamp is known without reading the indexes."""
        self.max_timestamp = -1
        self.max_offset = base_offset
        """The last offset of the first batch that contains the largest timestamp."""

    @property
    def is_open(self) -> bool:
        return self._open is not None

    def open(self) -> tuple[OffsetIndex, TimeIndex]:
        """Open the files without any check, and return them."""
        if self._open is None:
            self._open = retried(self._open_both)
        return self._open

    def _open_both(self) -> tuple[OffsetIndex, TimeIndex]:
        offsets = OffsetIndex(offset_name(self._directory, self._base, INDEX_SUFFIX), self._base, self._max_bytes)
        try:
            path = offset_name(self._directory, self._base, TIME_INDEX_SUFFIX)
            return offsets, TimeIndex(path, self._base, self._max_bytes)
        except OSError:
            offsets.close()
            raise

    def note(self, position: int, last_offset: int, timestamp: int) -> None:
        """Record the batch at `position`, which follows all recorded batches; `timestamp` is its largest timestamp."""
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.max_offset = last_offset
        if position - self._indexed > self._interval:
            try:
                offsets, times = self._open or self.open()
            except OSError:
                return  # for example, no free descriptor: the batch is written, and the next append retries
            offsets.append(last_offset, position)
            times.maybe_append(self.max_timestamp, self.max_offset)
            self._indexed = position
            self.full = offsets.is_full or times.is_full

    # -- against the log --------------------------------------------------------------------------------------

    def forget(self) -> None:
        """Mark the largest timestamp as unknown until the next check."""
        self.known = False

    def complete(self, file: OpenFile, size: int) -> None:
        """Compare the entries with the log file, which has `size` bytes, and add missing entries.

        This may require reading all headers of the log, so it is done once, and not again after a temporary close.
        """
        offsets, times = self.open()
        if self.known and self._closed == (offsets.count, times.count):
            return
        trust = _compare_last(offsets, times, file, size, self._base)
        self.damaged |= trust.damaged
        if trust.newest is None:
            self._empty()
        else:
            self.max_timestamp, self.max_offset = trust.newest
        self._note_from(trust.start, file, size)

    def rebuild(self, file: OpenFile, size: int) -> None:
        """Remove all entries and read the log's headers again."""
        self.reset()
        self._note_from(0, file, size)

    def cut(self, file: OpenFile, size: int, offset: int) -> None:
        """Remove the entries from `offset` on, after the log was truncated to `size` bytes; entries must be valid."""
        offsets, times = self.open()
        offsets.keep(offsets.last_at_most(size - 1, 1) + 1)
        times.keep(times.last_at_most(offset - 1 - self._base, 1) + 1)
        self._closed = None
        # The time index contains the largest timestamp up to each entry of the offset index, so only later batches are
        # read again.
        self.max_timestamp, self.max_offset = times.last or (-1, self._base)
        last = offsets.last
        self._note_from(last[1] if last else 0, file, size)

    def reset(self) -> None:
        """Empty the files; the caller must then call `note` for each batch, and `end_rebuild`."""
        if self._open is not None:
            for index in self._open:
                index.close()
            self._open = None
        self._empty()
        self._indexed = 0

    def end_rebuild(self) -> None:
        """Finish after all existing batches have been recorded."""
        offsets, times = self.open()
        self.damaged = False
        self.full = offsets.is_full or times.is_full
        self.known = True

    def _empty(self) -> None:
        self._closed = None
        for index in self.open():
            index.empty()
        self.max_timestamp, self.max_offset = -1, self._base

    def _note_from(self, start: int, file: OpenFile, size: int) -> None:
        offsets, times = self.open()
        last = offsets.last
        self._indexed = last[1] if last else 0
        position = start
        for position, header in scan_headers(file, start, size):
            # A batch that compaction has emptied still has a timestamp, but no record with this timestamp.
            self.note(position, header.last_offset, header.max_timestamp if header.record_count else -1)
            position += header.size
        self.damaged |= position != size
        self.full = offsets.is_full or times.is_full
        self.known = True

    # -- lifecycle --------------------------------------------------------------------------------------------

    def note_largest(self) -> None:
        """Append the segment's largest timestamp to the time index: Kafka reads it from the last entry."""
        self.open()[1].maybe_append(self.max_timestamp, self.max_offset)

    def close(self) -> None:
        """Truncate the files to their entries and close them; they are checked again at the next use."""
        if self._open is not None:
            both, self._open, self._closed = self._open, None, None
            for index in both:
                index.trim()
            self._closed = both[0].count, both[1].count

    def move(self, directory: str) -> None:
        self._directory = directory


class _Trust(NamedTuple):
    """The trusted part of two indexes: `start` is the position from which the log has to be read."""

    start: int
    newest: tuple[int, int] | None
    """The largest timestamp before `start`, and its offset; None if the indexes are wrong or empty."""
    damaged: bool = False
    """Whether a batch was found that does not match its CRC."""


def _compare_last(offsets: OffsetIndex, times: TimeIndex, file: OpenFile, size: int, base_offset: int) -> _Trust:
    """Compare the last entries with the log file, which has `size` bytes."""
    last, newest = offsets.last, times.last
    if newest is None or not (offsets.in_order() and times.in_order()) or (last is not None and last[1] >= size):
        return _Trust(0, None)
    # The offset index of a small segment has no entry.
    if last is not None and not _begins_at(file, size, base_offset, last):
        return _Trust(0, None)
    nearest = offsets.lookup(newest[1])
    for position, header in scan_headers(file, nearest[1] if nearest else 0, size):
        if header.last_offset < newest[1]:
            # no earlier batch may have a larger timestamp than the newest entry
            if header.record_count and header.max_timestamp > newest[0]:
                return _Trust(0, None, not is_intact(file, position, header))
            continue
        if header.base_offset <= newest[1] and header.max_timestamp == newest[0]:
            return _Trust(min(position, last[1] if last else 0), newest)
        return _Trust(0, None, not is_intact(file, position, header))
    return _Trust(0, None)


def _begins_at(file: OpenFile, size: int, base_offset: int, entry: tuple[int, int]) -> bool:
    """Whether a batch that may contain the entry's offset begins at the entry's position."""
    header = read_header(file, entry[1], size)
    return header is not None and base_offset <= header.base_offset <= entry[0]
