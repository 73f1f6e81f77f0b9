"""The last batch of each key in the dirty part of a log.

Owns the table, its memory limit, and the offset at which it ends (Kafka's OffsetMap). Complete keys are kept instead of
hashes, so that two keys are never confused. Batches are added from last to first. The table consists of a set of all
seen keys and, for each batch, a list of the keys that no later batch contains. If a batch contains several records of a
key, the rewrite of the batch finds the last record. Never reads a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from typing import Final

from kbroker.log.record_runs import Part

_KEY_BYTES: Final = 33  # the size of a bytes object without its content
_ROUNDED: Final = 16  # allocations are a multiple of this number of bytes
_NAMED_BYTES: Final = 8  # the size of a key's entry in its batch's list
_BATCH_BYTES: Final = 168  # the size of a batch's entry and of its list without the keys
_SLOT_BYTES: Final = 16  # the size of a slot of the set
_INVERTED: Final = bytes((1, 0)) + bytes(254)


class OffsetMap:
    """Maps each key to the base offset of its last batch from `start` to `end`, in about `max_bytes` of memory."""

    def __init__(self, start: int, end: int, max_bytes: int) -> None:
        self.start = start
        self.end = end
        """When all batches have been added, the table covers the offsets from `start` up to this offset."""
        self._seen: set[bytes] = set()
        self._newest: dict[int, list[bytes]] = {}  # base offset -> the keys whose last record the batch contains
        self._max_bytes = max_bytes
        self._kept_bytes = 0

    def end_at(self, offset: int) -> None:
        """Exclude the offsets from `offset` on; batches with these offsets must not have been added."""
        self.end = offset

    def add(self, data: bytes, runs: Sequence[Part], base_offset: int) -> bool:
        """Add the records of a batch that precedes all added batches. If the table is full, add none and return False.

        Records before the map's start and records without a key are skipped. The first batch with keys always fits.
        """
        with_keys = [run for run in runs if run.key_size >= 0]
        keys: Iterable[bytes] = chain.from_iterable(run.keys(data) for run in with_keys)
        if base_offset < self.start:
            skipped = self.start - base_offset
            keys = [key for run in with_keys for key in islice(run.keys(data), run.below(skipped), None)]
        new = set(keys) - self._seen
        if not new:
            return True
        largest = max(run.key_size for run in with_keys)
        kept_bytes = self._kept_bytes + _BATCH_BYTES
        kept_bytes += min(_size_of(largest) * len(new), _size_of(_ROUNDED) * len(new) + len(data))
        if self._seen and self._table_bytes(len(new)) + kept_bytes > self._max_bytes:
            return False
        self._kept_bytes = kept_bytes
        self._newest[base_offset] = list(new)
        self._seen.update(new)
        return True

    def set_apart(self, base_offset: int) -> bool:
        """Mark a batch with unreadable records as not superseded.

        Return False, without any change, if the table is full.
        """
        if self._kept_bytes and self._table_bytes(0) + self._kept_bytes + _BATCH_BYTES > self._max_bytes:
            return False
        self._kept_bytes += _BATCH_BYTES
        self._newest[base_offset] = []
        return True

    def fullness(self) -> float:
        """Return the used share of the memory limit."""
        return (self._table_bytes(0) + self._kept_bytes) / self._max_bytes

    def _table_bytes(self, count: int) -> int:
        """Return the size of the set with `count` more keys. The set grows when three fifths of its slots are used."""
        total = len(self._seen) + count
        slots = 1 << (sys.getsizeof(self._seen) // _SLOT_BYTES).bit_length() - 1  # rounded down to a power of two
        if total * 5 >= (slots - 1) * 3:
            slots = 1 << (2 * total).bit_length()
        return slots * _SLOT_BYTES

    def is_superseded(self, base_offset: int) -> bool:
        """Whether a batch in the dirty part has no record that is the last record of its key."""
        return base_offset >= self.start and base_offset not in self._newest

    def keep(self, data: bytes, runs: Sequence[Part], base_offset: int) -> list[bytes]:
        """Return bytes for each run: 1 for a record to keep, 0 for a record to remove.

        A record without a key is removed.
        """
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
        return bytes(map(self._seen.__contains__, run.keys(data))).translate(_INVERTED)

    def _last_in_batch(self, data: bytes, runs: Sequence[Part], base_offset: int) -> list[bytes]:
        newest = self._newest.get(base_offset, ())
        is_newest = frozenset(newest).__contains__
        keeps = [bytes(map(is_newest, run.keys(data))) if run.key_size >= 0 else bytes(run.number) for run in runs]
        if sum(keep.count(1) for keep in keeps) == len(newest):
            return keeps
        return self._last_of_repeated(data, runs, newest)

    def _last_of_repeated(self, data: bytes, runs: Sequence[Part], newest: Sequence[bytes]) -> list[bytes]:
        """Return the result of `_last_in_batch` for a batch that contains a key more than once."""
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
    return (_KEY_BYTES + key_size + _ROUNDED - 1 & -_ROUNDED) + _NAMED_BYTES
