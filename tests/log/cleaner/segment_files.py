"""Segments that are written directly into a directory, without a log."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kbroker.protocol.records import build_batch
from tests.log.builders import NOW


def batch_at(base_offset: int, keys: Iterable[bytes | None], value: bytes = b"v", **fields: int | bool) -> bytes:
    """Return a batch at an offset, with the same value for all keys."""
    batch = bytearray(build_batch([(NOW, key, value, ()) for key in keys], **fields))  # type: ignore[arg-type]
    struct.pack_into(">q", batch, 0, base_offset)
    return bytes(batch)


def write_segment(
    directory: Path, base: int, batches: Sequence[bytes], indexed: Iterable[int] | None = None
) -> tuple[int, int]:
    """Write a segment's log, and its index if entry positions are given; returns (base offset, size)."""
    content = b"".join(batches)
    (directory / f"{base:020d}.log").write_bytes(content)
    if indexed is not None:
        entries = b"".join(struct.pack(">II", 0, position) for position in indexed)
        (directory / f"{base:020d}.index").write_bytes(entries)
    return base, len(content)


@contextmanager
def opened(directory: Path) -> Iterator[int]:
    """Open a directory for the functions that take a directory descriptor."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)
