"""The part of a log that can be cleaned, and the urgency of the cleaning.

Owns the rules of LogCleanerManager.cleanableOffsets and LogToClean: the start of the dirty part, the segments that must
not be cleaned yet, the dirty ratio, and the choice of the log to clean first. Never changes a log.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Final

from kbroker.log.batch_scan import read_header
from kbroker.log.cleaner.job_format import CleaningJob
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.segment import Segment

_NO_LIMIT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Cleanable:
    """The cleaner's view of one log; absolute offsets, sizes in bytes."""

    log: PartitionLog
    first_dirty: int
    upper: int
    """The base offset of the first segment that must not be cleaned."""
    clean_bytes: int
    dirty_bytes: int
    overdue: bool
    """Whether max.compaction.lag.ms requires cleaning, independent of the dirty ratio."""

    @property
    def ratio(self) -> float:
        """The share of dirty bytes in the cleanable bytes."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    @property
    def is_due(self) -> bool:
        """Whether the log is dirty enough, or has been dirty for too long."""
        return self.dirty_bytes > 0 and (self.overdue or self.ratio > self.log.config.min_cleanable_dirty_ratio)

    def precedes(self, other: Cleanable | None) -> bool:
        """Whether this log is due and must be cleaned before `other`: the log with the larger dirty share is first."""
        return self.is_due and (other is None or self.ratio > other.ratio)


def examine(log: PartitionLog, cleaned_to: int | None, now_ms: int) -> Cleanable:
    """Examine a log. The log is cleaned up to `cleaned_to` (None if it was never cleaned). Raises OSError."""
    first_dirty = log.log_start_offset if cleaned_to is None else cleaned_to
    if not log.log_start_offset <= first_dirty <= log.log_end_offset:
        first_dirty = log.log_start_offset
    start = log.segments.index_at(first_dirty)
    clean, dirty = log.segments[:start], log.segments[start:-1]
    limit = min(log.last_stable_offset, log.mature_end(now_ms), log.segments.active.base_offset)
    config = log.config
    if config.min_compaction_lag_ms > 0:
        young = (
            segment.base_offset for segment in dirty if segment.max_timestamp > now_ms - config.min_compaction_lag_ms
        )
        limit = min(limit, next(young, limit))
    upper = log.segments.bases[log.segments.index_at(limit)]
    return Cleanable(
        log,
        first_dirty,
        upper,
        sum(segment.size for segment in clean),
        sum(segment.size for segment in dirty if segment.base_offset < upper),
        _is_overdue(dirty, upper, now_ms, config.max_compaction_lag_ms),
    )


def _is_overdue(dirty: list[Segment], upper: int, now_ms: int, max_lag_ms: int) -> bool:
    if max_lag_ms >= _NO_LIMIT:
        return False
    for segment in dirty:
        if segment.base_offset < upper and segment.size:
            first = read_header(segment.handle, 0, segment.size)
            if first is not None and 0 < first.max_timestamp < now_ms - max_lag_ms:
                return True
    return False


async def make_job(cleanable: Cleanable, now_ms: int, map_bytes: int, io_bytes: int) -> CleaningJob | None:
    """Return the job to clean a log; None if the log has lost segments meanwhile. Raises OSError."""
    log = cleanable.log
    config = log.config
    upper = cleanable.upper
    known = log.segments.bases[0], log.truncations
    aborted = await log.aborted_before(upper)
    if known != (log.segments.bases[0], log.truncations):
        return None
    segments = log.segments[: bisect_left(log.segments.bases, upper)]
    return CleaningJob(
        directory=log.directory,
        segments=[(segment.base_offset, segment.size) for segment in segments],
        first_dirty=cleanable.first_dirty,
        upper=upper,
        aborted=aborted,
        producers=_live_producers(log, upper),
        now_ms=now_ms,
        delete_retention_ms=config.delete_retention_ms,
        segment_bytes=config.segment_bytes,
        index_bytes=config.segment_index_bytes,
        index_interval=config.index_interval_bytes,
        map_bytes=map_bytes,
        io_bytes=io_bytes,
        max_message_bytes=log.config.max_message_bytes,
    )


def _live_producers(log: PartitionLog, upper: int) -> list[tuple[int, int | None, int]]:
    producers = []
    for entry in log.producers.entries.values():
        last = entry.batches[-1].last_offset if entry.batches else None
        if last is None or last < upper:
            producers.append((entry.producer_id, last, entry.producer_epoch))
    return producers
