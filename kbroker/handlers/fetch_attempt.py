"""Reads the partitions of one Fetch request, and builds its response.

Owns the read of one partition, for a consumer or a follower; the content of the response, which a session
(fetch_session.py) may shorten; and the decision whether to respond yet. The same code serves short and long requests.
It handles a long request a few partitions at a time. Never waits: fetch.py waits. Reads no byte of a record: a read
returns a list of slices of segment files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice

from kbroker.handlers.fetch_session import FINAL_EPOCH, CachedPartition, FetchSessions, Key, Session
from kbroker.handlers.leader_hints import LeaderHints
from kbroker.handlers.registry import RequestContext
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn
from kbroker.partition import MOST_CLIENTS, Partition, Waiter, nearest
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
from kbroker.topic_metrics import TopicMetrics

_READ_COMMITTED = 1
_CONSUMER = -1
_FIRST_RACK_VERSION = 11
_FIRST_HINT_VERSION = 16
_STORAGE_ERROR_VERSION = 6
_BYTES_ALWAYS, _BYTES_OF_PARTITION, _BYTES_OF_ABORTED = 20, 50, 16
"""The size of a response without its records. A partition's bytes include a share of its topic's bytes."""
_USUAL = frozenset(
    {
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Errors that Kafka returns without records, and does not count as failed fetches."""
_LED_ELSEWHERE = frozenset({int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH)})

_AT_ONCE = 16
"""The number of partitions of a long request that are prepared or answered before other tasks get a turn."""

Item = tuple[Key, FetchPartition, Partition | None]


def is_of_follower(request: FetchRequest) -> bool:
    """Whether a request claims to come from a replica, and not from a consumer."""
    state = request.replica_state
    return (request.replica_id if state is None else state.replica_id) >= 0


class Fetch:
    """A Fetch request that is in progress."""

    __slots__ = (
        "_cached",
        "_ctx",
        "_hints",
        "_is_new",
        "_metering",
        "_refused",
        "_replica",
        "_request",
        "_responses",
        "_session",
        "_sessions",
        "_version",
        "has_moved",
        "hold",
        "items",
        "matures_in_ms",
        "max_bytes",
        "min_bytes",
        "remote",
        "views",
    )

    def __init__(self, ctx: RequestContext, request: FetchRequest) -> None:
        """Create the request. The caller must call `prepare` or `prepare_many` next."""
        self._ctx = ctx
        self._request = request
        self._version = ctx.version
        state = request.replica_state
        self._replica = request.replica_id if state is None else state.replica_id
        metering = ctx.metering
        of_consumer = metering is not None and metering.running and self._replica < 0
        self._metering = metering if of_consumer else None
        services = ctx.services
        self._sessions: FetchSessions = services.fetch_sessions
        self.max_bytes = min(request.max_bytes, services.fetch_max_bytes)
        largest = None if self._metering is None else self._metering.largest_fetch()
        if largest is not None:
            self.max_bytes = int(min(self.max_bytes, largest))
        self.min_bytes = min(request.min_bytes, self.max_bytes)
        if self._replica >= 0:
            ctx.follows = True
            services.replicas.traffic.follower_fetches[ctx.version] += 1
        self.hold = request.max_wait_ms > 0
        self._is_new = True
        self.items: list[Item] = []
        self.views: set[Key] = set()
        """The items that are partitions of views. slow_fetch.py reads them, because `attempt` cannot."""
        self.remote: set[Key] = set()
        """The items whose records are in remote storage. slow_fetch.py reads them too, because `attempt` cannot."""
        self.has_moved = False
        """Whether records that the client waits for have left the local disk."""
        self.matures_in_ms: float = math.inf
        """The time in ms until the partitions of the newest attempt have more records that consumers may read.

        Consumers may not read a record before the time of `delivery.delay.ms` has passed.
        """
        self._session: Session | None = None
        self._cached: dict[Key, CachedPartition] = {}  # the partitions of the session that this response opens
        self._hints: LeaderHints | None = None
        self._responses: list[FetchableTopicResponse] = []
        self._refused: set[Key] | None = None  # partitions that the client must not read

    def prepare(self) -> None:
        """Find the session and the partitions to read. Raises ApiError."""
        session = self._session = self._sessions.begin(
            self._request, self._version, self._ctx.services.clock.monotonic_ms()
        )
        if session is None:
            topics = self._request.topics
            self._add({(t.topic, t.topic_id, want.partition): want for t in topics for want in t.partitions}.items())
        else:
            self._add([(key, cached.wanted) for key, cached in session.partitions.items()])

    async def prepare_many(self) -> None:
        """Do the work of `prepare` for a long request. The caller reads the partitions afterwards."""
        now_ms = self._ctx.services.clock.monotonic_ms()
        session = self._session = await self._sessions.begin_divided(self._request, self._version, now_ms)
        wanted: dict[Key, FetchPartition] = {}
        if session is None:
            for topic in self._request.topics:
                for want in topic.partitions:
                    wanted[topic.topic, topic.topic_id, want.partition] = want
                    await turn
                await turn
        else:
            for key, cached in list(session.partitions.items()):
                wanted[key] = cached.wanted
                await turn
        left = iter(wanted.items())
        while piece := list(islice(left, _AT_ONCE)):
            self._add(piece)
            await turn

    def _add(self, wanted: Iterable[tuple[Key, FetchPartition]]) -> None:
        """Look up partitions, and add them to the partitions to read."""
        names, get = self._ctx.services.controller.state.topic_names, self._ctx.services.replicas.get
        by_id, items = self._version > 12, self.items
        for key, want in wanted:
            partition = get((names.get(key[1], "") if by_id else key[0], key[2]))
            if partition is None and self._replica == _CONSUMER and self._is_view(key):
                self.views.add(key)
            elif partition is not None and partition.log.tier is not None and self._is_remote(partition, want):
                self.remote.add(key)
            items.append((key, want, partition))

    def _is_remote(self, partition: Partition, want: FetchPartition) -> bool:
        """Whether a consumer wants records that are in remote storage only."""
        log = partition.log
        return self._replica == _CONSUMER and log.earliest_offset <= want.fetch_offset < log.log_start_offset

    def name_of(self, key: Key) -> str:
        """Return the topic's name, or an empty name if its id is unknown."""
        return self._ctx.services.controller.state.topic_names.get(key[1], "") if self._version > 12 else key[0]

    def _is_view(self, key: Key) -> bool:
        return self._ctx.services.views.topic(self.name_of(key)) is not None

    @property
    def traffic(self) -> TopicMetrics:
        return self._ctx.services.replicas.traffic

    @property
    def remote_wait_s(self) -> float:
        """The maximum time in s for which one attempt waits for remote storage."""
        return self._ctx.services.config.get_int("remote.fetch.max.wait.ms") / 1000

    @property
    def max_wait_ms(self) -> int:
        return self._request.max_wait_ms

    @property
    def partitions(self) -> list[Partition]:
        return [partition for _, _, partition in self.items if partition is not None]

    def attempt(self, *, last: bool) -> FetchResponse | None:
        """Read all partitions. Return the response, or None if the request should wait for more data."""
        found: list[PartitionData] = []
        left, size, urgent = self.max_bytes, 0, False
        self.matures_in_ms = math.inf
        first, self._is_new = self._is_new, False
        for key, want, partition in self.items:
            data = self.read(key, want, partition, left, size == 0, first)
            if data.records:
                size += data.records.size
                left = max(0, self.max_bytes - size)
                urgent |= data.records.cut_short  # a wait would not add data
            if data.error_code or data.diverging_epoch is not None or data.preferred_read_replica >= 0:
                urgent = True
            found.append(data)
        urgent |= self.has_moved
        if not (last or is_due(size, self.min_bytes, urgent, self.hold) or not self.is_readable):
            return None
        if self._metering is not None and self._must_pause(self._size(self.items, found)):
            return self._nothing()
        self._fill(self.items, found)
        return self._response()

    @property
    def is_readable(self) -> bool:
        """Whether a wait makes sense: a request without any known partition gets its response immediately."""
        return any(partition is not None for _, _, partition in self.items)

    def waiters_of(self, partition: Partition) -> dict[Waiter, None]:
        """Return the partition's waiters for more data.

        Consumers wait for committed records, followers for all records.
        """
        return partition.waiters if self._replica == _CONSUMER else partition.end_waiters

    def read(
        self,
        key: Key,
        want: FetchPartition,
        partition: Partition | None,
        left: int,
        first: bool,
        is_new: bool,
    ) -> PartitionData:
        """Return at most `left` bytes of a partition. The `first` partition returns at least one complete batch.

        If the request `is_new`, a follower's fetch offset reports the follower's progress to the leader. After a wait
        the progress must not be reported again.
        """
        if partition is None:
            return self.missing(key)
        partition.traffic.fetches += 1
        log = partition.log
        to_end = partition.is_replicated and self._replica != _CONSUMER
        code = self.refusal(partition, want)
        if code:
            return self.failed(key[2], code)
        start = log.log_start_offset if log.tier is None else log.earliest_offset
        committed_only = self._request.isolation_level == _READ_COMMITTED and not to_end
        stable = log.last_stable_offset
        high_watermark = log.high_watermark
        try:
            if log.maturity is not None and not to_end and log.maturity.end < log.log_end_offset:
                mature = self._mature_end(log)
                high_watermark, stable = min(high_watermark, mature), min(stable, mature)
            if self._request.rack_id and partition.is_replicated:
                preferred = self.preferred(partition, want.fetch_offset)
                if preferred is not None:
                    return PartitionData(
                        key[2], 0, high_watermark, stable, start,
                        aborted_transactions=None, preferred_read_replica=preferred, records=b"",
                    )  # fmt: skip
            if want.last_fetched_epoch >= 0:
                epoch = diverging(partition, want)
                if epoch is not None:
                    return PartitionData(
                        key[2], 0, high_watermark, stable, start, epoch,
                        aborted_transactions=None, records=b"",
                    )  # fmt: skip
            limit = min(want.partition_max_bytes, left)
            bound = stable if committed_only else log.log_end_offset if to_end else high_watermark
            if to_end and not partition.may_send(self._replica):
                bound = want.fetch_offset
            piece = log.read(want.fetch_offset, limit, bound, min_one=first)
            aborted = None
            if committed_only:
                aborted = [AbortedTransaction(*entry) for entry in log.aborted_in(piece)] if piece else []
            if is_new and self._replica >= 0:
                code = partition.follower_fetched(self._replica, want.fetch_offset, want.log_start_offset)
                if code:
                    return self.failed(key[2], code)
                high_watermark, stable = log.high_watermark, log.last_stable_offset
            if to_end and piece.size:
                partition.count_sent(self._replica, piece.size)
        except ApiError as err:
            if err.code not in _USUAL:
                partition.traffic.failed_fetches += 1
            if err.code == ErrorCode.CORRUPT_MESSAGE:
                log.report_damage(want.fetch_offset, self._ctx.services.clock.now_ms())
            if err.code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE and self._replica == _CONSUMER:
                # the records have left the local disk during a wait; the next request reads them from remote storage
                self.has_moved = True
                return PartitionData(key[2], 0, high_watermark, stable, start, aborted_transactions=None, records=b"")
            failed = self.failed(key[2], err.code)
            if err.code == ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE:
                failed.high_watermark, failed.log_start_offset = high_watermark, start
            return failed
        except OSError as err:
            log.report_failure(err)
            return self.failed(key[2], ErrorCode.KAFKA_STORAGE_ERROR)
        return PartitionData(
            key[2], 0, high_watermark, stable, start, None, None, None, aborted, -1,
            piece if piece.size else b"",
        )  # fmt: skip

    def _mature_end(self, log: PartitionLog) -> int:
        """Return the end of the records that are old enough, and note the time at which this end grows.

        Raises OSError.
        """
        now_ms = self._ctx.services.clock.now_ms()
        end, wait_ms = log.mature_end(now_ms), log.ms_to_maturity(now_ms)
        if wait_ms is not None:
            self.matures_in_ms = min(self.matures_in_ms, wait_ms)
        return end

    def missing(self, key: Key) -> PartitionData:
        """Return the error for a partition that cannot be read."""
        by_id = self._version > 12 and key[1] not in self._ctx.services.controller.state.topic_names
        if by_id:
            return PartitionData(key[2], ErrorCode.UNKNOWN_TOPIC_ID, -1, aborted_transactions=[], records=b"")
        name = self._ctx.services.controller.state.topic_names.get(key[1], key[0])
        code = self._ctx.services.replicas.why_missing(name, key[2])
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            return self.failed(key[2], code)
        return PartitionData(key[2], code, -1, aborted_transactions=[], records=b"")

    @property
    def committed_only(self) -> bool:
        """Whether the client reads only committed records."""
        return self._request.isolation_level == _READ_COMMITTED

    def refusal(self, partition: Partition, want: FetchPartition) -> ErrorCode:
        """Return the error if this replica of a partition must not be read."""
        if partition.is_replicated:
            return self._check_replica(partition, want)
        code = partition.check_leader_epoch(max(want.current_leader_epoch, -1))
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if self._replica >= 0 else code

    def preferred(self, partition: Partition, offset: int) -> int | None:
        """Return the replica that a consumer should read instead of this leader, or None."""
        if not self._request.rack_id or not partition.is_replicated:
            return None
        cluster = self._ctx.services.cluster
        if cluster is None or not cluster.replica_manager.is_rack_aware:
            return None
        if self._replica != _CONSUMER or not partition.leading:
            return None
        brokers = self._ctx.services.controller.state.brokers
        racks = {each.node_id: each.rack for each in brokers.values() if each.rack is not None}
        here = racks.get(self._ctx.services.node_id)
        return nearest(self._request.rack_id, here, partition.readable_followers(offset), racks)

    def _check_replica(self, partition: Partition, want: FetchPartition) -> ErrorCode:
        """Return the error if a partition of a cluster must not be read.

        Two kinds of clients may also read from a follower: consumers whose request can contain a rack (KIP-392), and
        tools that compare replicas (replica id -2).
        """
        replicas = self._ctx.services.replicas
        if not partition.leading and replicas.get(partition.key) is not partition:
            return replicas.why_missing(*partition.key)  # the replica was stopped or lost since the request arrived
        epoch = max(want.current_leader_epoch, -1)
        code = partition.check_leader_epoch(epoch)
        if self._replica >= 0:
            return code or partition.check_follower(self._replica, epoch)
        if not partition.leading and (self._replica != _CONSUMER or self._version >= _FIRST_RACK_VERSION):
            return partition.check_epoch(epoch)
        return code

    def failed(self, index: int, code: ErrorCode) -> PartitionData:
        """Return the answer for a partition that cannot be read."""
        if code == ErrorCode.KAFKA_STORAGE_ERROR and self._version < _STORAGE_ERROR_VERSION:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return PartitionData(index, code, -1, aborted_transactions=None, records=b"")

    async def answer_many(self, found: list[PartitionData]) -> FetchResponse:
        """Return the response to a long request. `found` contains the data of each item."""
        pieces = [slice(start, start + _AT_ONCE) for start in range(0, len(found), _AT_ONCE)]
        if self._metering is not None:
            size = 0
            for piece in pieces:
                size += self._size(self.items[piece], found[piece])
                await turn
            if self._must_pause(size):
                return self._nothing()
        for piece in pieces:
            self._fill(self.items[piece], found[piece])
            await turn
        return self._response()

    def _fill(self, items: list[Item], found: list[PartitionData]) -> None:
        """Add the data of some items to the response. Consecutive partitions of a topic share an element."""
        session, topics = self._session, self._responses
        opens = session is None and self._request.session_epoch != FINAL_EPOCH
        client = (self._ctx.client_id or "", self._ctx.client_host)
        for (key, want, partition), data in zip(items, found, strict=True):
            has_records = bool(data.records)
            if has_records and partition is not None:
                if self._replica >= 0:
                    partition.traffic.replicated_out += len(data.records)
                else:
                    partition.traffic.bytes_out += len(data.records)
                    fetched = partition.fetched
                    if len(fetched) < MOST_CLIENTS or client in fetched:
                        fetched[client] = want.fetch_offset
            elif has_records and key in self.views:
                self._ctx.services.views.note_fetch(self.name_of(key), key[2], client, want.fetch_offset)
            if session is not None:
                cached = session.partitions.get(key)
                if cached is None or not cached.must_answer(data):
                    continue
                if has_records:
                    session.move_to_end(key)
            elif opens:
                self._cached[key] = CachedPartition(want, data.high_watermark, data.log_start_offset)
            name, topic_id, _ = key
            if not topics or topics[-1].topic != name or topics[-1].topic_id != topic_id:
                topics.append(FetchableTopicResponse(name, topic_id, []))
            topics[-1].partitions.append(data)
            if data.error_code in _LED_ELSEWHERE and self._version >= _FIRST_HINT_VERSION:
                self._hint(topics[-1], data)

    def _response(self) -> FetchResponse:
        session_id = 0 if self._session is None else self._session.id
        if self._cached:
            of_follower = self._replica >= 0 and self._ctx.services.cluster is not None
            now_ms = self._ctx.services.clock.monotonic_ms()
            session_id = self._sessions.open(self._cached, self._version, now_ms, of_follower=of_follower)
        response = FetchResponse(session_id=session_id, responses=self._responses)
        if self._hints is not None:
            response.node_endpoints = [NodeEndpoint(n.node_id, n.host, n.port, n.rack) for n in self._hints.nodes]
        return response

    def _hint(self, topic: FetchableTopicResponse, data: PartitionData) -> None:
        """Add the current leader of a partition that another broker leads."""
        hints = self._hints = self._hints or LeaderHints(self._ctx)
        leader = hints.leader(topic.topic_id, topic.topic, data.partition_index)
        if leader is not None:
            data.current_leader = LeaderIdAndEpoch(*leader)

    def _must_pause(self, size: int) -> bool:
        """Charge the client's quotas for a response of `size` bytes. Return whether the client must pause instead."""
        return self._metering is not None and self._metering.settle_fetch(_BYTES_ALWAYS + size) > 0

    def _size(self, items: list[Item], found: list[PartitionData]) -> int:
        """Return the approximate size in bytes of some items. Items that the response omits do not count."""
        session, size = self._session, 0
        for (key, _, _), data in zip(items, found, strict=True):
            cached = None if session is None else session.partitions.get(key)
            if session is None or (cached is not None and cached.has_changed(data)):
                size += _BYTES_OF_PARTITION + len(data.records or b"")
                size += _BYTES_OF_ABORTED * len(data.aborted_transactions or ())
        return size

    def _nothing(self) -> FetchResponse:
        """Return an empty response that does not change the state of its session."""
        return FetchResponse(session_id=0 if self._session is None else self._session.id)


def diverging(partition: Partition, want: FetchPartition) -> EpochEndOffset | None:
    """Compare the client's last epoch with our leader epochs (KIP-595, Partition.readRecords). Raises ApiError."""
    log = partition.log
    epoch, offset = log.proven_epochs().end_offset_for(want.last_fetched_epoch, log.log_end_offset)
    if epoch < 0 or offset < 0 or want.fetch_offset < log.earliest_offset:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if epoch < want.last_fetched_epoch or offset < want.fetch_offset:
        return EpochEndOffset(epoch, offset)
    return None


def is_due(size: int, min_bytes: int, urgent: bool, may_wait: bool) -> bool:
    """Whether a response of `size` bytes is due.

    `urgent` means that the client must get a result immediately, or that waiting would not add data.
    """
    return urgent or not may_wait or size >= min_bytes
