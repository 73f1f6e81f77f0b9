"""A log that is cut back, or begins again elsewhere.

Owns the order in which that is done, so that a crash or an error half-way leaves nothing that is appended to, and the
producers that are found again behind it, in pieces. Never decides where: followers do, as
their leaders say.
"""

from __future__ import annotations

from typing import Final

from kbroker.log.append_info import AppendError
from kbroker.log.log_state import LogState
from kbroker.log.producers.producer_rebuild import rebuild_in_pieces
from kbroker.log.producers.producer_state import ProducerState
from kbroker.log.segment.segment import Segment
from kbroker.long_work import step, turn, whole
from kbroker.protocol.errors import ErrorCode

AT_ONCE: Final = 8
"""Segments deleted in one go: each takes five renames, so that this is about a millisecond."""


class TruncatedLog(LogState):
    """The part of a log that cuts it."""

    __slots__ = ()

    def truncate_to(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything from `offset` on; batches are removed whole. Raises OSError, or AppendError after one."""
        self._cut(offset, now_ms)
        self.finish_truncation()

    async def truncate_in_pieces(self, offset: int, now_ms: int = 0) -> None:
        """Do as `truncate_to`: some segments at a time, and in pieces what is to be read, which may be a whole segment.

        It can be read meanwhile. If this is not carried to its end, `finish_truncation` comes before the next leader's
        append; all else that needs it calls for it.
        """
        while len(self.segments) > AT_ONCE and self.segments.bases[-AT_ONCE] > offset:
            self._cut(self.segments.bases[-AT_ONCE], now_ms)
            await turn
        self._cut(offset, now_ms)
        await self._finishing()

    async def _finishing(self) -> None:
        """Do what is left of a truncation, in pieces."""
        work = self._rebuilding
        while work is not None and self._rebuilding is work:
            if step(work):
                break
            await turn

    def finish_truncation(self) -> None:
        """Do at once what is left of a truncation."""
        if self._rebuilding is not None:
            whole(self._rebuilding)

    def _cut(self, offset: int, now_ms: int) -> None:
        self._require_whole()
        if offset >= self.log_end_offset:
            # A leader that wrote nothing has left its epoch here, of which its successor's log knows nothing.
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
        # What is still there is not known to this process; to append behind what is gone would leave a hole.
        self.refuse_appends(f"a truncation did not come to its end: {error}")

    def truncate_fully(self, offset: int, now_ms: int = 0) -> None:
        """Remove everything and go on at `offset`."""
        self._cut_fully(offset, now_ms)
        self.finish_truncation()

    async def truncate_fully_in_pieces(self, offset: int, now_ms: int = 0) -> None:
        """Do as `truncate_fully`, the oldest segments first and some at a time, as if they were deleted.

        If this is not carried to its end, the log goes on with what is left of it.
        """
        await self._finishing()  # it may read what is about to go
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
        """Find the producers again. Until then those of before tell, to whom no transaction seems too far."""
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
