"""The two indexes of a segment: offset to file position, and timestamp to offset.

Owns the `.index` and `.timeindex` files: appending, bisection, growth and trimming. Never reads the log:
segment_indexes.py checks the entries, and rebuilds a wrong index.

    .index       relative offset u32 | position u32        the last offset of the batch at `position`
    .timeindex   timestamp i64 | relative offset u32       no earlier batch has a larger timestamp

Files are mapped, and preallocated in doubling steps. So an idle partition uses no resources, and a full disk raises
OSError instead of a SIGBUS. The unused end of a file being written consists of zeros; closing and rolling remove this
end.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import ClassVar, Final

OFFSET_ENTRY: Final = struct.Struct(">II")
TIME_ENTRY: Final = struct.Struct(">qI")
_FIRST_STEP: Final = 4096
_CHECKED: Final = 8
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
"""The largest distance of an offset from the base of its segment."""


class _IndexFile:
    """Entries of two increasing columns, one of them a relative offset, in a mapped file of at most `max_bytes`."""

    __slots__ = ("_base", "_capacity", "_map", "_most", "_odd", "_path", "count")

    entry: ClassVar[struct.Struct]
    offset_column: ClassVar[int]
    least_step: ClassVar[int]  # the minimum increase of the second column between two entries
    spare: ClassVar[int]  # the number of entries that are kept free

    def __init__(self, path: str, base_offset: int, max_bytes: int) -> None:
        self._path = path
        self._base = base_offset
        self._most = max_bytes // self.entry.size
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(fd).st_size
            self._map = mmap.mmap(fd, size) if size else None
        finally:
            os.close(fd)
        self.count = self._capacity = size // self.entry.size  # entries that fit in the file's current size
        self._odd = size % self.entry.size != 0  # the file's length shows that it is broken

    @property
    def is_full(self) -> bool:
        return self.count >= self._most - self.spare

    @property
    def last(self) -> tuple[int, int] | None:
        """The last entry, with its absolute offset."""
        return self._absolute(self.count - 1)

    def _absolute(self, slot: int) -> tuple[int, int] | None:
        if slot < 0:
            return None
        first, second = self.get(slot)
        return (first, self._base + second) if self.offset_column else (self._base + first, second)

    def get(self, slot: int) -> tuple[int, int]:
        """Return entry `slot`, which must exist, as stored in the file."""
        assert self._map is not None
        first, second = self.entry.unpack_from(self._map, slot * self.entry.size)
        return first, second

    def put(self, first: int, second: int) -> None:
        """Append an entry, or skip it if the index or the disk is full."""
        if self.count < self._capacity or self._grow():
            assert self._map is not None
            self.entry.pack_into(self._map, self.count * self.entry.size, first, second)
            self.count += 1

    def _grow(self) -> bool:
        entries = min(self._most, max(_FIRST_STEP // self.entry.size, 2 * max(self._capacity, self.count)))
        if entries <= self._capacity:
            return False
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            os.posix_fallocate(fd, 0, entries * self.entry.size)
            grown = mmap.mmap(fd, entries * self.entry.size)
        except OSError:
            return False
        finally:
            os.close(fd)
        if self._map is not None:
            self._map.close()
        self._map = grown
        self._capacity = entries
        return True

    def last_at_most(self, target: int, column: int) -> int:
        """Return the last slot whose `column` is at most `target`; -1 if there is none."""
        low, high = 0, self.count
        entries, unpack, size = self._map, self.entry.unpack_from, self.entry.size
        while low < high:
            middle = (low + high) // 2
            if unpack(entries, middle * size)[column] <= target:  # type: ignore[arg-type]
                low = middle + 1
            else:
                high = middle
        return low - 1

    def in_order(self) -> bool:
        """Whether the file's length and the order of the last entries are valid."""
        if self._odd or self.count > self._most + 1:
            return False
        previous = (-1, -1)
        for slot in range(max(0, self.count - _CHECKED), self.count):
            entry = self.get(slot)
            if entry[0] <= previous[0] or entry[1] < previous[1] + self.least_step:
                return False
            previous = entry
        return previous[self.offset_column] <= MAX_RELATIVE_OFFSET

    def empty(self) -> None:
        """Remove all entries; their space can be reused."""
        self.count = 0
        self._odd = False

    def keep(self, count: int) -> None:
        """Remove all entries after the first `count`, also in the file.

        They might later be mistaken for valid entries.
        """
        if count < self.count:
            assert self._map is not None
            begin, end = count * self.entry.size, self.count * self.entry.size
            self._map[begin:end] = bytes(end - begin)
            self.count = count

    def trim(self) -> None:
        """Close the file, and truncate it to its entries."""
        self.close()
        if os.path.getsize(self._path) != self.count * self.entry.size:
            os.truncate(self._path, self.count * self.entry.size)

    def close(self) -> None:
        """Unmap the file; the object cannot be used any more.

        The kernel may write the pages at any time, so an index is compared with the log whenever it is opened.
        """
        if self._map is not None:
            self._map.close()
            self._map = None
            self._capacity = 0


class OffsetIndex(_IndexFile):
    """A sparse map of one segment, from offsets to positions (in bytes) in the log file."""

    __slots__ = ()
    entry, offset_column, least_step, spare = OFFSET_ENTRY, 0, 1, 0

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """Return the last (offset, position) at or before `offset`; None means a search from the file's beginning."""
        return self._absolute(self.last_at_most(offset - self._base, 0))

    def append(self, last_offset: int, position: int) -> None:
        """Add an entry: the batch at `position` ends with `last_offset`."""
        last = self.last
        # The scan of a damaged file can pass any value here.
        if (last[0] if last else self._base - 1) < last_offset <= self._base + MAX_RELATIVE_OFFSET:
            self.put(last_offset - self._base, position)


class TimeIndex(_IndexFile):
    """A sparse map of one segment, from timestamps (in ms) to offsets."""

    __slots__ = ()
    # One entry stays free for the largest timestamp, which is appended when the segment is closed.
    entry, offset_column, least_step, spare = TIME_ENTRY, 1, 0, 1

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last (timestamp, offset) whose timestamp is at most the given timestamp."""
        return self._absolute(self.last_at_most(timestamp, 0))

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add (timestamp, last offset of its batch) if the timestamp is larger than the last entry's timestamp."""
        last = self.last
        if timestamp > (last[0] if last else -1) and 0 <= offset - self._base <= MAX_RELATIVE_OFFSET:
            self.put(timestamp, offset - self._base)
