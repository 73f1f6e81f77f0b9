"""The checked batches of a closed segment, forwards or backwards.

Owns the reading of segments for the cleaner: in chunks, with every byte counted. In either direction, a batch that is
damaged, or that does not follow the batch before it, raises Malformed. Never removes a batch, and never trusts an index
without checking the log.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import Final

from kbroker.log.cleaner.batch_filter import check_batch
from kbroker.log.files import INDEX_SUFFIX, LOG_SUFFIX, read_at
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, parse_header

_SMALLEST_CHUNK: Final = 65536
_WINDOW: Final = 16384  # the bytes that are read together to find the ends of small batches
_BATCH_LENGTH: Final = struct.Struct(">8xi")
_INDEX_POSITION: Final = struct.Struct(">4xI")

CheckedBatch = tuple[int, BatchHeader, memoryview]


class SegmentReader:
    """Reads segments of one directory.

    `spend` is called with the bytes read. It may wait, or raise an error to end the work.
    """

    def __init__(self, directory_fd: int, io_bytes: int, spend: Callable[[int], None]) -> None:
        """Initialize; `io_bytes` is the memory for reading and writing. Half of this memory is for reading."""
        self._directory_fd = directory_fd
        self._spend = spend
        self._chunk = max(io_bytes // 2, _SMALLEST_CHUNK)
        self.bytes_read = 0

    def forward(self, base: int, size: int) -> Iterator[CheckedBatch]:
        """Yield (position, header, bytes) of every batch of a segment. Raises Malformed, OSError."""
        fd = self._open(base, LOG_SUFFIX)
        try:
            position = 0
            last: BatchHeader | None = None
            while position < size:
                chunk = self._read_chunk(fd, position, size)
                start = position
                for at, header, batch in _whole_batches(chunk, start):
                    _check_order(last, header, base, at)
                    last = header
                    position = at + header.size
                    yield at, header, batch
                if position == start:
                    raise Malformed(f"batch at position {position} of segment {base} is cut off")
        finally:
            os.close(fd)

    def backward(self, base: int, size: int, *, use_index: bool) -> Generator[CheckedBatch, None, None]:
        """Yield the result of `forward` from the last batch to the first. Raises Malformed, OSError.

        The beginnings of batches can be found only by reading from the beginning. With `use_index` most beginnings are
        read from the segment's index; a wrong index can then cause Malformed for an intact log. Where the index has no
        entries, the headers are read.
        """
        fd = self._open(base, LOG_SUFFIX)
        try:
            following: BatchHeader | None = None
            for start, end in reversed(self._spans(fd, base, size, use_index)):
                batches = list(_whole_batches(self._read(fd, start, end - start), start))
                last: BatchHeader | None = None
                position = start
                for at, header, _ in batches:
                    _check_order(last, header, base, at)
                    last = header
                    position = at + header.size
                if last is None or position != end:
                    raise Malformed(f"batch at position {position} of segment {base} is cut off")
                if following is not None:
                    _check_order(last, following, base, end)
                following = batches[0][1]
                while batches:
                    yield batches.pop()
        finally:
            os.close(fd)

    # -- batch borders ------------------------------------------------------------------------------------------

    def _spans(self, fd: int, base: int, size: int, use_index: bool) -> list[tuple[int, int]]:
        """Divide a segment into spans of complete batches. Each span has at most a chunk, or a single larger batch."""
        spans = []
        start = position = 0
        for border in self._borders(fd, base, size, use_index):
            if border - start > self._chunk and position > start:
                spans.append((start, position))
                start = position
            position = border
        if position > start:
            spans.append((start, position))
        return spans

    def _borders(self, fd: int, base: int, size: int, use_index: bool) -> Iterator[int]:
        """Yield ends of batches up to the segment's end.

        Between two ends are at most a chunk, or a single larger batch.
        """
        position = 0
        for border in chain(self._indexed(base) if use_index else (), (size,)):
            if not position < border <= size:
                continue
            if border - position > self._chunk:
                yield from self._walked(fd, base, position, border)
            else:
                yield border
            position = border

    def _indexed(self, base: int) -> Iterator[int]:
        """Yield the positions in a segment's offset index; yield none if there is no index."""
        try:
            fd = self._open(base, INDEX_SUFFIX)
        except FileNotFoundError:
            return
        try:
            position = 0
            while entries := self._read(fd, position, _WINDOW):
                position += len(entries)
                whole = len(entries) - len(entries) % _INDEX_POSITION.size
                for (border,) in _INDEX_POSITION.iter_unpack(entries[:whole]):
                    yield border
        finally:
            os.close(fd)

    def _walked(self, fd: int, base: int, position: int, end: int) -> Iterator[int]:
        """Yield the end of each batch between two places. Only the lengths in the headers are read."""
        start, window = position, memoryview(b"")
        while position < end:
            if position + LOG_OVERHEAD > start + len(window):
                start, window = position, self._read(fd, position, min(_WINDOW, end - position))
            if len(window) < LOG_OVERHEAD:
                raise Malformed(f"batch at position {position} of segment {base} is cut off")
            length: int = _BATCH_LENGTH.unpack_from(window, position - start)[0]
            if length < HEADER_SIZE - LOG_OVERHEAD:
                raise Malformed(f"batch at position {position} of segment {base} is smaller than its header")
            position += length + LOG_OVERHEAD
            if position > end:
                raise Malformed(f"batch of segment {base} does not end before position {end}")
            yield position

    # -- bytes --------------------------------------------------------------------------------------------------

    def _open(self, base: int, suffix: str) -> int:
        return os.open(f"{base:020d}{suffix}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory_fd)

    def _read(self, fd: int, position: int, size: int) -> memoryview:
        data = read_at(fd, size, position)
        self.bytes_read += len(data)
        self._spend(len(data))
        return memoryview(data)

    def _read_chunk(self, fd: int, position: int, size: int) -> memoryview:
        """Read a chunk, or one complete batch if the batch is larger."""
        chunk = self._read(fd, position, min(self._chunk, size - position))
        needed = HEADER_SIZE
        if len(chunk) >= LOG_OVERHEAD:
            needed = _BATCH_LENGTH.unpack_from(chunk)[0] + LOG_OVERHEAD
        if needed > size - position:
            raise Malformed(f"batch at position {position} of {size} bytes is cut off")
        return self._read(fd, position, needed) if needed > len(chunk) else chunk


def _whole_batches(chunk: memoryview, position: int) -> Iterator[CheckedBatch]:
    """Yield the complete batches of a chunk, up to the first incomplete batch. Raises Malformed."""
    offset, size = 0, len(chunk)
    while offset + HEADER_SIZE <= size:
        header = parse_header(chunk, offset)
        end = offset + header.size
        if end > size:
            return
        batch = chunk[offset:end]
        check_batch(batch, header)
        yield position + offset, header, batch
        offset = end


def _check_order(last: BatchHeader | None, header: BatchHeader, base: int, position: int) -> None:
    """Raise Malformed unless a batch may follow `last`, or may be the first batch of its segment."""
    next_offset, epoch = (base, -1) if last is None else (last.last_offset + 1, last.leader_epoch)
    if header.base_offset < next_offset or header.leader_epoch < epoch:
        raise Malformed(f"batch at position {position} of segment {base} does not follow the previous one")
