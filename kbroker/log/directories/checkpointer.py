"""The checkpoints of a log directory: the recovery points, log starts and high watermarks of its logs, on disk.

Owns the times at which each checkpoint is written, the logs in each checkpoint, and the deleted partitions that a file
may still name. Never changes a log, and does not know the format of the files (checkpoints.py does). Periodic
checkpoints are collected in pieces, because there may be thousands of logs. The flusher's thread writes them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from kbroker.log import checkpoints
from kbroker.log.checkpoints import CheckpointFile, Offsets
from kbroker.log.directories.flusher import Flusher
from kbroker.log.directories.partition_dir_names import Key
from kbroker.log.files import sync_directory
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn

_ENTRIES_AT_ONCE = 256

logger = logging.getLogger(__name__)

OffsetOf = Callable[[PartitionLog], "int | None"]


class CleanedOffsets(Protocol):
    """Writes the clean offset of each log."""

    def save(self) -> None:
        """Write the clean offsets now. Raises OSError if this fails."""

    def save_by_thread(self) -> Future[None]:
        """Write the clean offsets on a thread."""


class Checkpointed(NamedTuple):
    """The offsets of each partition in the checkpoints."""

    recovery_points: Offsets
    log_starts: Offsets
    high_watermarks: Offsets

    @property
    def keys(self) -> set[Key]:
        """All partitions that any of the checkpoints names."""
        return {*self.recovery_points, *self.log_starts, *self.high_watermarks}


class Checkpointer:
    """Writes the checkpoints of the logs in `logs`; intervals in ms.

    `cleaned` is the fourth checkpoint, which belongs to the cleaner. The fourth checkpoint may also name a deleted
    partition. `report` is called with the error of a failed write. No checkpoint is written while `in_use` returns
    False.
    """

    __slots__ = (
        "_cleaned",
        "_directory",
        "_flusher",
        "_forgetting",
        "_in_use",
        "_logs",
        "_report",
        "_stale",
        "_stale_cleaned",
        "_writers",
        "_written_ms",
    )

    def __init__(
        self,
        directory: str,
        logs: dict[Key, PartitionLog],
        flusher: Flusher,
        cleaned: CleanedOffsets,
        report: Callable[[OSError], None],
        *,
        in_use: Callable[[], bool],
        recovery_point_interval_ms: int,
        log_start_interval_ms: int,
        high_watermark_interval_ms: int,
    ) -> None:
        self._directory = directory
        self._logs = logs
        self._flusher = flusher
        self._cleaned = cleaned
        self._report = report
        self._in_use = in_use
        self._writers: list[tuple[int, CheckpointFile, OffsetOf]] = [
            (recovery_point_interval_ms, self._file(checkpoints.RECOVERY_POINTS), _recovery_point),
            (log_start_interval_ms, self._file(checkpoints.LOG_STARTS), _log_start),
            (high_watermark_interval_ms, self._file(checkpoints.HIGH_WATERMARKS), _high_watermark),
        ]
        self._written_ms = [0] * len(self._writers)
        self._stale: dict[Key, object] = {}  # deleted partitions that a checkpoint on the disk may still name
        self._stale_cleaned = False  # whether the cleaner's checkpoint can still name a deleted partition
        self._forgetting: deque[tuple[dict[Key, object], list[Future[None]]]] = deque()

    def _file(self, name: str) -> CheckpointFile:
        return CheckpointFile(f"{self._directory}/{name}")

    def read(self) -> Checkpointed:
        """Return the checkpoints on disk."""
        return Checkpointed(*(checkpoints.read_offsets(file.path) for _, file, _ in self._writers))

    def start(self, now_ms: int, delay_ms: int) -> None:
        """Start the intervals: each checkpoint is due after its interval, or after `delay_ms` if this is less."""
        self._written_ms = [now_ms - max(interval - delay_ms, 0) for interval, _, _ in self._writers]

    def write_all(self) -> None:
        """Write all checkpoints now. Raises OSError on failure."""
        for _, file, offset_of_log in self._writers:
            file.write(self._offsets(offset_of_log))

    def write_log_starts(self) -> None:
        """Write the log starts so that they survive a crash of the process. Raises OSError on failure."""
        self._writers[1][1].write(self._offsets(_log_start), sync=False)

    async def write_due(self, now_ms: int) -> None:
        """Write the due checkpoints on a thread."""
        for index, (interval, file, offset_of_log) in enumerate(self._writers):
            if now_ms - self._written_ms[index] < interval or file.is_busy:
                continue
            self._written_ms[index] = now_ms
            number = file.begin()
            lines = await self._lines(offset_of_log)
            if not self._in_use():
                return  # the directory has just failed: it has no logs, and an empty file must not be written
            try:
                file.write_by(self._flusher.pool, lines, number)
            except OSError as error:
                logger.error("%s: %s", file.path, error)
                self._report(error)

    async def _lines(self, offset_of_log: OffsetOf) -> list[str]:
        """Return the entries of a checkpoint. For a log that changes meanwhile, the offset may be old or new."""
        lines = []
        for count, key in enumerate(list(self._logs)):
            if count % _ENTRIES_AT_ONCE == 0:
                await turn
            log = self._logs.get(key)
            offset = None if log is None else offset_of_log(log)
            if offset is not None:
                lines.append(checkpoints.offset_line(key, offset))
        return lines

    def _offsets(self, offset_of_log: OffsetOf) -> Offsets:
        return {key: offset for key, log in self._logs.items() if (offset := offset_of_log(log)) is not None}

    # -- deleted partitions -----------------------------------------------------------------------------------

    def deleted(self, key: Key, *, was_cleaned: bool) -> None:
        """Record that a partition was removed from `logs`, and whether the cleaner had an entry for the partition."""
        self._stale[key] = object()  # a new object after each deletion of the partition
        self._stale_cleaned |= was_cleaned

    def forget(self, key: Key) -> None:
        """Remove a deleted partition from all checkpoints before a partition of the same name is created."""
        if key in self._stale:
            self.write_all()
            self._cleaned.save()
            self._stale_cleaned = False
            self._stale.clear()

    async def forget_deleted(self) -> None:
        """Rewrite all checkpoints on a thread without the deleted partitions, after their renames are on disk."""
        removed = dict(self._stale)
        written = [self._flusher.pool.submit(sync_directory, self._directory)]
        for _, file, offset_of_log in self._writers:
            number = file.begin()
            lines = await self._lines(offset_of_log)
            written.append(file.write_by(self._flusher.pool, lines, number))
        if self._stale_cleaned:
            self._stale_cleaned = False
            written.append(self._cleaned.save_by_thread())
        self._forgetting.append((removed, written))

    def settle_forgotten(self) -> None:
        """Process the writes that a thread has finished; raise the OSError of a failed write."""
        while self._forgetting and all(future.done() for future in self._forgetting[0][1]):
            removed, written = self._forgetting.popleft()
            for key, departure in removed.items():
                if self._stale.get(key) is departure:
                    del self._stale[key]
            for future in written:
                future.result()


def _recovery_point(log: PartitionLog) -> int:
    return log.recovery_point


def _log_start(log: PartitionLog) -> int | None:
    # A log start at a segment's base offset can be derived from the files, so only other log starts need an entry.
    start = log.earliest_offset
    return start if start > log.segments.bases[0] or (log.tier is not None and start) else None


def _high_watermark(log: PartitionLog) -> int:
    return log.high_watermark
