"""Segments as objects of a store: written from files in pieces, read completely or in ranges.

Owns the transfer between files, the form of an object (object_format.py) and a store (store.py). A complete segment is
never in memory. Never decides what to copy or read.

A range of the log is returned unchecked, because its batches have checksums of their own. Every other part is checked.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kbroker.protocol.checksum import crc32c
from kbroker.remote.object_client import PART_BYTES, Piece
from kbroker.remote.object_format import FOOTER_BYTES, Layout, Part, read_footer
from kbroker.remote.store import Store
from kbroker.remote.store_errors import DamagedObjectError, WrongLengthError

_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class FilePart:
    """The first `size` bytes of a file."""

    path: str
    size: int
    inode: int = 0
    """The file's inode. With it, a file that has replaced this one meanwhile is refused (compaction does so)."""


Parts = Mapping[Part, FilePart | bytes]


async def write_segment(
    store: Store, name: str, segment_id: bytes, parts: Parts, *, deadline_s: float | None = None
) -> Layout:
    """Write a segment as one object; return its layout. Parts that are not given are empty.

    Raises StoreErrors, OSError for a file, and WrongLengthError for a file that is too short. After an error there is
    no object. Another thread reads the files; they must not change meanwhile.
    """
    sent = _Sent(segment_id, parts)
    await store.put(name, sent, sent.size, deadline_s=deadline_s)
    return sent.layout()


class _Sent:
    """The pieces of one object, and the checksums of the sent pieces."""

    def __init__(self, segment_id: bytes, parts: Parts) -> None:
        self._segment_id = segment_id
        self._sources = [parts.get(part, b"") for part in Part]
        self._lengths = [each.size if isinstance(each, FilePart) else len(each) for each in self._sources]
        self._checksums = [0] * len(Part)
        self.size = sum(self._lengths) + FOOTER_BYTES

    def layout(self) -> Layout:
        return Layout(self._segment_id, tuple(self._lengths), tuple(self._checksums))

    def __iter__(self) -> Iterator[Piece]:
        for part, source in enumerate(self._sources):
            checksum = 0
            for piece in pieces_of(source):
                checksum = crc32c(piece, checksum)
                yield piece
            self._checksums[part] = checksum
        yield self.layout().footer()


def pieces_of(source: FilePart | bytes) -> Iterator[Piece]:
    """Yield the bytes of a part in pieces of at most 1 MiB. Raises OSError, and WrongLengthError for another file."""
    if isinstance(source, FilePart):
        yield from _pieces_of_file(source)
        return
    view = memoryview(source)
    for at in range(0, len(source), _PIECE_BYTES):
        yield view[at : at + _PIECE_BYTES]


def _pieces_of_file(part: FilePart) -> Iterator[Piece]:
    file = os.open(part.path, os.O_RDONLY)
    try:
        if part.inode and os.fstat(file).st_ino != part.inode:
            raise WrongLengthError(f"{part.path} was replaced meanwhile")
        at = 0
        while at < part.size:
            piece = os.pread(file, min(_PIECE_BYTES, part.size - at), at)
            if not piece:
                raise WrongLengthError(f"{part.path} has {at} bytes, not {part.size}")
            at += len(piece)
            yield piece
    finally:
        os.close(file)


class SegmentObject:
    """A segment in a store, with its layout. The errors of all methods are StoreErrors, which name the object."""

    def __init__(self, store: Store, name: str, layout: Layout) -> None:
        self.layout = layout
        self._store = store
        self._name = name

    @classmethod
    async def open(
        cls, store: Store, name: str, segment_id: bytes, *, footer: bytes | None = None, deadline_s: float | None = None
    ) -> SegmentObject:
        """Return a segment's object.

        Without a known `footer`, two calls to the store are needed: for the object's length, and for its footer. Raises
        DamagedObjectError for an object of another segment, or for an incomplete object.
        """
        if footer is not None:
            return cls(store, name, _checked(store, name, footer, None, segment_id))
        found = await store.head(name, deadline_s=deadline_s)
        if found.size < FOOTER_BYTES:
            raise DamagedObjectError(f"{name} in {store.url}: {found.size} bytes are too few for a segment")
        footer_bytes = bytes(await store.get(name, found.size - FOOTER_BYTES, FOOTER_BYTES, deadline_s=deadline_s))
        return cls(store, name, _checked(store, name, footer_bytes, found.size, segment_id))

    async def read(self, part: Part, start: int, size: int, *, deadline_s: float | None = None) -> memoryview:
        """Return a range of a part, unchecked. Raises ValueError for a range that is not within the part."""
        length = self.layout.lengths[part]
        if start < 0 or size <= 0 or start + size > length:
            raise ValueError(f"a range of {size} bytes from {start} in a part of {length}")
        return await self._store.get(self._name, self.layout.start(part) + start, size, deadline_s=deadline_s)

    async def pieces(self, part: Part, *, deadline_s: float | None = None) -> AsyncIterator[memoryview]:
        """Yield a part in pieces of at most 8 MiB, each with the deadline.

        Raises DamagedObjectError after the last piece if the part has another CRC32C. Do not rely on any piece before
        the end.
        """
        length = self.layout.lengths[part]
        checksum = 0
        for start in range(0, length, PART_BYTES):
            piece = await self.read(part, start, min(PART_BYTES, length - start), deadline_s=deadline_s)
            checksum = crc32c(piece, checksum)
            yield piece
        if checksum != self.layout.checksums[part]:
            raise DamagedObjectError(
                f"{self._name} in {self._store.url}: {part.name} has another CRC32C than the footer says"
            )

    async def whole(self, part: Part, *, deadline_s: float | None = None) -> bytes:
        """Return a complete part after checking it. For the log, use `pieces` instead."""
        return b"".join([bytes(piece) async for piece in self.pieces(part, deadline_s=deadline_s)])


def _checked(store: Store, name: str, footer: bytes, object_bytes: int | None, segment_id: bytes) -> Layout:
    try:
        return read_footer(footer, object_bytes, segment_id)
    except DamagedObjectError as error:
        raise DamagedObjectError(f"{name} in {store.url}: {error}") from None
