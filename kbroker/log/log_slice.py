"""A range of a segment's file that a reader was given.

Owns which file that is, whatever becomes of its name, and keeps it open from when its descriptor is asked for. Before,
a slice holds no descriptor: thousands may wait for a client that does not read. Never copies or looks at the bytes
before somebody asks for them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.log.files import FileHandle, read_at
from kbroker.log.segment.segment import Segment


@dataclass(slots=True, eq=False)
class LogSlice:
    """Bytes `position` to `position + size` of a segment's log file; the last batch may be cut off, as in Kafka.

    Keep the slice for as long as `fd` is in use: the descriptor may be closed once nobody refers to the slice. After a
    truncation of the log, which only ever removes what was not committed, fewer bytes than `size` may be left. A file
    that has been removed stays for its slices, unless too many are kept so; then reading raises OSError.
    """

    segment: Segment | None
    position: int
    size: int
    start_offset: int = 0
    """What was asked for."""
    end_offset: int = 0
    """Up to where the reader may see."""
    cut_short: bool = False
    """Whether more could have been served than one read looks at (checks_at_first_read.py)."""
    _handle: FileHandle | None = field(default=None, init=False)

    @property
    def fd(self) -> int:
        """Descriptor to send from, which stays open as long as the slice; -1 for an empty one. Raises OSError."""
        if self._handle is None:
            if self.segment is None:
                return -1
            self._handle = self.segment.handle
        return self._handle.fd

    @property
    def empty(self) -> bool:
        return self.size == 0

    def __len__(self) -> int:
        return self.size

    def view(self) -> memoryview:
        """Read the bytes. A mapping would save the copy, but a truncated file under a mapping kills the process."""
        if self.segment is None or not self.size:
            return memoryview(b"")
        handle = self._handle or self.segment.handle
        return memoryview(read_at(handle.fd, self.size, self.position))


EMPTY_SLICE = LogSlice(None, 0, 0)
