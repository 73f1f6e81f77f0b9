"""A batch that is opened once for all filters: the records that a filter selects, and the filtered batch.

Owns the form of a filtered batch. Like a compacted batch, a filtered batch keeps its base offset, last offset, leader
epoch, producer, sequence and codec, so that clients advance over the missing records. Works in slices. Never reads a
file.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from kbroker.filters.filtering import Filter
from kbroker.log import record_walk
from kbroker.long_work import turn
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.compression import NONE, ZSTD, compress, pack, unpack
from kbroker.protocol.decompression import unpack_zstd_at_once
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.records import (
    CRC_START,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    Record,
    compute_crc,
    read_number,
    record_at,
    wrap,
)

_MOST_UNPACKED: Final = 1 << 30
"""The maximum number of uncompressed bytes.

Batches were checked at the append: only a broken file exceeds this limit.
"""
_WALKED_AT_ONCE: Final = 1 << 15
_WALKED_SLOWLY: Final = 1 << 10
"""The numbers of records in a slice that finds their borders in some hundred us: with compiled code, and in Python."""
_MOST_DECODED: Final = 4096
"""The maximum number of decoded records that are kept for other filters."""
_LARGE_RECORD: Final = 16384
_DECODED_AT_ONCE: Final = 32
"""The number of records that are decoded and tested in one slice, if the records are small."""
_SUMMED_AT_ONCE: Final = 1 << 18
_PACKED_AT_ONCE: Final = 1 << 16


class OpenedBatch:
    """A data batch whose CRC is right, and its uncompressed records."""

    __slots__ = ("_borders", "_records", "_spans", "data", "header", "whole")

    def __init__(self, header: BatchHeader, whole: bytes | memoryview, data: bytes) -> None:
        self.header = header
        self.whole = whole
        """The complete batch as it is in the log."""
        self.data = data
        """The uncompressed records."""
        self._borders: list[int] = []
        self._spans: dict[int, tuple[int, int]] = {}
        """The beginning and the end of each record that was found by a header."""
        self._records: dict[int, Record] = {}

    async def select(self, wanted: Filter, partition: int) -> list[int]:
        """Return the indexes of the records that match, in order. Raises Malformed."""
        count = self.header.record_count
        if count <= _WALKED_AT_ONCE and record_walk.with_header is not None and wanted.header_values is not None:
            packed = record_walk.with_header(self.data, count, *wanted.header_values)
            if packed is not None:
                found = memoryview(packed).cast("i").tolist()
                indexes = found[::3]
                self._spans.update(zip(indexes, zip(found[1::3], found[2::3], strict=True), strict=True))
                return await self._matching(wanted, partition, indexes)
        if count > _WALKED_AT_ONCE or record_walk.borders is None:
            if not wanted.may_match(self.data):
                return []
            await self._find_borders()
        places = wanted.places(self.data, self._end_of_record)
        if places == [] or not count:
            return []
        if not self._borders:
            self._find_some()
        if places is None:
            return await self._matching(wanted, partition, range(count))
        return await self._matching(wanted, partition, sorted({bisect_right(self._borders, at) - 1 for at in places}))

    async def _matching(self, wanted: Filter, partition: int, indexes: Sequence[int]) -> list[int]:
        found, left = [], _DECODED_AT_ONCE
        for index in indexes:
            if wanted(self._record(index), partition):
                found.append(index)
            left -= 1
            begin, end = self._span(index)
            if not left or end - begin > _LARGE_RECORD:
                left = _DECODED_AT_ONCE
                await turn
        return found

    def _span(self, index: int) -> tuple[int, int]:
        return self._spans.get(index) or (self._borders[index], self._borders[index + 1])

    def _end_of_record(self, place: int) -> int:
        if not self._borders:
            self._find_some()
        return self._borders[bisect_right(self._borders, place)]

    def timestamp(self, index: int) -> int:
        """Return the timestamp of a record in ms."""
        return self._record(index).timestamp

    def offset(self, index: int) -> int:
        """Return the offset of a record."""
        return self._record(index).offset

    def _record(self, index: int) -> Record:
        known = self._records.get(index)
        if known is None:
            known = _decoded(self.data, self._span(index)[0], self.header)
            if len(self._records) < _MOST_DECODED:
                self._records[index] = known
        return known

    async def _find_borders(self) -> None:
        """Find the beginning of each record, and the end of the last record. Raises Malformed."""
        if self._borders:
            return
        found = [0]
        while (left := self.header.record_count + 1 - len(found)) > 0:
            _walk(self.data, min(left, _WALKED_AT_ONCE if record_walk.borders is not None else _WALKED_SLOWLY), found)
            await turn
        self._accept(found)

    def _find_some(self) -> None:
        """Find the borders of a batch of few records."""
        found = [0]
        _walk(self.data, self.header.record_count, found)
        self._accept(found)

    def _accept(self, found: list[int]) -> None:
        if found[-1] != len(self.data):
            raise Malformed("bytes remain after the last record of a batch")
        self._borders = found

    async def only(self, indexes: Sequence[int]) -> bytes:
        """Return the batch with only these records, at least one."""
        header = self.header
        if len(indexes) == header.record_count:
            return bytes(self.whole)
        data = self.data
        body = b"".join([data[begin:end] for begin, end in map(self._span, indexes)])
        stamp = header.max_timestamp
        if not header.timestamp_type:
            stamp = max(self.timestamp(index) for index in indexes)
        if header.codec == NONE or len(body) <= _PACKED_AT_ONCE:
            packed = compress(header.codec, body)
        else:
            pieces = []
            for piece in pack(header.codec, [body], len(body)):
                pieces.append(piece)
                await turn
            packed = b"".join(pieces)
        return _enclosed(header, stamp, len(indexes), packed)


def _decoded(data: bytes, position: int, header: BatchHeader) -> Record:
    """Return the record at a position. Raises Malformed."""
    fixed = header.max_timestamp if header.timestamp_type else None
    fields = None if record_walk.record is None else record_walk.record(data, position)
    if fields is None:
        return record_at(data, position, header.base_offset, header.base_timestamp, fixed)[0]
    later, offset, key, value, headers = fields
    timestamp = wrap(header.base_timestamp + later) if fixed is None else fixed
    return Record(header.base_offset + offset, timestamp, key, value, headers)


def _walk(data: bytes, count: int, found: list[int]) -> None:
    """Add the ends of further records. Raises Malformed."""
    position = found[-1]
    if record_walk.borders is not None:
        packed = record_walk.borders(data, position, count)
        if packed is None:
            raise Malformed("a record does not fit in its batch")
        found += memoryview(packed).cast("i")[1:].tolist()
        return
    for _ in range(count):
        size, position = read_number(data, position, 5)
        position += size
        if size < 0 or position > len(data):
            raise Malformed("a record does not fit in its batch")
        found.append(position)


def _enclosed(header: BatchHeader, max_timestamp: int, count: int, packed: bytes) -> bytes:
    batch = bytearray(HEADER_SIZE + len(packed))
    length = len(batch) - LOG_OVERHEAD
    HEADER.pack_into(
        batch, 0, header.base_offset, length, header.leader_epoch, MAGIC, 0, header.attributes,
        header.last_offset_delta, header.base_timestamp, max_timestamp, header.producer_id, header.producer_epoch,
        header.base_sequence, count,
    )  # fmt: skip
    batch[HEADER_SIZE:] = packed
    struct.pack_into(">I", batch, 17, compute_crc(batch))
    return bytes(batch)


async def _crc(batch: memoryview) -> int:
    crc = 0
    for start in range(CRC_START, len(batch), _SUMMED_AT_ONCE):
        if start > CRC_START:
            await turn
        crc = crc32c(batch[start : start + _SUMMED_AT_ONCE], crc)
    return crc


async def opened(header: BatchHeader, batch: memoryview) -> OpenedBatch:
    """Check and decompress a complete batch. Raises ApiError (CORRUPT_MESSAGE) for a damaged batch."""
    if await _crc(batch) != header.crc or header.record_count < 0 or header.last_offset_delta < 0:
        raise damaged(header)
    body = batch[HEADER_SIZE:]
    if header.codec == NONE:
        return OpenedBatch(header, batch, bytes(body))
    if header.codec == ZSTD and (whole := unpack_zstd_at_once(body)) is not None:
        return OpenedBatch(header, batch, whole)
    try:
        pieces = []
        for piece in unpack(header.codec, body, _MOST_UNPACKED):
            pieces.append(piece)
            await turn
    except Malformed as error:
        raise damaged(header) from error
    return OpenedBatch(header, batch, b"".join(pieces))


def damaged(header: BatchHeader) -> ApiError:
    """Return the error for a batch that cannot be read.

    A filter cannot skip such a batch, because it may contain a match.
    """
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} is damaged")
