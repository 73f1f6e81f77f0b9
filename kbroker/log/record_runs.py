"""The positions of a batch's records, found for many records at the same time.

Owns the division of a batch's (decompressed) records into runs: neighbouring records of the same size, whose keys have
the same position. A run is checked and read column by column, with slices whose stride is the record's size, so that
the work per record is done in C. Records that differ from their neighbours are read one by one. Never changes records.

    length varint | attributes i8 | timestamp delta varlong | offset delta varint | key size varint | key | value...
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, compress, pairwise
from struct import Struct
from typing import Final, NamedTuple

from kbroker.protocol.errors import Malformed

_FIRST_COMPARED: Final = 64  # the number of records that must be alike before the rest of the batch is compared
_WORTH_A_RUN: Final = 8  # the minimum number of records of a run; fewer records are read one by one
_NEXT_COMPARED: Final = 32  # the number of records to read one by one before the next search for a run
_FEW: Final = 6  # a batch with more runs than this is not added to `_shapes`
_MOST_SHAPES: Final = 256
_MOST_SHAPED: Final = 4096  # a batch with more records than this is not added to `_shapes`
_GROWTH: Final = 16  # factor by which more records are compared while records are alike
_LONG: Final = bytes(byte >> 7 for byte in range(256))  # 1 if a varint continues after the byte
_NULL: Final = bytes(byte & 1 for byte in range(256))  # 1 if the first byte of a size means a negative size: null
_MANY_HEADERS: Final = 16  # a record with more headers than this is not compared with others
_U64: Final = 2**64 - 1
_U32: Final = 2**32 - 1
_DELTA_LIMITS: Final = (64, 64 << 7, 64 << 14)  # deltas below these numbers use 1, 2 and 3 bytes


class Run(NamedTuple):
    """Records of one layout; positions in bytes. `key_at` and `stamp_at` are relative to a record's first byte."""

    position: int
    stride: int
    number: int
    delta: int
    """The offset delta of the first record. The deltas of the next records increase by one."""
    key_at: int
    key_size: int
    """The size of each key; -1 for records without a key."""
    stamp_at: int
    stamp_size: int

    @property
    def end(self) -> int:
        return self.position + self.stride * self.number

    def keys(self, data: bytes) -> Iterable[bytes]:
        """Return the keys; call this only for a run that has keys."""
        if self.number == 1:
            start = self.position + self.key_at
            return (data[start : start + self.key_size],)
        layout = _picker(self.key_at, self.key_size, self.stride - self.key_at - self.key_size)
        return chain.from_iterable(layout.iter_unpack(memoryview(data)[self.position : self.end]))

    def records(self, data: bytes) -> Iterator[bytes]:
        """Return each record's bytes, including its length."""
        return chain.from_iterable(_picker(0, self.stride, 0).iter_unpack(memoryview(data)[self.position : self.end]))

    def nulls(self, data: bytes) -> bytes | None:
        """Return 1 for each record with a null value and 0 for each other record; None if no value is null."""
        column = data[self.position + self.key_at + max(self.key_size, 0) : self.end : self.stride]
        nulls = column.translate(_NULL)
        return nulls if 1 in nulls else None

    def below(self, delta: int) -> int:
        """Return the number of records with a smaller offset delta."""
        return min(max(delta - self.delta, 0), self.number)

    @property
    def last_delta(self) -> int:
        return self.delta + self.number - 1

    def largest_stamp(self, data: bytes, keep: bytes) -> int:
        """Return the largest timestamp delta of the records to keep; `keep` must keep at least one record."""
        start = self.position + self.stamp_at
        columns = [data[start + index : self.end : self.stride] for index in range(self.stamp_size)]
        if 0 in keep:
            columns = [bytes(compress(column, keep)) for column in columns]
        return max(zigzag(stamp) for stamp in set(zip(*columns, strict=True)))

    def in_order(self, delta: int) -> bool:
        """Whether the offset deltas increase by one, starting at `delta`."""
        return self.delta == delta

    def stamps(self, data: bytes) -> Iterable[int]:
        """Return every distinct timestamp delta."""
        start = self.position + self.stamp_at
        columns = [data[start + index : self.end : self.stride] for index in range(self.stamp_size)]
        return map(zigzag, set(zip(*columns, strict=True)))

    def each_stamp(self, data: bytes) -> Iterator[int]:
        """Return the timestamp delta of each record, in order."""
        start = self.position + self.stamp_at
        columns = [data[start + index : self.end : self.stride] for index in range(self.stamp_size)]
        return map(zigzag, zip(*columns, strict=True))

    def well_formed(self, data: bytes) -> bool:
        """Whether each record ends where its headers end, and all headers have the same layout. Raises Malformed."""
        start, stride, end = self.position, self.stride, self.end
        if self.number == 1:
            return fields_at(data, start + self.key_at + max(self.key_size, 0), end) is not None
        fields = fields_at(data, start + self.key_at + max(self.key_size, 0), start + stride)
        if fields is None:
            return False
        for place in fields:
            column = data[place:end:stride]
            if column.count(column[0]) != self.number:
                return False
        return True


class Scattered:
    """Neighbouring records of any size, all with keys.

    The class has the methods of a Run, but stores each field in a list.
    """

    __slots__ = ("_deltas", "_ends", "_keys", "_nulls", "_stamps", "_values", "end", "key_size", "number", "position")

    def __init__(self, position: int) -> None:
        self.position = self.end = position
        self.number = 0
        self.key_size = 0
        """The size of the largest key."""
        self._keys: list[bytes] = []
        self._ends: list[int] = []
        self._deltas: list[int] = []
        self._stamps: list[int] = []
        self._nulls = bytearray()
        self._values: list[int] = []

    def read(self, data: bytes, most: int) -> None:
        """Read up to `most` more records, but stop before a record without a key. Raises Malformed and IndexError."""
        position = self.end
        for _ in range(most):
            size, place = data[position], position + 1
            if size > 0x7F or size & 1:
                size, place = read_varint(data, position)
            else:
                size >>= 1
            end = place + size
            stamp_at = place = place + 1
            while data[place] > 0x7F:
                place += 1
            stamp = zigzag(data[stamp_at : place + 1])
            delta, key_at = read_varint(data, place + 1)
            key_size = data[key_at]
            if key_size > 0x7F or key_size & 1:
                key_size, key_at = read_varint(data, key_at)
                if key_size < 0:
                    break
            else:
                key_size >>= 1
                key_at += 1
            value_at = key_at + key_size
            if size <= 0 or place - stamp_at > 9 or delta < 0 or not value_at < end <= len(data):
                raise Malformed(f"record of {size} bytes does not hold its fields")
            self._keys.append(data[key_at:value_at])
            self._values.append(value_at)
            self._nulls.append(data[value_at] & 1)
            self._ends.append(end)
            self._deltas.append(delta)
            self._stamps.append(stamp)
            if key_size > self.key_size:
                self.key_size = key_size
            position = end
        self.end = position
        self.number = len(self._keys)

    def keys(self, data: bytes) -> Iterable[bytes]:
        del data
        return self._keys

    def records(self, data: bytes) -> Iterator[bytes]:
        return (data[start:end] for start, end in pairwise((self.position, *self._ends)))

    def nulls(self, data: bytes) -> bytes | None:
        del data
        return bytes(self._nulls) if 1 in self._nulls else None

    def below(self, delta: int) -> int:
        return bisect_left(self._deltas, delta)

    @property
    def last_delta(self) -> int:
        return self._deltas[-1]

    def largest_stamp(self, data: bytes, keep: bytes) -> int:
        del data
        return max(compress(self._stamps, keep))

    def in_order(self, delta: int) -> bool:
        return self._deltas == list(range(delta, delta + self.number))

    def stamps(self, data: bytes) -> Iterable[int]:
        del data
        return self._stamps

    def well_formed(self, data: bytes) -> bool:
        """Return whether each record ends where its headers end.

        Raise Malformed or IndexError if a record is unreadable.
        """
        for place, end in zip(self._values, self._ends, strict=True):
            size = data[place]
            # Nearly all records have no headers, and a value of less than 64 bytes or at least less than 8 KiB.
            if size < 0x80:
                plain = size == (end - place - 2) * 2
            else:
                more = data[place + 1]
                plain = more < 0x80 and (size & 0x7F | more << 7) == (end - place - 3) * 2
            if not (plain and not data[end - 1]) and fields_at(data, place, end) is None:
                return False
        return True


Part = Run | Scattered


@lru_cache(256)
def _picker(skipped: int, taken: int, rest: int) -> Struct:
    return Struct(f"{skipped}x{taken}s{rest}x")


class _Shape:
    """The runs of one batch, and the conditions under which another batch of its size has the same runs."""

    __slots__ = ("_ascii", "_equal", "_high", "runs")

    def __init__(self, data: bytes, runs: list[Run]) -> None:
        self.runs = runs
        self._equal: list[tuple[slice, bytes]] = []
        self._ascii: list[slice] = []
        self._high: list[slice] = []
        for run in runs:
            stamp_end = run.stamp_at + run.stamp_size
            for index in (*range(run.stamp_at - 1), *range(stamp_end, run.key_at)):
                column = slice(run.position + index, run.end, run.stride)
                self._equal.append((column, data[column]))
            columns = [slice(run.position + index, run.end, run.stride) for index in range(run.stamp_at, stamp_end)]
            self._high += columns[:-1]
            self._ascii.append(columns[-1])

    def fits(self, data: bytes) -> bool:
        """Whether `data` has the same runs as this batch. Both must have the same size and number of records."""
        # Loops instead of all(): most batches are small, and a generator takes more time than its check.
        for column, content in self._equal:
            if data[column] != content:
                return False
        for column in self._ascii:
            if not data[column].isascii():
                return False
        return not self._high or all(min(data[column]) > 0x7F for column in self._high)


# Neighbouring batches of one producer usually have the same shape.
_shapes: dict[tuple[int, int], _Shape] = {}


def read_runs(data: bytes, count: int) -> Sequence[Part]:
    """Divide the records of a batch into runs. Raises Malformed unless exactly `count` records fill `data`."""
    shape = _shapes.get((len(data), count))
    if shape is not None and shape.fits(data):
        return shape.runs
    parts = _divide(data, count)
    runs = [part for part in parts if isinstance(part, Run)]
    if len(runs) == len(parts) <= _FEW and count <= _MOST_SHAPED:
        if len(_shapes) >= _MOST_SHAPES:
            _shapes.clear()
        _shapes[len(data), count] = _Shape(data, runs)
    return parts


def _divide(data: bytes, count: int) -> list[Part]:
    parts: list[Part] = []
    position = 0
    try:
        while count > 0:
            run = _read_one(data, position)
            if count > 3 and data[run.end : run.end + 1] == data[position : position + 1]:
                run = _extend(data, run, count)
            part: Part = run
            if run.number < min(count, _WORTH_A_RUN) and run.key_size >= 0:
                last = parts[-1] if parts else None
                if isinstance(last, Scattered):
                    count += last.number
                    parts.pop()
                else:
                    last = Scattered(position)
                last.read(data, min(count - last.number, _NEXT_COMPARED))
                part = last
            parts.append(part)
            count -= part.number
            position = part.end
    except IndexError as error:
        raise Malformed("record ends within a number") from error
    if position != len(data):
        raise Malformed("records do not fill their batch")
    return parts


def find_run(data: bytes, position: int, most: int, largest: int) -> Run | None:
    """Return the well-formed records of one layout from `position` on, at most `most`; None if there are few.

    Stop before a record of more than `largest` bytes, and before a broken or incomplete record.
    """
    if most < _WORTH_A_RUN:
        return None
    try:
        run = _read_one(data, position)
        if run.stride > largest or data[run.end] != data[position]:
            return None
        run = _extend(data, run, most)
        return run if run.number >= _WORTH_A_RUN and run.well_formed(data) else None
    except (Malformed, IndexError):
        return None


def _read_one(data: bytes, position: int) -> Run:
    size, body = read_varint(data, position)
    stamp = body + 1
    place = stamp
    while data[place] > 0x7F:
        place += 1
    delta, key_size_at = read_varint(data, place + 1)
    key_size, key = read_varint(data, key_size_at)
    stride = body + size - position
    if size <= 0 or place - stamp > 9 or delta < 0 or key + max(key_size, 0) >= position + stride:
        raise Malformed(f"record of {size} bytes does not hold its fields")
    if position + stride > len(data):
        raise Malformed(f"record of {size} bytes does not fit in its batch")
    return Run(position, stride, 1, delta, key - position, key_size, stamp - position, place + 1 - stamp)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a number of 32 bits and the position after it. Raises Malformed or IndexError.

    Bits above the 32nd in the fifth byte are ignored, as in Kafka's ByteUtils and in `protocol/records.py`.
    """
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    result, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            result &= _U32
            return (result >> 1) ^ -(result & 1), position + 1
        shift += 7
        if shift > 28:
            raise Malformed("number of more than 5 bytes in a record")


def fields_at(data: bytes, place: int, end: int) -> list[int] | None:
    """Return the position of each byte that defines a record's layout, from its value's size on.

    Return None if the value and headers do not end at `end`, a header has no name, or there are many headers. Raises
    Malformed or IndexError.
    """
    places: list[int] = []
    place = _pass_field(data, place, places)
    count, after = read_varint(data, place)
    places += range(place, after)
    place = after
    if not 0 <= count <= min(end - place, _MANY_HEADERS):
        return None
    for _ in range(count):
        if data[place] & 1 or place >= end:
            return None
        place = _pass_field(data, place, places)
        place = _pass_field(data, place, places)
    return places if place == end else None


def _pass_field(data: bytes, place: int, places: list[int]) -> int:
    """Add the positions of a field's size to `places`; return where the next field begins."""
    size, content = read_varint(data, place)
    places += range(place, content)
    return content + max(size, 0)


def _extend(data: bytes, run: Run, left: int) -> Run:
    """Extend a run by the records directly after it that have the layout of its first record."""
    size_at = run.stamp_at + run.stamp_size  # the position of the offset delta
    size = _delta_size(run.delta)
    if not size or data[run.position + size_at + size - 1] > 0x7F:
        return run
    most = min(left, (len(data) - run.position) // run.stride, _DELTA_LIMITS[size - 1] - run.delta)
    # Compare step by step: comparing all remaining records for each short run would take quadratic time.
    compared = min(most, _FIRST_COMPARED)
    alike = _alike(data, run, compared, size_at, size)
    while alike == compared < most:
        compared = min(most, compared * _GROWTH)
        alike = _alike(data, run, compared, size_at, size)
    return run._replace(number=max(alike, 1))


def _delta_size(delta: int) -> int:
    return next((index + 1 for index, limit in enumerate(_DELTA_LIMITS) if delta < limit), 0)


def _alike(data: bytes, run: Run, count: int, delta_at: int, delta_size: int) -> int:
    """Return how many of the next `count` records, from the run's first record on, have the run's layout."""
    position, stride = run.position, run.stride
    # The length and the key's size: each of their bytes must be the same in all records.
    for index in (*range(run.stamp_at - 1), *range(delta_at + delta_size, run.key_at)):
        column = data[position + index : position + stride * count : stride]
        count = min(count, len(column) - len(column.lstrip(column[:1])))
    for index in range(run.stamp_size):
        column = data[position + run.stamp_at + index : position + stride * count : stride].translate(_LONG)
        other = column.find(b"\0" if index < run.stamp_size - 1 else b"\1")
        if other >= 0:
            count = min(count, other)
    for index in range(delta_size):
        column = data[position + delta_at + index : position + stride * count : stride]
        count = min(count, _common(column, _delta_column(delta_size, index)[run.delta : run.delta + count]))
    return count


def _common(first: bytes, second: bytes) -> int:
    if first == second:
        return len(first)
    difference = int.from_bytes(first) ^ int.from_bytes(second)
    return len(first) - (difference.bit_length() + 7) // 8


@lru_cache(6)
def _delta_column(size: int, index: int) -> bytes:
    """Encode the offset deltas 0, 1, 2, ... as varints of `size` bytes; return byte `index` of each."""
    more = 0x80 if index < size - 1 else 0
    if index == 0:
        period = bytes(2 * delta & 0x7F | more for delta in range(64))
    else:
        period = b"".join(bytes([byte | more]) * (64 << 7 * (index - 1)) for byte in range(128))
    limit = _DELTA_LIMITS[size - 1]
    return (period * (limit // len(period) + 1))[:limit]


def zigzag(stamp: Sequence[int]) -> int:
    """Return the number encoded in the bytes of a varlong."""
    if len(stamp) == 1:
        return (stamp[0] >> 1) ^ -(stamp[0] & 1)
    result = 0
    for index, byte in enumerate(stamp):
        result |= (byte & 0x7F) << 7 * index
    result &= _U64
    return (result >> 1) ^ -(result & 1)
