"""The aborted transactions of a segment.

Owns the `.txnindex` file. Never decides whether a transaction is aborted: an entry is appended when the log appends an
abort marker.

    version i16 (0) | producer id i64 | first offset i64 | last offset i64 | last stable offset i64

`last offset` is the marker's offset. An entry belongs to the segment that contains the marker. There are few entries,
so they are kept in memory after the first read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from kbroker.log.files import TXN_INDEX_SUFFIX, offset_name, open_descriptor, read_optional, write_all

TXN_ENTRY: Final = struct.Struct(">hqqqq")


class AbortedTxn(NamedTuple):
    """One aborted transaction: its offsets, and the last stable offset when its marker was written."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_aborted(entries: Iterable[AbortedTxn]) -> bytes:
    """Return the content of an index file."""
    return b"".join(TXN_ENTRY.pack(0, *entry) for entry in entries)


def decode_aborted(fields: Sequence[int], previous: int) -> AbortedTxn:
    """Return an entry. Raises ValueError unless its offset is after the previous entry's offset."""
    version, entry = fields[0], AbortedTxn(*fields[1:])
    if version != 0:
        raise ValueError(f"version {version}")
    if entry.last_offset <= previous or entry.first_offset > entry.last_offset:
        raise ValueError(f"offsets {entry.first_offset} to {entry.last_offset} are not in order")
    return entry


class TxnIndex:
    """The aborted transactions whose markers are in one segment, in the order of their markers."""

    __slots__ = ("_base", "_entries", "_path", "missing", "on_first", "proven")

    def __init__(self, directory: str, base_offset: int) -> None:
        self._base = base_offset
        self.move(directory)
        self._entries: list[AbortedTxn] | None = None
        self.missing = False
        """Whether the file is absent or broken, so that the entries have to be rebuilt from the log."""
        self.proven = False
        """Whether the entries are known to match the log."""
        self.on_first: Callable[[int], None] = lambda _base: None
        """A function that is called with the segment's base offset when the first entry is appended."""

    def move(self, directory: str) -> None:
        self._path = offset_name(directory, self._base, TXN_INDEX_SUFFIX)

    @property
    def entries(self) -> list[AbortedTxn]:
        """The entries, which are read on first use."""
        if self._entries is None:
            self._entries = self._read()
        return self._entries

    def accept(self) -> None:
        """Record that the entries match the log."""
        self.proven = True

    def is_void(self) -> bool:
        """Whether the file exists and is empty, so that it need not be read. Raises OSError."""
        try:
            return os.stat(self._path).st_size == 0
        except FileNotFoundError:
            return False

    def _read(self) -> list[AbortedTxn]:
        data = read_optional(self._path)
        if data is None or len(data) % TXN_ENTRY.size:
            self.missing = True
            return []
        entries = []
        previous = self._base - 1
        try:
            for fields in TXN_ENTRY.iter_unpack(data):
                entries.append(decode_aborted(fields, previous))
                previous = entries[-1].last_offset
        except ValueError:
            self.missing = True
            return []
        return entries

    def create(self) -> None:
        """Create the file if it is missing; without it, the entries would have to be rebuilt from the log."""
        os.close(open_descriptor(self._path, os.O_WRONLY | os.O_CREAT))
        self.missing, self.proven = False, True

    def append(self, entry: AbortedTxn) -> None:
        """Write an entry; if this raises OSError, nothing has changed."""
        entries = self.entries
        size = len(entries) * TXN_ENTRY.size
        fd = open_descriptor(self._path, os.O_WRONLY | os.O_CREAT)
        try:
            try:
                write_all(fd, TXN_ENTRY.pack(0, *entry), size)
            except OSError:
                os.ftruncate(fd, size)
                raise
        finally:
            os.close(fd)
        if not entries:
            self.on_first(self._base)
        entries.append(entry)

    def truncate_to(self, offset: int) -> None:
        """Remove transactions whose markers are at or after `offset`."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        if len(kept) != len(self.entries):
            os.truncate(self._path, len(kept) * TXN_ENTRY.size)
            self._entries = kept

    def reset(self) -> None:
        self._entries = []
        self.missing, self.proven = False, True
        os.close(open_descriptor(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))

    def collect(self, start_offset: int, end_offset: int, into: list[AbortedTxn]) -> bool:
        """Add the entries that overlap [start, end); return whether no later segment can contain such entries."""
        for entry in self.entries:
            if entry.last_offset >= start_offset and entry.first_offset < end_offset:
                into.append(entry)
            if entry.last_stable_offset >= end_offset:
                return True
        return False
