"""A range of a segment's file for a reader.

Owns the choice of the file, and finds the file after a rename. A slice opens its file when the descriptor is first
requested, and then keeps it open. Before that, a slice uses no descriptor: thousands of slices may wait for a client
that does not read. Never copies or reads the bytes before they are requested.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kbroker.log.files import FileHandle, read_at


class Sliced(Protocol):
    """A file whose parts are sent: a segment, or a fetched part of a segment in remote storage."""

    @property
    def handle(self) -> FileHandle:
        """The open file. Raises OSError."""


@dataclass(slots=True, eq=False)
class LogSlice:
    """Bytes `position` to `position + size` of a segment's log file; the last batch may be cut off, as in Kafka.

    Keep the slice as long as `fd` is in use: the descriptor may be closed when there is no reference to the slice.
    After a truncation of the log, which removes only uncommitted data, fewer bytes than `size` may be left. A removed
    file stays readable for its slices. If too many removed files are kept, reading raises OSError.
    """

    segment: Sliced | None
    position: int
    size: int
    start_offset: int = 0
    """The requested offset."""
    end_offset: int = 0
    """The end of the range visible to the reader."""
    cut_short: bool = False
    """Whether the limit on checks per read (checks_at_first_read.py) has made the slice shorter."""
    _handle: FileHandle | None = field(default=None, init=False)

    @property
    def fd(self) -> int:
        """The descriptor to send from.

        It stays open as long as the slice. It is -1 for an empty slice. Raises OSError.
        """
        if self._handle is None:
            if self.segment is None:
                return -1
            self._handle = self.segment.handle
        return self._handle.fd

    def part(self, position: int, size: int) -> LogSlice:
        """Return a part of the slice, with the same open file."""
        found = LogSlice(self.segment, position, size, self.start_offset, self.end_offset, self.cut_short)
        found._handle = self._handle
        return found

    @property
    def empty(self) -> bool:
        return self.size == 0

    def __len__(self) -> int:
        return self.size

    def view(self) -> memoryview:
        """Read the bytes. A mapping would avoid the copy, but truncating the mapped file would kill the process."""
        if self.segment is None or not self.size:
            return memoryview(b"")
        handle = self._handle or self.segment.handle
        return memoryview(read_at(handle.fd, self.size, self.position))


EMPTY_SLICE = LogSlice(None, 0, 0)
