"""Copies single records from a log by their offsets, for dead letters.

Owns the search for a record inside a batch of any size: uncompressed batches are read from the file piece by piece, and
compressed batches are uncompressed piece by piece. A record that is larger than the limit is skipped, and not kept in
memory. So the copies use no more memory than the stored form of one compressed batch and the returned records. Works in
slices. Never changes a log, and validates a record only as far as the search requires.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

from kbroker.log.batch_scan import Batches, bytes_in, headers_in
from kbroker.log.log_slice import LogSlice
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn
from kbroker.protocol.compression import NONE, unpack
from kbroker.protocol.errors import ApiError, Malformed
from kbroker.protocol.large_batch import memory
from kbroker.protocol.records import HEADER_SIZE, BatchHeader, read_number

log = logging.getLogger(__name__)
_PIECE: Final = 65536
_READ: Final = 1 << 20
"""The number of bytes of batches that are read together."""
_NUMBERS: Final = 32
"""The first numbers of a record (size, attributes, timestamp and offset delta) never use more bytes than this."""
_PASSED_AT_ONCE: Final = 256
_MOST_UNPACKED: Final = 1 << 31
"""The maximum number of uncompressed bytes.

Batches were checked at the append, so only a broken file can exceed this number.
"""

Field = bytes | memoryview
Copy = tuple[Field | None, Field | None]
"""The key and the value of a record. For a large record, key and value are views of the record's memory."""


Remote = Callable[[int, int], Awaitable[LogSlice | bytes]]
"""Returns batches of remote storage from an offset on, up to a number of bytes, but at least one batch.

The result is empty if the records do not arrive in time. Raises ApiError.
"""


class Copies(NamedTuple):
    """The found records by offset. The search ended before the offset `end`."""

    found: dict[int, Copy]
    end: int


async def copied(
    records: PartitionLog, offsets: Sequence[int], largest: int, together: int, remote: Remote | None = None
) -> Copies:
    """Return the keys and values of the records at `offsets`, which increase.

    At least one record is read. Further records are read only up to `together` bytes. A record that has more than
    `largest` bytes or is not in the log is omitted. An unreadable record is also omitted, and this is logged: a dead
    letter contains the offset. `remote` reads the records that are only in remote storage.
    """
    work, at = _Copying(offsets, largest, together), offsets[0]
    try:
        while work.skip_below(records.log_start_offset if remote is None else records.earliest_offset):
            if work.is_full:
                break
            at = work.wanted[0]
            piece: Batches
            if remote is not None and at < records.log_start_offset:
                piece = _batches(await remote(at, _READ))
            else:
                piece = records.read(at, _READ, records.high_watermark, min_one=True)
            if not len(piece):
                break
            await work.take(piece)
            if work.wanted and work.wanted[0] == at and not work.is_full:
                break
    except (ApiError, OSError, Malformed) as error:
        log.warning("records from offset %d on cannot be copied: %s", at, error)
    end = work.wanted[0] if work.wanted and work.is_full else offsets[-1] + 1
    return Copies(work.found, end)


class _Copying:
    """The state of one copying; `wanted` are the offsets to find."""

    def __init__(self, offsets: Sequence[int], largest: int, together: int) -> None:
        self.wanted = list(offsets)
        self.found: dict[int, Copy] = {}
        self.is_full = False
        """Whether the next record would exceed the limit of bytes that are returned together."""
        self._largest = largest
        self._together = together
        self._size = 0

    async def take(self, piece: Batches) -> None:
        """Copy the wanted records from batches."""
        for position, header in headers_in(piece):
            if not self.skip_below(header.base_offset) or self.is_full:
                return
            if self.wanted[0] <= header.last_offset:
                await self._take_batch(piece, position, header)
                if not self.is_full:
                    self.skip_below(header.last_offset + 1)
            await turn

    def skip_below(self, offset: int) -> bool:
        """Stop searching for the offsets before `offset`; return whether other offsets are left."""
        del self.wanted[: bisect_left(self.wanted, offset)]
        return bool(self.wanted)

    async def _take_batch(self, batches: Batches, position: int, header: BatchHeader) -> None:
        start, end = position + HEADER_SIZE, position + header.size
        pieces = _pieces(batches, start, end)
        if header.codec != NONE:
            stored = bytearray()
            for piece in pieces:
                stored += piece
                await turn
            pieces = unpack(header.codec, stored, _MOST_UNPACKED)
        for record in _records(header, pieces, self.wanted, self._largest):
            if record is None:
                await turn
                continue
            offset, key, value, size = record
            if self._size and self._size + size > self._together:
                self.is_full = True
                self.skip_below(offset)
                return
            self.found[offset] = key, value
            self._size += size


def _batches(found: LogSlice | bytes) -> Batches:
    return found if isinstance(found, LogSlice) else memoryview(found)


def _pieces(batches: Batches, start: int, end: int) -> Iterator[bytes]:
    for place in range(start, end, _PIECE):
        yield bytes(bytes_in(batches, place, min(_PIECE, end - place)))


_Found = tuple[int, Field | None, Field | None, int]


def _records(
    header: BatchHeader, pieces: Iterator[bytes], wanted: Sequence[int], largest: int
) -> Iterator[_Found | None]:
    """Yield offset, key, value and size of the wanted records of a batch; yield None as pauses for other work.

    Records of more than `largest` bytes are skipped. Raises Malformed.
    """
    data, position, index = b"", 0, 0
    last = wanted[-1]
    for number in range(header.record_count):
        while len(data) - position < _NUMBERS:
            piece = next(pieces, None)
            if piece is None:
                break
            data, position = data[position:] + piece, 0
            yield None
        size, start = read_number(data, position, 5)
        _, place = read_number(data, start + 1, 10)
        delta, place = read_number(data, place, 5)
        offset, end = header.base_offset + delta, start + size
        if size < 0 or offset > last:
            return
        while wanted[index] < offset:
            index += 1
        is_wanted = wanted[index] == offset and size <= largest
        whole, filled = memory(end if is_wanted and end > len(data) else 0), len(data)
        if whole:
            whole[:filled] = data
        while end > len(data):
            piece = next(pieces, None)
            if piece is None:
                raise Malformed(f"record of {size} bytes does not fit in its batch")
            if whole:
                taken = piece[: len(whole) - filled]
                whole[filled : filled + len(taken)] = taken
                filled += len(taken)
            end -= len(data)
            data = piece
            yield None
        if is_wanted:
            key, after = _nullable(whole or data, place)
            value, _ = _nullable(whole or data, after)
            yield offset, key, value, size
        elif not number % _PASSED_AT_ONCE:
            yield None
        position = end


def _nullable(data: Field, position: int) -> tuple[Field | None, int]:
    size, position = read_number(data, position, 5)
    if size < 0:
        return None, position
    if position + size > len(data):
        raise Malformed(f"field of {size} bytes does not fit in its record")
    return data[position : position + size], position + size
