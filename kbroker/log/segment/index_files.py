"""The two indexes of a segment: offset to file position, and timestamp to offset.

Owns the `.index` and `.timeindex` files: appending, bisection, growth and trimming. Never reads the log: whether an
entry is true is for the segment to check, and an index that is not gets rebuilt.

    .index       relative offset u32 | position u32        the batch at `position` reaches up to the offset
    .timeindex   timestamp i64 | relative offset u32       no earlier batch has a larger timestamp

Files are mapped, and preallocated in doubling steps, so that an idle partition costs nothing and a full disk raises
OSError in place of a SIGBUS. The unused end of a file that is being written is zeros; closing and rolling cut it off.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

_OFFSET_ENTRY: Final = struct.Struct(">II")
_TIME_ENTRY: Final = struct.Struct(">qI")
_FIRST_STEP: Final = 4096
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
"""How far an offset may lie behind the base of its segment."""


def encode_offset_entry(relative_offset: int, position: int) -> bytes:
    """Return an entry of the offset index for an index that is written at once."""
    return _OFFSET_ENTRY.pack(relative_offset, position)


def encode_time_entry(timestamp: int, relative_offset: int) -> bytes:
    """Return an entry of the time index for an index that is written at once; timestamp in ms."""
    return _TIME_ENTRY.pack(timestamp, relative_offset)


class MappedEntries:
    """Entries of one fixed size in a mapped file that grows up to `max_bytes`."""

    __slots__ = ("_capacity", "_map", "count", "entry", "max_entries", "odd", "path")

    def __init__(self, path: str, entry: struct.Struct, max_bytes: int) -> None:
        self.path = path
        self.entry = entry
        self.max_entries = max_bytes // entry.size
        self.count = 0
        self._map: mmap.mmap | None = None
        self._capacity = 0  # entries that fit into the file as it is
        size = self._map_file()
        self.count = size // entry.size
        self.odd = size % entry.size != 0
        """Whether the file's length shows that it is broken."""

    def _map_file(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(fd).st_size
            self._map = mmap.mmap(fd, size) if size else None
        finally:
            os.close(fd)
        self._capacity = size // self.entry.size
        return size

    def get(self, slot: int) -> tuple[int, int]:
        """Return entry `slot`, which must exist."""
        assert self._map is not None
        first, second = self.entry.unpack_from(self._map, slot * self.entry.size)
        return first, second

    def append(self, first: int, second: int) -> bool:
        """Append an entry; False where the index is full or the disk is."""
        if self.count >= self._capacity and not self._grow():
            return False
        assert self._map is not None
        self.entry.pack_into(self._map, self.count * self.entry.size, first, second)
        self.count += 1
        return True

    def _grow(self) -> bool:
        entries = min(self.max_entries, max(_FIRST_STEP // self.entry.size, 2 * max(self._capacity, self.count)))
        if entries <= self._capacity:
            return False
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, entries * self.entry.size)
            grown = mmap.mmap(fd, entries * self.entry.size)
        except OSError:
            return False  # the log does without the entry
        finally:
            os.close(fd)
        if self._map is not None:
            self._map.close()
        self._map = grown
        self._capacity = entries
        return True

    def last_at_most(self, target: int, column: int) -> int:
        """Return the last slot whose `column` is at most `target`, -1 without one."""
        low, high = 0, self.count
        get = self.get
        while low < high:
            middle = (low + high) // 2
            if get(middle)[column] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def truncate(self, count: int) -> None:
        """Keep the first `count` entries; the space behind them can be written again."""
        self.count = min(count, self.count)
        self.odd = False

    def trim(self) -> None:
        """Close, and cut the file to its entries."""
        self.close()
        if os.path.getsize(self.path) != self.count * self.entry.size:
            os.truncate(self.path, self.count * self.entry.size)

    def close(self) -> None:
        """Write the mapping back and unmap it; the object is of no further use."""
        if self._map is not None:
            self._map.flush()
            self._map.close()
            self._map = None
            self._capacity = 0


class OffsetIndex:
    """Sparse map from offsets to positions in bytes within one segment's log file."""

    __slots__ = ("_base", "entries")

    def __init__(self, path: str, base_offset: int, max_bytes: int) -> None:
        self._base = base_offset
        self.entries = MappedEntries(path, _OFFSET_ENTRY, max_bytes)

    @property
    def is_full(self) -> bool:
        return self.entries.count >= self.entries.max_entries

    @property
    def last(self) -> tuple[int, int] | None:
        """The last (offset, position)."""
        return self._entry(self.entries.count - 1) if self.entries.count else None

    def _entry(self, slot: int) -> tuple[int, int]:
        relative, position = self.entries.get(slot)
        return self._base + relative, position

    def lookup(self, offset: int) -> tuple[int, int] | None:
        """Return the last (offset, position) at or before `offset`, None if the search starts at the file's begin."""
        slot = self.entries.last_at_most(offset - self._base, 0)
        return self._entry(slot) if slot >= 0 else None

    def append(self, last_offset: int, position: int) -> None:
        """Note that the batch at `position` ends with `last_offset`."""
        last = self.last
        # A scan of a damaged file may come by with anything.
        if (last[0] if last else self._base - 1) < last_offset <= self._base + MAX_RELATIVE_OFFSET:
            self.entries.append(last_offset - self._base, position)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or beyond `offset`."""
        self.entries.truncate(self.entries.last_at_most(offset - self._base - 1, 0) + 1)

    def looks_sane(self, log_size: int) -> bool:
        """Check length, order of the last entries, and the last position against the log's size in bytes."""
        count = self.entries.count
        if self.entries.odd or count > self.entries.max_entries + 1:
            return False
        previous = (-1, -1)
        for slot in range(max(0, count - 8), count):
            relative, position = self.entries.get(slot)
            if relative <= previous[0] or position <= previous[1] or relative > 0x7FFFFFFF:
                return False
            previous = (relative, position)
        return previous[1] < log_size


class TimeIndex:
    """Sparse map from timestamps in ms to offsets within one segment."""

    __slots__ = ("_base", "entries")

    def __init__(self, path: str, base_offset: int, max_bytes: int) -> None:
        self._base = base_offset
        self.entries = MappedEntries(path, _TIME_ENTRY, max_bytes)

    @property
    def is_full(self) -> bool:
        # One entry stays free for the largest timestamp, which is noted when the segment is closed.
        return self.entries.count >= self.entries.max_entries - 1

    @property
    def last(self) -> tuple[int, int] | None:
        """The last (timestamp, offset)."""
        return self._entry(self.entries.count - 1) if self.entries.count else None

    def _entry(self, slot: int) -> tuple[int, int]:
        timestamp, relative = self.entries.get(slot)
        return timestamp, self._base + relative

    def lookup(self, timestamp: int) -> tuple[int, int] | None:
        """Return the last (timestamp, offset) whose timestamp is at most the one given."""
        slot = self.entries.last_at_most(timestamp, 0)
        return self._entry(slot) if slot >= 0 else None

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Note the largest timestamp so far and the last offset of its batch, if it is larger than the last one."""
        last = self.last
        if timestamp > (last[0] if last else -1) and 0 <= offset - self._base <= MAX_RELATIVE_OFFSET:
            self.entries.append(timestamp, offset - self._base)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or beyond `offset`."""
        self.entries.truncate(self.entries.last_at_most(offset - self._base - 1, 1) + 1)

    def looks_sane(self) -> bool:
        """Check length and order of the last entries."""
        count = self.entries.count
        if self.entries.odd or count > self.entries.max_entries + 1:
            return False
        previous = (-1, -1)
        for slot in range(max(0, count - 8), count):
            timestamp, relative = self.entries.get(slot)
            if timestamp <= previous[0] or relative < previous[1] or relative > 0x7FFFFFFF:
                return False
            previous = (timestamp, relative)
        return True
