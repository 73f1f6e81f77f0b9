"""The producer snapshots of a partition.

Owns which `<offset>.snapshot` files exist: one at the base of each segment, and the newest. Never looks at batches. A
snapshot that cannot be read is removed, for the log says the same, only slower.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection

from kbroker.log.files import SNAPSHOT_SUFFIX, offset_name, offset_of, remove_quietly
from kbroker.log.producer_entry import ProducerEntry, decode_snapshot, write_snapshot
from kbroker.log.producer_state import ProducerState

logger = logging.getLogger(__name__)


class Snapshots:
    """Snapshot files of one partition, by the offset up to which each is valid."""

    __slots__ = ("directory", "offsets")

    def __init__(self, directory: str) -> None:
        self.directory = directory
        names = (name for name in os.listdir(directory) if name.endswith(SNAPSHOT_SUFFIX))
        self.offsets = sorted(offset for offset in map(offset_of, names) if offset is not None)

    def _path(self, offset: int) -> str:
        return offset_name(self.directory, offset, SNAPSHOT_SUFFIX)

    def take(self, state: ProducerState, *, sync: bool) -> None:
        """Write down the state at its end offset, unless that has been done."""
        offset = state.end_offset
        if offset in self.offsets or offset == 0:
            return
        write_snapshot(self._path(offset), state.entries.values(), sync=sync)
        self.offsets.append(offset)
        self.offsets.sort()

    def paths_from(self, offset: int) -> list[str]:
        """Paths of the snapshots at or beyond `offset`, for a flush."""
        return [self._path(snapshot) for snapshot in self.offsets if snapshot >= offset]

    def newest(self, upper: int) -> tuple[int, list[ProducerEntry]] | None:
        """Read the newest valid snapshot at or below `upper`; broken ones on the way are removed."""
        for offset in sorted((offset for offset in self.offsets if offset <= upper), reverse=True):
            try:
                with open(self._path(offset), "rb") as file:
                    return offset, decode_snapshot(file.read())
            except (OSError, ValueError) as error:
                logger.warning("%s is passed over: %s", self._path(offset), error)
                self.remove(offset)
        return None

    def remove(self, offset: int) -> None:
        """Remove one snapshot."""
        if offset in self.offsets:
            self.offsets.remove(offset)
        remove_quietly(self._path(offset))

    def remove_outside(self, lower: int, upper: int) -> None:
        """Remove snapshots at or below `lower` and beyond `upper`."""
        for offset in [offset for offset in self.offsets if offset <= lower or offset > upper]:
            self.remove(offset)

    def remove_stray(self, bases: Collection[int]) -> None:
        """Keep the snapshots at segments' bases, and the newest one beyond them."""
        last_base = max(bases, default=-1)
        stray = [offset for offset in self.offsets if offset not in bases]
        keep = stray[-1] if stray and stray[-1] > last_base else -1
        for offset in stray:
            if offset != keep:
                self.remove(offset)
