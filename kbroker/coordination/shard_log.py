"""The log of a coordinator's partition: appends decisions, and replays them.

Owns the order of append and replay, and the handling of a batch that is too large for the log. Also owns the way in
which a log is read when its partition is loaded. Never waits for anything, and never decides.
"""

from __future__ import annotations

import logging
import time
from collections import deque

from kbroker.coordination.encoding import marker_batch, record_batch, split
from kbroker.coordination.shard import (
    CoordinatorRecord,
    Encoded,
    EndOfTransaction,
    InTransaction,
    Outcome,
    Shard,
    UnreadableRecord,
    Writer,
)
from kbroker.long_work import turn
from kbroker.protocol.errors import ErrorCode, Malformed
from kbroker.protocol.records import iter_batches, read_marker, stream_records

log = logging.getLogger(__name__)

MAX_RECORD_BYTES = 256 << 20
_TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class ReplayError(Exception):
    """Appended records could not be applied to the shard, so its state must no longer be used."""


class ShardLog:
    """Connects shards to the partitions of one topic."""

    def __init__(self, name: str, writer: Writer) -> None:
        self._name = name
        self._writer = writer
        self.unreadable: dict[int, int] = {}
        """For each partition, the number of records that the last load could not read."""

    def append(self, partition: int, epoch: int, shard: Shard, outcome: Outcome, now_ms: int) -> tuple[ErrorCode, int]:
        """Append the records of an outcome, and replay them; return an error, and the end offset of the append.

        The offset is -1 if nothing was appended. If an append fails, a part of the list may be in the log, except if
        the list must be atomic. Raises ReplayError.
        """
        if outcome.marker is not None:
            return self._append_marker(partition, shard, outcome.marker, now_ms)
        if outcome.encoded is not None:
            return self._append_encoded(partition, epoch, outcome, outcome.encoded, now_ms)
        if outcome.atomic:
            return self._append_batch(partition, epoch, shard, outcome, outcome.records, now_ms)
        failed, end = ErrorCode.NONE, -1
        batches = deque(split(outcome.records))
        while batches:
            batch = batches.popleft()
            code, reached = self._append_batch(partition, epoch, shard, outcome, batch, now_ms)
            end = max(end, reached)
            if code in _TOO_LARGE:
                # The topic may have any size limit. One record that is too large must not stop the other records.
                half = len(batch) // 2
                if half:
                    batches.extendleft((batch[half:], batch[:half]))
                else:
                    failed = code
            elif code is not ErrorCode.NONE:
                return code, end
        return failed, end

    def _append_batch(
        self,
        partition: int,
        epoch: int,
        shard: Shard,
        outcome: Outcome,
        records: list[CoordinatorRecord],
        now_ms: int,
    ) -> tuple[ErrorCode, int]:
        producer = outcome.producer
        try:
            end = self._write(partition, record_batch(records, epoch, producer, now_ms), producer, now_ms)
        except Exception as err:  # noqa: BLE001 - named by `_why`
            return self._why(partition, err), -1
        if outcome.replay:
            producer_id = -1 if producer is None else producer.producer_id
            try:
                for offset, (key, value) in enumerate(records, end - len(records)):
                    shard.replay(offset, producer_id, key, value)
            except Exception as err:
                raise ReplayError from err
        return ErrorCode.NONE, end

    def _append_encoded(
        self,
        partition: int,
        epoch: int,
        outcome: Outcome,
        encoded: Encoded,
        now_ms: int,
    ) -> tuple[ErrorCode, int]:
        producer = outcome.producer
        try:
            end = self._write(partition, encoded.batch(epoch, producer, now_ms), producer, now_ms)
        except Exception as err:  # noqa: BLE001 - named by `_why`
            return self._why(partition, err), -1
        try:
            if outcome.apply is not None:
                outcome.apply(end - len(encoded), -1 if producer is None else producer.producer_id)
        except Exception as err:
            raise ReplayError from err
        return ErrorCode.NONE, end

    def _write(self, partition: int, data: bytes, producer: InTransaction | None, now_ms: int) -> int:
        if producer is None:
            return self._writer.append(partition, data, now_ms)
        return self._writer.append(partition, data, now_ms, guard=producer.guard)

    def _append_marker(
        self, partition: int, shard: Shard, marker: EndOfTransaction, now_ms: int
    ) -> tuple[ErrorCode, int]:
        """Append the end of a transaction, then apply it to the shard."""
        data, version = marker_batch(marker, now_ms), marker.transaction_version
        try:
            end = self._writer.append(partition, data, now_ms, transaction_version=version)
        except Exception as err:  # noqa: BLE001 - named by `_why`
            return self._why(partition, err), -1
        try:
            shard.replay_end_transaction(marker.producer_id, marker.commit)
        except Exception as err:
            raise ReplayError from err
        return ErrorCode.NONE, end

    def _why(self, partition: int, error: Exception) -> ErrorCode:
        """Return the code of a failed append."""
        code = getattr(error, "code", None)
        if not isinstance(code, ErrorCode):
            log.error("%s %d: an append failed", self._name, partition, exc_info=error)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        log.warning("%s %d: an append failed: %s", self._name, partition, error)
        return code

    def _not_read(self, partition: int, shard: Shard, offset: int, error: Exception) -> None:
        """Skip an unreadable record.

        A load logs the first unreadable record. Raises UnreadableRecord if the shard does not allow skipping.
        """
        found = self.unreadable[partition] = self.unreadable.get(partition, 0) + 1
        unreadable = UnreadableRecord(offset, error)
        if not shard.steps_over_unreadable:
            raise unreadable from error
        if found == 1:
            log.error("%s %d: %s; it is skipped", self._name, partition, unreadable)

    async def replay(self, partition: int, shard: Shard, begin: int = 0) -> int:
        """Replay the log from an offset into a shard, yielding every few records.

        Return the end offset of the replay. Raises UnreadableRecord if the shard does not skip unreadable records.
        """
        started, count, bytes_read, end = time.perf_counter(), 0, 0, begin
        self.unreadable.pop(partition, None)
        replay = shard.replay
        for chunk in self._writer.read(partition, begin):
            bytes_read += len(chunk)
            for position, header in iter_batches(chunk):
                end = header.last_offset + 1
                batch = chunk[position : position + header.size]
                producer_id = header.producer_id if header.is_transactional else -1
                if header.is_control:
                    marker = read_marker(batch)
                    if marker is not None:
                        shard.replay_end_transaction(header.producer_id, marker.commit)
                    continue
                for record in stream_records(batch, max_bytes=MAX_RECORD_BYTES):
                    if record is None:
                        await turn
                        continue
                    count += 1
                    if record.key is not None:
                        try:
                            replay(record.offset, producer_id, record.key, record.value)
                        except (Malformed, ValueError) as err:
                            self._not_read(partition, shard, record.offset, err)
                    if not count & 127:
                        await turn
            await turn
        more = self.unreadable.get(partition, 1) - 1
        if more:
            log.error("%s %d: %d more records were skipped", self._name, partition, more)
        seconds = time.perf_counter() - started
        if count:
            log.info("%s %d: %d records, %d bytes loaded in %.3f s", self._name, partition, count, bytes_read, seconds)
        return end
