"""Read the batches of a log file in order.

Owns reading headers, or complete batches, in few system calls. Never repairs anything: it stops at the first invalid
batch. The caller detects this because the last batch then ends before the file's end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from kbroker.log.files import FileHandle, OpenFile, read_at
from kbroker.log.log_slice import LogSlice
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import HEADER_SIZE, BatchHeader, compute_crc, iter_batches, parse_header

_HEADERS_CHUNK = 16384
_BATCHES_CHUNK = 1 << 20


Batches: TypeAlias = LogSlice | memoryview
"""Batches of a partition: a slice of a file, or bytes. The last batch may be incomplete."""


def headers_in(batches: Batches) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of the complete batches; stop at an invalid batch. Raises OSError."""
    if isinstance(batches, LogSlice):
        yield from scan_headers(batches, batches.position, batches.position + batches.size)
    else:
        with suppress(Malformed):
            yield from iter_batches(batches)


def bytes_in(batches: Batches, position: int, size: int) -> bytes | memoryview:
    """Return the bytes at a position of `headers_in`. Raises OSError."""
    if isinstance(batches, LogSlice):
        return read_at(batches.fd, size, position)
    return batches[position : position + size]


def scan_headers(file: OpenFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of complete batches from `position`, without CRC checks; stop at an invalid batch."""
    start, chunk = position, b""
    while position + HEADER_SIZE <= end:
        if position + HEADER_SIZE > start + len(chunk):
            start, chunk = position, read_at(file.fd, min(_HEADERS_CHUNK, end - position), position)
        try:
            header = parse_header(chunk, position - start)
        except Malformed:
            return
        if position + header.size > end:
            return
        yield position, header
        position += header.size


def end_of_file(path: str, base_offset: int) -> int:
    """Return the offset after the last batch of a log file, or `base_offset` if it has no batch. Raises OSError."""
    end = base_offset
    file = FileHandle(path, os.O_RDONLY)
    for _, header in scan_headers(file, 0, os.fstat(file.fd).st_size):
        end = header.last_offset + 1
    return end


def read_header(file: OpenFile, position: int, end: int) -> BatchHeader | None:
    """Return the header of the batch at `position`; None if there is no complete batch."""
    if position + HEADER_SIZE > end:
        return None
    try:
        header = parse_header(read_at(file.fd, HEADER_SIZE, position))
    except Malformed:
        return None
    return header if position + header.size <= end else None


def is_intact(file: OpenFile, position: int, header: BatchHeader) -> bool:
    """Whether the batch at `position` matches its CRC."""
    batch = read_at(file.fd, header.size, position)
    return len(batch) == header.size and compute_crc(batch) == header.crc


def may_end_at(file: OpenFile, size: int, base_offset: int, offset: int) -> bool:
    """Whether `offset` is a possible end of a log whose last file is this file.

    The offset is possible in two cases. In the first case, the last batch ends at the offset if there is no hole before
    this batch. The end of an active log has no holes. In the second case, the last batch is damaged and begins before
    the offset. A log never ends before its last batch, because intact data would then be overwritten.
    """
    before = end = base_offset
    last = None
    for last in scan_headers(file, 0, size):
        before, end = end, last[1].last_offset + 1
    if last is None or offset <= before:
        return False
    return before + last[1].last_offset_delta + 1 == offset or not is_intact(file, *last)


def scan_batches(file: OpenFile, position: int, end: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Yield (position, header, bytes) of complete batches; stop at the first invalid batch."""
    start, chunk = position, memoryview(b"")
    while position + HEADER_SIZE <= end:
        if position + HEADER_SIZE > start + len(chunk):
            start, chunk = position, memoryview(read_at(file.fd, min(_BATCHES_CHUNK, end - position), position))
        try:
            header = parse_header(chunk, position - start)
        except Malformed:
            return
        if position + header.size > end:
            return
        if position + header.size > start + len(chunk):
            start = position
            chunk = memoryview(read_at(file.fd, max(header.size, min(_BATCHES_CHUNK, end - position)), position))
        offset = position - start
        batch = chunk[offset : offset + header.size]
        if len(batch) < header.size:
            return  # the file has become shorter
        yield position, header, batch
        position += header.size
