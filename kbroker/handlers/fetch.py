"""Fetch (key 1), versions 4-18: record batches from the page cache, with long polls and fetch sessions.

What is answered is a list of slices of segment files; no byte of a record passes through here. A request that cannot
be satisfied yet waits on its partitions (`DelayedFetch`) until `min_bytes` are there, something changes, or
`max_wait_ms` is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from kbroker.handlers.fetch_session import FINAL_EPOCH, FetchSessions, Key, Session, wanted_of
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from kbroker.replicas import Partition

_CONSUMER = -1
_READ_COMMITTED = 1
_FIRST_HINT_VERSION = 16
_STORAGE_ERROR_VERSION = 6

Item = tuple[Key, FetchPartition, Partition | None]
Answered = list[tuple[Key, FetchPartition, PartitionData]]


def _on_error(_request: FetchRequest, code: int, _message: str | None) -> FetchResponse:
    return FetchResponse(error_code=code)


class Fetch:
    """One request at work."""

    __slots__ = ("_ctx", "_hold", "_items", "_max_bytes", "_min_bytes", "_request", "_session", "_sessions", "_version")

    def __init__(self, ctx: RequestContext, request: FetchRequest) -> None:
        self._ctx = ctx
        self._request = request
        self._version = ctx.version
        services = ctx.services
        self._sessions: FetchSessions = services.fetch_sessions
        self._session: Session | None = self._sessions.begin(request, ctx.version, services.clock.monotonic_ms())
        self._max_bytes = min(request.max_bytes, services.fetch_max_bytes)
        self._min_bytes = min(request.min_bytes, self._max_bytes)
        if self._session is None:
            wanted: Iterable[tuple[Key, FetchPartition]] = dict(wanted_of(request)).items()
        else:
            wanted = [(key, cached.wanted) for key, cached in self._session.partitions.items()]
        names, get = services.controller.state.topic_names, services.replicas.get
        by_id = ctx.version > 12
        self._items: list[Item] = [
            (key, want, get((names.get(key[1], "") if by_id else key[0], key[2]))) for key, want in wanted
        ]
        self._hold = request.max_wait_ms > 0

    @property
    def max_wait_ms(self) -> int:
        return self._request.max_wait_ms

    @property
    def partitions(self) -> list[Partition]:
        return [partition for _, _, partition in self._items if partition is not None]

    def attempt(self, *, last: bool) -> FetchResponse | None:
        """Read everything; return the answer, or None when it is worth waiting for more."""
        answered: Answered = []
        left, size, urgent = self._max_bytes, 0, False
        for key, want, partition in self._items:
            data = self._read(key, want, partition, left, size == 0)
            if data.records:
                size += len(data.records)
                left = max(0, self._max_bytes - size)
                urgent |= data.records.cut_short  # waiting brings no more of it
            if data.error_code or data.diverging_epoch is not None:
                urgent = True
            answered.append((key, want, data))
        if not (last or urgent or not self._hold or size >= self._min_bytes or not self._readable()):
            return None
        return self._answer(answered)

    def _readable(self) -> bool:
        """Return whether there is anything to wait for: a request without a known partition is answered at once."""
        return any(partition is not None for _, _, partition in self._items)

    def _read(
        self, key: Key, want: FetchPartition, partition: Partition | None, left: int, first: bool
    ) -> PartitionData:
        if partition is None:
            by_id = self._version > 12 and key[1] not in self._ctx.services.controller.state.topic_names
            if by_id:
                return PartitionData(key[2], ErrorCode.UNKNOWN_TOPIC_ID, -1, aborted_transactions=[], records=b"")
            name = self._ctx.services.controller.state.topic_names.get(key[1], key[0])
            code = self._ctx.services.replicas.why_missing(name, key[2])
            if code == ErrorCode.KAFKA_STORAGE_ERROR:
                return self._failed(key[2], code)
            return PartitionData(key[2], code, -1, aborted_transactions=[], records=b"")
        code = partition.check_leader_epoch(want.current_leader_epoch)
        if self._replica_id() >= 0:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        if code:
            return self._failed(key[2], code)
        log = partition.log
        committed_only = self._request.isolation_level == _READ_COMMITTED
        stable = log.last_stable_offset
        high_watermark = log.high_watermark
        try:
            if want.last_fetched_epoch >= 0:
                diverging = _diverging(partition, want)
                if diverging is not None:
                    return PartitionData(
                        key[2], 0, high_watermark, stable, log.log_start_offset, diverging,
                        aborted_transactions=None, records=b"",
                    )  # fmt: skip
            limit = min(want.partition_max_bytes, left)
            piece = log.read(want.fetch_offset, limit, stable if committed_only else high_watermark, min_one=first)
        except ApiError as err:
            return self._failed(key[2], err.code)
        except OSError as err:
            log.report_failure(err)
            return self._failed(key[2], ErrorCode.KAFKA_STORAGE_ERROR)
        aborted = None
        if committed_only:
            aborted = [AbortedTransaction(*entry) for entry in log.aborted_in(piece)] if piece else []
        return PartitionData(
            key[2], 0, high_watermark, stable, log.log_start_offset, None, None, None, aborted, -1,
            piece if len(piece) else b"",
        )  # fmt: skip

    def _replica_id(self) -> int:
        state = self._request.replica_state
        return state.replica_id if state is not None else self._request.replica_id

    def _failed(self, index: int, code: ErrorCode) -> PartitionData:
        if code == ErrorCode.KAFKA_STORAGE_ERROR and self._version < _STORAGE_ERROR_VERSION:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return PartitionData(index, code, -1, aborted_transactions=None, records=b"")

    def _answer(self, answered: Answered) -> FetchResponse:
        session_id = 0
        session = self._session
        if session is not None:
            session_id = session.id
            kept: Answered = []
            for key, want, data in answered:
                cached = session.partitions.get(key)
                if cached is not None and cached.must_answer(data):
                    kept.append((key, want, data))
                    if data.records:
                        session.move_to_end(key)
            answered = kept
        elif self._request.session_epoch != FINAL_EPOCH and answered:
            now_ms = self._ctx.services.clock.monotonic_ms()
            session_id = self._sessions.create(answered, self._version, now_ms)
        response = FetchResponse(session_id=session_id, responses=_grouped(answered))
        if self._version >= _FIRST_HINT_VERSION:
            self._add_leader_hints(response)
        return response

    def _add_leader_hints(self, response: FetchResponse) -> None:
        state = self._ctx.services.controller.state
        nodes = {}
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code not in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
                    continue
                known = state.partition(state.topic_names.get(topic.topic_id, topic.topic), data.partition_index)
                if known is not None:
                    data.current_leader = LeaderIdAndEpoch(known.leader, known.leader_epoch)
                    if known.leader in state.brokers:
                        nodes[known.leader] = state.brokers[known.leader].by(self._ctx.listener)
        response.node_endpoints = [NodeEndpoint(n.node_id, n.host, n.port, n.rack) for n in nodes.values()]


def _grouped(answered: Answered) -> list[FetchableTopicResponse]:
    """Group consecutive partitions by topic, in order."""
    topics: list[FetchableTopicResponse] = []
    for (name, topic_id, _), _, data in answered:
        last = topics[-1] if topics else None
        if last is None or last.topic != name or last.topic_id != topic_id:
            last = FetchableTopicResponse(name, topic_id, [])
            topics.append(last)
        last.partitions.append(data)
    return topics


def _diverging(partition: Partition, want: FetchPartition) -> EpochEndOffset | None:
    """Compare the consumer's last epoch with our history (KIP-595, Partition.readRecords). Raises ApiError."""
    log = partition.log
    epoch, offset = log.proven_epochs().end_offset_for(want.last_fetched_epoch, log.log_end_offset)
    if epoch < 0 or offset < 0 or want.fetch_offset < log.log_start_offset:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < want.last_fetched_epoch or offset < want.fetch_offset:
        return EpochEndOffset(epoch, offset)
    return None


class DelayedFetch:
    """A Fetch that waits (a long poll): on its partitions, and on the clock."""

    __slots__ = ("_fetch", "_loop", "_scheduled", "_timer", "future")

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[FetchResponse] = self._loop.create_future()
        self.future.add_done_callback(self._forget)
        self._scheduled = False
        for partition in fetch.partitions:
            partition.waiters.add(self)
        self._timer = self._loop.call_later(fetch.max_wait_ms / 1000, self._try, True)

    def poke(self) -> None:
        """Try again soon: once for all that happens within this turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._try, False)

    def _try(self, last: bool) -> None:
        self._scheduled = False
        if self.future.done():
            return
        try:
            answer = self._fetch.attempt(last=last)
        except ApiError as err:
            self.future.set_exception(err)
            return
        if answer is not None:
            self.future.set_result(answer)

    def _forget(self, _future: asyncio.Future[FetchResponse]) -> None:
        self._timer.cancel()
        for partition in self._fetch.partitions:
            partition.waiters.discard(self)


@handles(FetchRequest, FetchResponse, "4-18", _on_error)
def fetch(ctx: RequestContext, request: FetchRequest) -> FetchResponse | asyncio.Future[FetchResponse]:
    """Read now, or wait."""
    work = Fetch(ctx, request)
    answer = work.attempt(last=False)
    return answer if answer is not None else DelayedFetch(work).future
