"""The order of one partition's remote segments within each leader epoch.

Owns the sets of segments of each epoch as sorted keys (epoch, offset, id). A lookup can find referenced segments, but
no unreferenced segments. Knows no other facts about segments. The cost of a change, or of a step of an iteration, grows
with the logarithm of the number of keys.

Source: RemoteLogLeaderEpochState of Apache Kafka 4.4 (KIP-405).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sortedcontainers import SortedList

_KEY: Final = struct.Struct(">IQ")
_EPOCH_BIAS: Final = 1 << 31
_OFFSET_BIAS: Final = 1 << 63
_AFTER_ALL_IDS: Final = b"\xff" * 17


def key_of(epoch: int, offset: int, segment_id: bytes = b"") -> bytes:
    """Return a key. Keys sort by epoch, then offset, then id. A key without an id precedes all keys with an id."""
    return _KEY.pack(epoch + _EPOCH_BIAS, offset + _OFFSET_BIAS) + segment_id


def id_of(key: bytes) -> bytes:
    """Return the id of a key's segment."""
    return key[_KEY.size :]


def first_key(epoch: int) -> bytes:
    """Return the key before all keys of an epoch."""
    return key_of(epoch, -_OFFSET_BIAS)


class EpochIndex:
    """The referenced and unreferenced segments of all leader epochs of a partition.

    The key of a referenced segment contains its first offset in that epoch. The key of an unreferenced segment contains
    the segment's start offset, which `start_of` returns for an id.
    """

    def __init__(self, start_of: Callable[[bytes], int]) -> None:
        from sortedcontainers import SortedList  # part of the extra `tiers`: this module can be imported without it

        self._start_of = start_of
        self._referenced = SortedList()
        self._unreferenced = SortedList()
        self._highest: dict[int, int] = {}

    def clear(self) -> None:
        self._referenced.clear()
        self._unreferenced.clear()
        self._highest.clear()

    def highest(self, epoch: int) -> int | None:
        """Return the highest offset of an epoch that any referenced segment has ever contained."""
        return self._highest.get(epoch)

    def floor(self, epoch: int, offset: int) -> bytes | None:
        """Return the id of the epoch's last referenced segment that begins at or before an offset."""
        key = self._last_up_to(epoch, offset)
        return None if key is None else id_of(key)

    def first(self) -> bytes | None:
        """Return the id of the first referenced segment in the lowest epoch with a referenced segment."""
        return id_of(self._referenced[0]) if self._referenced else None

    def ceiling(self, epoch: int, offset: int) -> bytes | None:
        """Return the id of the epoch's first referenced segment that begins after an offset."""
        found = self.next_referenced(key_of(epoch, offset, _AFTER_ALL_IDS), epoch)
        return None if found is None else id_of(found)

    def refers_to(self, epoch: int, offset: int, segment_id: bytes) -> bool:
        """Whether the lookups of an epoch can find a segment whose part of the epoch begins at this offset."""
        return key_of(epoch, offset, segment_id) in self._referenced

    def unreferenced(self) -> Iterator[bytes]:
        """Yield the ids of segments that no lookup can find. An id occurs once for each epoch of which this is true."""
        after = b""
        while (found := next(self._unreferenced.irange(after, inclusive=(False, True)), None)) is not None:
            after = found
            yield id_of(found)

    def last(self, epoch: int) -> bytes | None:
        """Return the id of an epoch's last referenced segment."""
        return self.floor(epoch, _OFFSET_BIAS - 1)

    def next_referenced(self, after: bytes, epoch: int) -> bytes | None:
        """Return the smallest key above `after` of an epoch's referenced segments."""
        return _next(self._referenced, after, epoch)

    def next_unreferenced(self, after: bytes, epoch: int) -> bytes | None:
        """Return the smallest key above `after` of an epoch's unreferenced segments."""
        return _next(self._unreferenced, after, epoch)

    def copy_started(self, epoch: int, segment_id: bytes) -> None:
        self._unreferenced.add(key_of(epoch, self._start_of(segment_id), segment_id))

    def copy_finished(self, epoch: int, offset: int, last_offset: int, segment_id: bytes) -> None:
        """Make a segment a referenced segment. Its part of the epoch is `offset` to `last_offset`.

        If no segment of the epoch has ever ended after `last_offset`, this segment replaces the segments that begin at
        or after `offset`.
        """
        highest = self._highest.get(epoch, last_offset)
        if highest <= last_offset:
            while (last := self._last_up_to(epoch, _OFFSET_BIAS - 1)) and last >= key_of(epoch, offset):
                self._replace(epoch, last)
        same = self._last_up_to(epoch, offset)
        if same is not None and same >= key_of(epoch, offset):
            self._replace(epoch, same)
        self._referenced.add(key_of(epoch, offset, segment_id))
        self._unreferenced.discard(key_of(epoch, self._start_of(segment_id), segment_id))
        self._highest[epoch] = max(highest, last_offset)

    def delete_started(self, epoch: int, offset: int, segment_id: bytes) -> None:
        self._referenced.discard(key_of(epoch, offset, segment_id))
        key = key_of(epoch, self._start_of(segment_id), segment_id)
        if key not in self._unreferenced:
            self._unreferenced.add(key)

    def delete_finished(self, epoch: int, segment_id: bytes) -> None:
        self._unreferenced.discard(key_of(epoch, self._start_of(segment_id), segment_id))

    def _replace(self, epoch: int, key: bytes) -> None:
        self._referenced.remove(key)
        self._unreferenced.add(key_of(epoch, self._start_of(id_of(key)), id_of(key)))

    def _last_up_to(self, epoch: int, offset: int) -> bytes | None:
        keys = self._referenced.irange(first_key(epoch), key_of(epoch, offset, _AFTER_ALL_IDS), reverse=True)
        found: bytes | None = next(keys, None)
        return found


def _next(keys: SortedList, after: bytes, epoch: int) -> bytes | None:
    last = key_of(epoch, _OFFSET_BIAS - 1, _AFTER_ALL_IDS)
    found: bytes | None = next(keys.irange(after, last, inclusive=(False, True)), None)
    return found
