"""The files of partitions in a restored data directory.

Owns the content of a partition's directory after a restore: the files of a copied log, or an empty log that begins
behind the records in remote storage. Never reads remote storage.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.log import checkpoints
from kbroker.log.directories.partition_dir_names import partition_path
from kbroker.log.files import (
    LOG_SUFFIX,
    offset_name,
    offset_of,
    sync_directory,
    write_all,
    write_atomically,
)
from kbroker.protocol.records import HEADER, HEADER_SIZE, LOG_OVERHEAD, MAGIC, compute_crc

_LONGEST_FILLER: Final = 1 << 30
"""The maximum number of offsets in one batch without records. A batch has a field of 31 bits for this number."""


@dataclass(frozen=True, slots=True)
class CopiedLog:
    """A log with the records of a state copy: the base offset and the size in bytes of each segment."""

    topic: str
    partition: int
    topic_id: bytes
    segments: Sequence[tuple[int, int]]

    async def write(self, directory: str, pieces: AsyncIterator[memoryview]) -> None:
        """Write the directory of the partition, and sync the files to the disk. The broker builds the indexes.

        `pieces` are the segments' bytes, one after the other. Raises OSError, and the errors of `pieces`.
        """
        path = make_partition(directory, self.topic, self.partition, self.topic_id)
        for base, _ in self.segments:
            write_file(offset_name(path, base, LOG_SUFFIX), b"")
        left = iter(self.segments)
        file, room = -1, 0
        try:
            async for piece in pieces:
                rest = piece
                while rest:
                    while not room:
                        file = _next_file(file)
                        base, room = next(left)
                        file = os.open(offset_name(path, base, LOG_SUFFIX), os.O_WRONLY)
                    written = os.write(file, rest[:room])
                    rest, room = rest[written:], room - written
        finally:
            _next_file(file)
        sync_directory(path)


def _next_file(file: int) -> int:
    """Sync and close a file, if it is open; return the descriptor of no file."""
    if file >= 0:
        try:
            os.fsync(file)
        finally:
            os.close(file)
    return -1


@dataclass(frozen=True, slots=True)
class EmptyLog:
    """A log without records, which begins at `start`. A following broker writes its first record at `end`.

    `epochs` has a pair (leader epoch, first offset) for each leader epoch of earlier records.

    The log knows no producers. The state of transactions in a copy can be older than the last records, and a log that
    knows newer epochs of a producer would refuse this producer for ever. Readers of earlier records need no markers
    here, because the object of a segment names the aborted transactions.
    """

    topic: str
    partition: int
    topic_id: bytes
    start: int
    end: int
    epochs: Sequence[tuple[int, int]] = ()


def write_empty_log(directory: str, log: EmptyLog, now_ms: int) -> None:
    """Write the directory of a partition, and sync the files to the disk. Raises OSError."""
    path = make_partition(directory, log.topic, log.partition, log.topic_id)
    if log.epochs:
        checkpoints.write_epochs(f"{path}/{checkpoints.LEADER_EPOCHS}", log.epochs)
    epoch = log.epochs[-1][0] if log.epochs else 0
    for begin in range(log.start, max(log.end, log.start + 1), _LONGEST_FILLER):
        end = min(begin + _LONGEST_FILLER, log.end)
        write_atomically(
            offset_name(path, begin, LOG_SUFFIX), filler(begin, end, epoch, now_ms) if end > begin else b""
        )
    sync_directory(path)


def write_file(path: str, data: bytes) -> None:
    """Write a new file, which only the owner can read, and sync it. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(file, data, 0)
    finally:
        _next_file(file)


def bases_in(path: str) -> list[int]:
    """Return the base offsets of the segments in a partition's directory, in order."""
    found = (offset_of(name) for name in os.listdir(path) if name.endswith(LOG_SUFFIX))
    return sorted(base for base in found if base is not None)


def make_partition(directory: str, topic: str, partition: int, topic_id: bytes) -> str:
    """Create the directory of a partition; return its path. Raises OSError."""
    path = partition_path(directory, topic, partition)
    os.mkdir(path)
    checkpoints.write_topic_id(path, uuid.UUID(bytes=topic_id))
    return path


def filler(begin: int, end: int, leader_epoch: int, now_ms: int) -> bytes:
    """Return a batch without records that has the offsets [begin, end), like a batch that compaction has emptied."""
    batch = bytearray(HEADER_SIZE)
    fields = (
        begin,
        HEADER_SIZE - LOG_OVERHEAD,
        leader_epoch,
        MAGIC,
        0,
        0,
        end - begin - 1,
        now_ms,
        now_ms,
        -1,
        -1,
        -1,
        0,
    )
    HEADER.pack_into(batch, 0, *fields)
    batch[17:21] = compute_crc(batch).to_bytes(4, "big")
    return bytes(batch)
