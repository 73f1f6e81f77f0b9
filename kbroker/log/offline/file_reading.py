"""Bounded readers for an audit: in chunks, whatever the files contain.

Owns the readers that all checks share. Never writes, and never knows what a file means.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, Self

from kbroker.log.files import read_at

CHUNK: Final = 1 << 20
SMALL_LIMIT: Final = 1 << 26
"""Size limit of a checkpoint or snapshot, in bytes: some hundred thousand partitions, or a million producers."""


class TooLargeError(ValueError):
    """A checkpoint or a snapshot has more bytes than any broker writes."""


def read_bounded(path: str) -> bytes | None:
    """Return a small file's content, None if there is no such file; raises TooLargeError, OSError."""
    try:
        with open(path, "rb") as file:
            content = file.read(SMALL_LIMIT + 1)
    except FileNotFoundError:
        return None
    if len(content) > SMALL_LIMIT:
        raise TooLargeError(f"it has more than {SMALL_LIMIT} bytes")
    return content


def read_text(path: str) -> str | None:
    """Return a text file's content, None if there is no such file; raises ValueError for invalid text."""
    content = read_bounded(path)
    return None if content is None else content.decode()


class OpenFile:
    """A file opened for reading only; `size` is its size in bytes when it was opened."""

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
        """Yield (position, fields) of each whole entry of a fixed size."""
        step = CHUNK // entry.size * entry.size
        position = start
        while position + entry.size <= self.size:
            chunk = read_at(self.fd, min(step, self.size - position), position)
            whole = len(chunk) // entry.size * entry.size
            if not whole:
                return  # the file is shorter than it was
            for fields in entry.iter_unpack(memoryview(chunk)[:whole]):
                yield position, fields
                position += entry.size

    def first_nonzero(self, start: int) -> int | None:
        """Return the position of the first byte from `start` on that is not zero."""
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
