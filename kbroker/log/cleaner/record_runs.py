"""Where the records of a batch lie, found for many records at once.

Owns the division of a batch's (decompressed) records into runs: neighbours of one size whose keys lie at one place.
What is true of a run is checked and read column by column, with slices whose stride is the record's size, so that the
work per record is done in C. Records that are like no neighbour are runs of one. Never changes or copies records.

    length varint | attributes i8 | timestamp delta varlong | offset delta varint | key size varint | key | value...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Final, NamedTuple

from kbroker.protocol.errors import Malformed

_FIRST_LOOK: Final = 64  # records that must be alike before the rest of the batch is compared
_FEW: Final = 6  # runs of a batch whose shape is worth keeping
_MOST_SHAPES: Final = 256
_LONG: Final = bytes(byte >> 7 for byte in range(256))  # 1 where a varint goes on behind the byte
_NULL: Final = bytes(byte == 1 for byte in range(256))  # 1 where a size byte says null
_DELTA_LIMITS: Final = (64, 64 << 7, 64 << 14)  # deltas below these take 1, 2 and 3 bytes


class Run(NamedTuple):
    """Records of one layout; places in bytes, `key_at`, `stamp_at` and the like from the record's first byte."""

    position: int
    stride: int
    number: int
    delta: int
    """Offset delta of the first record; those that follow are consecutive."""
    key_at: int
    key_size: int
    """-1 for records without a key."""
    stamp_at: int
    stamp_size: int

    @property
    def end(self) -> int:
        return self.position + self.stride * self.number

    def keys(self, data: bytes) -> Iterable[bytes]:
        """Return the keys; only for a run that has keys."""
        if self.number == 1:
            start = self.position + self.key_at
            return (data[start : start + self.key_size],)
        layout = _picker(self.key_at, self.key_size, self.stride - self.key_at - self.key_size)
        return chain.from_iterable(layout.iter_unpack(memoryview(data)[self.position : self.end]))

    def records(self, data: bytes) -> Iterator[bytes]:
        """Return each record's bytes, its length included."""
        return chain.from_iterable(_picker(0, self.stride, 0).iter_unpack(memoryview(data)[self.position : self.end]))

    def nulls(self, data: bytes) -> bytes | None:
        """Return 1 for each record without a value and 0 for the others; None where all have one."""
        column = data[self.position + self.key_at + max(self.key_size, 0) : self.end : self.stride]
        return column.translate(_NULL) if 1 in column else None

    def stamps(self, data: bytes) -> list[bytes]:
        """Return the columns of the timestamp deltas, lowest byte first."""
        start = self.position + self.stamp_at
        return [data[start + index : self.end : self.stride] for index in range(self.stamp_size)]


@lru_cache(256)
def _picker(skipped: int, taken: int, rest: int) -> Struct:
    return Struct(f"{skipped}x{taken}s{rest}x")


class _Shape:
    """The runs of one batch, and what must be true of another one of its size for them to be its runs, too."""

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
        """Whether `data`, of the same size and number of records, has the same runs."""
        return (
            all(data[column] == content for column, content in self._equal)
            and all(data[column].isascii() for column in self._ascii)
            and all(min(data[column]) > 0x7F for column in self._high)
        )


# Neighbouring batches of one producer mostly have one shape.
_shapes: dict[tuple[int, int], _Shape] = {}


def read_runs(data: bytes, count: int) -> list[Run]:
    """Divide the records of a batch into runs; raises Malformed unless exactly `count` records fill `data`."""
    shape = _shapes.get((len(data), count))
    if shape is not None and shape.fits(data):
        return shape.runs
    runs = _divide(data, count)
    if len(runs) <= _FEW:
        if len(_shapes) >= _MOST_SHAPES:
            _shapes.clear()
        _shapes[len(data), count] = _Shape(data, runs)
    return runs


def _divide(data: bytes, count: int) -> list[Run]:
    runs = []
    position = 0
    try:
        while count > 0:
            run = _read_one(data, position)
            if count > 3 and data[run.end : run.end + 1] == data[position : position + 1]:
                run = _extend(data, run, count)
            runs.append(run)
            count -= run.number
            position = run.end
    except IndexError as error:
        raise Malformed("record ends within a number") from error
    if position != len(data):
        raise Malformed("records do not fill their batch")
    return runs


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
    """Return a number of at most 32 bits and the place behind it; raises Malformed or IndexError."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    result, shift = byte & 0x7F, 7
    while True:
        position += 1
        byte = data[position]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position + 1
        shift += 7
        if shift > 28:
            raise Malformed("number of more than 5 bytes in a record")


def _extend(data: bytes, run: Run, left: int) -> Run:
    """Return the run with all neighbours that are like its first record."""
    size_at = run.stamp_at + run.stamp_size  # of the offset delta
    size = _delta_size(run.delta)
    if not size or data[run.position + size_at + size - 1] > 0x7F:
        return run
    most = min(left, (len(data) - run.position) // run.stride, _DELTA_LIMITS[size - 1] - run.delta)
    alike = _alike(data, run, min(most, _FIRST_LOOK), size_at, size)
    if alike == _FIRST_LOOK < most:
        alike = _alike(data, run, most, size_at, size)
    return run._replace(number=max(alike, 1))


def _delta_size(delta: int) -> int:
    return next((index + 1 for index, limit in enumerate(_DELTA_LIMITS) if delta < limit), 0)


def _alike(data: bytes, run: Run, count: int, delta_at: int, delta_size: int) -> int:
    """Return how many records from the run's first on have its layout, of at most `count`."""
    position, stride = run.position, run.stride
    # The length, and the size of the key: each byte the same in all records.
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
    """Return byte `index` of every offset delta, from 0 on, as a varint of `size` bytes."""
    more = 0x80 if index < size - 1 else 0
    if index == 0:
        period = bytes(2 * delta & 0x7F | more for delta in range(64))
    else:
        period = b"".join(bytes([byte | more]) * (64 << 7 * (index - 1)) for byte in range(128))
    limit = _DELTA_LIMITS[size - 1]
    return (period * (limit // len(period) + 1))[:limit]
