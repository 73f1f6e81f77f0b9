"""Finds records of a schedule topic by their offsets: some batches at a time, with bounded memory.

Owns the choice and the size of the pieces that are read from the log, and the limit on reading ahead. Never decides
which records are due.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn
from kbroker.protocol.compression import NONE, unpack
from kbroker.protocol.errors import ApiError, Malformed
from kbroker.protocol.records import HEADER_SIZE, BatchHeader, Record, compute_crc, iter_batches, stream_records
from kbroker.scheduling.index import DueRows
from kbroker.scheduling.raw_records import Raw, find, raw_at
from kbroker.scheduling.shared import BATCH_RECORDS

_NEAR_BYTES, _FAR_BYTES = 1 << 20, 1 << 16
_NEAR: Final = 1000
"""The maximum distance, in offsets, of two wanted records that are read together."""
_FIRST_CHUNK, _CHUNK_BYTES = 64, 1 << 22
_UNPACKED: Final = 1 << 22
"""The maximum size in bytes of an uncompressed batch that is kept in memory as a whole."""
_KEPT: Final = 8
"""The number of pieces of neighbouring records that are kept, because several lanes need the same pieces."""
NUMBER_SHIFT: Final = 32
"""A place is the number of a piece of data, shifted left by this number of bits, plus the position in the piece."""


class _Piece:
    """Neighbouring batches in the form of the log. Their headers are read only when they are needed."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._bases: list[int] = []
        self._positions: list[int] = []
        self._headers: list[BatchHeader] = []
        self._coming = iter_batches(data)
        self._known_to = -1
        self._sound: dict[int, bool] = {}

    async def batch_with(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Return position and header of the last batch that begins at or before an offset; None if it is missing."""
        while self._known_to < offset:
            try:
                found = next(self._coming, None)
            except Malformed:
                found = None
            if found is None:
                return None
            position, header = found
            self._positions.append(position)
            self._bases.append(header.base_offset)
            self._headers.append(header)
            self._known_to = header.last_offset
            await turn
        place = bisect_right(self._bases, offset) - 1
        return None if place < 0 else (self._positions[place], self._headers[place])

    def is_sound(self, position: int, header: BatchHeader) -> bool:
        """Whether a batch has the right checksum.

        A damaged record must not be delivered with a new, correct checksum.
        """
        known = self._sound.get(position)
        if known is None:
            batch = memoryview(self.data)[position : position + header.size]
            known = self._sound[position] = compute_crc(batch) == header.crc
        return known

    def header_at(self, position: int) -> BatchHeader:
        """Return the header of the batch that contains a position."""
        return self._headers[bisect_right(self._positions, position) - 1]

    def may_have(self, offset: int) -> bool:
        """Whether an offset is in the range of the batches whose headers were read."""
        return bool(self._bases) and self._bases[0] <= offset <= self._known_to


class Found:
    """Records that were found."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        """The places at which records begin, by the records' offsets."""
        self.size = 0
        """The number of bytes in memory that these records need."""
        self._pieces: list[tuple[bytes, BatchHeader | _Piece]] = []
        self._decoded: dict[int, Record] = {}

    def data(self, place: int) -> bytes:
        """Return the piece of data that contains a place."""
        return self._pieces[place >> NUMBER_SHIFT][0]

    def get(self, offset: int) -> Raw | Record | None:
        """Return a record; None if it was not found, or cannot be read."""
        place = self.places.get(offset)
        if place is None:
            return self._decoded.get(offset)
        data, header = self._pieces[place >> NUMBER_SHIFT]
        position = place & ((1 << NUMBER_SHIFT) - 1)
        return raw_at(data, position, header.header_at(position) if isinstance(header, _Piece) else header)

    def add(self, data: bytes, header: BatchHeader | _Piece) -> int:
        """Add the bytes of one or several batches.

        Return a number. The sum of this number and a position in these bytes is the place of the record there.
        """
        if not self._pieces or self._pieces[-1][0] is not data:
            self._pieces.append((data, header))
            self.size += len(data)
        return len(self._pieces) - 1 << NUMBER_SHIFT

    def decoded(self, record: Record, size: int) -> None:
        """Add a record of a batch that is too large to be kept in memory."""
        self._decoded[record.offset] = record
        self.size += size


class Finder:
    """Finds records of one partition. Within a `with` block, it keeps the pieces that were read last."""

    def __init__(self, records: PartitionLog) -> None:
        self._log = records
        self._chunk = _FIRST_CHUNK
        self._kept: deque[_Piece] = deque(maxlen=_KEPT)
        self._users = 0

    def __enter__(self) -> None:
        self._users += 1

    def __exit__(self, *_: object) -> None:
        self._users -= 1
        if not self._users:
            self._kept.clear()

    async def in_order(self, rows: DueRows) -> AsyncIterator[tuple[DueRows, Found]]:
        """Yield rows with their records, some rows at a time. Only few records are read ahead, so memory is bounded."""
        start = 0
        while start < len(rows):
            count = self._chunk
            chunk = rows.part(start, start + count)
            found = await self._read(chunk.offsets)
            yield chunk, found
            start += len(chunk)
            self._chunk = max(min(8 * count, _CHUNK_BYTES * len(chunk) // max(found.size, 1), BATCH_RECORDS), 1)

    async def _read(self, offsets: array[int]) -> Found:
        """Return the records at some offsets. Records that are missing or cannot be read are left out."""
        wanted = array("q", sorted(offsets))
        found = Found()
        place = 0
        while place < len(wanted):
            before = place
            piece = self._piece(wanted, place)
            if piece is not None:
                place = await self._take_all(piece, wanted, place, found)
            if place == before:
                place += 1  # the record is before the log's start, or damaged
        return found

    def _piece(self, wanted: array[int], place: int) -> _Piece | None:
        """Return batches, beginning with the batch of a wanted record; None if that batch cannot be read."""
        first = wanted[place]
        if first < self._log.log_start_offset:
            return None
        for piece in self._kept:
            if piece.may_have(first):
                return piece
        is_near = place + 1 < len(wanted) and wanted[place + 1] - first < _NEAR
        most = _NEAR_BYTES if is_near else _FAR_BYTES
        try:
            piece = _Piece(bytes(self._log.read(first, most, self._log.log_end_offset, min_one=True).view().obj))
        except ApiError:
            return None
        if is_near:
            self._kept.append(piece)
        return piece

    async def _take_all(self, piece: _Piece, wanted: array[int], place: int, found: Found) -> int:
        """Add the wanted records of a piece. Return the place of the first wanted record after it."""
        before = place
        while place < len(wanted) and (place == before or wanted[place] - wanted[place - 1] < _NEAR):
            batch = await piece.batch_with(wanted[place])
            if batch is None:
                break
            position, header = batch
            if wanted[place] > header.last_offset:
                place += 1  # a hole
                continue
            end = bisect_right(wanted, header.last_offset, place)
            await self._take(piece, position, header, wanted[place:end], found)
            place = end
            await turn
        return place

    async def _take(self, piece: _Piece, position: int, header: BatchHeader, wanted: array[int], found: Found) -> None:
        """Add the wanted records of a batch. Add nothing if the batch is damaged."""
        if not piece.is_sound(position, header):
            return
        batch = memoryview(piece.data)[position : position + header.size]
        try:
            if header.codec == NONE:
                part = memoryview(piece.data)[: position + header.size]
                await _take_raw(part, position + HEADER_SIZE, header, wanted, found, found.add(piece.data, piece))
                return
            unpacked = await self._unpacked(batch, header)
            if unpacked is not None:
                await _take_raw(unpacked, 0, header, wanted, found, found.add(unpacked, header))
            else:
                await self._take_decoded(batch, wanted, found)
        except Malformed:
            pass  # the rest of the batch cannot be read

    async def _unpacked(self, batch: memoryview, header: BatchHeader) -> bytes | None:
        """Return the records of a compressed batch; None if they have too many bytes."""
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
                    found.decoded(record, len(record.value or b""))
            await turn


async def _take_raw(
    data: bytes | memoryview, position: int, header: BatchHeader, wanted: array[int], found: Found, number: int
) -> None:
    left = header.record_count
    while left:
        places, position, left = find(data, position, left, header.base_offset, wanted)
        for offset, place in zip(wanted, array("q", places), strict=False):
            if place >= 0:
                found.places[offset] = number | place
        wanted = wanted[len(places) // 8 :]
        await turn
