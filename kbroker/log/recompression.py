"""Rewrites a batch's records with another codec or with ordered offsets, with little memory.

Owns the new bytes of records and their header. Keeps only a few records and the result in memory. Never validates: the
records have been checked (record_walk.py) and are well-formed. The result equals a new batch of the same records:
offsets begin at 0, timestamps are relative to the first record's timestamp, and only the producer's identity is kept
from the old header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from kbroker.log.append_validation import BatchRules
from kbroker.long_work import turn
from kbroker.protocol.compression import compress, pack, unpack
from kbroker.protocol.records import (
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    compute_crc,
    put_number,
    read_number,
    wrap,
)

_NUMBERS: Final = 32  # length, attributes, timestamp and offset before a record's key use at most 21 bytes
_RECORDS: Final = 256  # the number of records rewritten in one step, which takes some hundred us


async def rebuild(
    records: memoryview,
    header: BatchHeader,
    codec: int,
    rules: BatchRules,
    size: int,
    times: tuple[int, int],
    unpacked: Sequence[bytes] = (),
) -> bytearray | None:
    """Return the batch with another codec; None if the result exceeds the size limit.

    `size` is the uncompressed size of its records in bytes; small records are passed as `unpacked`. `times` are the
    first and the largest timestamp, in ms.
    """
    batch = bytearray(HEADER_SIZE)
    if unpacked:
        batch += compress(codec, b"".join(unpacked), rules.level)
        return _sealed(batch, header, codec, times) if len(batch) <= rules.max_size else None
    pieces = unpack(header.codec, records[HEADER_SIZE : header.size], size)
    for piece in pack(codec, pieces, size, rules.level):
        batch += piece
        if len(batch) > rules.max_size:
            return None
        await turn
    return _sealed(batch, header, codec, times)


async def renumber(
    records: memoryview, header: BatchHeader, codec: int, rules: BatchRules, size: int, times: tuple[int, int]
) -> bytearray | None:
    """Do the work of `rebuild`, but with offsets from 0 and timestamps relative to the first record's timestamp."""
    batch = bytearray(HEADER_SIZE)
    pieces = unpack(header.codec, records[HEADER_SIZE : header.size], size)
    for piece in pack(codec, _renumbered(pieces, header, times[0]), -1, rules.level):
        batch += piece
        if len(batch) > rules.max_size:
            return None
        await turn
    return _sealed(batch, header, codec, times)


def _sealed(batch: bytearray, header: BatchHeader, codec: int, times: tuple[int, int]) -> bytearray:
    attributes = codec | (header.attributes & TRANSACTIONAL_BIT)
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    last_offset = max(header.record_count - 1, 0)
    size = len(batch) - LOG_OVERHEAD
    HEADER.pack_into(batch, 0, 0, size, -1, MAGIC, 0, attributes, last_offset, *times, *producer, header.record_count)
    struct.pack_into(">I", batch, 17, compute_crc(batch))
    return batch


def _renumbered(pieces: Iterator[bytes], header: BatchHeader, first_timestamp: int) -> Iterator[bytes]:
    """Yield records with new timestamp and offset deltas; do not change the rest of each record."""
    data, position, rest, index = b"", 0, 0, 0
    out = bytearray()
    for piece in chain(pieces, (None,)):
        if piece:
            data, position = data[position:] + piece, 0
        margin = 0 if piece is None else _NUMBERS
        while position + max(margin - rest, 0) < len(data):
            taken = min(rest, len(data) - position)
            out += data[position : position + taken]
            position += taken
            rest -= taken
            if rest or position + margin >= len(data):
                break
            size, body = read_number(data, position, 5)
            stamp, place = read_number(data, body + 1, 10)
            _, position = read_number(data, place, 5)
            rest = body + size - position
            timestamp = header.max_timestamp if header.timestamp_type else wrap(header.base_timestamp + stamp)
            numbers = bytearray(1)  # the attributes are 0, because no attribute is defined
            put_number(numbers, wrap(timestamp - first_timestamp))
            put_number(numbers, index)
            put_number(out, len(numbers) + rest)
            out += numbers
            index += 1
            if not index % _RECORDS:
                yield bytes(out)
                out.clear()
        yield bytes(out)
        out.clear()
