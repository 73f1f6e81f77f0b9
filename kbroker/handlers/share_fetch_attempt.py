"""One ShareFetch in progress: reads its partitions, acquires records, and waits for more.

Owns the wait for min bytes and max wait (DelayedShareFetch of Apache Kafka), the reading, and the slices of the log
that are returned: the complete batches of the acquired records. Decodes no byte of a record. share_partition/ decides
whether a record may be acquired. Never responds: share_fetch.py does.

While a fetch reads, it holds a lock on its share partitions, so that two fetches do not read the same records. The
fetch releases the locks however it ends, even if the connection is closed. It acquires nothing if its session has
ended, or has received another request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from kbroker.filters.filtering import Filter
from kbroker.handlers.registry import RequestContext
from kbroker.handlers.share_matching import SHARE_FILTER, Matching
from kbroker.log.batch_scan import Batches, bytes_in, headers_in
from kbroker.log.log_slice import EMPTY_SLICE, LogSlice
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed
from kbroker.protocol.messages.share_fetch import AcquiredRecords, LeaderIdAndEpoch, PartitionData, ShareFetchRequest
from kbroker.protocol.records import BatchHeader, read_marker
from kbroker.share_partition.delivery import ShareDelivery
from kbroker.share_partition.hosted import Hosted
from kbroker.share_partition.sessions import PartitionKey, ShareSession
from kbroker.share_partition.share_partition import SharePartition, Wish
from kbroker.share_partition.states import Acquired, Limits, Span
from kbroker.tiers.metadata import Owner
from kbroker.tiers.reading import NOT_YET

_RECORD_LIMIT: Final = 1
_AT_ONCE: Final = 64
"""The number of batch headers that are read before other tasks get a turn: about 0.2 ms."""
_LOOK_S: Final = 0.02
"""The time in s between two checks whether the missing records of remote storage have arrived."""


class _Read(NamedTuple):
    """The data that one partition has for a fetch."""

    hosted: Hosted
    state: SharePartition
    offset: int
    piece: Batches
    code: ErrorCode
    aborted: Sequence[tuple[int, int]] | None = None
    """The aborted transactions in records of remote storage; None for records on the local disk."""


class _Batch(NamedTuple):
    """A batch of a slice: its position in the file, and its offsets."""

    position: int
    size: int
    offsets: Span


def empty(index: int, code: int = 0) -> PartitionData:
    """Return a partition's answer without records."""
    return PartitionData(index, code, current_leader=LeaderIdAndEpoch(0, 0), records=b"")


class ShareFetchAttempt:
    """A fetch of the partitions in `wanted` (by topic name) for the member of a session."""

    def __init__(
        self,
        ctx: RequestContext,
        share: ShareDelivery,
        request: ShareFetchRequest,
        session: ShareSession,
        wanted: Sequence[tuple[PartitionKey, str]],
    ) -> None:
        self._ctx = ctx
        self._share = share
        self._request = request
        self._session = session
        self._epoch = session.epoch
        self._wanted = wanted
        self._topics = dict(wanted)
        self._filter = ctx.services.controller.state.group_configs.get(request.group_id or "", {}).get(SHARE_FILTER, "")
        self._has_passed_over = False
        """Whether records were archived because they do not match."""
        self._hosted: dict[PartitionKey, Hosted] = {}
        self._locked: list[Hosted] = []
        self._has_changed = False
        self._matures_at = math.inf
        """The loop's time of the next attempt: then more records are old enough (`delivery.delay.ms`), or fetched."""
        self._waiting: asyncio.Future[None] | None = None
        self.answers: dict[PartitionKey, PartitionData] = {}
        """The answer for each partition that was read, has records, or has an error."""
        assert request.group_id is not None
        self._group = request.group_id
        self._reads_committed = share.settings.reads_committed(self._group)
        most = min(request.max_bytes, ctx.services.fetch_max_bytes)
        largest = None if ctx.metering is None or not ctx.metering.running else ctx.metering.largest_fetch()
        self._max_bytes = most if largest is None else int(min(most, largest))
        self._min_bytes = min(request.min_bytes, self._max_bytes)

    async def run(self) -> None:
        """Acquire records, with or without a wait. Raises ApiError if the session has ended meanwhile."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._request.max_wait_ms / 1000
        self._session.waiting = self
        try:
            for key, topic in self._wanted:
                try:
                    self._watch(key, self._share.use(self._group, key[0], topic, key[1]))
                except ApiError as err:
                    self.answers[key] = empty(key[1], err.code)
                await turn
            while self._hosted:
                self._has_changed = False
                if await self._attempt(is_last=loop.time() >= until):
                    return
                await self._wait(until)
        finally:
            self._unlock()
            for hosted in self._hosted.values():
                hosted.waiters.pop(self, None)
            if self._session.waiting is self:
                self._session.waiting = None

    # -- waiting

    def _watch(self, key: PartitionKey, hosted: Hosted) -> None:
        self._hosted[key] = hosted
        hosted.waiters[self] = None

    def poke(self) -> None:
        """Schedule a new attempt, because something has changed."""
        self._has_changed = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def _wait(self, until: float) -> None:
        """Return when something has changed since the attempt began, or when the time is over."""
        if self._has_changed:
            await turn
            return
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_at(min(until, self._matures_at), self.poke)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    # -- one attempt

    async def _attempt(self, *, is_last: bool) -> bool:
        """Read and acquire the available records, if these are enough. Return whether the fetch has ended."""
        await self._lock_all()
        self._check_session()
        try:
            reads = await self._read_all()
            size = sum(len(read.piece) for read in reads.values())
            is_urgent = any(read.code or _is_cut_short(read) for read in reads.values())
            if not (is_last or is_urgent or (reads and size >= self._min_bytes)):
                return not self._hosted
            left = self._request.max_records
            for key, read in reads.items():
                left -= await self._acquire(key, read, left)
                read.hosted.unlock(self)
                await turn
            return is_last or not self._is_all_passed_over()
        finally:
            self._unlock()

    def _is_all_passed_over(self) -> bool:
        """Whether there is nothing to return because no record matched. The fetch then continues immediately."""
        passed_over, self._has_passed_over = self._has_passed_over, False
        if passed_over and not any(each.records or each.error_code for each in self.answers.values()):
            self._has_changed = True
            return True
        return False

    def _check_session(self) -> None:
        if self._session.has_ended:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if self._session.epoch != self._epoch:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)

    async def _lock_all(self) -> None:
        """Lock the share partitions from which records can be acquired. Add an error for each failed partition."""
        limits = self._share.settings.limits(self._group)
        for key, hosted in list(self._hosted.items()):
            if hosted.failure:
                del self._hosted[key]
                hosted.waiters.pop(self, None)
                self.answers[key] = empty(key[1], hosted.failure)
            elif hosted.state is not None and hosted.state.can_acquire(limits) and hosted.lock(self):
                self._locked.append(hosted)
            await turn

    def _unlock(self) -> None:
        for hosted in self._locked:
            hosted.unlock(self)
        self._locked.clear()

    async def _read_all(self) -> dict[PartitionKey, _Read]:
        """Find records in the locked share partitions, without reading a byte of them.

        If there are none, wait for the records of one partition in remote storage.
        """
        self._matures_at = math.inf
        reads: dict[PartitionKey, _Read] = {}
        late: _Read | None = None
        locked, left = list(self._locked), self._max_bytes
        share = max(self._max_bytes // len(locked), 1) if locked else 0
        for hosted in locked:
            if hosted.state is not None:
                most, is_first = min(left, share), left == self._max_bytes
                read = self._read(hosted, hosted.state, most, is_first=is_first)
                if read.code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
                    moved, read = read, await self._read_remote(read, most, 0.0, is_first=is_first)
                    late = late or (moved if not (read.code or len(read.piece)) else None)
                left = max(left - len(read.piece), 0)
                reads[hosted.key.topic_id, hosted.key.partition] = read
            await turn
        if late is not None and left == self._max_bytes:
            wait_s = self._ctx.services.config.get_int("remote.fetch.max.wait.ms") / 1000
            until = asyncio.get_running_loop().time() + wait_s
            reads[late.hosted.key.topic_id, late.hosted.key.partition] = await self._read_remote(
                late, share, until, is_first=True
            )
        return reads

    def _read(self, hosted: Hosted, state: SharePartition, most: int, *, is_first: bool) -> _Read:
        records = hosted.partition.log
        if state.log_start_moved(records.earliest_offset):
            hosted.wake()
        offset = state.next_fetch_offset
        bound = records.last_stable_offset if self._reads_committed else records.high_watermark
        piece, code = EMPTY_SLICE, ErrorCode.NONE
        if offset < bound:
            try:
                if records.maturity is not None and records.maturity.end < records.log_end_offset:
                    bound = min(bound, self._mature_end(records))
                piece = records.read(offset, most, bound, min_one=is_first)
            except ApiError as err:
                code = err.code
                if code == ErrorCode.CORRUPT_MESSAGE:
                    records.report_damage(offset, self._share.clock.now_ms())
            except OSError as err:
                records.report_failure(err)
                code = ErrorCode.KAFKA_STORAGE_ERROR
        return _Read(hosted, state, offset, piece, code)

    async def _read_remote(self, read: _Read, most: int, until: float, *, is_first: bool) -> _Read:
        """Read the records of a partition in remote storage, and wait for them up to a time of the loop's clock.

        If they are not there in time, they are fetched meanwhile, for the next attempt.
        """
        partition, tiers = read.hosted.partition, self._ctx.services.tiers
        if tiers is None:
            return read._replace(code=ErrorCode.KAFKA_STORAGE_ERROR)
        try:
            found = await tiers.reader.read(
                Owner(partition.topic, partition.topic_id, partition.index), partition.log, read.offset, most,
                min_one=is_first, committed=self._reads_committed, until=until,
            )  # fmt: skip
        except ApiError as err:
            if err.code != ErrorCode.OFFSET_OUT_OF_RANGE:
                return read._replace(code=err.code)
            found = NOT_YET  # the records are deleted meanwhile: the next attempt begins behind them
        if found is NOT_YET:
            self._matures_at = min(self._matures_at, asyncio.get_running_loop().time() + _LOOK_S)
            return read._replace(code=ErrorCode.NONE)
        records = found.records
        piece = records if isinstance(records, LogSlice) else memoryview(records)
        return read._replace(code=ErrorCode.NONE, piece=piece, aborted=found.aborted)

    def _mature_end(self, records: PartitionLog) -> int:
        """Return the end of the records that are old enough, and note the time at which this end grows.

        Raises OSError.
        """
        now_ms = self._share.clock.now_ms()
        end, wait_ms = records.mature_end(now_ms), records.ms_to_maturity(now_ms)
        if wait_ms is not None:
            self._matures_at = min(self._matures_at, asyncio.get_running_loop().time() + wait_ms / 1000)
        return end

    # -- records

    async def _acquire(self, key: PartitionKey, read: _Read, left: int) -> int:
        """Acquire up to `left` records of a partition, and add them to the partition's answer.

        Return the number of acquired records.
        """
        self._check_session()
        answer = self.answers[key] = empty(key[1], read.code)
        if read.code or not len(read.piece) or left <= 0:
            return 0
        limits = self._share.settings.limits(self._group)
        matching = None
        try:
            if not read.hosted.is_led():  # if the view was deleted, its filter would not be applied to the records
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            found, useless = await self._scan(read, read.state.most(left, read.offset, limits), limits)
            filters = self._ctx.services.views.filters_for_share(self._topics[key], self._filter)
            if filters:
                matching = await self._match(read, found, filters)
        except ApiError as err:
            answer.error_code = err.code
            return 0
        except OSError as err:
            read.hosted.partition.log.report_failure(err)
            answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            return 0
        self._check_session()
        if read.hosted.state is not read.state:
            answer.error_code = read.hosted.failure
            return 0
        request = self._request
        wish = Wish(self._session.member, left, max(request.batch_size, 1), request.share_acquire_mode == _RECORD_LIMIT)
        spans = [batch.offsets for batch in found]
        got = await read.state.acquire(wish, read.offset, spans, limits, self._share.clock.monotonic_ms())
        if matching is not None:
            others = await matching.others(got)
            if others:
                self._has_passed_over = True
                read.hosted.store_start()
            useless = await _merged(useless, others)
        if useless:
            await read.state.archive_useless(useless)
            got = await _without(got, useless)
        if self._session.has_ended:
            self._share.give_back(self._session, read.hosted)
            self._check_session()
        if read.hosted.state is not read.state:
            # the share partition was dropped meanwhile: other members may acquire these records
            answer.error_code = read.hosted.failure
            return 0
        taken = 0
        for first, last, count in got:
            answer.acquired_records.append(AcquiredRecords(first, last, count))
            taken += last - first + 1
            await turn
        if got:
            answer.records = _cut(read.piece, found, got) if matching is None else await matching.records(got)
            read.hosted.partition.traffic.bytes_out += len(answer.records)
        return taken

    async def _match(self, read: _Read, found: Sequence[_Batch], filters: Sequence[Filter]) -> Matching:
        """Find the matching records of some batches. Raises ApiError and OSError."""
        scan = self._ctx.services.views.scan_of(read.hosted.partition)
        matching = Matching(scan, filters)
        for each in found:
            await matching.add(memoryview(bytes_in(read.piece, each.position, each.size)))
            await turn
        return matching

    async def _scan(self, read: _Read, wanted: int, limits: Limits) -> tuple[list[_Batch], list[Span]]:
        """Return as many batches of a slice as needed, and the offsets of those that nobody gets.

        These are the batches of aborted transactions, and batches without records. After a restore, such a batch can
        have more than 100,000,000 offsets.
        """
        piece, found, useless = read.piece, [], []
        open_ones = _Aborted(_aborted_in(read)) if self._reads_committed else None
        covered, look_at = 0, wanted
        for position, header in headers_in(piece):
            span = Span(header.base_offset, header.last_offset)
            found.append(_Batch(position, header.size, span))
            is_aborted = open_ones is not None and open_ones.has(
                header, lambda at=position, size=header.size: bytes_in(piece, at, size)
            )
            if is_aborted or not header.record_count:
                useless.append(span)
                wanted += span.last_offset - span.first_offset + 1
            covered += span.last_offset - span.first_offset + 1
            if covered >= look_at:
                if read.state.has_enough(span.last_offset, wanted, limits):
                    break
                look_at = covered + max(wanted // 8, 1)
                await turn  # `has_enough` takes some ms for 10,000 runs
            elif len(found) % _AT_ONCE == 0:
                await turn
        return found, useless


class _Aborted:
    """Tracks the aborted transactions in the batches of a slice, as a consumer with read_committed does."""

    def __init__(self, transactions: Sequence[tuple[int, int]]) -> None:
        self._coming = sorted(transactions, key=lambda each: each[1], reverse=True)
        self._open: set[int] = set()

    def has(self, header: BatchHeader, content: object) -> bool:
        """Whether the next batch belongs to an aborted transaction. `content` returns the bytes of a marker."""
        if header.producer_id < 0:
            return False
        while self._coming and self._coming[-1][1] <= header.last_offset:
            self._open.add(self._coming.pop()[0])
        if header.is_control:
            assert callable(content)
            try:
                marker = read_marker(content())
            except Malformed:
                marker = None
            if marker is not None and not marker.commit:
                self._open.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._open


async def _without(got: Sequence[Acquired], spans: Sequence[Span]) -> list[Acquired]:
    """Return those acquired records that are outside the spans. Both arguments are in order."""
    left: list[Acquired] = []
    place = 0
    for first, last, count in got:
        at = first
        while place < len(spans) and spans[place].last_offset < at:
            place += 1
        ahead = place
        while ahead < len(spans) and spans[ahead].first_offset <= last:
            if spans[ahead].first_offset > at:
                left.append(Acquired(at, spans[ahead].first_offset - 1, count))
            at = max(at, spans[ahead].last_offset + 1)
            ahead += 1
            await turn
        if at <= last:
            left.append(Acquired(at, last, count))
        await turn
    return left


async def _merged(some: Sequence[Span], others: Sequence[Span]) -> list[Span]:
    """Return the spans of both arguments, in order and without overlaps. Each argument is in order."""
    merged: list[Span] = []
    for each in sorted([*some, *others]):
        if merged and each.first_offset <= merged[-1].last_offset + 1:
            merged[-1] = Span(merged[-1].first_offset, max(merged[-1].last_offset, each.last_offset))
        else:
            merged.append(each)
        await turn
    return merged


def _is_cut_short(read: _Read) -> bool:
    """Whether waiting would not make a slice larger.

    This is so if the next records are in a later segment, or need checks first.
    """
    piece = read.piece
    if not isinstance(piece, LogSlice):
        return len(piece) > 0
    return piece.size > 0 and (piece.cut_short or piece.segment is not read.hosted.partition.log.segments.items[-1])


def _aborted_in(read: _Read) -> Sequence[tuple[int, int]]:
    """Return (producer id, first offset) of the aborted transactions with records in the read batches."""
    if read.aborted is not None:
        return read.aborted
    assert isinstance(read.piece, LogSlice)
    return read.hosted.partition.log.aborted_in(read.piece)


def _cut(piece: Batches, found: Sequence[_Batch], got: Sequence[Acquired]) -> LogSlice | bytes:
    """Return the part of a slice with the batches of acquired records (ShareFetchUtils.maybeSliceFetchRecords)."""
    first, last = got[0].first_offset, got[-1].last_offset
    begin = next(batch for batch in found if batch.offsets.last_offset >= first)
    end = next(batch for batch in reversed(found) if batch.offsets.first_offset <= last)
    size = end.position + end.size - begin.position
    if isinstance(piece, LogSlice):
        return piece.part(begin.position, size)
    return bytes(piece[begin.position : begin.position + size])
