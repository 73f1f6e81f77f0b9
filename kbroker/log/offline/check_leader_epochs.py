"""Compare the leader epochs of a partition's batches with each other and with its leader-epoch-checkpoint.

Owns the findings about leader epochs. Never reads the log itself: its reader passes each batch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from kbroker.log.checkpoints import LEADER_EPOCHS
from kbroker.log.offline.check_checkpoints import checkpoint_lines, number
from kbroker.log.offline.findings import Finding
from kbroker.protocol.records import BatchHeader


def parse_epochs(path: str) -> list[tuple[int, int]]:
    """Read a leader-epoch-checkpoint; epochs and offsets must rise."""
    found: list[tuple[int, int]] = []
    for line in checkpoint_lines(path):
        parts = line.split(" ")
        if len(parts) != 2:
            raise ValueError(f"broken entry {line[:300]!r}")
        entry = number(parts[0], line), number(parts[1], line)
        if found and (entry[0] <= found[-1][0] or entry[1] <= found[-1][1]):
            raise ValueError(f"epoch {entry[0]} at offset {entry[1]} is not beyond {found[-1][0]} at {found[-1][1]}")
        found.append(entry)
    return found


class EpochCheck:
    """The epochs of one partition, in the order of offsets."""

    def __init__(self, directory: str) -> None:
        self._path = f"{directory}/{LEADER_EPOCHS}"
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self._from = 0
        self._last = -1

    def read(self) -> Iterator[Finding]:
        """Read the checkpoint."""
        try:
            for epoch, start in parse_epochs(self._path):
                self._epochs.append(epoch)
                self._starts.append(start)
        except ValueError as error:
            yield Finding(self._path, None, str(error))

    def begin(self, log_start: int, *, clean: bool) -> None:
        """Note the log start: the checkpoint need not cover offsets before it.

        Deleting records removes epochs at once, but the log start is written some time later.
        """
        self._from = log_start if clean or not self._starts else max(log_start, self._starts[0])

    def batch(self, path: str, position: int, header: BatchHeader, recovers: bool) -> Iterator[Finding]:
        """Check the next batch of the log, at `position` in the file `path`."""
        epoch = header.leader_epoch
        if epoch < 0:
            return
        if epoch < self._last:
            yield Finding(path, position, f"leader epoch {epoch} follows epoch {self._last}")
        if epoch > self._last and header.last_offset >= self._from:
            offset = max(header.base_offset, self._from)
            index = bisect_right(self._starts, offset) - 1
            if index < 0 or self._epochs[index] != epoch:
                said = f"epoch {self._epochs[index]}" if index >= 0 else "nothing"
                what = f"leader epoch {epoch} at offset {offset}, where the leader-epoch-checkpoint says {said}"
                yield Finding(path, position, what, recovers and epoch > max(self._epochs, default=-1))
        self._last = max(epoch, self._last)

    def end(self, log_end: int, *, clean: bool) -> Iterator[Finding]:
        """Finish at the end of the log."""
        if self._starts and self._starts[-1] > log_end:
            what = f"epoch {self._epochs[-1]} begins with offset {self._starts[-1]}, behind the log's end {log_end}"
            yield Finding(self._path, None, what, not clean)
