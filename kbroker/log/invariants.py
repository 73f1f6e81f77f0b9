"""The invariants of a partition's log as assertions, for tests: KBROKER_VERIFY=1.

Owns `log_class`, which returns the class of logs to open, and VerifiedLog, which checks itself. Without the variable
`log_class` returns PartitionLog, so that the checks cost nothing. Never repairs anything.
"""

from __future__ import annotations

import os
from itertools import pairwise
from typing import Any

from kbroker.log.append_info import AppendInfo
from kbroker.log.partition_log import PartitionLog
from kbroker.log.segment.segment import Segment

VARIABLE = "KBROKER_VERIFY"


def log_class() -> type[PartitionLog]:
    """Return the class of logs to open: VerifiedLog if KBROKER_VERIFY=1 is set, otherwise PartitionLog."""
    return VerifiedLog if os.environ.get(VARIABLE) == "1" else PartitionLog


class VerifiedLog(PartitionLog):
    """A PartitionLog that raises AssertionError as soon as its state is inconsistent."""

    __slots__ = ()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        check_log(self)

    def append_as_leader(self, *arguments: Any, **options: Any) -> AppendInfo:
        end = self.log_end_offset
        info = super().append_as_leader(*arguments, **options)
        if not info.duplicate:
            assert info.base_offset == end, f"appended at {info.base_offset}, the log ended at {end}"
            assert info.last_offset == self.log_end_offset - 1 >= end, f"{info.last_offset} of {self.log_end_offset}"
        check_end(self)
        return info

    def append_as_follower(self, batch: memoryview, now_ms: int) -> None:
        end = self.log_end_offset
        super().append_as_follower(batch, now_ms)
        assert self.log_end_offset > end, f"the log ends at {self.log_end_offset}, not behind {end}"
        check_end(self)

    def _roll(self, now_ms: int) -> Segment:
        segment = super()._roll(now_ms)
        check_log(self)
        return segment

    def set_high_watermark(self, offset: int) -> None:
        super().set_high_watermark(offset)
        check_offsets(self)

    def advance_log_start(self, offset: int, now_ms: int = 0) -> bool:
        start = self.log_start_offset
        moved = super().advance_log_start(offset, now_ms)
        assert self.log_start_offset >= start, f"the log start went back from {start} to {self.log_start_offset}"
        check_log(self)
        return moved

    def truncate_to(self, offset: int, now_ms: int = 0) -> None:
        super().truncate_to(offset, now_ms)
        end = self.log_end_offset
        assert end <= max(offset, self.log_start_offset), f"{end} after a cut at {offset}"
        check_log(self)

    def truncate_fully(self, offset: int, now_ms: int = 0) -> None:
        super().truncate_fully(offset, now_ms)
        check_log(self)

    async def delete_old_segments(self, now_ms: int) -> int:
        end, high_watermark, truncations = self.log_end_offset, self.high_watermark, self.truncations
        deleted = await super().delete_old_segments(now_ms)
        # Other callers may append or truncate between the slices.
        if self.truncations == truncations:
            assert self.log_end_offset >= end, f"retention moved the end from {end} to {self.log_end_offset}"
            text = f"retention went beyond the high watermark {high_watermark}"
            assert self.log_start_offset <= high_watermark, text
        check_log(self)
        return deleted


def check_offsets(log: PartitionLog) -> None:
    """Assert log start <= last stable offset <= high watermark <= end."""
    start, stable, high, end = log.log_start_offset, log.last_stable_offset, log.high_watermark, log.log_end_offset
    assert 0 <= start <= stable <= high <= end, f"start {start}, stable {stable}, high watermark {high}, end {end}"
    assert log.recovery_point <= end, f"recovery point {log.recovery_point}, end {end}"


def check_end(log: PartitionLog) -> None:
    """Assert all conditions that an append may have changed."""
    if log.failed:
        return  # the log has already reported that its files cannot be trusted
    check_offsets(log)
    assert log.segments.active is log.segments[-1], "the active segment is not the last one"
    _check_segment(log.segments.active)


def check_log(log: PartitionLog) -> None:
    """Assert all conditions that can be checked without reading a log file."""
    if log.failed:
        return
    check_end(log)
    bases = [segment.base_offset for segment in log.segments]
    assert log.segments.bases == bases, f"{log.segments.bases} are not the bases {bases}"
    assert all(a < b for a, b in pairwise(bases)), f"bases are not in order: {bases}"
    assert bases[0] <= log.log_start_offset, f"log start {log.log_start_offset} lies before {bases[0]}"
    assert bases[-1] <= log.log_end_offset, f"end {log.log_end_offset} lies before {bases[-1]}"
    for segment in log.segments[:-1]:
        _check_segment(segment)
    entries = log.leader_epochs.entries
    assert all(a < c and b < d for (a, b), (c, d) in pairwise(entries)), f"epochs {entries}"
    assert not entries or entries[-1][1] <= log.log_end_offset, f"epochs {entries}, end {log.log_end_offset}"


def _check_segment(segment: Segment) -> None:
    size = os.stat(segment.path()).st_size
    assert size == segment.size, f"{segment.path()} has {size} bytes, not {segment.size}"
    if segment.indexes.is_open:
        offsets, times = segment.indexes.open()
        assert offsets.in_order(), f"{segment.path()}: the offset index is not in order"
        assert offsets.last is None or offsets.last[1] < segment.size, f"{segment.path()}: the offset index is too long"
        assert times.in_order(), f"{segment.path()}: the time index is not in order"
