"""A range of a segment's file that a reader was given.

Owns keeping the file readable: a slice refers to the open file, so that deleting the segment does not take it away.
Never copies or looks at the bytes before somebody asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.log.files import FileHandle, read_at
from kbroker.log.segment.segment import Segment


@dataclass(slots=True, eq=False)
class LogSlice:
    """Bytes `position` to `position + size` of an open log file; the last batch may be cut off, as in Kafka.

    Keep the slice for as long as `fd` is in use: the descriptor may be closed once nobody refers to the slice. After a
    truncation of the log, which only ever removes what was not committed, fewer bytes than `size` may be left.
    """

    _handle: FileHandle | None
    position: int
    size: int
    segment: Segment | None = None
    start_offset: int = 0
    """What was asked for."""
    end_offset: int = 0
    """Up to where the reader may see."""
    cut_short: bool = False
    """Whether more could have been served than one read looks at (batch_continuity.py)."""

    @property
    def fd(self) -> int:
        """Descriptor to send from, -1 for an empty slice."""
        return self._handle.fd if self._handle is not None else -1

    @property
    def empty(self) -> bool:
        return self.size == 0

    def __len__(self) -> int:
        return self.size

    def view(self) -> memoryview:
        """Read the bytes. A mapping would save the copy, but a truncated file under a mapping kills the process."""
        if self._handle is None or not self.size:
            return memoryview(b"")
        return memoryview(read_at(self._handle.fd, self.size, self.position))


EMPTY_SLICE = LogSlice(None, 0, 0)
