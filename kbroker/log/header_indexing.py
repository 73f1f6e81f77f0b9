"""Makes the index of headers of a closed segment from its log file.

Owns the search for the values of headers in a batch, and the limits on the size of an index. The search never misses a
value of a header. It may find a value that no header has, because other parts of a record may contain the same bytes as
a header. Data that cannot be searched within the limits (a damaged or a very large batch, a header with too many
values) is marked as unknown. Works on its own thread, with pauses. Never changes a log.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from kbroker.log import record_walk
from kbroker.log.batch_scan import read_header, scan_batches
from kbroker.log.files import FileHandle, OpenFile, read_optional, write_all
from kbroker.log.segment.header_index import (
    MOST_HASHED,
    Blocks,
    Column,
    DamagedIndexError,
    HeaderIndex,
    encode,
    hash_of,
)
from kbroker.long_work import Pauses
from kbroker.protocol.compression import unpack
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import HEADER_SIZE, BatchHeader, compute_crc, put_number, read_number

BLOCK: Final = 1 << 12
"""The minimum size of a block in bytes, except for the last block; blocks of large segments are larger."""
MOST_BLOCKS: Final = 1 << 16
_SHARE: Final = 64
"""The index of one header is not larger than the segment's size divided by this number."""
LEAST: Final = 1 << 14
"""The size in bytes that is always allowed for the index of one header, even if the segment is small."""
_MOST: Final = 1 << 22
"""The maximum size in bytes of the index of one header."""
_MOST_TOGETHER: Final = 1 << 24
"""The maximum size in bytes of all indexes of a segment: views read and check them in one step of some ms."""
_MOST_VALUES: Final = 20_000
_VALUE_BYTES: Final = 21  # hash, end and kind
_UNPACKED: Final = 16 << 20
"""The maximum number of uncompressed bytes of a batch whose records are searched."""
_PIECE: Final = 1 << 16
_LARGEST_PIECE: Final = 1 << 22
_MOST_FOUND: Final = 1 << 15
_LONGEST_SIZE: Final = 5
_USUAL_SIZES: Final = 8
_TOO_LARGE: Final = 1 << 32


class Stopped(Exception):  # noqa: N818 - named after the request
    """The broker stops."""


class _Rests(Pauses):
    """Pauses in the work, which also end the work when the broker stops.

    For a large batch with eight headers, the work takes seconds.
    """

    def __init__(self, is_stopped: Callable[[], bool]) -> None:
        super().__init__()
        self._is_stopped = is_stopped

    def rest(self) -> None:
        if self._is_stopped():
            raise Stopped
        super().rest()


def is_of(index: HeaderIndex, file: OpenFile, base_offset: int, size: int) -> bool:
    """Whether an index was made from this log file. Compares some batches of the file. Raises OSError."""
    if (index.base_offset, index.log_size) != (base_offset, size):
        return False
    for position, offset, crc in index.samples():
        header = read_header(file, position, size)
        if header is None or (header.base_offset, header.crc) != (offset, crc):
            return False
    return True


def ensure(
    log_path: str, path: str, base_offset: int, size: int, names: Iterable[str], is_stopped: Callable[[], bool]
) -> list[str]:
    """Write the index of a closed segment of `size` bytes, if there is no index of exactly these headers yet.

    Return the headers that this call found to have too many values. Raises OSError and Stopped. Any thread may call
    this.
    """
    wanted = sorted(set(names))
    file = FileHandle(log_path, os.O_RDONLY)
    content = read_optional(path)
    if content is not None:
        try:
            known = HeaderIndex(content)
        except DamagedIndexError:
            pass
        else:
            if known.names == set(wanted) and is_of(known, file, base_offset, size):
                return []
    columns = [_Column(name, size, _MOST_TOGETHER // len(wanted)) for name in wanted]
    blocks = _scan(file, base_offset, size, columns, is_stopped)
    if blocks is None:
        return []
    encoded = encode(base_offset, size, blocks, [each.made() for each in columns])
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        write_all(fd, encoded, 0)
    finally:
        os.close(fd)
    return [each.name for each in columns if each.is_given_up]


def _scan(
    file: OpenFile, base_offset: int, size: int, columns: list[_Column], is_stopped: Callable[[], bool]
) -> Blocks | None:
    """Search all batches; return None if the file does not have the format of a log."""
    if not 0 < size < _TOO_LARGE:
        return None
    blocks, least = Blocks(array("I"), array("I"), array("I")), block_size(size)
    pauses = _Rests(is_stopped)
    end = 0
    for position, header, batch in scan_batches(file, 0, size):
        pauses.rest()
        if position != end or header.base_offset < base_offset:
            return None
        if not blocks.positions or position - blocks.positions[-1] >= least:
            blocks.offsets.append(header.base_offset - base_offset)
            blocks.positions.append(position)
            blocks.crcs.append(header.crc)
        _note(header, batch, len(blocks.offsets) - 1, columns, pauses)
        end = position + header.size
    return blocks if end == size else None


def block_size(size: int) -> int:
    """Return the minimum block size in bytes for a segment of `size` bytes."""
    return max(BLOCK, size // MOST_BLOCKS)


def _note(header: BatchHeader, batch: memoryview, block: int, columns: list[_Column], pauses: Pauses) -> None:
    """Search one batch."""
    if header.is_control or not header.record_count:
        return
    try:
        if compute_crc(batch) != header.crc:
            raise Malformed("the CRC is wrong")
        parts = []
        for part in unpack(header.codec, batch[HEADER_SIZE:], _UNPACKED):
            parts.append(part)
            pauses.rest()
        data = b"".join(parts)
        for start, stop in _pieces(data, header.record_count):
            for each in columns:
                each.note(data, start, stop, block)
                pauses.rest()
    except Malformed:
        for each in columns:
            each.note_everywhere(block)


def _pieces(data: bytes, count: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of complete records. Raises Malformed if a record is too large to be searched in one step."""
    if len(data) <= 2 * _PIECE:
        yield 0, len(data)
        return
    start = 0
    for stop in _ends(data, count):
        if stop - start >= _PIECE:
            if stop - start > _LARGEST_PIECE:
                raise Malformed("a record is too large to be searched")
            yield start, stop
            start = stop
    if start < len(data):
        yield start, len(data)


def _overlaps(text: bytes) -> bool:
    """Whether two occurrences of a text can overlap. The search for a text without overlaps is faster."""
    return any(text.startswith(text[each:]) for each in range(1, len(text)))


def _ends(data: bytes, count: int) -> Iterator[int]:
    """Yield the positions at which the records end. Raises Malformed."""
    if record_walk.borders is not None:
        packed = record_walk.borders(data, 0, count)
        if packed is None:
            raise Malformed("a record does not fit in its batch")
        yield from memoryview(packed).cast("i")[1:]
        return
    position = 0
    for _ in range(count):
        size, position = read_number(data, position, _LONGEST_SIZE)
        position += size
        if size < 0 or position > len(data):
            raise Malformed("a record does not fit in its batch")
        yield position


class _Column:
    """The values of one header while a segment is read.

    In a record a header is `length of the name | name | length of the value | value`, with lengths of 1 to 5 bytes. The
    search looks for the name after the shortest form of the first length. A longer form ends with a byte of at least
    0x80 and a byte whose lower bits are zero. If the name follows two such bytes in a block, the block is noted as one
    that may have any value.
    """

    def __init__(self, name: str, size: int, most: int) -> None:
        """`size` is the segment's size, and `most` is the maximum size of the index, both in bytes."""
        self.name: Final = name
        self.is_given_up = False
        encoded = name.encode()
        length = bytearray()
        put_number(length, len(encoded))
        whole = bytes(length) + encoded
        self._may_cover = _overlaps(whole)
        behind = b"(.{1,%d})" % (_LONGEST_SIZE + MOST_HASHED)
        if self._may_cover:
            self._pattern = re.compile(b"(?=" + re.escape(whole) + behind + b")", re.DOTALL)
        else:
            self._pattern = re.compile(re.escape(whole) + b"(?=" + behind + b")", re.DOTALL)
        odd, escaped = rb"(?<=[\x80-\xff][\x00\x10\x20\x30\x40\x50\x60\x70]", re.escape(encoded)
        self._may_overlap = _overlaps(encoded)
        self._odd = re.compile(odd + b")" + escaped if self._may_overlap else escaped + odd + escaped + b")", re.DOTALL)
        self._encoded = encoded
        self._whole = whole
        self._quick: re.Pattern[bytes] | None = None
        self._sizes: set[int] = set()
        self._left = min(max(size // _SHARE, LEAST), _MOST, most)
        self._map_bytes = (size // block_size(size) >> 3) + 1
        self._values: dict[int, array[int] | bytearray] = {}
        self._everywhere = bytearray()
        self._hashes: dict[bytes, int] = {}

    def note(self, data: bytes, start: int, stop: int, block: int) -> None:
        """Search the complete records in `data` from `start` to `stop`. Note the values that the block has."""
        if self.is_given_up:
            return
        count = data.count(self._encoded, start, stop)
        if not count:
            return
        if count > _MOST_FOUND:
            self.note_everywhere(block)
            return
        quick = None if self._quick is None else self._quick.findall(data, start, stop)
        found = self._pattern.findall(data, start, stop) if quick is None else quick
        if (len(found) != count or self._may_overlap) and self._odd.search(data, start, stop):
            self.note_everywhere(block)
        values = self._quick_values(quick) if quick else None
        if values is None:
            values = self._values_in(found if quick is None else self._pattern.findall(data, start, stop))
        for value in values:
            self._add(value, block)

    def _quick_values(self, found: list[bytes]) -> set[bytes] | None:
        """Return the values of usual sizes after the name; None if there is a value of another size."""
        values = set()
        for each in set(found):
            size = each[0]
            if len(each) > 1 or not size:
                values.add(each[1:])
            elif size > 0x7F or not size & 1:
                return None
        return values

    def _values_in(self, found: list[bytes]) -> set[bytes]:
        """Return the values in the bytes after the name, and expect values of these sizes from now on."""
        values, sizes = set(), set()
        for each in found:
            size = each[0]
            sizes.add(size)
            if size < 0x80:
                if not size & 1:  # otherwise the value is null, or the bytes are not a header
                    values.add(each[1 : 1 + min(size >> 1, MOST_HASHED)])
                continue
            try:
                size, begin = read_number(each, 0, _LONGEST_SIZE)
            except Malformed:  # the bytes are not a header
                continue
            if size >= 0:
                values.add(each[begin : begin + min(size, MOST_HASHED)])
        usual = {each for each in sizes if each < 0x80 and not each & 1 and each >> 1 <= MOST_HASHED}
        if not self._may_cover and usual - self._sizes and len(usual | self._sizes) <= _USUAL_SIZES:
            self._sizes |= usual
            texts = b"|".join(re.escape(bytes([each])) + b".{%d}" % (each >> 1) for each in sorted(self._sizes))
            self._quick = re.compile(re.escape(self._whole) + b"(?=(" + texts + b"|.))", re.DOTALL)
        return values

    def _add(self, value: bytes, block: int) -> None:
        key = self._hashes.get(value)
        if key is None:
            if len(self._hashes) >= _MOST_VALUES:
                self._hashes.clear()
            key = self._hashes[value] = hash_of(value)
        known = self._values.get(key)
        if known is None:
            self._values[key] = array("I", (block,))
            self._left -= _VALUE_BYTES + 4
        elif isinstance(known, array):
            if known[-1] == block:
                return
            known.append(block)
            self._left -= 4
            if 4 * len(known) > self._map_bytes:
                self._values[key] = bits = bytearray(self._map_bytes)
                for each in known:
                    bits[each >> 3] |= 1 << (each & 7)
                self._left += 4 * len(known) - self._map_bytes
        else:
            known[block >> 3] |= 1 << (block & 7)
        if self._left < 0 or len(self._values) > _MOST_VALUES:
            self.is_given_up = True
            self._values.clear()
            self._hashes.clear()

    def note_everywhere(self, block: int) -> None:
        """Record that the values of a block are not known, so that it can contain any value."""
        if len(self._everywhere) <= block >> 3:
            self._everywhere.extend(bytes((block >> 3) + 1 - len(self._everywhere)))
        self._everywhere[block >> 3] |= 1 << (block & 7)

    def made(self) -> Column:
        """Return the values and blocks that were found."""
        return Column(self.name, self.is_given_up, bytes(self._everywhere), self._values)
