"""Copies partitions from one leader: one task, one connection (Apache Kafka: ReplicaFetcherThread).

Owns the requests to the leader, decides which partitions pause, and applies the steps of `Following` to the partitions'
logs. Never decides about leadership, and stops fetching a partition only on request. A failure of one partition does
not affect the others. A response is applied in pieces of a few milliseconds. After each piece the partition's state is
checked again, because this broker may have become the partition's leader meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from math import ceil
from typing import Any, Final

from kbroker.clock import Clock
from kbroker.log.append_info import AppendError
from kbroker.long_work import in_slices, step, turn
from kbroker.peers.interface import Peer, Peers, PeerUnavailable
from kbroker.protocol.errors import ApiError, ErrorCode, known_error
from kbroker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from kbroker.protocol.records import HEADER_SIZE, LOG_OVERHEAD
from kbroker.replica_manager.config import ReplicationConfig
from kbroker.replica_manager.followed import EARLIEST, FIRST_PAUSE_MS, LATEST, MISSING, Followed, list_offsets
from kbroker.replica_manager.follower_session import SESSION_ERRORS, FollowerSession, Key
from kbroker.replica_manager.rebuilds import Rebuilds, RemoteRecords
from kbroker.replica_manager.replication_quota import THROTTLED_PAUSE_MS, ReplicationQuota
from kbroker.replication.following import (
    Append,
    AskOffsets,
    AskTier,
    BackOff,
    GiveUp,
    Ignore,
    Restart,
    Step,
    Truncate,
)

log = logging.getLogger(__name__)

_FETCH_VERSION: Final = 17
_BYTES: Final = 256 * 1024
_BATCHES: Final = 8
"""The maximum numbers of bytes and batches that are appended to one partition in one turn of at most a millisecond."""

Endpoint = tuple[str, int]


class Fetcher:
    """Copies partitions from one broker. When no partition is left, the fetcher ends and calls `on_idle`."""

    def __init__(
        self,
        node_id: int,
        source: int,
        number: int,
        peers: Peers,
        clock: Clock,
        config: ReplicationConfig,
        quota: ReplicationQuota,
        broker_epoch: Callable[[], int],
        endpoint_of: Callable[[int], Endpoint | None],
        remote: RemoteRecords,
        on_idle: Callable[[Fetcher], None],
    ) -> None:
        self.source = source
        self.number = number
        self._node_id = node_id
        self._name = f"broker-{node_id}-fetcher-{number}"
        self._peers = peers
        self._clock = clock
        self._config = config
        self._quota = quota
        self._broker_epoch = broker_epoch
        self._endpoint_of = endpoint_of
        self._on_idle = on_idle
        self._followed: dict[Key, Followed] = {}
        self._resting: dict[Key, float] = {}
        self._rebuilds = Rebuilds(node_id, config.socket_timeout_ms, remote, clock, self._is_current, self._rebuilt)
        self._session: FollowerSession[Followed] = FollowerSession()
        self._peer: Peer | None = None
        self._endpoint: Endpoint | None = None
        self._wake = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    # --- copied partitions

    def add(self, followed: Followed) -> None:
        """Start copying a partition."""
        self._followed[followed.id] = followed
        self._resting.pop(followed.id, None)
        self._ask_for(followed)
        self._wake.set()

    def remove(self, key: Key) -> None:
        """Stop copying a partition. After this call the fetcher does not change the partition's log."""
        if self._followed.pop(key, None) is not None:
            self._resting.pop(key, None)
            self._session.drop(key)
            self._rebuilds.stop(key)
            self._wake.set()
            if not self._followed:
                asyncio.get_running_loop().call_soon(self._end_idle)

    def _end_idle(self) -> None:
        """End if no partition is left, even during a request, because the broker possibly never responds."""
        if not self._followed:
            self._on_idle(self)
            self.close()

    def close(self) -> None:
        """Stop copying all partitions."""
        self._followed.clear()
        self._rebuilds.close()
        self._task.cancel()
        if self._peer is not None:
            self._peer.close()

    def _is_current(self, followed: Followed) -> bool:
        return self._followed.get(followed.id) is followed

    def _ask_for(self, followed: Followed) -> None:
        self._session.want(followed.id, followed, followed.request(self._config.fetch_max_bytes))

    def _rest(self, followed: Followed) -> None:
        """Pause a partition for a while."""
        if self._is_current(followed):
            pause_ms = min(followed.pause_ms, self._config.backoff_ms)
            followed.pause_ms = pause_ms * 2
            self._resting[followed.id] = self._clock.monotonic_ms() + pause_ms
            self._session.drop(followed.id)

    def _wake_rested(self) -> None:
        now_ms = self._clock.monotonic_ms()
        for key in [key for key, until in self._resting.items() if until <= now_ms]:
            followed = self._followed[key]
            if followed.partition.is_throttled_follower and self._quota.is_exceeded(now_ms):
                self._resting[key] = now_ms + THROTTLED_PAUSE_MS
                continue
            del self._resting[key]
            self._ask_for(followed)

    # --- the task

    async def _run(self) -> None:
        pause_ms = FIRST_PAUSE_MS
        try:
            while self._followed:
                self._wake.clear()
                self._wake_rested()
                if len(self._session):
                    try:
                        await in_slices(self._fetch())
                        pause_ms = FIRST_PAUSE_MS
                        continue
                    except PeerUnavailable as error:
                        log.info("%s: broker %d: %s", self._name, self.source, error)
                    except Exception:
                        log.exception("%s: fetching from broker %d failed", self._name, self.source)
                    self._session.lost()
                    pause_ms = min(pause_ms, self._config.backoff_ms)
                    await self._pause(pause_ms)
                    pause_ms *= 2
                else:
                    await self._pause(self._until_rested())
        finally:
            if self._peer is not None:
                self._peer.close()
            self._on_idle(self)

    async def _pause(self, ms: float | None) -> None:
        """Wait until a partition is added or removed, but at most `ms`."""
        try:
            async with asyncio.timeout(None if ms is None else ms / 1000):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _until_rested(self) -> float | None:
        if not self._resting:
            return None
        return max(min(self._resting.values()) - self._clock.monotonic_ms(), 0)

    def _leader(self) -> Peer:
        """Return the leader's peer, or a new peer if the leader's address has changed.

        Raises PeerUnavailable if the address is unknown.
        """
        endpoint = self._endpoint_of(self.source)
        if endpoint is None:
            raise PeerUnavailable("its address is not known")
        if self._peer is None or endpoint != self._endpoint:
            if self._peer is not None:
                self._peer.close()
                self._session.restart()
            self._peer = self._peers.peer(*endpoint, self._name)
            self._endpoint = endpoint
        return self._peer

    async def _fetch(self) -> None:
        peer, config = self._leader(), self._config
        wait_ms: float = config.fetch_wait_max_ms
        if self._resting:
            wait_ms = min(wait_ms, self._until_rested() or 0)
        request = FetchRequest(
            replica_state=ReplicaState(self._node_id, self._broker_epoch()),
            max_wait_ms=ceil(wait_ms),
            min_bytes=config.fetch_min_bytes,
            max_bytes=config.response_max_bytes,
        )
        self._session.put_into(request)
        answer = await peer.ask(request, _FETCH_VERSION, FetchResponse, config.socket_timeout_ms)
        if self._session.answered(answer):
            await self._take(peer, answer)
        elif answer.error_code not in SESSION_ERRORS:
            raise PeerUnavailable(f"it returns error {answer.error_code}")

    # --- responses

    async def _take(self, peer: Peer, answer: FetchResponse) -> None:
        lost: list[Followed] = []
        moved: list[tuple[Followed, int]] = []
        for topic in answer.responses:
            for data in topic.partitions:
                sent = self._session.sent((topic.topic_id, data.partition_index))
                if sent is None or not self._is_current(sent.owner):
                    continue  # the request is outdated
                step = await self._take_one(sent.owner, sent.asked, data)
                if isinstance(step, AskOffsets):
                    self._session.drop(sent.owner.id)
                    lost.append(sent.owner)
                elif isinstance(step, AskTier):
                    self._session.drop(sent.owner.id)
                    moved.append((sent.owner, data.log_start_offset))
                await turn
        try:
            if lost:
                await self._ask_offsets(peer, lost)
        finally:
            if moved:
                await self._rebuilds.begin(peer, moved)

    async def _take_one(self, followed: Followed, asked: FetchPartition, data: PartitionData) -> Step | None:
        """Apply a response to a partition's log and return the step; return None on failure."""
        try:
            step = self._judge(followed, asked, data)
            if isinstance(step, Append):
                await self._append(followed, asked, data)
            else:
                await self._do(followed, step, known_error(data.error_code))
        except ApiError as error:
            self._log_trouble(followed, error.code, str(error))
            self._rest(followed)
            return None
        except OSError as error:
            followed.partition.log.report_failure(error)
            self._log_trouble(followed, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            self._rest(followed)
            return None
        except Exception:
            log.exception("%s: %s is not copied any more", self._name, followed)
            self._fail(followed)
            return None
        return step

    def _judge(self, followed: Followed, asked: FetchPartition, data: PartitionData) -> Step:
        partition_log = followed.partition.log

        def epoch_end(epoch: int) -> tuple[int, int]:
            return partition_log.proven_epochs().end_offset_for(epoch, partition_log.log_end_offset)

        parts = data.diverging_epoch
        return followed.state.answered(
            asked.fetch_offset,
            asked.current_leader_epoch,
            known_error(data.error_code),
            None if parts is None or (parts.epoch < 0 and parts.end_offset < 0) else (parts.epoch, parts.end_offset),
            partition_log.log_end_offset,
            epoch_end,
        )

    async def _do(self, followed: Followed, step: Step, code: ErrorCode) -> None:
        """Carry out a step that is not an append."""
        state, partition_log = followed.state, followed.partition.log
        if isinstance(step, Truncate | Restart):
            before = partition_log.log_end_offset, state.last_fetched_epoch
            if isinstance(step, Restart):
                log.warning("%s: %s begins again at %d, the leader's log start", self._name, followed, step.offset)
                work = partition_log.truncate_fully_in_pieces(step.offset, self._clock.now_ms())
            else:
                work = self._truncation(followed, step.offset)
            if not await self._is_carried_out(followed, work):
                return
            if isinstance(step, Restart) and partition_log.tier is not None:
                partition_log.tier.start_offset = step.offset
            state.truncated(partition_log.log_end_offset, partition_log.leader_epochs.latest)
            self._session.renew()
            self._ask_for(followed)
            if before == (partition_log.log_end_offset, state.last_fetched_epoch):
                self._rest(followed)  # nothing changed: without a pause the same request would repeat for ever
        elif isinstance(step, BackOff):
            self._log_trouble(followed, code, "")
            self._rest(followed)
        elif isinstance(step, GiveUp):
            self._log_trouble(followed, code, "waiting for the controller")
            self._fail(followed)

    async def _truncation(self, followed: Followed, offset: int) -> None:
        partition_log = followed.partition.log
        level = logging.WARNING if offset < partition_log.high_watermark else logging.INFO
        if offset >= partition_log.log_end_offset:
            level = logging.DEBUG  # this removes no record: the shorter log is a prefix of the other
        text = "%s: %s is cut at %d, where it parts from its leader's log; its end was %d, its high watermark %d"
        end, high_watermark = partition_log.log_end_offset, partition_log.high_watermark
        log.log(level, text, self._name, followed, offset, end, high_watermark)
        return await partition_log.truncate_in_pieces(offset, self._clock.now_ms())

    async def _is_carried_out(self, followed: Followed, work: Coroutine[Any, Any, None]) -> bool:
        """Do work on a log in slices; return whether it was completed while the partition was still followed."""
        try:
            while not step(work):
                await turn
                if not self._is_current(followed):
                    return False
            return True
        finally:
            work.close()

    def _fail(self, followed: Followed) -> None:
        """Stop copying a partition until the controller sends the partition's leader again."""
        followed.state.broken()
        if self._is_current(followed):
            self._session.drop(followed.id)

    def _log_trouble(self, followed: Followed, code: ErrorCode, text: str) -> None:
        if code is not followed.logged_error:
            followed.logged_error = code
            log.info("%s: %s from broker %d: %s %s", self._name, followed, self.source, code.name, text)

    # --- appending

    async def _append(self, followed: Followed, asked: FetchPartition, data: PartitionData) -> None:
        """Append the leader's complete batches unchanged. An incomplete batch will be fetched again."""
        view = memoryview(data.records or b"")
        now_ms = self._clock.now_ms()
        try:
            position = batches = reported = 0
            while position + HEADER_SIZE <= len(view):
                size = int.from_bytes(view[position + 8 : position + 12], signed=True) + LOG_OVERHEAD
                if size < HEADER_SIZE:
                    raise AppendError(ErrorCode.CORRUPT_MESSAGE, detail=f"a batch of {size} bytes")
                epoch = int.from_bytes(view[position + 12 : position + 16], signed=True)
                if position + size > len(view) or epoch > followed.state.leader_epoch:
                    break  # the batch is incomplete, or was written by a later leader that the controller will announce
                followed.partition.log.append_as_follower(view[position : position + size], now_ms)
                followed.partition.traffic.replicated_in += size
                position += size
                batches += 1
                if not batches % _BATCHES or position - reported >= _BYTES:
                    reported = position
                    self._appended(followed)
                    await turn
                    if not self._is_current(followed):
                        return
        finally:
            if self._is_current(followed):
                self._appended(followed)
        self._take_offsets(followed, data)
        self._throttle(followed, len(view), data.high_watermark)
        followed.pause_ms = FIRST_PAUSE_MS
        followed.logged_error = ErrorCode.NONE
        if followed.partition.log.earliest_offset != asked.log_start_offset and followed.id not in self._resting:
            self._ask_for(followed)

    def _throttle(self, followed: Followed, size: int, leader_high_watermark: int) -> None:
        """Count the bytes of a throttled replica. Pause a lagging replica if the bytes exceed the quota."""
        partition = followed.partition
        if not partition.is_throttled_follower:
            return
        now_ms = self._clock.monotonic_ms()
        self._quota.record(size, now_ms)
        if partition.log.log_end_offset < leader_high_watermark and self._quota.is_exceeded(now_ms):
            self._resting[followed.id] = now_ms + THROTTLED_PAUSE_MS
            self._session.drop(followed.id)

    def _appended(self, followed: Followed) -> None:
        state, partition_log = followed.state, followed.partition.log
        if state.fetch_offset != partition_log.log_end_offset:
            state.appended(partition_log.log_end_offset, partition_log.leader_epochs.latest)
            self._ask_for(followed)

    def _take_offsets(self, followed: Followed, data: PartitionData) -> None:
        """Apply the leader's high watermark and log start offset, and notify waiting readers."""
        partition = followed.partition
        partition_log = partition.log
        high_watermark = min(data.high_watermark, partition_log.log_end_offset)
        moved = high_watermark > partition_log.high_watermark
        if moved:
            partition_log.set_high_watermark(high_watermark)
        if partition_log.earliest_offset < data.log_start_offset <= partition_log.high_watermark:
            moved |= partition_log.advance_log_start(data.log_start_offset, self._clock.now_ms())
        elif partition_log.tier is not None and 0 <= data.log_start_offset < partition_log.earliest_offset:
            # This broker has led, or has removed local segments, before it knew the first of the remote records.
            partition_log.tier.start_offset = data.log_start_offset
        if moved:
            for waiter in tuple(partition.waiters):
                waiter.poke()

    # --- offsets out of range

    async def _ask_offsets(self, peer: Peer, lost: list[Followed]) -> None:
        """Request the leader's log start and end offsets, and continue from these. On failure, retry later."""
        try:
            timeout_ms = self._config.socket_timeout_ms
            ends = await list_offsets(peer, self._node_id, lost, LATEST, timeout_ms)
            starts = await list_offsets(peer, self._node_id, lost, EARLIEST, timeout_ms)
        except Exception:
            for followed in lost:
                followed.state.offsets_received(ErrorCode.NETWORK_EXCEPTION, -1, -1, -1)
                self._rest(followed)
            raise
        for followed in lost:
            if not self._is_current(followed):
                continue
            key = followed.partition.key
            end, start = ends.get(key, MISSING), starts.get(key, MISSING)
            await self._go_on(followed, end.code or start.code, start.offset, end.offset)
            await turn

    async def _go_on(self, followed: Followed, code: ErrorCode, leader_start: int, leader_end: int) -> None:
        partition_log = followed.partition.log
        step = followed.state.offsets_received(code, leader_start, leader_end, partition_log.log_end_offset)
        try:
            await self._do(followed, step, code)
        except (OSError, ApiError) as error:
            self._log_trouble(followed, ErrorCode.KAFKA_STORAGE_ERROR, str(error))
            if isinstance(error, OSError):
                partition_log.report_failure(error)
            self._rest(followed)
            return
        except Exception:
            # It is unknown whether the log was truncated, so determine the partition's position again. The other
            # partitions must continue.
            log.exception("%s: %s is not copied for a while", self._name, followed)
            followed.state.truncated(partition_log.log_end_offset, partition_log.leader_epochs.latest)
            self._rest(followed)
            return
        if isinstance(step, Ignore):
            self._rest(followed)  # the offset is in range, although the leader has returned OFFSET_OUT_OF_RANGE

    # --- offsets in remote storage

    def _rebuilt(self, followed: Followed, error: Exception | None) -> None:
        """Fetch behind the remote records, or from the same offset after a pause if an error has prevented that."""
        partition_log = followed.partition.log
        followed.state.rebuilt(partition_log.log_end_offset, partition_log.leader_epochs.latest)
        if error is None:
            text = "%s: %s continues at %d, behind the records in remote storage"
            log.info(text, self._name, followed, partition_log.log_end_offset)
            followed.pause_ms = FIRST_PAUSE_MS
            self._session.renew()
            self._ask_for(followed)
        else:
            code = error.code if isinstance(error, ApiError) else ErrorCode.KAFKA_STORAGE_ERROR
            self._log_trouble(followed, code, str(error))
            if isinstance(error, OSError):
                partition_log.report_failure(error)
            self._rest(followed)
        self._wake.set()
