"""Truncates a log, or restarts it at another offset.

Owns the order of the steps, so that no append follows a crash or an error half-way, and the rebuilding of the producers
afterwards, in pieces. Never decides the offset: followers do, from their leaders' answers.
"""

from __future__ import annotations

from typing import Final

from kbroker.log.append_info import AppendError
from kbroker.log.log_state import LogState
from kbroker.log.producers.producer_rebuild import rebuild_in_pieces
from kbroker.log.producers.producer_state import ProducerState
from kbroker.log.segment.segment import Segment
from kbroker.long_work import step, turn
from kbroker.protocol.errors import ErrorCode

AT_ONCE: Final = 8
"""Segments deleted in one go: each takes five renames, so that this takes about a millisecond."""


class TruncatedLog(LogState):
    """The part of a log that truncates it."""

    __slots__ = ()

    def truncate_to(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything from `offset` on, in whole batches. Raises OSError, or AppendError after an earlier one."""
        self._cut(offset, now_ms)
        self.finish_truncation()

    async def truncate_in_pieces(self, offset: int, now_ms: int = 0) -> None:
        """Do the same as `truncate_to`, some segments at a time, and with long reads in pieces.

        The log can be read meanwhile. If this is interrupted, `finish_truncation` must be called before the next
        leader's append; other methods that need it call it themselves.
        """
        while len(self.segments) > AT_ONCE and self.segments.bases[-AT_ONCE] > offset:
            self._cut(self.segments.bases[-AT_ONCE], now_ms)
            await turn
        self._cut(offset, now_ms)
        await self._finishing()

    async def _finishing(self) -> None:
        """Do the rest of a truncation, in pieces."""
        work = self._rebuilding
        while work is not None and self._rebuilding is work:
            if step(work):
                break
            await turn

    def finish_truncation(self) -> None:
        """Do the rest of a truncation at once, unless it has failed before."""
        work = self._rebuilding
        while work is not None and not step(work):
            pass

    def _cut(self, offset: int, now_ms: int) -> None:
        self._require_whole()
        if offset >= self.log_end_offset:
            # A leader without appends has left its epoch here, which its successor's log does not have.
            self.leader_epochs.truncate_from_end(self.log_end_offset, sync=False)
            return
        segments = self.segments
        if offset <= segments.bases[0]:
            self._cut_fully(offset, now_ms)
            return
        segments[segments.index_at(offset - 1)].prepare_cut(offset)
        self.truncations += 1
        try:
            while segments.bases[-1] >= offset:
                self._remove(segments[-1], now_ms)
            segments.active.truncate_to(offset)
            self._set_end(segments.active.become_active())
        except OSError as error:
            self._cut_half_way(error)
            raise

    def _cut_half_way(self, error: OSError) -> None:
        # This process no longer knows what is left; an append after the removed part would leave a hole.
        self.refuse_appends(f"a truncation did not come to its end: {error}")

    def truncate_fully(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything and restart at `offset`."""
        self._cut_fully(offset, now_ms)
        self.finish_truncation()

    async def truncate_fully_in_pieces(self, offset: int, now_ms: int = 0) -> None:
        """Do the same as `truncate_fully`, oldest segments first and some at a time, as in a deletion.

        If this is interrupted, the log continues with the remaining segments.
        """
        await self._finishing()  # it may read segments that are about to be deleted
        while len(self.segments) > AT_ONCE:
            self.log_start_offset = self.segments.bases[AT_ONCE]
            self.set_high_watermark(self.high_watermark)
            gone = self.segments.remove_first(AT_ONCE, self.config, now_ms)
            self.segments.doomed.add_garbage([self._snapshots.forget(segment.base_offset) for segment in gone])
            await turn
        self.truncate_fully(offset, now_ms)

    def _require_whole(self) -> None:
        if self._trouble.refusal is not None:
            raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._trouble.refusal)

    def _cut_fully(self, offset: int, now_ms: int) -> None:
        self._require_whole()
        self.truncations += 1
        try:
            for segment in list(self.segments):
                self._remove(segment, now_ms)
            self.segments.add(offset, self.config, now_ms)
            self.log_start_offset = offset
            self._set_end(offset)
            self.leader_epochs.clear()
        except OSError as error:
            self._cut_half_way(error)
            raise

    def _set_end(self, offset: int) -> None:
        self.producers.taking = None
        self.log_end_offset = offset
        self.log_start_offset = min(self.log_start_offset, offset)
        self.recovery_point = min(self.recovery_point, offset)
        self.high_watermark = min(max(self.high_watermark, self.log_start_offset), offset)
        self.leader_epochs.truncate_from_end(offset, sync=False)
        self._snapshots.remove_outside(-1, offset)
        if self._rebuilding is not None:
            self._rebuilding.close()
        self._rebuilding = self._rebuild(offset)

    async def _rebuild(self, end_offset: int) -> None:
        """Rebuild the producers. Until then the old state applies, which knows every open transaction."""
        fresh = ProducerState()
        try:
            await rebuild_in_pieces(fresh, self._snapshots, list(self.segments.items), end_offset)
        except OSError as error:
            self.refuse_appends(f"the producers could not be found again: {error}")
            raise
        fresh.on_high_watermark(self.high_watermark)
        self.producers = fresh
        self._rebuilding = None

    def _remove(self, segment: Segment, now_ms: int) -> None:
        self.segments.remove(segment, self.config, now_ms)
        self._snapshots.remove(segment.base_offset)
