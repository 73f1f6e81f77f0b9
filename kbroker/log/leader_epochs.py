"""The first offset of each leader epoch of a partition.

Owns the list of (epoch, first offset) pairs, both increasing, and stores it on disk in `leader-epoch-checkpoint`. This
file has no checksum. So after each opening, the file is compared with a few batches of each epoch before the first
answer. If the file and the batches disagree, the epochs are read from the log. Never decides to truncate a log: it only
returns the end of an epoch.
"""

from __future__ import annotations

import logging
from bisect import bisect_right

from kbroker.log.checkpoints import LEADER_EPOCHS, read_epochs, write_epochs
from kbroker.log.checks_at_first_read import batch_at
from kbroker.log.log_segments import LogExtent, Segments
from kbroker.protocol.records import BatchHeader

UNDEFINED = (-1, -1)

logger = logging.getLogger(__name__)


class LeaderEpochCache:
    """The leader epochs of one partition; except where stated, a change is on disk when the call returns."""

    __slots__ = ("_entries", "_path", "_synced", "latest", "proven", "writes", "written")

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{LEADER_EPOCHS}"
        self._entries: list[tuple[int, int]] = []
        self.latest = -1
        """The newest epoch; -1 if there is none."""
        self.written = -1
        """The newest epoch in the file. Before an append with another epoch, that epoch is written to the file."""
        self.proven = False
        """Whether the epochs have been compared with the batches."""
        self.writes = self._synced = 0
        for epoch, start in read_epochs(self._path):
            self._insert(epoch, start)
        self.written = self.latest

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset) pairs, oldest first."""
        return list(self._entries)

    @property
    def unsynced(self) -> str | None:
        """The path of the file if its content is possibly not on disk yet; the log's next flush syncs the file."""
        return self._path if self._synced < self.writes else None

    def synced(self, writes: int) -> None:
        """Record that the first `writes` writes of the file are on disk."""
        self._synced = max(self._synced, writes)

    def move(self, directory: str) -> None:
        self._path = f"{directory}/{LEADER_EPOCHS}"

    def assign(self, epoch: int, start_offset: int, *, sync: bool = True) -> None:
        """Record that `epoch` begins at `start_offset`, and remove entries that contradict it.

        Without `sync` a power loss may remove the entry; `prove` then reads the entry from the batches. If an OSError
        is raised, nothing has changed.
        """
        if epoch < 0 or start_offset < 0:
            return
        before = list(self._entries)
        if self._insert(epoch, start_offset) or self.written != self.latest:
            try:
                self._write(sync=sync)
            except OSError:
                self._replace(before)
                raise

    def begin(self, epoch: int, log_end_offset: int) -> None:
        """Record that `epoch` begins at the end of the log; the first append with this epoch writes the file.

        An earlier write would be useless, since a start removes epochs that begin at the log's end
        (`truncate_from_end`). Also, thousands of partitions might have to wait for the file system's journal at the
        same time.
        """
        if epoch >= 0:
            self._insert(epoch, log_end_offset)

    def _insert(self, epoch: int, start: int) -> bool:
        entries = self._entries
        if entries and entries[-1][0] == epoch and start >= entries[-1][1]:
            return False
        while entries and (entries[-1][0] >= epoch or entries[-1][1] >= start):
            entries.pop()
        entries.append((epoch, start))
        self.latest = epoch
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return (epoch, end offset) for a requested epoch; (-1, -1) if unknown."""
        entries = self._entries
        if epoch == -1 or not entries:
            return UNDEFINED
        if epoch == entries[-1][0]:
            return epoch, log_end_offset
        above = bisect_right(entries, epoch, key=lambda entry: entry[0])
        if above == len(entries):
            return UNDEFINED
        return (entries[above - 1][0] if above else epoch), entries[above][1]

    def epoch_for_offset(self, offset: int) -> int:
        """Return the epoch with which `offset` was written, or would be written next; -1 if unknown."""
        index = bisect_right(self._entries, offset, key=lambda entry: entry[1])
        return self._entries[index - 1][0] if index else -1

    def truncate_from_end(self, end_offset: int, *, sync: bool = True) -> None:
        """Remove epochs that begin at or after a log's new end.

        Without `sync` the removed entries may be in the file again after a power loss. The next start then removes them
        again. If the log has grown since, the next start finds the right epochs. (Apache Kafka:
        LeaderEpochFileCache.truncateFromEndAsyncFlush)
        """
        kept = [entry for entry in self._entries if entry[1] < end_offset]
        if len(kept) != len(self._entries):
            self._replace(kept)
            self._write(sync=sync)

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that ended before a log's new start; the epoch that contains the start now begins there."""
        index = bisect_right(self._entries, start_offset, key=lambda entry: entry[1])
        if index == 0 or (index == 1 and self._entries[0][1] == start_offset):
            return
        self._replace([(self._entries[index - 1][0], start_offset), *self._entries[index:]])
        self._write()

    def prepend(self, entries: list[tuple[int, int]]) -> None:
        """Add the epochs of the earlier records, which are in remote storage.

        The first known epoch may also begin there.
        """
        known = self._entries
        found: list[tuple[int, int]] = []
        for epoch, start in entries:
            if not known or (epoch <= known[0][0] and start < known[0][1]):
                while found and found[-1][1] >= start:
                    found.pop()  # the log lost these records after they were copied
                found.append((epoch, start))
        rest = known[1:] if found and known and found[-1][0] == known[0][0] else known
        self._replace([*found, *rest])
        self._write()

    def prove(self, segments: Segments, extent: LogExtent) -> None:
        """Compare the epochs with the log's batches; if they disagree, use the batches' epochs. Raises OSError."""
        # Epochs that end before the local log belong to records in remote storage, and cannot be compared.
        first = max(bisect_right(self._entries, extent.start_offset, key=lambda entry: entry[1]) - 1, 0)
        remote, local = self._entries[:first], self._entries[first:]
        written = [(epoch, start) for epoch, start in local if start < extent.end_offset]
        if not _agrees(segments, extent, written) and (found := _read_epochs(segments, extent)):
            logger.warning("%s: leader epochs are %s, not %s", self._path, found, written)
            # There may be no batch with the newest epoch yet.
            newest = [(self.latest, extent.end_offset)] if self.latest > found[-1][0] else []
            if local and found[0][0] == local[0][0] and local[0][1] < found[0][1]:
                found[0] = local[0]  # the epoch begins in remote storage
            self._replace([*remote, *found, *newest])
            self._write()
        self.proven = True

    def clear(self) -> None:
        self._replace([])
        self._write()

    def _replace(self, entries: list[tuple[int, int]]) -> None:
        self._entries = entries
        self.latest = entries[-1][0] if entries else -1

    def _write(self, *, sync: bool = True) -> None:
        # A sync of an empty log's first epoch would protect no information, and thousands of logs may be created at the
        # same time.
        is_worth_it = self._entries[-1:] not in ([], [(self.latest, 0)])
        write_epochs(self._path, self._entries, sync=sync and is_worth_it)
        self.writes += 1
        if (sync and is_worth_it) or not self._entries:
            self._synced = self.writes
        self.written = self.latest


def _agrees(segments: Segments, extent: LogExtent, entries: list[tuple[int, int]]) -> bool:
    """Whether all batches from an epoch's start to the next epoch's start have that epoch."""
    start, end = extent.start_offset, extent.end_offset
    if not entries or entries[0][1] > start:
        first = _header_at(segments, extent, start)
        if first is not None and first.leader_epoch >= 0 and (not entries or first.base_offset < entries[0][1]):
            return False
    following = [*(begins for _, begins in entries[1:]), end]
    for (epoch, begins), ends in zip(entries, following, strict=bool(entries)):
        first, last = _header_at(segments, extent, max(begins, start)), _header_at(segments, extent, ends - 1)
        if first is not None and (first.leader_epoch < epoch or first.base_offset < begins > start):
            return False
        if last is not None and last.base_offset < ends and last.leader_epoch > epoch:
            return False
        # If compaction has removed an epoch's batches, `first` is a batch of a later epoch.
        whole = first is not None and first.base_offset <= max(begins, start)
        if whole and first is not None and first.leader_epoch != epoch:
            return False
    return True


def _read_epochs(segments: Segments, extent: LogExtent) -> list[tuple[int, int]]:
    """Find the start of each epoch by bisection (epochs never decrease); return [] if batches cannot be trusted."""
    found: list[tuple[int, int]] = []
    offset, end = extent.start_offset, extent.end_offset
    while offset < end:
        header = _header_at(segments, extent, offset)
        if header is None:
            return []
        epoch = header.leader_epoch
        if epoch >= 0:
            found.append((epoch, max(header.base_offset, extent.start_offset)))
        low, high = offset, end
        while low < high:
            middle = (low + high) // 2
            there = _header_at(segments, extent, middle)
            if there is not None and there.leader_epoch <= epoch:
                low = max(middle, there.last_offset) + 1
            else:
                high = middle
        offset = low
    return found


def _header_at(segments: Segments, extent: LogExtent, offset: int) -> BatchHeader | None:
    found = batch_at(segments, extent, offset)
    return found[2] if found is not None else None
