"""The form of a state copy: one object with the metadata of a broker alone, its internal topics, and all logs' ends.

    metadata, then the log files of each internal partition, in the order of the directory
    directory: lines of JSON. The first line describes the copy, the others have a log or an end each
    checksums: the CRC32C of the metadata, and of each partition's log files (4 bytes each)
    footer, 24 bytes: the length of the directory (8), the number of checksums (4), the CRC32C of directory and
                      checksums (4), the version of the form (4), "KBSC"

Numbers are big-endian. A state copy serves for a restore (kbroker/restore/restoration.py), after the loss of the disk.

Owns this form, and the names of state copies. Never knows when a copy is made, and never interprets the metadata.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from kbroker.long_work import each
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.wire import uuid_text
from kbroker.remote.object_client import PART_BYTES, Piece
from kbroker.remote.segment_objects import FilePart, pieces_of
from kbroker.remote.store import Store
from kbroker.remote.store_errors import DamagedObjectError

FOLDER: Final = "broker-state"
_VERSION: Final = 1
_MAGIC: Final = b"KBSC"
_FOOTER: Final = struct.Struct(">QIII4s")
_NAME: Final = re.compile(rf"(?:.*/)?{FOLDER}/([^/]+)/([^/]+)/(\d{{13}})-[A-Za-z0-9_-]{{22}}")
_LONGEST: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class LogCopy:
    """The log of an internal partition: its start offset, and the base offset and size in bytes of each segment."""

    topic: str
    partition: int
    start: int
    segments: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(size for _, size in self.segments)


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The offsets of a partition whose log is not in the copy: the first one that readers may read, and the end."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class StateCopy:
    """The content of a state copy, without the bytes of its parts. Times are milliseconds since 1970."""

    cluster_id: str
    directory_id: str
    """The `directory.id` of the data directory."""
    broker_id: int
    written_ms: int
    metadata_bytes: int
    logs: tuple[LogCopy, ...] = ()
    ends: tuple[LogEnd, ...] = ()

    @property
    def part_sizes(self) -> list[int]:
        """The size in bytes of the metadata, and of each log."""
        return [self.metadata_bytes, *(log.size for log in self.logs)]


@dataclass(frozen=True, slots=True)
class StateName:
    """The cluster, the data directory and the time in a state copy's name."""

    cluster_id: str
    directory_id: str
    written_ms: int


def folder_of_states(cluster_id: str = "") -> str:
    """Return the folder with the state copies of a cluster, or of all clusters, with a slash at its end."""
    return f"{FOLDER}/{_escaped(cluster_id)}/" if cluster_id else f"{FOLDER}/"


def state_name(cluster_id: str, directory_id: str, written_ms: int, copy_id: bytes) -> str:
    """Return the name of a state copy. Names of one data directory sort by time."""
    return f"{folder_of_states(cluster_id)}{_escaped(directory_id)}/{written_ms:013}-{uuid_text(copy_id)}"


def _escaped(text: str) -> str:
    return quote(text, safe="").replace("~", "%7E").replace("%", "~")


def _unescaped(text: str) -> str:
    return unquote(text.replace("~", "%"))


def parse_state_name(text: str) -> StateName | None:
    """Return the parts of a name, or None if the name is not that of a state copy."""
    found = _NAME.fullmatch(text)
    return None if found is None else StateName(_unescaped(found[1]), _unescaped(found[2]), int(found[3]))


async def encode_directory(copy: StateCopy) -> bytes:
    """Return the directory of a copy."""
    head = {
        "cluster_id": copy.cluster_id,
        "directory_id": copy.directory_id,
        "broker_id": copy.broker_id,
        "written_ms": copy.written_ms,
        "metadata_bytes": copy.metadata_bytes,
        "logs": len(copy.logs),
    }
    logs = await each(copy.logs, lambda log: json.dumps([log.topic, log.partition, log.start, log.segments]))
    ends = await each(copy.ends, lambda end: json.dumps([end.topic, end.partition, end.start, end.end]))
    return "\n".join([json.dumps(head), *logs, *ends]).encode()


def decode_directory(data: bytes) -> StateCopy:
    """Return the content of a directory. Raises DamagedObjectError."""
    try:
        head, *lines = (json.loads(line) for line in data.decode().split("\n"))
        count = int(head["logs"])
        logs = tuple(LogCopy(t, int(p), int(s), tuple((int(b), int(n)) for b, n in g)) for t, p, s, g in lines[:count])
        ends = tuple(LogEnd(topic, int(index), int(start), int(end)) for topic, index, start, end in lines[count:])
        facts = str(head["cluster_id"]), str(head["directory_id"]), int(head["broker_id"]), int(head["written_ms"])
        metadata_bytes = int(head["metadata_bytes"])
    except (ValueError, KeyError, TypeError):
        raise DamagedObjectError("the directory of the state copy has another form") from None
    return StateCopy(*facts, metadata_bytes, logs, ends)


async def write_state(
    store: Store,
    name: str,
    copy: StateCopy,
    metadata: bytes,
    logs: Sequence[Sequence[FilePart]],
    *,
    deadline_s: float | None = None,
) -> int:
    """Write a state copy as one object; return its size in bytes.

    `logs` has the segments' files of each partition, in the order of `copy.logs`. Raises StoreErrors, OSError for a
    missing file, and WrongLengthError for a file that is too short. After an error there is no object. Another thread
    reads the files.
    """
    sent = _Sent(await encode_directory(copy), [[metadata], *logs], sum(copy.part_sizes))
    await store.put(name, sent, sent.size, deadline_s=deadline_s)
    return sent.size


class _Sent:
    """The pieces of one object."""

    def __init__(self, directory: bytes, parts: Sequence[Sequence[FilePart | bytes]], size: int) -> None:
        self._directory = directory
        self._parts = parts
        self.size = size + len(directory) + 4 * len(parts) + _FOOTER.size

    def __iter__(self) -> Iterator[Piece]:
        checksums = bytearray()
        for part in self._parts:
            checksum = 0
            for source in part:
                for piece in pieces_of(source):
                    checksum = crc32c(piece, checksum)
                    yield piece
            checksums += checksum.to_bytes(4, "big")
        yield from pieces_of(self._directory)
        checksum = crc32c(checksums, crc32c(self._directory))
        yield bytes(checksums) + _FOOTER.pack(len(self._directory), len(self._parts), checksum, _VERSION, _MAGIC)


class StateObject:
    """A state copy in a store. Errors of all calls: StoreErrors, which name the object."""

    def __init__(self, store: Store, name: str, copy: StateCopy, checksums: Sequence[int]) -> None:
        self.copy = copy
        self.name = name
        self._store = store
        self._checksums = checksums

    @classmethod
    async def open(cls, store: Store, name: str, size: int) -> StateObject:
        """Return a state copy of `size` bytes. Raises DamagedObjectError for an object of another form."""

        def damaged(reason: str) -> DamagedObjectError:
            return DamagedObjectError(f"{name} in {store.url}: {reason}")

        if size < _FOOTER.size:
            raise damaged(f"{size} bytes are too few for a state copy")
        footer = await store.get(name, size - _FOOTER.size, _FOOTER.size)
        length, count, checksum, version, magic = _FOOTER.unpack(footer)
        if magic != _MAGIC:
            raise damaged("no state copy ends here")
        if version != _VERSION:
            raise damaged(f"the state copy has format version {version}, and only {_VERSION} is known")
        begin = size - _FOOTER.size - 4 * count - length
        if begin < 0 or length + 4 * count > _LONGEST:
            raise damaged("the footer has impossible lengths")
        tail = await _whole(store, name, begin, length + 4 * count)
        if crc32c(tail) != checksum:
            raise damaged("the directory has another CRC32C than the footer says")
        try:
            copy = decode_directory(tail[:length])
        except DamagedObjectError as error:
            raise damaged(str(error)) from None
        sizes = copy.part_sizes
        if len(sizes) != count or sum(sizes) != begin or min(sizes) < 0:
            raise damaged("the parts have other sizes than the directory says")
        return cls(store, name, copy, struct.unpack(f">{count}I", tail[length:]))

    def checksum(self, part: int) -> int:
        """Return the CRC32C of a part."""
        return self._checksums[part]

    async def pieces(self, part: int) -> AsyncIterator[memoryview]:
        """Yield a part in pieces of at most 8 MiB: part 0 is the metadata, the others are the logs.

        Raises DamagedObjectError after the last piece if the part has another CRC32C. Do not rely on any piece before
        the end.
        """
        sizes = self.copy.part_sizes
        begin, checksum = sum(sizes[:part]), 0
        for at in range(0, sizes[part], PART_BYTES):
            piece = await self._store.get(self.name, begin + at, min(PART_BYTES, sizes[part] - at))
            checksum = crc32c(piece, checksum)
            yield piece
        if checksum != self._checksums[part]:
            text = f"part {part} has another CRC32C than the directory says"
            raise DamagedObjectError(f"{self.name} in {self._store.url}: {text}")


async def _whole(store: Store, name: str, begin: int, size: int) -> bytes:
    pieces = [bytes(await store.get(name, begin + at, min(PART_BYTES, size - at))) for at in range(0, size, PART_BYTES)]
    return b"".join(pieces)
