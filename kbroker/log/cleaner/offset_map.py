"""The last offset of each key in the part of a log that has not been cleaned.

Owns the table, its bound in memory, and how far into the log it reaches (Kafka's OffsetMap). Keys are kept as they are,
not hashed, so that two keys are never taken for one. Never reads a file.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from kbroker.log.cleaner.record_runs import Run

_MAX_SPAN: Final = 1 << 26  # offsets; a byte of memory each while the dirty part is rewritten
_BYTES_HEAD: Final = 33  # of a bytes object
_OFFSET_BYTES: Final = 32  # of an int object
_ENTRY_BYTES: Final = 30  # of the table, when it is full


class OffsetMap:
    """Key -> offset of its last record, from `start` on and below `end`; at most about `max_bytes` of memory."""

    def __init__(self, start: int, max_bytes: int) -> None:
        self.start = start
        self.end = start
        """Everything below this offset is in the table."""
        self.latest: dict[bytes, int] = {}
        self._max_bytes = max_bytes
        self._kept_bytes = 0
        self._first = -1  # the first offset that was seen
        self._flags = b""

    def has_room(self, base_offset: int, last_offset: int, count: int, key_bytes: int) -> bool:
        """Whether a batch of `count` records with keys of `key_bytes` in sum fits; the first one always does."""
        if self._first < 0:
            return True
        if last_offset - self._first >= _MAX_SPAN or base_offset < self._first:
            return False
        table = sys.getsizeof(self.latest)
        if (len(self.latest) + count) * _ENTRY_BYTES > table:
            table *= 2  # it will grow
        return table + self._kept_bytes + count * (_BYTES_HEAD + _OFFSET_BYTES + 15) + key_bytes <= self._max_bytes

    def add(self, data: bytes, runs: Sequence[Run], base_offset: int) -> None:
        """Take in a batch's records; those below the map's start and those without a key are passed over."""
        latest = self.latest
        if self._first < 0:
            self._first = max(base_offset, self.start)
        for run in runs:
            if run.key_size < 0:
                continue
            first = base_offset + run.delta
            pairs = zip(run.keys(data), range(first, first + run.number), strict=True)
            known = len(latest)
            if first >= self.start:
                latest.update(pairs)
            else:
                latest.update((key, offset) for key, offset in pairs if offset >= self.start)
            size = (_BYTES_HEAD + run.key_size + 15 & ~15) + _OFFSET_BYTES
            self._kept_bytes += (len(latest) - known) * size

    def finish(self) -> None:
        """Prepare the answers of `flags`; nothing may be added any more."""
        if self._first >= 0 and self.latest:
            flags = bytearray(max(self.latest.values()) + 1 - self._first)
            first = self._first
            for offset in self.latest.values():
                flags[offset - first] = 1
            self._flags = bytes(flags)

    def flags(self, offset: int, count: int) -> bytes:
        """Return 1 for each of `count` offsets that is the last of its key, 0 for others; only from `start` on."""
        begin = offset - self._first
        found = self._flags[max(begin, 0) : max(begin + count, 0)]
        if len(found) == count:
            return found
        return (bytes(min(max(-begin, 0), count)) + found).ljust(count, b"\0")
