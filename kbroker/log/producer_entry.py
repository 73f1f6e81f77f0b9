"""What a partition remembers of one producer, and the snapshot file that holds it.

Owns the entry, and the `.snapshot` file. Never judges a batch.

    version i16 (1) | CRC-32C u32 of what follows | count i32 | entries of
    producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 | timestamp i64 |
    coordinator epoch i32 | first offset of the open transaction i64 (-1 without one)
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Final, NamedTuple

from crc32c import crc32c

from kbroker.log.files import write_atomically
from kbroker.protocol.records import BatchHeader

RETAINED_BATCHES: Final = 5
CREDIBLE_IDS: Final = 1 << 62
"""Producer ids below this may have been handed out by a broker; others a client made up, which nobody checks."""
_HEAD: Final = struct.Struct(">hIi")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_VERSION: Final = 1


class ProducedBatch(NamedTuple):
    """One of a producer's last batches; timestamp in ms."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & 0x7FFFFFFF

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


def produced_batch(header: BatchHeader, base_offset: int) -> ProducedBatch:
    """Return what is to be remembered of a batch that stands at `base_offset`."""
    delta = header.last_offset_delta
    return ProducedBatch(header.last_sequence, base_offset + delta, delta, header.max_timestamp)


class ProducerEntry:
    """One producer's state on one partition; timestamps in ms."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "current_txn_first_offset",
        "last_timestamp",
        "producer_epoch",
        "producer_id",
    )

    def __init__(
        self,
        producer_id: int,
        producer_epoch: int = -1,
        coordinator_epoch: int = -1,
        last_timestamp: int = -1,
        current_txn_first_offset: int = -1,
    ) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.coordinator_epoch = coordinator_epoch
        self.last_timestamp = last_timestamp
        self.current_txn_first_offset = current_txn_first_offset
        """Where its open transaction began, -1 without one."""
        self.batches: list[ProducedBatch] = []
        """The last five data batches of this epoch, oldest first."""

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, -1 if none is known."""
        return self.batches[-1].last_sequence if self.batches else -1

    def add(self, epoch: int, batch: ProducedBatch) -> None:
        """Note a data batch."""
        self.set_epoch(epoch)
        self.batches.append(batch)
        if len(self.batches) > RETAINED_BATCHES:
            del self.batches[0]
        self.last_timestamp = batch.timestamp

    def set_epoch(self, epoch: int) -> None:
        """Begin a new epoch, in which no earlier batch counts."""
        if epoch != self.producer_epoch:
            self.producer_epoch = epoch
            self.batches.clear()


def encode_snapshot(entries: Collection[ProducerEntry]) -> bytes:
    """Return a snapshot file's content."""
    parts = [_HEAD.pack(_VERSION, 0, len(entries))]
    for entry in entries:
        last = entry.batches[-1] if entry.batches else ProducedBatch(-1, -1, 0, -1)
        parts.append(
            _ENTRY.pack(
                entry.producer_id,
                entry.producer_epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                entry.last_timestamp,
                entry.coordinator_epoch,
                entry.current_txn_first_offset,
            )
        )
    content = bytearray(b"".join(parts))
    struct.pack_into(">I", content, 2, crc32c(memoryview(content)[6:]))
    return bytes(content)


def decode_snapshot(content: bytes) -> list[ProducerEntry]:
    """Read a snapshot file's content; raises ValueError where it is not one."""
    if len(content) < _HEAD.size:
        raise ValueError("producer snapshot is cut off")
    version, crc, count = _HEAD.unpack_from(content)
    if version != _VERSION or crc != crc32c(memoryview(content)[6:]) or count < 0:
        raise ValueError("producer snapshot has a wrong version or checksum")
    if len(content) != _HEAD.size + count * _ENTRY.size:
        raise ValueError("producer snapshot has a wrong length")
    entries = []
    for fields in _ENTRY.iter_unpack(content[_HEAD.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset = fields
        entry = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, txn_first_offset)
        if offset >= 0:
            entry.batches.append(ProducedBatch(sequence, offset, delta, timestamp))
        entries.append(entry)
    return entries


def write_snapshot(path: str, entries: Collection[ProducerEntry], *, sync: bool) -> None:
    """Write a snapshot file in one step."""
    write_atomically(path, encode_snapshot(entries), sync=sync)
