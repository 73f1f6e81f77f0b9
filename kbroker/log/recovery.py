"""Opens a partition's directory, in any state.

Owns the order of the steps (Kafka's LogLoader): remaining files of interrupted work, segments, the search for the first
bad batch after an unclean stop, and the producers' state. Never runs after the log is open, and never reads before the
recovery point.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from kbroker.failpoints import passed
from kbroker.log.batch_scan import read_header, scan_batches
from kbroker.log.files import DELETED_SUFFIX, remove_quietly, sync_directory
from kbroker.log.leader_epochs import LeaderEpochCache
from kbroker.log.log_config import LogConfig
from kbroker.log.log_segments import Segments
from kbroker.log.open_files import OpenFiles
from kbroker.log.producers.producer_rebuild import aborted_entry, apply_to_producers, rebuild_producers
from kbroker.log.producers.producer_snapshots import Snapshots
from kbroker.log.producers.producer_state import CompletedTxn, ProducerState
from kbroker.log.segment.index_files import MAX_RELATIVE_OFFSET
from kbroker.log.segment.segment import Segment
from kbroker.log.segment_swap import settle_swap
from kbroker.protocol.errors import Malformed
from kbroker.protocol.records import BatchHeader, compute_crc

_BEYOND_ALL = 2**63
_OPEN_WHILE_LOADING = 4
"""The maximum number of segments with open files during loading, which reads single segments and their neighbours."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class LoadedLog:
    """The state loaded from a directory; offsets are absolute."""

    segments: Segments
    epochs: LeaderEpochCache
    producers: ProducerState
    snapshots: Snapshots
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


@dataclass(frozen=True, slots=True)
class LastStop:
    """The state of a log when its directory was last in use, as read from the checkpoints. Offsets are absolute."""

    clean: bool = True
    recovery_point: int = 0
    log_start_offset: int = 0
    high_watermark: int = 0
    compacted: bool = False
    """Whether the log has ever been compacted, and may have holes."""
    uncompacted_from: int | None = None
    """Segments that begin at or after this offset have no holes; None if that is unknown."""


NEW_LOG: Final = LastStop()


def load_log(
    directory: str,
    config: LogConfig,
    stop: LastStop,
    files: OpenFiles,
    now_ms: int,
    *,
    holes: bool,
    progress: Callable[[int], None] | None,
) -> LoadedLog:
    """Load a partition. After an unclean stop, check all batches from the recovery point on.

    `holes` means that there may be holes between offsets, independent of the topic's current cleanup.policy. `progress`
    is called with the number of bytes that recovery has read. No file is open at the end; `files` limits the open files
    from then on. Until then the load has its own limit, because several logs may be loaded at the same time, each on
    its thread.
    """
    for name in os.listdir(directory):  # the remaining files of deletions
        if name.endswith((DELETED_SUFFIX, ".tmp")):
            remove_quietly(f"{directory}/{name}")
    settle_swap(directory)
    loader = _Loader(directory, config, now_ms, OpenFiles(_OPEN_WHILE_LOADING), holes, stop.uncompacted_from)
    clean, recovery_point, log_start_offset = stop.clean, stop.recovery_point, stop.log_start_offset
    segments = loader.segments
    if not clean:
        loader.snapshots.doubt(recovery_point)
    producers_end = 0 if clean else loader.recover(recovery_point, progress)
    log_end = segments.active.become_active(recovery_point if clean else 0)
    if not segments.active.ends_whole:
        # The mark of a clean stop was wrong: another process has written to the file since then.
        producers_end = loader.recover(segments.active.base_offset)
        log_end = segments.active.become_active()
    if clean and log_end < recovery_point:
        logger.warning("%s ends at %d, where a clean stop had left %d", directory, log_end, recovery_point)
    if log_end < log_start_offset:
        # All records from the log start offset on are lost. The older records, deleted by DeleteRecords, must not
        # reappear.
        loader.start_afresh(log_start_offset)
        log_end = producers_end = segments.active.become_active()
    log_start = max(log_start_offset, segments.bases[0])
    loader.epochs.truncate_from_end(log_end)
    # Epochs of records in remote storage are needed to find these records.
    loader.epochs.truncate_from_start(log_start_offset if config.remote_storage_enable else log_start)
    loader.snapshots.remove_stray(segments.bases)
    if producers_end != log_end or clean:
        loader.snapshots.remove_outside(-1, log_end)
        rebuild_producers(loader.producers, loader.snapshots, segments.items, log_end)
    segments.use(files)
    return LoadedLog(
        segments,
        loader.epochs,
        loader.producers,
        loader.snapshots,
        log_start,
        log_end,
        log_end if clean else min(recovery_point, log_end),
    )


class _Loader:
    __slots__ = (
        "_compacted", "_config", "_directory", "_now_ms", "_uncompacted_from", "epochs", "producers", "segments",
        "snapshots",
    )  # fmt: skip

    def __init__(
        self,
        directory: str,
        config: LogConfig,
        now_ms: int,
        files: OpenFiles,
        compacted: bool,
        uncompacted_from: int | None,
    ) -> None:
        self._directory = directory
        self._compacted = compacted
        self._uncompacted_from = uncompacted_from
        self._config = config
        self._now_ms = now_ms
        self.epochs = LeaderEpochCache(directory)
        self.producers = ProducerState()
        self.snapshots = Snapshots(directory)
        self.segments = Segments(directory, config, now_ms, files)

    def start_afresh(self, offset: int) -> None:
        """Delete all segments and begin at `offset`."""
        self.segments.remove_behind(-1)
        self.segments.add(offset, self._config, self._now_ms)
        self.epochs.clear()
        self.snapshots.remove_outside(_BEYOND_ALL, -1)
        self.producers.reset([])

    def _remove_behind(self, index: int) -> None:
        """Durably remove the segments after one that will be truncated: they must not outlive the truncated batches."""
        self.segments.remove_behind(index)
        sync_directory(self._directory)
        passed("recovery.cut")

    def recover(self, recovery_point: int, progress: Callable[[int], None] | None = None) -> int:
        """Check all batches from the recovery point's segment on; truncate the log at the first bad batch.

        Return the offset up to which the producers' state is known.
        """
        if self.segments.were_none:
            return 0
        if recovery_point > self.segments.active.become_active():
            recovery_point = 0  # the checkpoint does not belong to this log
        first = self.segments.index_at(recovery_point)
        end, was_whole = self.segments.bases[first], True
        rebuild_producers(self.producers, self.snapshots, self.segments[:first], end)
        for index in range(first, len(self.segments)):
            segment = self.segments[index]
            # Only compaction leaves holes; appends do not. Compaction never changes the last segment, and unflushed
            # segments have probably not been compacted. Without a recovery point this is unknown.
            is_known = recovery_point > 0 or segment is self.segments.active
            gapless = not self._compacted and is_known
            follows = gapless or (is_known and index > first and was_whole and self._is_uncompacted(index - 1))
            if follows and index > first and segment.base_offset > end:
                logger.warning("%s does not continue the segment before it, and is removed", segment.path())
                self._remove_behind(index - 1)
                break
            end = max(end, segment.base_offset)
            # A snapshot from before the crash may be wrong about later offsets.
            self.snapshots.remove_outside(-1, segment.base_offset)
            # The snapshot is not synced here: its CRC shows damage, and the flush that moves the recovery point syncs
            # it.
            self.snapshots.take(self.producers.entries.values(), end, sync=False)
            size = segment.size
            after = self.segments[index + 1] if segment is not self.segments.active else None
            before_cut = partial(self._remove_behind, index)
            found, was_whole = recover_segment(
                segment, self.producers, self.epochs, before_cut, gapless=gapless, after=after
            )
            end = max(end, found)
            passed("recovery.checked")
            if progress is not None:
                progress(size)
            if segment.size < size:
                logger.warning("%s is cut off at %d of %d bytes", segment.path(), segment.size, size)
                break
        for segment in self.segments[first:-1]:
            segment.seal()
        return end

    def _is_uncompacted(self, index: int) -> bool:
        """Whether a segment was never compacted.

        If such a segment ends before the next segment, a power loss has cut it. The result is also right if a crash
        prevented the checkpoint of a compaction: kbroker's compaction keeps the last batch of a replaced segment, and
        after Kafka's compaction a segment seldom has a record at every offset.
        """
        known = self._uncompacted_from
        return known is not None and self.segments.bases[index] >= known


def recover_segment(
    segment: Segment,
    producers: ProducerState,
    epochs: LeaderEpochCache,
    before_cut: Callable[[], None],
    *,
    gapless: bool,
    after: Segment | None = None,
) -> tuple[int, bool]:
    """Read every batch of a segment, rebuild all its indexes, and truncate it at the first bad batch.

    Return the segment's end, and whether it has a record at every offset up to that end, like an uncompacted segment.
    `before_cut` is called before a truncation: after a crash between the call and the truncation, the bad batch still
    exists, and the next start does both again. `after` is the next segment.
    """

    def note(completed: CompletedTxn) -> None:
        if completed.aborted:
            segment.txns.append(aborted_entry(completed, producers))

    segment.begin_recovery()
    file = segment.handle
    end, next_offset, is_whole = 0, segment.base_offset, True
    for position, header, batch in scan_batches(file, 0, segment.size):
        if not _is_sound(header, batch, next_offset, segment.base_offset):
            break
        if header.base_offset > next_offset or header.leader_epoch > epochs.latest:
            # The CRC does not cover the offset and the epoch. Both may be right: compaction leaves holes, and epochs
            # grow. But the next batch may contradict them.
            behind = read_header(file, position + header.size, segment.size)
            if behind is not None and not _may_follow(behind, header):
                break
            if gapless and header.base_offset > next_offset:
                break
        try:
            apply_to_producers(producers, header, batch.toreadonly, note)
        except Malformed:
            break
        # A batch that compaction has emptied still has a timestamp, but no record with this timestamp.
        segment.indexes.note(position, header.last_offset, header.max_timestamp if header.record_count else -1)
        if header.leader_epoch > epochs.latest and not _is_denied(header, position, segment, after):
            epochs.assign(header.leader_epoch, header.base_offset)
        is_whole = is_whole and header.base_offset + header.record_count == header.last_offset + 1
        is_whole = is_whole and header.base_offset == next_offset
        end = position + header.size
        next_offset = header.last_offset + 1
    if end < segment.size:
        before_cut()
    segment.end_recovery(end)
    return next_offset, is_whole


def _is_denied(header: BatchHeader, position: int, segment: Segment, after: Segment | None) -> bool:
    """Whether the next segment begins with an older leader epoch than the epoch in this segment's last batch."""
    if after is None or position + header.size < segment.size:
        return False
    behind = read_header(after.handle, 0, after.size)
    return behind is not None and behind.leader_epoch < header.leader_epoch


def _may_follow(header: BatchHeader, before: BatchHeader) -> bool:
    return header.base_offset > before.last_offset and header.leader_epoch >= before.leader_epoch


def _is_sound(header: BatchHeader, batch: memoryview, next_offset: int, base_offset: int) -> bool:
    return (
        header.base_offset >= next_offset
        and header.last_offset_delta >= 0
        and header.last_offset - base_offset <= MAX_RELATIVE_OFFSET
        and header.record_count >= 0
        and header.crc == compute_crc(batch)
    )
