"""Finds records of a schedule topic by their offsets: some batches at a time, within a bound of memory.

Owns what is read from the log, in which pieces, and how much is read ahead. Never decides what is due.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn
from kbroker.protocol.compression import NONE, unpack
from kbroker.protocol.errors import ApiError, Malformed
from kbroker.protocol.records import HEADER_SIZE, BatchHeader, Record, iter_batches, stream_records
from kbroker.scheduling.index import DueRows
from kbroker.scheduling.raw_records import Raw, find, raw_at
from kbroker.scheduling.shared import BATCH_RECORDS

_NEAR_BYTES, _FAR_BYTES = 1 << 20, 1 << 16
_NEAR: Final = 1000
"""How many offsets apart two wanted records may be so that they are read together."""
_FIRST_CHUNK, _CHUNK_BYTES = 64, 1 << 20
_UNPACKED: Final = 1 << 22
"""The most bytes of an uncompressed batch that is held as a whole."""
NUMBER_SHIFT: Final = 32
"""A place is the number of the batch, shifted by this, and the position there."""


class Batch(NamedTuple):
    """The uncompressed records of a batch."""

    data: bytes
    header: BatchHeader


class Found:
    """Records that were found."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.places: dict[int, int] = {}
        """Where records begin, by their offsets."""
        self.size = 0
        """How many bytes keep them in memory."""
        self._decoded: dict[int, Record] = {}

    def get(self, offset: int) -> Raw | Record | None:
        """Return a record; None if it is not there, or cannot be read."""
        place = self.places.get(offset)
        if place is None:
            return self._decoded.get(offset)
        data, header = self.batches[place >> NUMBER_SHIFT]
        return raw_at(data, place & ((1 << NUMBER_SHIFT) - 1), header)

    def decoded(self, record: Record) -> None:
        """Add a record of a batch that is too large to be held."""
        self._decoded[record.offset] = record


class Finder:
    """Finds records of one partition."""

    def __init__(self, records: PartitionLog) -> None:
        self._log = records
        self._chunk = _FIRST_CHUNK

    async def in_order(self, rows: DueRows) -> AsyncIterator[tuple[DueRows, Found]]:
        """Yield some rows with their records, and then more: few are read ahead, so memory has a bound."""
        start = 0
        while start < len(rows):
            count = self._chunk
            chunk = rows.part(start, start + count)
            found = await self._read(chunk.offsets)
            yield chunk, found
            start += len(chunk)
            self._chunk = max(min(8 * count, _CHUNK_BYTES * len(chunk) // max(found.size, 1), BATCH_RECORDS), 1)

    async def _read(self, offsets: array[int]) -> Found:
        """Return the records at some offsets. Those that are not there or cannot be read are left out."""
        wanted = array("q", sorted(offsets))
        found = Found()
        place = 0
        while place < len(wanted):
            first = wanted[place]
            is_near = place + 1 < len(wanted) and wanted[place + 1] - first < _NEAR
            most = _NEAR_BYTES if is_near else _FAR_BYTES
            try:
                view = self._log.read(first, most, self._log.log_end_offset, min_one=True).view()
            except ApiError:
                place += 1  # it is below the log's start, or damaged
                continue
            before = place
            for position, header in iter_batches(view):
                while place < len(wanted) and wanted[place] < header.base_offset:
                    place += 1
                if place == len(wanted) or (place > before and wanted[place] - wanted[place - 1] >= _NEAR):
                    break
                if wanted[place] <= header.last_offset:
                    batch = view[position : position + header.size]
                    place = await self._take(batch, header, wanted, place, found)
                await turn
            if place == before:
                place += 1
        return found

    async def _take(self, batch: memoryview, header: BatchHeader, wanted: array[int], place: int, found: Found) -> int:
        """Add the wanted records of a batch. Return the place of the first wanted record after the batch."""
        end = bisect_right(wanted, header.last_offset, place)
        found.size += header.size
        try:
            if header.codec == NONE:
                await _take_raw(bytes(batch), HEADER_SIZE, header, wanted[place:end], found)
                return end
            unpacked = await self._unpacked(batch, header)
            if unpacked is not None:
                await _take_raw(unpacked, 0, header, wanted[place:end], found)
            else:
                await self._take_decoded(batch, wanted[place:end], found)
        except Malformed:
            pass  # the rest of the batch cannot be read
        return end

    async def _unpacked(self, batch: memoryview, header: BatchHeader) -> bytes | None:
        """Return the records of a compressed batch; None if they are too many bytes."""
        pieces: list[bytes] = []
        size = 0
        for piece in unpack(header.codec, batch[HEADER_SIZE:], self._log.config.max_decompressed_message_bytes):
            pieces.append(piece)
            size += len(piece)
            if size > _UNPACKED:
                return None
            await turn
        return b"".join(pieces)

    async def _take_decoded(self, batch: memoryview, wanted: array[int], found: Found) -> None:
        most = self._log.config.max_decompressed_message_bytes
        offsets = set(wanted)
        for record in stream_records(batch, max_bytes=most, begin=wanted[0]):
            if record is not None:
                if record.offset > wanted[-1]:
                    return
                if record.offset in offsets:
                    found.decoded(record)
            await turn


async def _take_raw(data: bytes, position: int, header: BatchHeader, wanted: array[int], found: Found) -> None:
    number = len(found.batches) << NUMBER_SHIFT
    found.batches.append(Batch(data, header))
    left = header.record_count
    while left:
        places, position, left = find(data, position, left, header.base_offset, wanted)
        for offset, place in zip(wanted, array("q", places), strict=False):
            if place >= 0:
                found.places[offset] = number | place
        wanted = wanted[len(places) // 8 :]
        await turn
