"""The index of headers of a closed segment: the parts of its log file that have a record with a given header and value.

Owns the form of `<base offset>.headers`, our own file, which Kafka ignores. A segment is divided into blocks of some
neighbouring batches. For each indexed header, the index lists the blocks of each value, by a hash of the value. The
index may therefore name too many blocks, but never too few. Never reads a log (header_indexing.py does).

    magic | CRC-32C of the rest | base offset | size of the log file | number of blocks | number of headers
    of each block: offset and position of its first batch in the segment | CRC in the header of this batch
    of each header: its name | blocks that may contain any value | hashes of values, ascending | blocks of each of them
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from functools import reduce
from hashlib import blake2b
from itertools import accumulate
from typing import Final, NamedTuple

from kbroker.protocol.checksum import crc32c

MOST_HASHED: Final = 56
"""The number of bytes at the beginning of a value that are hashed. Values that differ only later count as one value."""
_MAGIC: Final = b"kbH1"
_START: Final = struct.Struct(">4sIqqIH")
_CRC_END: Final = 8
# length of the name, whether it has too many values, bytes of the bitmap "any value", number of values
_HEADER: Final = struct.Struct(">H?II")
_SAMPLES: Final = 16
_ENTRY_BYTES: Final = 200
_LISTED, _MAPPED = b"l", b"m"


class DamagedIndexError(ValueError):
    """The bytes are no index of headers."""


class Column(NamedTuple):
    """The blocks of one header: `values` are lists of numbers, or bitmaps with the lowest block in the lowest bit."""

    name: str
    is_given_up: bool
    """Whether the header has too many values. The index does not describe such a header."""
    everywhere: bytes
    """The blocks whose values are not known, as a bitmap."""
    values: dict[int, array[int] | bytearray]


def hash_of(value: bytes) -> int:
    """Return the hash by which the index finds a value."""
    return int.from_bytes(blake2b(value[:MOST_HASHED], digest_size=8).digest())


def _numbers(kind: str, values: Sequence[int]) -> bytes:
    packed = array(kind, values)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def _bits(found: bytes) -> int:
    """Return the blocks of one value."""
    if found[:1] == _MAPPED:
        return int.from_bytes(found[1:], "little")
    numbers = array("I", found[1:])
    if sys.byteorder == "little":
        numbers.byteswap()
    bits = bytearray((numbers[-1] >> 3) + 1)
    for each in numbers:
        bits[each >> 3] |= 1 << (each & 7)
    return int.from_bytes(bits, "little")


class Blocks(NamedTuple):
    """The blocks of a segment: first offsets (relative to the segment's base), positions, CRCs of the first batches."""

    offsets: array[int]
    positions: array[int]
    crcs: array[int]


def encode(base_offset: int, size: int, blocks: Blocks, columns: Sequence[Column]) -> bytes:
    """Return the bytes of an index."""
    parts = [_numbers("I", each) for each in blocks]
    for each in columns:
        name = each.name.encode()
        hashes = sorted(each.values)
        data = []
        for one in hashes:
            found = each.values[one]
            data.append(_LISTED + _numbers("I", found) if isinstance(found, array) else _MAPPED + found.rstrip(b"\0"))
        ends = [0, *accumulate(map(len, data))]
        parts += [_HEADER.pack(len(name), each.is_given_up, len(each.everywhere), len(hashes)), name, each.everywhere]
        parts += [_numbers("Q", hashes), _numbers("I", ends), *data]
    start = _START.pack(_MAGIC, 0, base_offset, size, len(blocks.offsets), len(columns))
    crc = reduce(lambda known, part: crc32c(part, known), parts, crc32c(start[_CRC_END:]))
    return b"".join((start[:4], crc.to_bytes(4), start[_CRC_END:], *parts))


class HeaderIndex:
    """A decoded index; sets of blocks are numbers with a bit for each block."""

    def __init__(self, content: bytes) -> None:
        """Raise DamagedIndexError unless the content is complete."""
        if len(content) < _START.size:
            raise DamagedIndexError("it is too short")
        magic, crc, base_offset, log_size, count, headers = _START.unpack_from(content)
        self.base_offset: int = base_offset
        self.log_size: int = log_size
        if magic != _MAGIC or crc != crc32c(memoryview(content)[_CRC_END:]):
            raise DamagedIndexError("its checksum is wrong")
        self._left = memoryview(content)[_START.size :]
        if 12 * count > len(self._left):
            raise DamagedIndexError("it is too short")
        self._blocks: Final = Blocks(self._take("I", count), self._take("I", count), self._take("I", count))
        self.every: Final = (1 << count) - 1
        """All blocks."""
        self.size: Final = len(content) + _ENTRY_BYTES
        """The bytes in memory."""
        self._columns: dict[str, tuple[array[int], array[int], memoryview, int] | None] = {}
        try:
            for _ in range(headers):
                self._read_column()
        except (struct.error, ValueError, IndexError) as error:
            raise DamagedIndexError(str(error)) from error

    def _read_column(self) -> None:
        length, is_given_up, everywhere, values = _HEADER.unpack(self._cut(_HEADER.size))
        name = bytes(self._cut(length)).decode()
        blocks = int.from_bytes(self._cut(everywhere), "little")
        hashes, ends = self._take("Q", values), self._take("I", values + 1)
        self._columns[name] = None if is_given_up else (hashes, ends, self._cut(ends[-1]), blocks)

    def _cut(self, size: int) -> memoryview:
        found, self._left = self._left[:size], self._left[size:]
        return found

    def _take(self, kind: str, count: int) -> array[int]:
        found = array(kind, self._cut(count * array(kind).itemsize).tobytes())
        if sys.byteorder == "little":
            found.byteswap()
        return found

    @property
    def names(self) -> frozenset[str]:
        """The headers that were indexed, including those that have too many values."""
        return frozenset(self._columns)

    def counts(self) -> list[tuple[str, int | None]]:
        """Return each header and the number of its values; None for a header with too many values."""
        return [(name, None if found is None else len(found[0])) for name, found in self._columns.items()]

    def lookup(self, name: str, value: bytes) -> int | None:
        """Return the blocks that may have a record whose header has this value; None if the blocks are not known."""
        column = self._columns.get(name)
        if column is None:
            return None
        hashes, ends, data, blocks = column
        wanted = hash_of(value)
        place = bisect_left(hashes, wanted)
        if place < len(hashes) and hashes[place] == wanted:
            blocks |= _bits(bytes(data[ends[place] : ends[place + 1]]))
        return blocks

    def samples(self) -> Iterator[tuple[int, int, int]]:
        """Yield (position, base offset, CRC) of some batches.

        The log has these batches if the index belongs to the log.
        """
        offsets, positions, crcs = self._blocks
        step = max(len(offsets) // _SAMPLES, 1)
        for block in {*range(0, len(offsets), step), len(offsets) - 1}:
            yield positions[block], self.base_offset + offsets[block], crcs[block]

    def block_at(self, offset: int) -> int:
        """Return the block that contains an offset of the segment."""
        return max(bisect_right(self._blocks.offsets, offset - self.base_offset) - 1, 0)

    def offset_of(self, block: int) -> int:
        """Return the first offset of a block."""
        return self.base_offset + self._blocks.offsets[block]

    def position_of(self, block: int) -> int:
        """Return the position of a block in the log file; for the block after the last one, the file's size."""
        positions = self._blocks.positions
        return positions[block] if block < len(positions) else self.log_size
