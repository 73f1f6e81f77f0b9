"""A range of a segment's file that a reader was given.

Owns keeping the file readable: a slice refers to the open file, so that deleting the segment does not take it away.
Never copies or looks at the bytes before somebody asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.log.files import FileHandle, read_at

if TYPE_CHECKING:
    from kbroker.log.partition_log import PartitionLog


class LogSlice:
    """Bytes `position` to `position + size` of an open log file; the last batch may be cut off, as in Kafka.

    Keep the slice for as long as `fd` is in use: the descriptor may be closed once nobody refers to the slice. After a
    truncation of the log, which only ever removes what was not committed, fewer bytes than `size` may be left.
    """

    __slots__ = ("_end_offset", "_handle", "_log", "_segment_index", "_start_offset", "cut_short", "position", "size")

    def __init__(
        self,
        handle: FileHandle | None,
        position: int,
        size: int,
        log: PartitionLog | None = None,
        segment_index: int = 0,
        start_offset: int = 0,
        end_offset: int = 0,
    ) -> None:
        self._handle = handle
        self.position = position
        self.size = size
        self._log = log
        self._segment_index = segment_index
        self._start_offset = start_offset
        self._end_offset = end_offset
        self.cut_short = False
        """Whether more could have been served than one read looks at (links.py)."""

    @property
    def fd(self) -> int:
        """Descriptor to send from, -1 for an empty slice."""
        return self._handle.fd if self._handle is not None else -1

    @property
    def empty(self) -> bool:
        return self.size == 0

    @property
    def aborted_transactions(self) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions with records in the slice; to be asked at once."""
        if self._log is None:
            return []
        log, index, end = self._log, self._segment_index, self._end_offset
        if index < len(log.segments) - 1:
            end = min(end, log.bases[index + 1])
        if index < len(log.segments):
            end = min(end, log.segments[index].offset_beyond(self.position + self.size))
        return log.aborted_transactions(self._start_offset, end)

    def __len__(self) -> int:
        return self.size

    def view(self) -> memoryview:
        """Read the bytes. A mapping would save the copy, but a truncated file under a mapping kills the process."""
        if self._handle is None or not self.size:
            return memoryview(b"")
        return memoryview(read_at(self._handle.fd, self.size, self.position))


EMPTY_SLICE = LogSlice(None, 0, 0)
