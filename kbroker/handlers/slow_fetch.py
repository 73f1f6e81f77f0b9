"""A Fetch request that reads views or remote storage, perhaps together with other partitions.

Owns the wait of such a request, and the answer for a view's partition and for records in remote storage.

If other partitions have records, the request does not wait for remote storage: the missing records are fetched
meanwhile, for a later request. The partitions keep their order, so that each partition is sometimes the first, and gets
records.

An answer for a view never ends with batches without records: clients would send the next request immediately, and never
reach the view's end. Instead the request waits until a record matches or `max_wait_ms` is over. The broker remembers
the ranges that it has scanned (views/). The high watermark and the last stable offset of a view are directly after its
last match, so that clients see no lag at the view's end.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from kbroker.handlers.fetch_attempt import Fetch, Item, diverging, is_due
from kbroker.handlers.fetch_session import Key
from kbroker.handlers.services import Services
from kbroker.log.log_slice import LogSlice
from kbroker.long_work import turn
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.fetch import AbortedTransaction, FetchPartition, FetchResponse, PartitionData
from kbroker.tiers.metadata import Owner
from kbroker.tiers.reading import NOT_YET
from kbroker.views.hosted_views import HostedView, HostedViews

_LOOK_S: Final = 0.02
"""The time in s between two checks whether the missing records of remote storage have arrived."""
_SLICE_SECONDS: Final = 0.05
"""The time for which a partition is scanned before the request's next partition has its turn."""


class SlowFetch:
    """A Fetch in progress."""

    def __init__(self, work: Fetch, services: Services) -> None:
        self._work = work
        self._views: HostedViews = services.views
        self._tiers = services.tiers
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + max(work.max_wait_ms, 0) / 1000
        self._is_poked = False
        self._remote_until = 0.0
        self._waiting: asyncio.Future[None] | None = None
        self._waits_on: list[Partition] = []
        self._waits_for: dict[HostedView, None] = {}
        self._matures_at = math.inf

    async def run(self) -> FetchResponse:
        """Return the response when it is due."""
        work = self._work
        try:
            if work.hold:
                for partition in work.partitions:
                    work.waiters_of(partition)[self] = None
                    self._waits_on.append(partition)
                    await turn
            is_new = True
            while True:
                self._is_poked = False
                found, is_ready = await self._attempt(is_new=is_new)
                if is_ready or self._loop.time() >= self._until:
                    return await work.answer_many(found)
                is_new = False
                await self._wait()
        finally:
            for partition in self._waits_on:
                work.waiters_of(partition).pop(self, None)
            for view in self._waits_for:
                view.scan.stop_waiting(view.selection, self)

    def poke(self) -> None:
        """Read again soon, because something has changed."""
        self._is_poked = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _wait(self) -> None:
        if self._is_poked:
            await turn
            return
        self._waiting = self._loop.create_future()
        timer = self._loop.call_at(min(self._until, self._matures_at), self.poke)
        self._work.traffic.delayed_fetches += 1
        try:
            await self._waiting
        finally:
            self._work.traffic.delayed_fetches -= 1
            timer.cancel()
            self._waiting = None

    async def _attempt(self, *, is_new: bool) -> tuple[list[PartitionData], bool]:
        """Read all partitions. Return the results, and whether the response is due."""
        work = self._work
        found: dict[Key, PartitionData] = {}
        size, urgent, readable = 0, False, False
        self._matures_at = math.inf
        self._remote_until = self._loop.time() + work.remote_wait_s
        late: list[Item] = []
        for item in work.items:
            key, want, partition = item
            left = max(0, work.max_bytes - size)
            if partition is None and key in work.views:
                data = await self._read_view(key, want, left, is_first=not size)
                readable |= not data.error_code
            elif partition is not None and key in work.remote:
                readable = True
                data = await self._read_remote(key, want, partition, left, is_first=not size, until=0.0)
                if not (data.records or data.error_code):
                    late.append(item)
            else:
                readable |= partition is not None
                work.matures_in_ms = math.inf
                data = work.read(key, want, partition, left, not size, is_new)
                self._matures_at = min(self._matures_at, self._loop.time() + work.matures_in_ms / 1000)
            if data.records:
                size += len(data.records)
                # A read of remote storage ends with a chunk or a segment: a wait would add no data.
                urgent |= key in work.remote or (isinstance(data.records, LogSlice) and data.records.cut_short)
            urgent |= bool(data.error_code) or data.diverging_epoch is not None or data.preferred_read_replica >= 0
            found[key] = data
            await turn
        for key, want, partition in late:
            if size or partition is None:
                break
            left = max(0, work.max_bytes - size)
            until = self._remote_until
            found[key] = data = await self._read_remote(key, want, partition, left, is_first=True, until=until)
            size += len(data.records or b"")
            urgent |= bool(data.records or data.error_code)
        urgent |= work.has_moved
        return [found[item[0]] for item in work.items], is_due(size, work.min_bytes, urgent, work.hold) or not readable

    async def _read_remote(
        self, key: Key, want: FetchPartition, partition: Partition, left: int, *, is_first: bool, until: float
    ) -> PartitionData:
        """Read a partition from remote storage, and wait for the records up to a time of the loop's clock."""
        work, partition_log = self._work, partition.log
        partition.traffic.fetches += 1
        code = work.refusal(partition, want)
        if code or self._tiers is None:
            return work.failed(key[2], code or ErrorCode.KAFKA_STORAGE_ERROR)
        owner = Owner(partition.topic, partition.topic_id, partition.index)
        try:
            epoch = diverging(partition, want) if want.last_fetched_epoch >= 0 else None
            found = NOT_YET
            if epoch is None:
                found = await self._tiers.reader.read(
                    owner,
                    partition_log,
                    want.fetch_offset,
                    min(want.partition_max_bytes, left),
                    min_one=is_first,
                    committed=work.committed_only,
                    until=until,
                )
        except ApiError as error:
            return work.failed(key[2], error.code)
        except OSError as error:
            partition_log.report_failure(error)
            return work.failed(key[2], ErrorCode.KAFKA_STORAGE_ERROR)
        if found is NOT_YET and epoch is None:
            self._matures_at = min(self._matures_at, self._loop.time() + _LOOK_S)
        aborted = [AbortedTransaction(*each) for each in found.aborted] if work.committed_only else None
        return PartitionData(
            key[2], 0, partition_log.high_watermark, partition_log.last_stable_offset, partition_log.earliest_offset,
            epoch, None, None, aborted, -1, found.records,
        )  # fmt: skip

    async def _read_view(self, key: Key, want: FetchPartition, left: int, *, is_first: bool) -> PartitionData:
        work = self._work
        try:
            view = self._views.find(work.name_of(key), key[2])
            if view is None:
                return work.missing(key)
            code = work.refusal(view.partition, want)
            if code:
                return work.failed(key[2], code)
            view.traffic.fetches += 1
            return await self._read(view, want, min(want.partition_max_bytes, left), is_first=is_first)
        except ApiError as error:
            return work.failed(key[2], error.code)

    async def _read(self, view: HostedView, want: FetchPartition, limit: int, *, is_first: bool) -> PartitionData:
        """Read a partition of a view. Raises ApiError."""
        work, partition, scan, selection = self._work, view.partition, view.scan, view.selection
        source, start = partition.log, want.fetch_offset
        records, end, aborted = b"", start, None
        until = self._loop.time() + _SLICE_SECONDS
        try:
            preferred = work.preferred(partition, start)
            epoch = diverging(partition, want) if preferred is None and want.last_fetched_epoch >= 0 else None
            if preferred is None and epoch is None:
                if not source.log_start_offset <= start <= source.log_end_offset:
                    raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
                if work.hold:
                    scan.wait(selection, self)
                    self._waits_for[view] = None
                scan.scan()
                if selection.skip(start, scan.upto) >= scan.upto:
                    await scan.caught_up(until)
                bound = scan.bound(committed=work.committed_only)
                found = await scan.reader.read(
                    selection, start, limit, bound, min_one=is_first, has_time=lambda: self._loop.time() < until
                )
                records, end = found.records, found.end
                self._is_poked |= not (found.is_done or found.is_full)  # this partition continues after the others
            if work.committed_only and epoch is None:
                aborted = (
                    [AbortedTransaction(*each) for each in source.aborted_transactions(start, end)] if records else []
                )
            high_watermark, stable = scan.bound(), scan.bound(committed=True)
            if scan.knows_end(selection):
                # A filtered batch keeps its last offset, so a client may be beyond the last match. librdkafka reaches
                # the end of a partition only if the client's position equals the high watermark.
                ends = min(start, high_watermark), min(start, stable)
                high_watermark = max(selection.high_watermark(source.log_start_offset), ends[0])
                stable = max(selection.last_stable_offset(stable, source.log_start_offset), ends[1])
        except OSError as error:
            source.report_failure(error)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR) from error
        except ApiError as error:
            if error.code == ErrorCode.CORRUPT_MESSAGE:
                source.report_damage(start, self._views.shared.clock.now_ms())
            raise
        view.traffic.bytes_out += len(records)
        return PartitionData(
            partition.index, 0, high_watermark, min(stable, high_watermark), source.log_start_offset, epoch, None, None,
            aborted, -1 if preferred is None else preferred, records,
        )  # fmt: skip
