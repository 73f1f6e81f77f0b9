"""Checks every record of a batch, without an object for each record and without all bytes in memory.

Owns reading the records of a batch that is uncompressed piece by piece, and the columns that describe neighbouring
records. The result is a sequence of slices of some hundred records; only one slice is kept at a time. A batch is
well-formed by exactly the rules of `read_records`, and a malformed batch raises the same kind of error. Never validates
a record's content, and never changes a record.

A record of up to 16 kB is read in place. Of a larger record, only the part uncompressed in one step is kept.
"""

from __future__ import annotations

import logging
import os
import sys
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import Final, TypeAlias

from kbroker.log.record_runs import Run, find_run, read_varint
from kbroker.protocol.compression import NONE, unpack
from kbroker.protocol.errors import Malformed, Undecodable
from kbroker.protocol.records import HEADER_SIZE, BatchHeader, Headers, read_number

_LARGE: Final = 16384  # in bytes; a record of this size can have 8,000 empty headers, whose check takes some ms
# more than _LARGE, because the numbers of a broken record may continue after the record's end
_AHEAD: Final = _LARGE + 64
_NUMBER: Final = 10  # the maximum size of a number in bytes
_MOST: Final = 512  # the number of records of a slice that are read one by one, in some hundred us
_MOST_ALIKE: Final = 4096  # the number of records of a slice that are compared together
_FIRST_READ: Final = 32  # the number of records to read one by one before the next search for records that are alike
_HEADERS: Final = 512  # the number of headers of a large record that are read in one step
_HEADER_BYTES: Final = 8192  # the number of bytes of small records' headers that are read in one step

_KEPT: Final = 65536  # the number of bytes that are kept, so that they are not uncompressed twice

Buffer: TypeAlias = "bytes | memoryview | array[int]"
Scan = Callable[[bytes | memoryview, int, int, int], tuple[int, int, int, int, int, bool, bool, int]]
scan: Scan | None = None
"""The compiled scan over well-formed records (_record_scan.c).

None if kbroker was installed without a C compiler, or if KBROKER_PURE_PYTHON is set.
"""
Prefixes = Callable[[bytes | memoryview, int, int, bool, bytes], bytes | None]
prefixes: Prefixes | None = None
"""The compiled function that reads the first bytes of keys or values; None if `scan` is None."""
places: Prefixes | None = None
"""The compiled function that reads the positions of keys or values; None if `scan` is None."""
Borders = Callable[[bytes, int, int], bytes | None]
borders: Borders | None = None
"""The compiled function that finds the positions at which records begin; None if `scan` is None."""
Find = Callable[[bytes | memoryview, int, int, int, Buffer], tuple[bytes, int, int]]
find: Find | None = None
"""The compiled function that finds records by their offsets; None if `scan` is None."""
Deliver = Callable[
    [bytes, Buffer, Buffer, Buffer, int, tuple[bytes, bytes, bytes], int, int, bool, int, int], tuple[bytes, bytes]
]
deliver: Deliver | None = None
"""The compiled function that replaces the headers of records of a schedule topic; None if `scan` is None."""
record: Callable[[bytes, int], tuple[int, int, bytes | None, bytes | None, Headers] | None] | None = None
"""The compiled function that decodes one record; None if `scan` is None."""
with_header: Callable[[bytes, int, bytes, bytes], bytes | None] | None = None
"""The compiled function that finds records by a header; None if `scan` is None."""
header_values: Callable[[bytes, int, bytes], set[bytes] | None] | None = None
"""The compiled function that finds the values of a header; None if `scan` is None."""
_PURE = bool(os.environ.get("KBROKER_PURE_PYTHON"))
if not _PURE:
    with suppress(ImportError):
        _compiled = import_module("kbroker.log._record_scan")
        scan = _compiled.scan
        find, deliver = getattr(_compiled, "find", None), getattr(_compiled, "deliver", None)
        borders, record = getattr(_compiled, "borders", None), getattr(_compiled, "record", None)
        with_header = getattr(_compiled, "with_header", None)
        header_values = getattr(_compiled, "header_values", None)
        prefixes, places = getattr(_compiled, "prefixes", None), getattr(_compiled, "places", None)

logger = logging.getLogger(__name__)


@cache
def announce_scan() -> None:
    """Log once whether the compiled scan is in use."""
    if scan is not None:
        logger.info("produced records are checked by compiled code")
    else:
        why = "KBROKER_PURE_PYTHON is set" if _PURE else "kbroker was built without a C compiler"
        logger.warning("produced records are checked in Python, slower: %s", why)


Row = tuple[int, int, int, int]
"""A record's offset delta, timestamp delta in ms, and sizes of its key and value; a negative size means null."""


class RecordSlice:
    """Some neighbouring records."""

    __slots__ = ("_deltas", "_keys", "_stamps", "_values", "end", "headers")

    def __init__(self, deltas: list[int], stamps: list[int], keys: list[int], values: list[int], headers: int) -> None:
        self.headers = headers
        """The number of headers of all these records."""
        self.end = 0
        """The end of these records, in uncompressed bytes from the batch's first record on."""
        self._deltas = deltas
        self._stamps = stamps
        self._keys = keys
        self._values = values

    @property
    def number(self) -> int:
        return len(self._deltas)

    def in_order(self, delta: int) -> bool:
        """Whether the offset deltas increase by one, starting at `delta`."""
        return self._deltas == list(range(delta, delta + len(self._deltas)))

    def stamps(self) -> Iterable[int]:
        """Return some timestamp deltas, including the smallest and the largest."""
        return self._stamps

    def lacks_keys(self) -> bool:
        """Whether any record has no key."""
        return min(self._keys) < 0

    def rows(self) -> Iterator[Row]:
        """Yield the fields of each record."""
        return zip(self._deltas, self._stamps, self._keys, self._values, strict=True)


class AlikeRecords:
    """Some neighbouring records of one layout; has the methods of a RecordSlice."""

    __slots__ = ("_data", "_run", "end", "headers", "number")

    def __init__(self, run: Run, data: bytes) -> None:
        self.end = 0
        self.headers = run.number * _header_count(run, data)
        self._run = run
        self._data = data
        self.number = run.number

    def in_order(self, delta: int) -> bool:
        return self._run.delta == delta

    def stamps(self) -> Iterable[int]:
        return self._run.stamps(self._data)

    def lacks_keys(self) -> bool:
        return self._run.key_size < 0

    def rows(self) -> Iterator[Row]:
        run = self._run
        value, _ = read_varint(self._data, run.position + run.key_at + max(run.key_size, 0))
        for delta, stamp in enumerate(run.each_stamp(self._data), run.delta):
            yield delta, stamp, run.key_size, value


def _header_count(run: Run, data: bytes) -> int:
    """Return the number of headers of each record."""
    value, place = read_varint(data, run.position + run.key_at + max(run.key_size, 0))
    return read_varint(data, place + max(value, 0))[0]


class ScannedRecords:
    """Some neighbouring records that the compiled scan has read; has the methods of a RecordSlice."""

    __slots__ = ("_data", "_in_order", "_lacks_keys", "_position", "_stamps", "end", "headers", "number")

    def __init__(self, data: bytes, position: int, found: tuple[int, int, int, int, int, bool, bool, int]) -> None:
        self.number, self.end, smallest, largest, _, self._in_order, self._lacks_keys, self.headers = found
        self._stamps = (smallest, largest)
        self._data = data
        self._position = position

    def in_order(self, delta: int) -> bool:
        del delta  # `delta` was an argument of the scan
        return self._in_order

    def stamps(self) -> Iterable[int]:
        """Return the smallest and the largest timestamp delta."""
        return self._stamps

    def lacks_keys(self) -> bool:
        return self._lacks_keys

    def rows(self) -> Iterator[Row]:
        data, position = self._data, self._position
        for _ in range(self.number):
            size, place = read_varint(data, position)
            position = place + size
            stamp, place = read_number(data, place + 1, 10)
            delta, place = read_varint(data, place)
            key, place = read_varint(data, place)
            value, _ = read_varint(data, place + max(key, 0))
            yield delta, stamp, key, value


Slice = RecordSlice | AlikeRecords | ScannedRecords


def record_slices(
    batch: memoryview,
    header: BatchHeader,
    max_bytes: int,
    max_headers: int | None = None,
    kept: list[bytes] | None = None,
    max_record: int | None = None,
) -> Iterator[Slice | None]:
    """Yield a batch's records; yield None as pauses for other work.

    Uncompress at most `max_bytes`, and read at most `max_headers` of the records' headers. No record may be larger than
    `max_record` bytes. Raise Malformed, possibly after valid records were yielded. At the end `kept` contains all
    uncompressed bytes of a small batch, and no bytes of a larger batch.
    """
    left = header.record_count
    if left < 0:
        raise Malformed(f"record batch claims {left} records")
    if not left:  # compaction leaves empty batches
        return
    body = batch[HEADER_SIZE : header.size]
    pieces = unpack(header.codec, body, max_bytes)
    headers_left = sys.maxsize if max_headers is None else max_headers
    largest = sys.maxsize if max_record is None else max_record
    if kept is not None:
        pieces = _keep(pieces, kept)
    window = _Window(pieces, len(body) if header.codec == NONE else None)
    while left:
        while window.is_short_of(_AHEAD):
            yield None
            window.fill()
        place = window.place
        found: Slice | None = window.take(left, header.record_count - left)
        if found is None:
            found = yield from _large_record(window, headers_left, largest)
        elif window.place - place > largest:
            window.check_sizes(found.number, place, largest)
        left -= found.number
        headers_left -= found.headers
        if headers_left < 0:
            raise Malformed("records have more headers than a batch may have")
        found.end = window.place
        yield found
    while window.is_short_of(1):
        yield None
        window.fill()
    if not window.is_empty():
        raise Malformed("bytes remain after the last record of a batch")


def _keep(pieces: Iterator[bytes], kept: list[bytes]) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > _KEPT:
            kept.clear()
        elif piece:
            kept.append(piece)
        yield piece


class _Window:
    """The uncompressed part of a batch's records that is not read yet. `size` is the size of all records, if known."""

    __slots__ = ("_before", "_data", "_ended", "_next_count", "_pieces", "_position", "size")

    def __init__(self, pieces: Iterator[bytes], size: int | None) -> None:
        self._pieces = pieces
        self.size = size
        self._data = b""
        self._position = 0
        self._before = 0
        self._ended = False
        self._next_count = _FIRST_READ

    @property
    def place(self) -> int:
        """The number of bytes of the batch's records that have been read so far."""
        return self._before + self._position

    def is_short_of(self, size: int) -> bool:
        """Whether fewer than `size` bytes are uncompressed, and the batch may contain more bytes."""
        return len(self._data) - self._position < size and not self._ended

    def is_empty(self) -> bool:
        return self._position >= len(self._data)

    def fill(self) -> None:
        """Uncompress one more piece, which may be empty. Raises Malformed."""
        piece = next(self._pieces, None)
        if piece is None:
            self._ended = True
        elif piece:
            self._before += self._position
            self._data = self._data[self._position :] + piece
            self._position = 0

    def take(self, most: int, delta: int) -> Slice | None:
        """Read some of the next `most` records; their offset deltas should increase by one, starting at `delta`.

        Return None if the first record is large. Raises Malformed.
        """
        if scan is not None:
            found = scan(self._data, self._position, min(most, _MOST), delta)
            if found[0]:
                scanned = ScannedRecords(self._data, self._position, found)
                self._position = found[1]
                return scanned
            return self._read(1)
        run = find_run(self._data, self._position, min(most, _MOST_ALIKE), _LARGE)
        if run is not None:
            self._next_count = _FIRST_READ
            self._position = run.end
            return AlikeRecords(run, self._data)
        count = self._next_count
        self._next_count = min(count * 2, _MOST)
        return self._read(min(most, count))

    def _read(self, most: int) -> RecordSlice | None:
        stop = len(self._data) if self._ended else len(self._data) - _AHEAD
        try:
            found, self._position = _read_records(self._data, self._position, stop, most)
        except IndexError as error:
            raise Malformed("record ends within a number") from error
        return found if found.number else None

    def check_sizes(self, number: int, place: int, largest: int) -> None:
        """Raise Malformed if any of the `number` records that begin at `place`, and were just read, is too large."""
        position = place - self._before
        for _ in range(number):
            size, position = read_varint(self._data, position)
            _check_size(size, largest)
            position += size

    def number(self, longest: int) -> int:
        """Read a number; `longest` bytes must be available unless the data ends. Raises Malformed."""
        number, self._position = read_number(self._data, self._position, longest)
        return number

    def skip(self, size: int) -> int:
        """Skip up to `size` bytes; return the number of bytes still to skip."""
        left = len(self._data) - self._position
        if size <= left:
            self._position += size
            return 0
        self._position += left
        return size - left


def _read_records(data: bytes, position: int, stop: int, most: int) -> tuple[RecordSlice, int]:
    """Read records that begin at or before `stop`, but stop before a large record. Raises Malformed and IndexError."""
    deltas: list[int] = []
    stamps: list[int] = []
    keys: list[int] = []
    values: list[int] = []
    length, passed, headers = len(data), 0, 0
    for _ in range(most):
        if position > stop:
            break
        # Nearly every number has one byte or two, and a call takes more time than decoding the number.
        place = position
        size = data[place]
        if size < 0x80:
            size, place = (size >> 1) ^ -(size & 1), place + 1
        elif (more := data[place + 1]) < 0x80:
            size, place = (size >> 1 & 0x3F | more << 6) ^ -(size & 1), place + 2
        else:
            size, place = read_number(data, place, 5)
        end = place + size
        if size > _LARGE:
            break
        if size < 0 or end > length:
            raise Malformed(f"record of {size} bytes does not fit in its batch")
        place += 1  # attributes
        stamp = data[place]
        if stamp < 0x80:
            stamp, place = (stamp >> 1) ^ -(stamp & 1), place + 1
        elif (more := data[place + 1]) < 0x80:
            stamp, place = (stamp >> 1 & 0x3F | more << 6) ^ -(stamp & 1), place + 2
        else:
            stamp, place = read_number(data, place, 10)
        delta = data[place]
        if delta < 0x80:
            delta, place = (delta >> 1) ^ -(delta & 1), place + 1
        elif (more := data[place + 1]) < 0x80:
            delta, place = (delta >> 1 & 0x3F | more << 6) ^ -(delta & 1), place + 2
        else:
            delta, place = read_number(data, place, 5)
        key = data[place]
        if key < 0x80:
            key, place = (key >> 1) ^ -(key & 1), place + 1
        elif (more := data[place + 1]) < 0x80:
            key, place = (key >> 1 & 0x3F | more << 6) ^ -(key & 1), place + 2
        else:
            key, place = read_number(data, place, 5)
        if key >= 0:
            place += key
            if place > end:
                raise Malformed(f"field of {key} bytes does not fit in its record")
        value = data[place]
        if value < 0x80:
            value, place = (value >> 1) ^ -(value & 1), place + 1
        elif (more := data[place + 1]) < 0x80:
            value, place = (value >> 1 & 0x3F | more << 6) ^ -(value & 1), place + 2
        else:
            value, place = read_number(data, place, 5)
        if value >= 0:
            place += value
            if place > end:
                raise Malformed(f"field of {value} bytes does not fit in its record")
        if data[place]:
            passed += end - place
            count, place = read_number(data, place, 5)
            headers += count
            place = _pass_headers(data, place, end, count)
        else:
            place += 1
        if place != end:
            raise Malformed(f"record of {size} bytes was read to {size + place - end} bytes")
        deltas.append(delta)
        stamps.append(stamp)
        keys.append(key)
        values.append(value)
        position = end
        if passed > _HEADER_BYTES:
            break
    return RecordSlice(deltas, stamps, keys, values, headers), position


def _pass_headers(data: bytes, place: int, end: int, count: int) -> int:
    if count and (count < 0 or count > end - place):
        raise Malformed(f"record claims {count} headers")
    for _ in range(count):
        for is_name in (True, False):
            size, place = read_number(data, place, 5)
            if size < 0 and is_name:
                raise Malformed("record header without a name")
            if size > 0:
                place += size
            if place > end and size >= 0:
                raise Malformed(f"field of {size} bytes does not fit in its record")
    return place


def _check_size(size: int, largest: int) -> None:
    if size > largest:
        raise Malformed(f"Invalid record size: {size} exceeds the configured maximum record size of {largest}.")


def _large_record(window: _Window, most_headers: int, largest: int) -> Generator[None, None, RecordSlice]:
    """Read one record of any size, field by field. Yield from time to time, so that other work can run."""
    size = yield from _number(window, 5)
    _check_size(size, largest)
    end = window.place + size
    if window.size is not None and end > window.size:
        raise Malformed(f"record of {size} bytes does not fit in its batch")
    try:
        row = yield from _fields(window, end, most_headers)
    except Undecodable:
        raise
    except Malformed:
        # An error of the compression precedes a parsing error, as in a reader that uncompresses a record before parsing
        # it.
        yield from _skip(window, end - window.place)
        raise
    if window.place != end:
        raise Malformed(f"record of {size} bytes was read to {size + window.place - end} bytes")
    delta, stamp, key, value, headers = row
    return RecordSlice([delta], [stamp], [key], [value], headers)


def _fields(window: _Window, end: int, most_headers: int) -> Generator[None, None, tuple[int, int, int, int, int]]:
    yield from _skip(window, 1)  # attributes
    stamp = yield from _number(window, 10)
    delta = yield from _number(window, 5)
    key = yield from _field(window, end)
    value = yield from _field(window, end)
    count = yield from _number(window, 5)
    if count and (count < 0 or count > end - window.place):
        raise Malformed(f"record claims {count} headers")
    if count > most_headers:
        raise Malformed("records have more headers than a batch may have")
    for index in range(count):
        if (yield from _field(window, end)) < 0:
            raise Malformed("record header without a name")
        yield from _field(window, end)
        if not index % _HEADERS:
            yield
    return delta, stamp, key, value, count


def _field(window: _Window, end: int) -> Generator[None, None, int]:
    """Read a field of bytes that may be null; return its size."""
    size = yield from _number(window, 5)
    if size >= 0:
        if window.place + size > end:
            raise Malformed(f"field of {size} bytes does not fit in its record")
        yield from _skip(window, size)
    return size


def _number(window: _Window, longest: int) -> Generator[None, None, int]:
    while window.is_short_of(_NUMBER):
        yield
        window.fill()
    return window.number(longest)


def _skip(window: _Window, size: int) -> Generator[None, None, None]:
    while size := window.skip(size):
        if not window.is_short_of(1):
            raise Malformed("record does not fit in its batch")
        yield
        window.fill()
