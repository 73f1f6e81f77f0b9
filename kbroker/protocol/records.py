"""Record batches, format v2: their header, the records inside, and the marker that ends a transaction on a partition.

Owns the layout, and the checks that distinguish a well-formed batch from other bytes. Never checks the content of a
batch: the log does. Never uses the CRC except to build a batch.

    base_offset i64 | batch_length i32 | leader_epoch i32 | magic i8 | crc u32 | attributes i16 |
    last_offset_delta i32 | base_timestamp i64 | max_timestamp i64 | producer_id i64 | producer_epoch i16 |
    base_sequence i32 | count i32 | records

batch_length is the number of bytes after this field. The CRC-32C covers the bytes from attributes to the end, so base
offset and leader epoch may be rewritten freely. Attributes: bits 0-2 codec, 3 timestamp type (1 LogAppendTime), 4
transactional, 5 control, 6 delete horizon.

A record is: length varint | attributes i8 | timestamp delta varlong | offset delta varint | key | value | headers.

A marker is a control record, with

    key: version i16 | type i16 (0 abort, 1 commit)     value: version i16 | coordinator epoch i32
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypedDict, Unpack

from kbroker.protocol.checksum import crc32c
from kbroker.protocol.compression import compress, unpack
from kbroker.protocol.errors import EndlessNumber, Malformed

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12  # base_offset and batch_length, which batch_length does not count
CRC_START: Final = 21  # the first byte that the CRC covers
HEADER: Final = struct.Struct(">qiibIhiqqqhii")
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20

Headers = tuple[tuple[str, bytes | None], ...]
NewRecord = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""A record to write: its timestamp in ms, key, value and headers."""

_AHEAD: Final = 16448  # bytes to decompress before reading a record: decompression errors come first
_PASSED_AT_ONCE: Final = 255
"""The number of records that are skipped between two yields: a power of two, minus one."""
_NUMBERS: Final = 64  # maximum number of bytes by which a broken record's numbers may exceed its end
_U64: Final = 2**64 - 1
_I64: Final = 2**63


class BatchHeader(NamedTuple):
    """The 61 bytes before a batch's records, field by field. Sizes are in bytes, timestamps in ms."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """The size of the complete batch, in bytes."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """The timestamp type: 0 for CreateTime, 1 for LogAppendTime."""
        return (self.attributes & TIMESTAMP_TYPE_BIT) >> 3

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record, which wraps after 2^31-1; -1 without a base sequence."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


class Record(NamedTuple):
    """One record as read from a batch. Its offset is absolute; its timestamp is in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def parse_header(buf: bytes | bytearray | memoryview, pos: int = 0) -> BatchHeader:
    """Read the header at `pos`. Raises Malformed if it is incomplete, not v2, or claims too small a batch."""
    try:
        header = BatchHeader._make(HEADER.unpack_from(buf, pos))
    except struct.error as error:
        raise Malformed("record batch is cut off in its header") from error
    if header.magic != MAGIC:
        raise Malformed(f"record batch has magic {header.magic}")
    if header.batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise Malformed(f"record batch of {header.batch_length} bytes is smaller than its header")
    return header


def iter_batches(buf: bytes | bytearray | memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each complete batch. Skip an incomplete last batch. Raises Malformed."""
    position, end = 0, len(buf)
    while position + HEADER_SIZE <= end:
        header = parse_header(buf, position)
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def compute_crc(batch: bytes | bytearray | memoryview) -> int:
    """Return the CRC-32C from the attributes to the end of `batch`, which must contain exactly one batch."""
    return crc32c(memoryview(batch)[CRC_START:])


def read_records(batch: bytes | bytearray | memoryview, *, max_bytes: int) -> Iterator[Record]:
    """Yield the records of one batch. Raises Malformed for invalid data, or for more than `max_bytes` of data."""
    return (record for record in stream_records(batch, max_bytes=max_bytes) if record is not None)


def stream_records(batch: bytes | bytearray | memoryview, *, max_bytes: int, begin: int = 0) -> Iterator[Record | None]:
    """Yield the records of one batch as `read_records` does, and None after each step of decompression.

    The generator keeps only those decompressed bytes that the next record needs. Records below the offset `begin` are
    skipped without being decoded, with one None for every few hundred records.
    """
    header = parse_header(batch)
    if header.size > len(batch):
        raise Malformed("record batch is cut off")
    count = header.record_count
    if count < 0:
        raise Malformed(f"record batch claims {count} records")
    body = memoryview(batch)[HEADER_SIZE : header.size]
    if count == 0:  # compaction leaves empty batches
        return
    pieces = unpack(header.attributes & CODEC_MASK, body, max_bytes)
    data, ended = b"", False
    if not header.attributes & CODEC_MASK:
        data, ended = b"".join(pieces), True
    fixed_timestamp = header.max_timestamp if header.timestamp_type else None
    position, needed = 0, _AHEAD
    passing = begin > header.base_offset
    for number in range(count):
        while not ended:
            if len(data) - position >= needed:
                size, start = read_number(data, position, 5)
                needed = max(start + size + _NUMBERS - position, _AHEAD)
                if len(data) - position >= needed:
                    break
            data, position, ended = yield from _more(data, position, needed, pieces)
        needed = _AHEAD
        if passing:
            delta, end = _delta_and_end(data, position)
            passing = header.base_offset + delta < begin
            if passing:
                position = end
                if not number & _PASSED_AT_ONCE:
                    yield None
                continue
        record, position = record_at(data, position, header.base_offset, header.base_timestamp, fixed_timestamp)
        yield record
    if not ended:
        data, position, ended = yield from _more(data, position, 1, pieces)
    if position != len(data):
        raise Malformed("bytes remain after the last record of a batch")


def _delta_and_end(data: bytes, position: int) -> tuple[int, int]:
    """Return a record's offset delta, and the position after the record."""
    size, start = read_number(data, position, 5)
    if size < 0 or start + size > len(data):
        raise Malformed(f"record of {size} bytes does not fit in its batch")
    _, position = read_number(data, start + 1, 10)
    delta, _ = read_number(data, position, 5)
    return delta, start + size


def _more(
    data: bytes, position: int, needed: int, pieces: Iterator[bytes]
) -> Generator[None, None, tuple[bytes, int, bool]]:
    """Return at least `needed` bytes from `position` on, the new position, and whether the data has ended."""
    parts = [data[position:]]
    there = len(parts[0])
    while there < needed:
        piece = next(pieces, None)
        if piece is None:
            return b"".join(parts), 0, True
        parts.append(piece)
        there += len(piece)
        yield
    return b"".join(parts), 0, False


class BatchFields(TypedDict, total=False):
    """The fields of a batch's header that cannot be derived from its records."""

    base_offset: int
    leader_epoch: int
    codec: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    timestamp_type: int


def build_batch(
    records: Sequence[NewRecord | Record], *, level: int | None = None, **fields: Unpack[BatchFields]
) -> bytes:
    """Build one batch. Offsets are consecutive from `base_offset`; the records' own offsets are not used."""
    base_timestamp = records[0][-4] if records else -1
    max_timestamp = -1
    body = bytearray()
    for delta, record in enumerate(records):
        timestamp, key, value, headers = record[-4:]
        max_timestamp = max(max_timestamp, timestamp)
        encoded = _encode_record(timestamp - base_timestamp, delta, key, value, headers)
        put_number(body, len(encoded))
        body += encoded
    payload = compress(fields.get("codec", 0), body, level)
    return enclose(payload, len(records), base_timestamp, max_timestamp, **fields)


def put_record(body: bytearray, delta: int, key: bytes | None, value: bytes | None) -> None:
    """Append record number `delta` to the records of a batch. The record's timestamp is the batch's timestamp."""
    encoded = _encode_record(0, delta, key, value, ())
    put_number(body, len(encoded))
    body += encoded


def enclose(
    payload: bytes | bytearray | memoryview,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = 0,
) -> bytes:
    """Build a batch of `count` records that are already encoded and, if there is a codec, already compressed."""
    attributes = codec | timestamp_type << 3
    attributes |= (TRANSACTIONAL_BIT if transactional else 0) | (CONTROL_BIT if control else 0)
    size = HEADER_SIZE + len(payload)
    header = [base_offset, size - LOG_OVERHEAD, leader_epoch, MAGIC, 0, attributes, max(count - 1, 0)]
    header += [base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count]
    batch = bytearray(size)
    HEADER.pack_into(batch, 0, *header)
    batch[HEADER_SIZE:] = payload
    struct.pack_into(">I", batch, 17, compute_crc(batch))
    return bytes(batch)


def rewrite_timestamps(batch: bytearray | memoryview, attributes: int, max_timestamp: int) -> None:
    """Set attributes and largest timestamp in place, and recompute the CRC. `batch` contains exactly one batch."""
    struct.pack_into(">h", batch, CRC_START, attributes)
    struct.pack_into(">q", batch, 35, max_timestamp)
    struct.pack_into(">I", batch, 17, compute_crc(batch))


def _encode_record(
    timestamp_delta: int, offset_delta: int, key: bytes | None, value: bytes | None, headers: Any
) -> bytearray:
    out = bytearray(1)  # a record's attributes: none is defined
    put_number(out, wrap(timestamp_delta))
    put_number(out, offset_delta)
    _put_bytes(out, key)
    _put_bytes(out, value)
    put_number(out, len(headers))
    for name, content in headers:
        _put_bytes(out, name.encode())
        _put_bytes(out, content)
    return out


def put_number(out: bytearray, value: int) -> None:
    """Append a number as a varint or varlong."""
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _put_bytes(out: bytearray, value: bytes | None) -> None:
    if value is None:
        out.append(1)
        return
    put_number(out, len(value))
    out += value


def record_at(
    data: bytes, position: int, base_offset: int, base_timestamp: int, fixed_timestamp: int | None
) -> tuple[Record, int]:
    """Return the record at a position of uncompressed records, and the position after the record. Raises Malformed.

    `fixed_timestamp` replaces the record's own timestamp, in batches with LogAppendTime.
    """
    size, position = read_number(data, position, 5)
    end = position + size
    if size < 0 or end > len(data):
        raise Malformed(f"record of {size} bytes does not fit in its batch")
    timestamp_delta, position = read_number(data, position + 1, 10)
    offset_delta, position = read_number(data, position, 5)
    key, position = _nullable(data, position, end)
    value, position = _nullable(data, position, end)
    count, position = read_number(data, position, 5)
    headers: Headers = ()
    if count:
        if count < 0 or count > end - position:
            raise Malformed(f"record claims {count} headers")
        headers, position = _read_headers(data, position, end, count)
    if position != end:
        raise Malformed(f"record of {size} bytes was read to {size + position - end} bytes")
    timestamp = base_timestamp + timestamp_delta if fixed_timestamp is None else fixed_timestamp
    if not -_I64 <= timestamp < _I64:
        timestamp = wrap(timestamp)
    return Record(base_offset + offset_delta, timestamp, key, value, headers), position


def _read_headers(data: bytes, position: int, end: int, count: int) -> tuple[Headers, int]:
    headers = []
    for _ in range(count):
        name, position = _nullable(data, position, end)
        if name is None:
            raise Malformed("record header without a name")
        content, position = _nullable(data, position, end)
        headers.append((name.decode(errors="replace"), content))
    return tuple(headers), position


def _nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_number(data, position, 5)
    if size < 0:
        return None, position
    if position + size > end:
        raise Malformed(f"field of {size} bytes does not fit in its record")
    return data[position : position + size], position + size


def wrap(value: int) -> int:
    """Return a sum that overflows as a Java long does.

    Clients compute the timestamps of a hostile batch in this way.
    """
    return (value + _I64 & _U64) - _I64


def read_number(data: bytes | memoryview, position: int, longest: int) -> tuple[int, int]:
    """Return the number at `position`, which has at most `longest` bytes, and the position after it.

    Raises Malformed if the data ends within the number, and EndlessNumber if the number is longer.
    """
    try:
        byte = data[position]
        if byte < 0x80:  # this is the case for nearly every length and delta
            return (byte >> 1) ^ -(byte & 1), position + 1
        result = byte & 0x7F
        for index in range(1, longest):
            byte = data[position + index]
            result |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                result &= 0xFFFFFFFF if longest == 5 else _U64  # surplus bits are dropped, as in Java
                return (result >> 1) ^ -(result & 1), position + index + 1
    except IndexError as error:
        raise Malformed("record ends within a number") from error
    raise EndlessNumber(f"number of more than {longest} bytes in a record")


ABORT_MARKER: Final = 0
COMMIT_MARKER: Final = 1
_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


class EndTxnMarker(NamedTuple):
    """The content of a control batch: the outcome of a transaction, and the coordinator epoch at that time."""

    commit: bool
    coordinator_epoch: int


def read_marker(batch: bytes | bytearray | memoryview) -> EndTxnMarker | None:
    """Read a control batch. Return None if it is empty, or if its control type is not the end of a transaction."""
    for record in read_records(batch, max_bytes=4096):
        if record.key is None or len(record.key) < 4 or record.value is None:
            raise Malformed("control record without a type")
        _, kind = _MARKER_KEY.unpack_from(record.key)
        if kind not in (ABORT_MARKER, COMMIT_MARKER):
            return None
        if len(record.value) < 6:
            raise Malformed("end of transaction without a coordinator epoch")
        return EndTxnMarker(kind == COMMIT_MARKER, _MARKER_VALUE.unpack_from(record.value)[1])
    return None


def build_marker(
    *, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp: int
) -> bytes:
    """Build the control batch that ends a transaction on a partition. The timestamp is in ms."""
    key = _MARKER_KEY.pack(0, COMMIT_MARKER if commit else ABORT_MARKER)
    record: NewRecord = (timestamp, key, _MARKER_VALUE.pack(0, coordinator_epoch), ())
    return build_batch(
        [record], producer_id=producer_id, producer_epoch=producer_epoch, transactional=True, control=True
    )
