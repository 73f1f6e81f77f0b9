"""The `<offset>.snapshot` files, which hold what a partition remembers of each producer.

Owns the format, and which snapshots exist: one at the base of each segment, and the newest. Never judges a batch. A
snapshot that cannot be read is removed, for the log says the same, only slower.

    version i16 (1) | CRC-32C u32 of what follows | count i32 | entries of
    producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 | timestamp i64 |
    coordinator epoch i32 | first offset of the open transaction i64 (-1 without one)
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Collection
from typing import Final

from crc32c import crc32c

from kbroker.log.files import SNAPSHOT_SUFFIX, offset_name, offset_of, remove_quietly, write_atomically
from kbroker.log.producers.producer_state import ProducedBatch, ProducerEntry

SNAPSHOT_HEAD: Final = struct.Struct(">hIi")
SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_VERSION: Final = 1


logger = logging.getLogger(__name__)


def encode_snapshot(entries: Collection[ProducerEntry]) -> bytes:
    """Return a snapshot file's content."""
    parts = [SNAPSHOT_HEAD.pack(_VERSION, 0, len(entries))]
    for entry in entries:
        last = entry.batches[-1] if entry.batches else ProducedBatch(-1, -1, 0, -1)
        parts.append(
            SNAPSHOT_ENTRY.pack(
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
    if len(content) < SNAPSHOT_HEAD.size:
        raise ValueError("is cut off")
    version, crc, count = SNAPSHOT_HEAD.unpack_from(content)
    if version != _VERSION:
        raise ValueError(f"version {version} is not {_VERSION}")
    if crc != (found := crc32c(memoryview(content)[6:])):
        raise ValueError(f"the CRC is {found:#010x}, the file says {crc:#010x}")
    if len(content) != SNAPSHOT_HEAD.size + count * SNAPSHOT_ENTRY.size:
        raise ValueError(f"{len(content)} bytes do not hold {count} entries")
    entries = []
    for fields in SNAPSHOT_ENTRY.iter_unpack(content[SNAPSHOT_HEAD.size :]):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn_first_offset = fields
        entry = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, txn_first_offset)
        if offset >= 0:
            entry.batches.append(ProducedBatch(sequence, offset, delta, timestamp))
        entries.append(entry)
    return entries


def write_snapshot(path: str, entries: Collection[ProducerEntry], *, sync: bool) -> None:
    """Write a snapshot file in one step."""
    write_atomically(path, encode_snapshot(entries), sync=sync)


class Snapshots:
    """Snapshot files of one partition, by the offset up to which each is valid."""

    __slots__ = ("_directory", "offsets")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        names = (name for name in os.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX))
        self.offsets = sorted(offset for offset in map(offset_of, names) if offset is not None)

    def move(self, directory: str) -> None:
        self._directory = directory

    def _path(self, offset: int) -> str:
        return offset_name(self._directory, offset, SNAPSHOT_SUFFIX)

    def take(self, entries: Collection[ProducerEntry], offset: int, *, sync: bool) -> None:
        """Write down the producers as they are at `offset`, unless that has been done."""
        if offset in self.offsets or offset == 0:
            return
        write_snapshot(self._path(offset), entries, sync=sync)
        self.offsets.append(offset)
        self.offsets.sort()

    def paths_from(self, offset: int) -> list[str]:
        """Paths of the snapshots at or beyond `offset`, for a flush."""
        return [self._path(snapshot) for snapshot in self.offsets if snapshot >= offset]

    def newest(self, upper: int) -> tuple[int, list[ProducerEntry]] | None:
        """Read the newest valid snapshot at or below `upper`; broken ones on the way are removed."""
        for offset in sorted((offset for offset in self.offsets if offset <= upper), reverse=True):
            try:
                with open(self._path(offset), "rb") as file:
                    return offset, decode_snapshot(file.read())
            except (OSError, ValueError) as error:
                logger.warning("%s is passed over: %s", self._path(offset), error)
                self.remove(offset)
        return None

    def remove(self, offset: int) -> None:
        if offset in self.offsets:
            self.offsets.remove(offset)
        remove_quietly(self._path(offset))

    def remove_outside(self, lower: int, upper: int) -> None:
        """Remove snapshots at or below `lower` and beyond `upper`."""
        for offset in [offset for offset in self.offsets if offset <= lower or offset > upper]:
            self.remove(offset)

    def remove_stray(self, bases: Collection[int]) -> None:
        """Keep the snapshots at segments' bases, and the newest one beyond them."""
        last_base = max(bases, default=-1)
        stray = [offset for offset in self.offsets if offset not in bases]
        keep = stray[-1] if stray and stray[-1] > last_base else -1
        for offset in stray:
            if offset != keep:
                self.remove(offset)
