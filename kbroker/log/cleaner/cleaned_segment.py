"""A new segment that will replace the cleaned segments.

Owns its files and their indexes. The file names end in `.cleaned` until the broker replaces the old segments with them.
Never chooses the segment's records. All files are addressed through a descriptor of the partition's directory, which
stays valid if a topic deletion renames the directory.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import Final

from kbroker.log.files import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
)
from kbroker.log.segment.index_files import OFFSET_ENTRY, TIME_ENTRY
from kbroker.log.segment.transaction_index import AbortedTxn, encode_aborted

_GATHERED: Final = 1 << 20


class CleanedSegment:
    """A segment that is being written; sizes in bytes."""

    def __init__(self, directory_fd: int, base_offset: int, index_interval: int) -> None:
        self._directory_fd = directory_fd
        self._base = base_offset
        self._interval = index_interval
        self._fd = self._create(LOG_SUFFIX)
        self._parts: list[bytes | memoryview] = []
        self._pending = 0
        self._index = bytearray()
        self._times = bytearray()
        self._indexed = 0
        self._newest = (-1, base_offset)  # the largest timestamp and the last offset of its batch
        self._noted = -1  # the largest timestamp in the time index
        self.size = 0

    def _name(self, suffix: str) -> str:
        return f"{self._base:020d}{suffix}{CLEANED_SUFFIX}"

    def _create(self, suffix: str) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        return os.open(self._name(suffix), flags, 0o644, dir_fd=self._directory_fd)

    def append(self, batch: bytes | memoryview, last_offset: int, max_timestamp: int) -> int:
        """Add a batch; return the bytes written to the file. `max_timestamp` is -1 for a batch without records."""
        position = self.size
        if max_timestamp > self._newest[0]:
            self._newest = (max_timestamp, last_offset)
        if position - self._indexed > self._interval:
            self._index += OFFSET_ENTRY.pack(last_offset - self._base, position)
            self._note_time()
            self._indexed = position
        size = len(batch)
        self.size = position + size
        self._parts.append(batch)
        self._pending += size
        return self.flush() if self._pending >= _GATHERED else 0

    def _note_time(self) -> None:
        if self._newest[0] > self._noted:
            self._times += TIME_ENTRY.pack(self._newest[0], self._newest[1] - self._base)
            self._noted = self._newest[0]

    def flush(self) -> int:
        """Write the collected batches; return the number of bytes. Raises OSError."""
        written = self._pending
        _write(self._fd, b"".join(self._parts))
        self._parts.clear()
        self._pending = 0
        return written

    def finish(self, aborted: Sequence[AbortedTxn], modified_ns: int) -> int:
        """Write and fsync all files; return the number of bytes of the last write to the log. Raises OSError.

        The files get the modification time of the segment that they replace, because it determines the age of records
        without a timestamp.
        """
        written = self.flush()
        self._note_time()
        others = ((INDEX_SUFFIX, self._index), (TIME_INDEX_SUFFIX, self._times))
        for suffix, content in (*others, (TXN_INDEX_SUFFIX, encode_aborted(aborted))):
            fd = self._create(suffix)
            try:
                _write(fd, content)
                os.fsync(fd)
            finally:
                os.close(fd)
        os.fsync(self._fd)
        os.utime(self._fd, ns=(modified_ns, modified_ns))
        self.close()
        return written

    def close(self) -> None:
        """Close the log file; unflushed batches are lost."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._parts.clear()

    def discard(self) -> None:
        self.close()
        for suffix in SEGMENT_SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._name(suffix), dir_fd=self._directory_fd)


def _write(fd: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
