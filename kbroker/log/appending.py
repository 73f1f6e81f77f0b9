"""Appends to a log, as a leader and as a follower.

Owns that an append changes segments, producers and leader epochs together or not at all, and the roll to a new segment.
Never checks a batch itself (append_validation.py, record_validation.py), and never waits.
"""

from __future__ import annotations

import logging
import struct
from functools import partial

from kbroker.failpoints import passed
from kbroker.log.append_info import CLIENT, COORDINATOR, AppendError, AppendInfo, AppendOrigin
from kbroker.log.append_validation import (
    beyond_segment,
    check_header,
    check_own,
    check_replicated,
    needs_other_codec,
    needs_walk,
    stamp,
    trim,
)
from kbroker.log.producers.producer_rebuild import aborted_entry
from kbroker.log.producers.producer_state import CompletedTxn, ProducerEntry
from kbroker.log.producers.snapshot_taking import SnapshotTaking
from kbroker.log.producers.verification_guard import UNCHECKED
from kbroker.log.record_validation import Opened, is_in_order, open_at_once, open_batch
from kbroker.log.segment.segment import Segment
from kbroker.log.truncation import TruncatedLog
from kbroker.long_work import whole
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.records import CONTROL_BIT, LOG_OVERHEAD, BatchHeader, parse_header, read_marker

_put_prefix = struct.Struct(">qii").pack_into
_prefix = struct.Struct(">qii").pack
_LATEST_PRODUCE = 13
FEW_PRODUCERS = 500
"""A roll writes the snapshot of up to this many producers at once, in half a millisecond."""

logger = logging.getLogger(__name__)


class AppendableLog(TruncatedLog):
    """The part of a log that appends."""

    __slots__ = ()

    def append_as_leader(
        self,
        records: memoryview | bytes | bytearray,
        leader_epoch: int,
        now_ms: int,
        *,
        origin: AppendOrigin = CLIENT,
        request_version: int = _LATEST_PRODUCE,
        transaction_version: int = 0,
        guard: object = UNCHECKED,
        opened: Opened | None = None,
        patient: bool = True,
    ) -> AppendInfo:
        """Append one batch at the next offsets; raises AppendError, and then nothing has changed.

        Base offset and leader epoch are written into a writable buffer. `transaction_version` applies to the markers
        that end a transaction, `guard` (verification_guard.py) to the batches that open one.

        If the check of the records takes longer than a moment, a caller that is not `patient` gets TakesLonger with the
        work. The caller then passes the result as `opened`, which is valid unless the topic's settings have changed.
        """
        if self._trouble.refusal is not None:
            raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._trouble.refusal)
        rules = self._rules
        batch = memoryview(records)
        if opened is not None and opened.rules is rules:
            batch, walks = opened.batch, False
            header = parse_header(batch)
        elif origin is COORDINATOR:
            header = check_own(batch, rules)
            walks = needs_other_codec(header, rules)
        else:
            header = check_header(batch, rules, origin, request_version)
            if header[1] + LOG_OVERHEAD != len(batch):
                batch = trim(batch)
            walks = rules.checks_records or needs_walk(header, rules, now_ms)
            walks = walks and not is_in_order(batch, header, rules, now_ms)
        if walks:
            if patient:
                opened = whole(open_batch(batch, header, rules, now_ms, origin))
            else:
                opened = open_at_once(batch, header, rules, now_ms, origin)
            batch = opened.batch
            header = parse_header(batch)
        if rules.log_append_time and not header[5] & CONTROL_BIT:
            batch = stamp(batch, header, now_ms)
            header = parse_header(batch)
        size = len(batch)
        if size > rules.segment_bytes:
            raise beyond_segment(size, rules)
        if header[9] >= 0:
            return self._append_of_producer(batch, header, leader_epoch, now_ms, origin, transaction_version, guard)
        return self._write(batch, header, leader_epoch, now_ms, None)

    def _append_of_producer(
        self,
        batch: memoryview,
        header: BatchHeader,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
        guard: object,
    ) -> AppendInfo:
        producers, offset = self.producers, self.log_end_offset
        if not header[5] & CONTROL_BIT:
            repeated = producers.check_batch(header, origin, guard)
            if repeated is not None:
                first, last = repeated.first_offset, repeated.last_offset
                return AppendInfo(first, last, repeated.timestamp, self.log_start_offset, True)
            info = self._write(batch, header, leader_epoch, now_ms, None)
            producers.apply_batch(header, offset)
            return info
        try:
            marker = read_marker(batch)
        except Malformed as error:
            raise AppendError(ErrorCode.INVALID_RECORD, detail=str(error)) from error
        if marker is None:
            return self._write(batch, header, leader_epoch, now_ms, None)
        producers.check_marker(header, marker, origin, transaction_version)
        completed = producers.preview_marker(header, marker, offset)
        info = self._write(batch, header, leader_epoch, now_ms, completed)
        producers.apply_marker(header, marker, offset)
        return info

    def _write(
        self, batch: memoryview, header: BatchHeader, leader_epoch: int, now_ms: int, completed: CompletedTxn | None
    ) -> AppendInfo:
        offset = self.log_end_offset
        last_offset = offset + header[6]
        size = len(batch)
        config = self.config
        segment = self.segments.active
        try:
            if leader_epoch != self.leader_epochs.written:
                self.leader_epochs.assign(leader_epoch, offset, sync=False)
            if segment.should_roll(size, last_offset, header[8], now_ms, config.segment_bytes, self._rules.segment_ms):
                segment = self._roll(now_ms)
            if completed is not None and completed.aborted:
                # Before the marker itself: a surplus entry is taken back, a marker without an entry would be lost.
                segment.txns.append(aborted_entry(completed, self.producers))
            if batch.readonly:
                buffers = (_prefix(offset, header[1], leader_epoch), batch[16:])
                segment.append(buffers, size, last_offset, header[8])
            else:
                _put_prefix(batch, 0, offset, header[1], leader_epoch)
                segment.append((batch,), size, last_offset, header[8])
        except OSError as error:
            raise self._append_failed(error, completed, now_ms) from error
        self.log_end_offset = last_offset + 1
        if last_offset + 1 - self.recovery_point >= config.flush_messages:
            self.flush(now_ms, snapshots=False)
        return AppendInfo(offset, last_offset, now_ms if self._rules.log_append_time else -1, self.log_start_offset)

    def append_as_follower(self, batch: memoryview, now_ms: int) -> None:
        """Append one batch of the leader's, byte for byte; raises AppendError, and then nothing has changed.

        The batch keeps the leader's offset and epoch; there may be holes, as in a compacted log. An empty log that
        starts within the batch takes all of it (Kafka: ReplicaManager's UnexpectedAppendOffset). The records before the
        log start stay hidden, as at the leader.
        """
        if self._rebuilding is not None:
            self.finish_truncation()
        if self._trouble.refusal is not None:
            raise AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=self._trouble.refusal)
        header = check_replicated(batch, self.leader_epochs.latest)
        start, end = self.log_start_offset, self.log_end_offset
        if header.base_offset >= end:
            self._append_as_is(batch, header, now_ms)
        elif start == end <= header.last_offset:
            self.truncate_fully(header.base_offset, now_ms)
            try:
                self._append_as_is(batch, header, now_ms)
            except AppendError:
                self.truncate_fully(start, now_ms)
                raise
            self.log_start_offset = start
            self.high_watermark = max(self.high_watermark, start)
            self.leader_epochs.truncate_from_start(start)
        else:
            detail = f"a batch of the leader's begins at {header.base_offset}, the log ends at {end}"
            raise AppendError(ErrorCode.CORRUPT_MESSAGE, detail=detail)

    def _append_as_is(self, batch: memoryview, header: BatchHeader, now_ms: int) -> None:
        offset, producers, marker, completed = header.base_offset, self.producers, None, None
        if header.producer_id >= 0 and header.is_control:
            try:
                marker = read_marker(batch)
            except Malformed as error:
                raise AppendError(ErrorCode.CORRUPT_MESSAGE, detail=str(error)) from error
            if marker is not None:
                completed = producers.preview_marker(header, marker, offset)
        config, segment, last_offset = self.config, self.segments.active, header.last_offset
        try:
            if offset > self.log_end_offset and not self.may_have_holes:
                self._on_holes()
                self.may_have_holes = True
            if header.leader_epoch != self.leader_epochs.written:
                self.leader_epochs.assign(header.leader_epoch, offset, sync=False)
            age_ms = self._rules.segment_ms
            if segment.should_roll(
                header.size, last_offset, header.max_timestamp, now_ms, config.segment_bytes, age_ms
            ):
                segment = self._roll(now_ms)
            if completed is not None and completed.aborted:
                segment.txns.append(aborted_entry(completed, producers))  # first, as in `_write`
            segment.append((batch,), header.size, last_offset, header.max_timestamp)
        except OSError as error:
            raise self._append_failed(error, completed, now_ms) from error
        self.log_end_offset = last_offset + 1
        if marker is not None:
            producers.apply_marker(header, marker, offset)
        elif header.producer_id >= 0 and not header.is_control:
            producers.apply_batch(header, offset)
        if last_offset + 1 - self.recovery_point >= config.flush_messages:
            self.flush(now_ms, snapshots=False)

    def _append_failed(self, error: OSError, completed: CompletedTxn | None, now_ms: int) -> AppendError:
        if completed is not None and completed.aborted:
            try:
                self.segments.active.txns.truncate_to(self.log_end_offset)
            except OSError as second:
                self.refuse_appends(f"the transaction index could not be cut back after: {second}")
        self._trouble.append_failed(error, now_ms)
        return AppendError(ErrorCode.KAFKA_STORAGE_ERROR, detail=str(error))

    def roll(self, now_ms: int) -> None:
        """Begin a new segment at the end of the log, unless the last one is empty; raises OSError."""
        if self.segments.active.size:
            self._roll(now_ms)

    def _roll(self, now_ms: int) -> Segment:
        self.finish_truncation()
        old, offset = self.segments.active, self.log_end_offset
        if old.base_offset == offset:
            # An empty segment with the right base that cannot take the batch: only its age and files start again.
            old.start_again(now_ms)
            return old
        segment = self.segments.add(offset, self.config, now_ms)
        passed("roll.created")
        try:
            old.seal()
            passed("roll.sealed")
            if len(self.producers.entries) <= FEW_PRODUCERS:
                self._take_snapshot(sync=False)
            elif self.producers.taking is None:  # with many rolls, the next one takes its snapshot
                self._later(partial(self._snapshot_in_pieces, self.producers.begin_snapshot(offset)))
        except OSError as error:
            # Both only save work later: the indexes are checked, and the log contains the content of the snapshot.
            logger.warning("%s-%d: rolling at %d: %s", self.topic, self.partition, offset, error)
        return segment

    async def _snapshot_in_pieces(self, taking: SnapshotTaking[ProducerEntry]) -> None:
        producers, taken = self.producers, False
        try:
            taken = await self._snapshots.take_in_pieces(taking, lambda: producers.taking is taking)
        except OSError as error:
            logger.warning("%s-%d: snapshot of the producers: %s", self.topic, self.partition, error)
        finally:
            producers.end_snapshot(taking)
        if taken:
            self.segments.directory_changed = True  # an earlier flush has not brought it to disk
            if taking.offset not in self.segments.bases:
                self._snapshots.outlive(taking.offset)
            if taking.offset < self.segments.active.base_offset:  # no snapshot was taken for the segments rolled since
                self._later(partial(self._snapshot_in_pieces, producers.begin_snapshot(self.log_end_offset)))

    def _take_snapshot(self, *, sync: bool) -> None:
        self._snapshots.take(self.producers.entries.values(), self.log_end_offset, sync=sync)
