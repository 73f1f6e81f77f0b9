"""One uncompressed batch of records of any size, built in slices.

Owns the division of the work. The layout of a record and of a batch is in records.py, which builds small batches in one
step.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from typing import Final, Unpack

from kbroker.long_work import turn
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.records import CRC_START, LOG_OVERHEAD, BatchFields, Headers, enclose, put_number, wrap

Field = bytes | bytearray | memoryview
LargeRecord = tuple[int, Field | None, Field | None, Headers]
"""A record to write: its timestamp in ms, key, value and headers."""
_PIECE: Final = 1 << 16
"""The number of bytes that are copied, or that the CRC reads, before other tasks get a turn."""


def memory(size: int) -> memoryview:
    """Return this number of bytes of memory. Large memory comes from the system: nothing is cleared or moved."""
    return memoryview(bytearray(size) if size <= _PIECE else mmap.mmap(-1, size))


async def build_in_turns(records: Sequence[LargeRecord], **fields: Unpack[BatchFields]) -> memoryview:
    """Return the batch that `build_batch` returns for these records. Each key and value is copied only once."""
    base_timestamp, max_timestamp = records[0][0], max(record[0] for record in records)
    parts: list[Field] = [enclose(b"", len(records), base_timestamp, max_timestamp, **fields)]
    for delta, (timestamp, key, value, headers) in enumerate(records):
        parts += _parts(timestamp - base_timestamp, delta, key, value, headers)
        await turn
    batch = memory(sum(map(len, parts)))
    position = 0
    for part in parts:
        for start in range(0, len(part), _PIECE):
            piece = memoryview(part)[start : start + _PIECE]
            batch[position : position + len(piece)] = piece
            position += len(piece)
            await turn
    struct.pack_into(">i", batch, 8, len(batch) - LOG_OVERHEAD)
    crc = 0
    for start in range(CRC_START, len(batch), _PIECE):
        crc = crc32c(batch[start : start + _PIECE], crc)
        await turn
    struct.pack_into(">I", batch, 17, crc)
    return batch


def _parts(
    timestamp_delta: int, offset_delta: int, key: Field | None, value: Field | None, headers: Headers
) -> tuple[Field, ...]:
    head = bytearray(1)  # a record's attributes: none is defined
    put_number(head, wrap(timestamp_delta))
    put_number(head, offset_delta)
    put_number(head, _size(key))
    between = bytearray()
    put_number(between, _size(value))
    tail = bytearray()
    put_number(tail, len(headers))
    for name, content in headers:
        for each in (name.encode(), content):
            put_number(tail, _size(each))
            tail += each or b""
    found = (head, key or b"", between, value or b"", tail)
    size = bytearray()
    put_number(size, sum(map(len, found)))
    return size, *found


def _size(field: Field | None) -> int:
    """Return the size that a record contains for a field: -1 for null."""
    return -1 if field is None else len(field)
