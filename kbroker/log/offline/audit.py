"""The shared parts of an audit: size-limited readers, the findings, and the amount checked.

Files are read in chunks, regardless of their content. Never writes, and never interprets a file.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from kbroker.log.files import read_at

Progress = Callable[[int], None]
"""A function that is called with the number of bytes read since the last call."""


class Finding(NamedTuple):
    """A fault in a file; `position` in bytes, or None for the complete file.

    `recovery` marks a fault that the next start repairs by itself, because the mark of a clean stop is absent.
    """

    path: str
    position: int | None
    what: str
    recovery: bool = False

    def __str__(self) -> str:
        where = self.path if self.position is None else f"{self.path} at {self.position}"
        return f"{where}: {self.what}"


@dataclass(slots=True)
class Checked:
    """Counts of what an audit has checked; the number of records is read from the batch headers."""

    partitions: int = 0
    files: int = 0
    batches: int = 0
    records: int = 0

    def add(self, other: Checked) -> None:
        """Add the counts of another `Checked`."""
        self.partitions += other.partitions
        self.files += other.files
        self.batches += other.batches
        self.records += other.records


CHUNK: Final = 1 << 20
SMALL_LIMIT: Final = 1 << 26
"""The size limit of a checkpoint or snapshot, in bytes: some hundred thousand partitions, or a million producers."""


class TooLargeError(ValueError):
    """A checkpoint or a snapshot has more bytes than any broker writes."""


def read_bounded(path: str) -> bytes | None:
    """Return a small file's content; None if there is no such file. Raises TooLargeError and OSError."""
    try:
        with open(path, "rb") as file:
            content = file.read(SMALL_LIMIT + 1)
    except FileNotFoundError:
        return None
    if len(content) > SMALL_LIMIT:
        raise TooLargeError(f"it has more than {SMALL_LIMIT} bytes")
    return content


def read_text(path: str) -> str | None:
    """Return a text file's content; None if there is no such file. Raise ValueError for invalid text."""
    content = read_bounded(path)
    return None if content is None else content.decode()


class OpenFile:
    """A file opened only for reading; `size` is its size in bytes when it was opened."""

    __slots__ = ("fd", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.size = os.fstat(self.fd).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def entries(self, entry: struct.Struct, start: int = 0) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (position, fields) of each complete entry of a fixed size."""
        step = CHUNK // entry.size * entry.size
        position = start
        while position + entry.size <= self.size:
            chunk = read_at(self.fd, min(step, self.size - position), position)
            whole = len(chunk) // entry.size * entry.size
            if not whole:
                return  # the file has become shorter
            for fields in entry.iter_unpack(memoryview(chunk)[:whole]):
                yield position, fields
                position += entry.size

    def first_nonzero(self, start: int) -> int | None:
        """Return the position of the first non-zero byte from `start` on; None if there is none."""
        position = start
        while position < self.size:
            chunk = read_at(self.fd, min(CHUNK, self.size - position), position)
            if not chunk:
                return None
            rest = chunk.lstrip(b"\0")
            if rest:
                return position + len(chunk) - len(rest)
            position += len(chunk)
        return None
