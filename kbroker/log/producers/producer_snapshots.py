"""The `<offset>.snapshot` files, which contain a partition's state of each producer.

Owns the format, and which snapshots exist: one at the base of each segment, and the newest snapshot. Never validates a
batch. An unreadable snapshot is removed, since the log contains the same information, which only takes longer to read.
Deleted segments are the exception: only snapshots still contain their producers. So the newest snapshot that is
certainly on disk (`unsynced` lists the others) stays until a newer snapshot is on disk.

    version i16 (1) | CRC-32C u32 of the rest | count i32 | entries of
    producer id i64 | epoch i16 | last sequence i32 | last offset i64 | offset delta i32 | timestamp i64 |
    coordinator epoch i32 | first offset of the open transaction i64 (-1 without one)
"""

from __future__ import annotations

import logging
import os
import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Final

from kbroker.log.files import (
    SNAPSHOT_SUFFIX,
    FileHandle,
    offset_name,
    offset_of,
    remove_quietly,
    write_all,
    write_atomically,
)
from kbroker.log.producers.producer_state import ProducedBatch, ProducerEntry, SnapshotTaking
from kbroker.long_work import turn
from kbroker.protocol.checksum import crc32c

SNAPSHOT_HEAD: Final = struct.Struct(">hIi")
SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")
_VERSION: Final = 1
_NO_BATCH: Final = ProducedBatch(-1, -1, 0, -1)

logger = logging.getLogger(__name__)


def encode_snapshot(entries: Collection[ProducerEntry]) -> bytes:
    """Return a snapshot file's content."""
    body = b"".join([_encode(entry) for entry in entries])
    return _head(len(entries), crc32c(body, _crc_of_count(len(entries)))) + body


def _encode(entry: ProducerEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else _NO_BATCH
    return SNAPSHOT_ENTRY.pack(
        entry.producer_id,
        entry.producer_epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.current_txn_first_offset,
    )


def _crc_of_count(count: int) -> int:
    return crc32c(struct.pack(">i", count))


def _head(count: int, crc: int) -> bytes:
    return SNAPSHOT_HEAD.pack(_VERSION, crc, count)


def decode_snapshot(content: bytes) -> list[ProducerEntry]:
    """Decode a snapshot file's content. Raises ValueError if it is invalid."""
    if len(content) < SNAPSHOT_HEAD.size:
        raise ValueError("is cut off")
    version, crc, count = SNAPSHOT_HEAD.unpack_from(content)
    if version != _VERSION:
        raise ValueError(f"version {version} is not {_VERSION}")
    if crc != (found := crc32c(memoryview(content)[6:])):
        raise ValueError(f"the CRC is {found:#010x}, the file has {crc:#010x}")
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
    """Write a snapshot file atomically."""
    write_atomically(path, encode_snapshot(entries), sync=sync)


class Snapshots:
    """The snapshot files of one partition; the key of a file is the offset up to which the snapshot is valid."""

    __slots__ = ("_directory", "_outlived", "offsets", "unsynced")

    def __init__(self, directory: str) -> None:
        self._directory = directory
        names = (name for name in os.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX))
        self.offsets = sorted(offset for offset in map(offset_of, names) if offset is not None)
        self.unsynced: set[int] = set()
        """The snapshots that a flush still has to sync."""
        # snapshots that are not at a segment's base; they are removed when a newer one is on disk
        self._outlived: set[int] = set()

    def move(self, directory: str) -> None:
        self._directory = directory

    def _path(self, offset: int) -> str:
        return offset_name(self._directory, offset, SNAPSHOT_SUFFIX)

    def __contains__(self, offset: int) -> bool:
        place = bisect_left(self.offsets, offset)
        return place < len(self.offsets) and self.offsets[place] == offset

    def take(self, entries: Collection[ProducerEntry], offset: int, *, sync: bool) -> None:
        """Write a snapshot of the producers at `offset`, if there is no such snapshot yet."""
        if offset in self or offset == 0:
            return
        write_snapshot(self._path(offset), entries, sync=sync)
        insort(self.offsets, offset)
        if not sync:
            self.unsynced.add(offset)

    def put(self, content: bytes, offset: int) -> None:
        """Write the content of another replica's snapshot at `offset`. Raises OSError."""
        write_atomically(self._path(offset), content)
        if offset not in self:
            insort(self.offsets, offset)

    async def take_in_pieces(self, taking: SnapshotTaking, is_wanted: Callable[[], bool]) -> bool:
        """Write a snapshot in pieces. Return whether the snapshot was completed. Raises OSError.

        The snapshot is abandoned when `is_wanted` returns False. Neither an abandoned snapshot nor a crash loses data:
        the next start only has to read more of the log, from an older snapshot on.
        """
        path, offset = self._path(taking.offset), taking.offset
        temporary = path + ".tmp"
        file = FileHandle(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            crc, end = _crc_of_count(taking.count), SNAPSHOT_HEAD.size
            for entries in taking.pieces():
                body = b"".join([_encode(entry) for entry in entries])
                write_all(file.fd, body, end)
                crc, end = crc32c(body, crc), end + len(body)
                await turn
                if not is_wanted():
                    return False
            write_all(file.fd, _head(taking.count, crc), 0)
            if path == self._path(offset) and offset not in self:
                os.replace(temporary, path)
                insort(self.offsets, offset)
                self.unsynced.add(offset)
            return True
        finally:
            with suppress(OSError):
                remove_quietly(temporary)

    def doubt(self, offset: int) -> None:
        """Mark the snapshots from `offset` on, and the newest snapshot, as possibly not on disk after a crash."""
        self.unsynced.update(self.offsets[bisect_left(self.offsets, offset) :])
        self.unsynced.update(self.offsets[-1:])

    def to_sync(self) -> dict[int, str]:
        """Return the snapshots that a flush has to sync, and their paths."""
        return {offset: self._path(offset) for offset in sorted(self.unsynced)}

    def synced(self, offsets: Iterable[int]) -> list[str]:
        """Record which snapshots are synced; return the files of snapshots that are no longer needed."""
        self.unsynced.difference_update(offsets)
        newest = self.newest_synced
        return [self.forget(offset) for offset in sorted(self._outlived) if offset < newest]

    @property
    def newest_offset(self) -> int:
        """The offset of the newest snapshot; -1 if there is none."""
        return self.offsets[-1] if self.offsets else -1

    @property
    def newest_synced(self) -> int:
        """The offset of the newest snapshot that is certainly on disk; -1 if there is none."""
        return next((offset for offset in reversed(self.offsets) if offset not in self.unsynced), -1)

    def outlive(self, offset: int) -> None:
        """Mark a snapshot that is not at a segment's base: it is removed when a newer snapshot is on disk."""
        if offset in self:
            self._outlived.add(offset)

    def newest(self, upper: int) -> tuple[int, list[ProducerEntry]] | None:
        """Read the newest valid snapshot at or before `upper`; remove broken snapshots that are newer."""
        while place := bisect_right(self.offsets, upper):
            offset = self.offsets[place - 1]
            try:
                with open(self._path(offset), "rb") as file:
                    return offset, decode_snapshot(file.read())
            except (OSError, ValueError) as error:
                logger.warning("%s is passed over: %s", self._path(offset), error)
                self.remove(offset)
        return None

    def remove(self, offset: int) -> None:
        remove_quietly(self.forget(offset))

    def forget(self, offset: int) -> str:
        """Remove a snapshot from the list; return the path of its file, which the caller must remove."""
        self.unsynced.discard(offset)
        self._outlived.discard(offset)
        if offset in self:
            del self.offsets[bisect_left(self.offsets, offset)]
        return self._path(offset)

    def forget_with_segments(self, offsets: Iterable[int]) -> list[str]:
        """Remove the snapshots at the bases of deleted segments from the list; return their files to be removed.

        The newest snapshot on disk stays: until a newer snapshot is on disk, only this snapshot contains the producers
        without remaining records. Newer snapshots also stay.
        """
        newest = self.newest_synced
        files = []
        for offset in offsets:
            if offset >= newest:
                self.outlive(offset)
            elif offset in self:
                files.append(self.forget(offset))
        return files

    def remove_outside(self, lower: int, upper: int) -> None:
        """Remove snapshots at or before `lower` and after `upper`."""
        for offset in self.offsets[: bisect_right(self.offsets, lower)]:
            self.remove(offset)
        for offset in self.offsets[bisect_right(self.offsets, upper) :]:
            self.remove(offset)

    def remove_stray(self, bases: Iterable[int]) -> None:
        """Remove all snapshots, except the newest snapshot and the snapshots at segments' bases."""
        kept = {*bases, *self.offsets[-1:]}
        for offset in [offset for offset in self.offsets if offset not in kept]:
            self.remove(offset)
