"""The compaction of one batch: bytes in, bytes out.

Owns the rules of compaction for a batch and its records (Kafka's Cleaner and MemoryRecords.filterTo), and builds a
batch without the removed records. Never reads or writes a file.

A batch keeps its base offset, last offset, producer, sequence, epoch and codec, whichever records are removed.
Tombstones, and markers of transactions without remaining records, are removed in two steps (KIP-534). The first pass
that finds a tombstone or such a marker in a batch sets bit 6 of the batch's attributes (the delete horizon). This pass
also writes the time of expiry to the batch's base timestamp. The first pass after that time removes the record.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from itertools import compress as select
from typing import Final

from kbroker.log.append_validation import most_unpacked
from kbroker.log.cleaner.offset_map import OffsetMap
from kbroker.log.cleaner.transactions import CleanedTransactions
from kbroker.log.record_runs import Part, read_runs, read_varint, zigzag
from kbroker.protocol.compression import compress, unpack
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import (
    CODEC_MASK,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    compute_crc,
)

HORIZON_BIT: Final = 0x40
_INVERTED: Final = bytes((1, 0)) + bytes(254)
_REPORTED: Final = 3  # the number of unreadable batches that are named in the broker's log
_U64: Final = 2**64 - 1
_I64: Final = 2**63

Buffer = bytes | memoryview


class LastBatch:
    """Recognises a producer's last batch, which the log keeps for the producer's state (Kafka's LastRecord)."""

    __slots__ = ("_epoch", "_last_offset")

    def __init__(self, last_offset: int | None, epoch: int) -> None:
        """`last_offset` is the last offset of the last data batch; None if only a marker of `epoch` is known."""
        self._last_offset = last_offset
        self._epoch = epoch

    def is_at(self, header: BatchHeader) -> bool:
        if self._last_offset is not None:
            return header.last_offset == self._last_offset
        return header.is_control and header.producer_epoch == self._epoch


def read_body(batch: memoryview, header: BatchHeader, max_message_bytes: int) -> bytes:
    """Return a batch's uncompressed records.

    Raises Malformed, also if the records are larger than any producer could send. A batch may have been produced before
    its topic was compacted, when its records were not checked.
    """
    max_bytes, max_records = most_unpacked(max_message_bytes)
    if header.record_count > max_records:
        raise Malformed(f"batch at offset {header.base_offset} has {header.record_count} records")
    return b"".join(unpack(header.codec, batch[HEADER_SIZE:], max_bytes))


def read_records(batch: memoryview, header: BatchHeader, max_message_bytes: int) -> tuple[bytes, Sequence[Part]]:
    """Return the result of `read_body`, and the records of the batch. Raises Malformed."""
    data = read_body(batch, header, max_message_bytes)
    return data, read_runs(data, header.record_count)


class BatchFilter:
    """One pass over a log, batch by batch in the order of offsets; times in ms."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        producers: Mapping[int, LastBatch],
        *,
        now_ms: int,
        delete_retention_ms: int,
        max_message_bytes: int,
    ) -> None:
        self._offsets = offsets
        self._max_message_bytes = max_message_bytes
        self._transactions = transactions
        self._producers = producers
        self._now_ms = now_ms
        self._horizon_ms = min(now_ms + delete_retention_ms, _I64 - 1)
        self.keyless = 0
        """The number of removed records without a key, which were appended before the topic was compacted."""
        self.unreadable: list[str] = []
        """The first few errors of batches that stay unchanged because their records are unreadable."""
        self.unreadable_count = 0

    def apply(self, batch: memoryview, header: BatchHeader, keep_place: bool) -> Buffer | None:
        """Return the replacement of a batch; None means to remove it. Raises Malformed.

        With `keep_place`, a batch that loses all records stays as an empty batch, so that its last offset is not lost.
        """
        control = header.is_control
        horizon = header.base_timestamp if header.attributes & HORIZON_BIT else None
        if control:
            obsolete = self._transactions.is_obsolete(header, batch)
            drop = obsolete and horizon is not None and horizon <= self._now_ms
        else:
            drop = obsolete = self._transactions.is_aborted(header)
        kept: Buffer | None
        if drop or not header.record_count:
            kept = None
        elif control:
            kept = self._with_horizon(batch, header) if obsolete and horizon is None else batch
        else:
            kept = self._filtered(batch, header, horizon)
        if kept is None and (keep_place or self._is_last_of_producer(header)):
            return _emptied(header)
        return kept

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._producers.get(header.producer_id) if header.producer_id >= 0 else None
        return last is not None and last.is_at(header)

    def _with_horizon(self, batch: memoryview, header: BatchHeader) -> bytes:
        data, runs = read_records(batch, header, self._max_message_bytes)
        return _rebuilt(header, data, runs, [b"\1" * run.number for run in runs], self._horizon_ms)

    def _filtered(self, batch: memoryview, header: BatchHeader, horizon: int | None) -> Buffer | None:
        offsets = self._offsets
        beyond = header.last_offset >= offsets.end  # the table does not cover the batch: all records stay
        if not beyond and offsets.is_superseded(header.base_offset):
            return None
        try:
            data, runs = read_records(batch, header, self._max_message_bytes)
        except Malformed as error:
            self.unreadable_count += 1
            if len(self.unreadable) < _REPORTED:
                self.unreadable.append(f"offset {header.base_offset}: {error}")
            return batch
        if beyond:
            keeps = [b"\1" * run.number for run in runs]
        else:
            keeps = offsets.keep(data, runs, header.base_offset)
            self.keyless += sum(run.number for run in runs if run.key_size < 0)
        expired = horizon is not None and horizon <= self._now_ms and not beyond
        kept = tombstones = 0
        for index, run in enumerate(runs):
            nulls = run.nulls(data)
            if nulls is not None:
                if expired:
                    keeps[index] = _and(keeps[index], nulls.translate(_INVERTED))
                else:
                    tombstones += _and(keeps[index], nulls).count(1)
            kept += keeps[index].count(1)
        if not kept:
            return None
        set_horizon = tombstones > 0 and horizon is None
        if kept == header.record_count and not set_horizon:
            return batch
        return _rebuilt(header, data, runs, keeps, self._horizon_ms if set_horizon else None)


def without_record(batch: memoryview, header: BatchHeader, offset: int, max_message_bytes: int) -> Buffer | None:
    """Return a batch without the record at `offset`.

    Return None if the batch does not contain that record. Raises Malformed.
    """
    if header.is_control or not header.base_offset <= offset <= header.last_offset:
        return None
    data, runs = read_records(batch, header, max_message_bytes)
    delta, keeps, found = offset - header.base_offset, [], False
    for run in runs:
        place, behind = run.below(delta), run.below(delta + 1)
        keep = bytearray(b"\1" * run.number)
        keep[place:behind] = bytes(behind - place)
        found |= behind > place
        keeps.append(bytes(keep))
    if not found:
        return None
    return _emptied(header) if header.record_count == 1 else _rebuilt(header, data, runs, keeps)


def without_records(batch: memoryview, header: BatchHeader, indexes: Sequence[int], max_message_bytes: int) -> Buffer:
    """Return a batch without the records at these indexes, which are ordered and counted from 0. Raises Malformed.

    The batch keeps its offsets, sequences and timestamps. If no records remain, the batch is empty.
    """
    if len(indexes) >= header.record_count:
        return _emptied(header)
    data, runs = read_records(batch, header, max_message_bytes)
    keep = bytearray(b"\1" * header.record_count)
    for index in indexes:
        keep[index] = 0
    keeps, start = [], 0
    for run in runs:
        keeps.append(bytes(keep[start : start + run.number]))
        start += run.number
    return _rebuilt(header, data, runs, keeps)


def _rebuilt(
    header: BatchHeader, data: bytes, runs: Sequence[Part], keeps: Sequence[bytes], horizon_ms: int | None = None
) -> bytes:
    """Return a batch with only the kept records; `horizon_ms` is the time at which its tombstones expire."""
    attributes, base_timestamp = header.attributes, header.base_timestamp
    append_time = attributes & TIMESTAMP_TYPE_BIT
    max_timestamp = header.max_timestamp
    if not append_time:
        largest = max(run.largest_stamp(data, keep) for run, keep in zip(runs, keeps, strict=True) if 1 in keep)
        max_timestamp = _wrap(base_timestamp + largest)
    parts: list[Buffer] = []
    for run, keep in zip(runs, keeps, strict=True):
        if horizon_ms is not None:
            shift = base_timestamp - horizon_ms
            parts += [_restamped(record, shift) for record in select(run.records(data), keep)]
        elif 0 not in keep:
            parts.append(memoryview(data)[run.position : run.end])
        else:
            parts += select(run.records(data), keep)
    if horizon_ms is not None:
        attributes |= HORIZON_BIT
        base_timestamp = horizon_ms
    body = compress(attributes & CODEC_MASK, b"".join(parts))
    count = sum(keep.count(1) for keep in keeps)
    return _built(header, attributes, base_timestamp, max_timestamp, count, body)


def _emptied(header: BatchHeader) -> bytes:
    """Return an empty batch that replaces a batch without remaining records, as Kafka writes it."""
    attributes = header.attributes & (TIMESTAMP_TYPE_BIT | TRANSACTIONAL_BIT | CONTROL_BIT)
    return _built(header, attributes, -1, header.max_timestamp, 0, b"")


def _built(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, body: bytes
) -> bytes:
    head = bytearray(HEADER_SIZE)
    size = HEADER_SIZE + len(body) - LOG_OVERHEAD
    before = (header.base_offset, size, header.leader_epoch, MAGIC, 0, attributes, header.last_offset_delta)
    producer = (header.producer_id, header.producer_epoch, header.base_sequence)
    HEADER.pack_into(head, 0, *before, base_timestamp, max_timestamp, *producer, count)
    batch = bytearray(head + body)
    struct.pack_into(">I", batch, 17, compute_crc(batch))
    return bytes(batch)


def _and(first: bytes, second: bytes) -> bytes:
    return (int.from_bytes(first) & int.from_bytes(second)).to_bytes(len(first))


def _restamped(record: bytes, shift: int) -> bytes:
    """Return a record whose timestamp delta is changed, because the base timestamp becomes `shift` ms earlier."""
    _, body = read_varint(record, 0)
    end = body + 1
    while record[end] > 0x7F:
        end += 1
    end += 1
    delta = _wrap(zigzag(record[body + 1 : end]) + shift)
    rest = record[body : body + 1] + _varlong(delta) + record[end:]
    return _varlong(len(rest)) + rest


def _varlong(value: int) -> bytes:
    value = (value << 1 ^ value >> 63) & _U64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _wrap(value: int) -> int:
    """Return a sum with the overflow of a Java long."""
    return (value + _I64 & _U64) - _I64


def check_batch(batch: memoryview, header: BatchHeader) -> None:
    """Raise Malformed for a batch whose CRC or header is wrong."""
    if header.crc != compute_crc(batch):
        raise Malformed(f"batch at offset {header.base_offset} has a wrong CRC")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise Malformed(f"batch at offset {header.base_offset} has an invalid header")
