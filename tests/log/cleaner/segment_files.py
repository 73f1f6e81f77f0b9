"""Segments written to a directory as they are to be, without a log around them."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kbroker.protocol.records import build_batch
from tests.log.builders import NOW


def batch_at(base_offset: int, keys: Iterable[bytes | None], value: bytes = b"v", **fields: int | bool) -> bytes:
    """Return a batch at an offset, with one value for all its keys."""
    batch = bytearray(build_batch([(NOW, key, value, ()) for key in keys], **fields))  # type: ignore[arg-type]
    struct.pack_into(">q", batch, 0, base_offset)
    return bytes(batch)


def write_segment(
    directory: Path, base: int, batches: Sequence[bytes], indexed: Iterable[int] | None = None
) -> tuple[int, int]:
    """Write a segment's log and, given positions for its entries, its index; returns (base offset, size)."""
    content = b"".join(batches)
    (directory / f"{base:020d}.log").write_bytes(content)
    if indexed is not None:
        entries = b"".join(struct.pack(">II", 0, position) for position in indexed)
        (directory / f"{base:020d}.index").write_bytes(entries)
    return base, len(content)


@contextmanager
def opened(directory: Path) -> Iterator[int]:
    """Open a directory for the calls that work from one."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)
