"""The last batch that holds each key, in the part of a log that has not been cleaned.

Owns the table, its bound in memory, and how far into the log it reaches (Kafka's OffsetMap). Keys are kept as they are,
not hashed, so that two keys are never taken for one. That the table names the batch, and not the record in it, saves an
object a key; which record of the batch it is comes out when the batch is rewritten. Never reads a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Final

from kbroker.log.cleaner.record_runs import Part

_KEY_BYTES: Final = 33  # of a bytes object, without its content
_NAMED_BYTES: Final = 16  # of a key's place in its batch's list
_ENTRY_BYTES: Final = 30  # of the table, when it is full
_INVERTED: Final = bytes((1, 0)) + bytes(254)


class OffsetMap:
    """Key -> base offset of its last batch, from `start` on and below `end`; about `max_bytes` of memory at most."""

    def __init__(self, start: int, max_bytes: int) -> None:
        self.start = start
        self.end = start
        """Everything below this offset is in the table."""
        self._last: dict[bytes, int] = {}
        self._newest: dict[int, list[bytes]] = {}  # base offset -> the keys of which it holds the last record
        self._max_bytes = max_bytes
        self._kept_bytes = 0
        self._empty = True

    def has_room(self, count: int, largest_key: int) -> bool:
        """Whether a batch of `count` records fits, whose largest key has so many bytes; the first one always does."""
        if self._empty:
            return True
        table = sys.getsizeof(self._last)
        if (len(self._last) + count) * _ENTRY_BYTES > table:
            table *= 2  # it will grow
        return table + self._kept_bytes + count * _size_of(largest_key) <= self._max_bytes

    def add(self, data: bytes, runs: Sequence[Part], base_offset: int) -> None:
        """Take in a batch's records; those below the map's start and those without a key are passed over."""
        self._empty = False
        with_keys = [run for run in runs if run.key_size >= 0]
        keys: Iterable[bytes] = chain.from_iterable(run.keys(data) for run in with_keys)
        if base_offset < self.start:
            skipped = self.start - base_offset
            keys = [key for run in with_keys for key in islice(run.keys(data), run.below(skipped), None)]
        known = len(self._last)
        self._last.update(dict.fromkeys(keys, base_offset))
        if len(self._last) > known:
            self._kept_bytes += (len(self._last) - known) * _size_of(max(run.key_size for run in with_keys))

    def finish(self) -> None:
        """Prepare the answers; nothing may be added any more."""
        newest = self._newest
        for key, base_offset in self._last.items():
            if base_offset in newest:
                newest[base_offset].append(key)
            else:
                newest[base_offset] = [key]

    def is_superseded(self, base_offset: int) -> bool:
        """Whether a batch in the dirty part holds no last record of any key."""
        return base_offset >= self.start and base_offset not in self._newest

    def keep(self, data: bytes, runs: Sequence[Part], base_offset: int) -> list[bytes]:
        """Return for each run 1 for the records to keep and 0 for the others; those without a key go."""
        if base_offset + runs[-1].last_delta < self.start:
            return [self._not_newer(data, run) for run in runs]
        keeps = self._last_in_batch(data, runs, base_offset)
        if base_offset < self.start:
            for index, run in enumerate(runs):
                below = run.below(self.start - base_offset)
                keeps[index] = self._not_newer(data, run)[:below] + keeps[index][below:]
        return keeps

    def _not_newer(self, data: bytes, run: Part) -> bytes:
        if run.key_size < 0:
            return bytes(run.number)
        return bytes(map(self._last.__contains__, run.keys(data))).translate(_INVERTED)

    def _last_in_batch(self, data: bytes, runs: Sequence[Part], base_offset: int) -> list[bytes]:
        newest = self._newest.get(base_offset, ())
        is_newest = frozenset(newest).__contains__
        keeps = [bytes(map(is_newest, run.keys(data))) if run.key_size >= 0 else bytes(run.number) for run in runs]
        if sum(keep.count(1) for keep in keeps) == len(newest):
            return keeps
        return self._last_of_repeated(data, runs, newest)

    def _last_of_repeated(self, data: bytes, runs: Sequence[Part], newest: Sequence[bytes]) -> list[bytes]:
        """Return the same for a batch in which a key stands more than once."""
        count = 0
        places: dict[bytes, int] = {}
        for run in runs:
            if run.key_size >= 0:
                places.update(zip(run.keys(data), range(count, count + run.number), strict=True))
            count += run.number
        flags = bytearray(count)
        for key in newest:
            flags[places[key]] = 1
        keeps, count = [], 0
        for run in runs:
            keeps.append(bytes(flags[count : count + run.number]))
            count += run.number
        return keeps


def _size_of(key_size: int) -> int:
    return (_KEY_BYTES + key_size + 15 & ~15) + _NAMED_BYTES
