"""Followers whose next records are in remote storage only: they continue behind these records (KIP-405).

Owns the questions to the leader, and the tasks that read the state behind the remote records and begin the logs anew.
A task needs seconds, so the fetches of other partitions continue meanwhile. Never fetches records. (Apache Kafka:
TierStateMachine)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from kbroker.clock import Clock
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import in_slices
from kbroker.peers.interface import Peer
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.replica_manager.followed import (
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    MISSING,
    Followed,
    LeaderOffset,
    PartitionKey,
    ends_of_epochs,
    list_offsets,
)
from kbroker.replica_manager.follower_session import Key
from kbroker.replica_manager.replicated_partition import ReplicatedPartition
from kbroker.tiers.earlier_state import EarlierState

log = logging.getLogger(__name__)

_AT_ONCE: Final = 4
"""The maximum number of states that one fetcher reads at the same time."""


class RemoteRecords(Protocol):
    """What a broker knows about remote records."""

    def skips_copied_records(self) -> bool:
        """Whether an empty follower begins at the leader's first record that is not copied yet.

        Otherwise it begins at the leader's first local record (follower.fetch.last.tiered.offset.enable, KIP-1023).
        """

    async def earlier_state(self, partition: ReplicatedPartition, epoch: int, offset: int) -> EarlierState:
        """Return the state behind the remote records up to an offset of a leader epoch. Raises ApiError."""


def restart_unless_whole(partition_log: PartitionLog, now_ms: int) -> None:
    """Begin a log at 0 if its rebuild was interrupted. Then the leader says again where the log begins.

    The log is empty. It must not continue without the producers and leader epochs of the remote records.
    """
    if partition_log.lacks_earlier_state:
        partition_log.truncate_fully(0, now_ms)


class Rebuilds:
    """The partitions of one fetcher that continue behind remote records.

    `ended` is called once for each partition that is still followed, with the error if there was one.
    """

    def __init__(
        self,
        node_id: int,
        timeout_ms: float,
        remote: RemoteRecords,
        clock: Clock,
        is_current: Callable[[Followed], bool],
        ended: Callable[[Followed, Exception | None], None],
    ) -> None:
        self._node_id = node_id
        self._timeout_ms = timeout_ms
        self._remote = remote
        self._clock = clock
        self._is_current = is_current
        self._ended = ended
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def begin(self, peer: Peer, moved: list[tuple[Followed, int]]) -> None:
        """Begin a task for each pair of a partition and the leader's log start offset. Raises PeerUnavailable."""
        try:
            begins = await self._begins(peer, [followed for followed, _ in moved])
            known = [(each, start, begins.get(each.partition.key, MISSING)) for each, start in moved]
            earlier = [(each, local.epoch - 1) for each, _, local in known if not local.code and local.epoch > 0]
            ends = await ends_of_epochs(peer, self._node_id, earlier, self._timeout_ms) if earlier else {}
        except Exception as error:
            for followed, _ in moved:
                self._end(followed, error)
            raise
        for followed, start, local in known:
            code = local.code or (ends.get(followed.partition.key, MISSING).code if local.epoch > 0 else ErrorCode.NONE)
            if code:
                self._end(followed, ApiError(code))
            elif local.offset <= followed.partition.log.log_end_offset:
                self._end(followed, ApiError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE))  # the leader has changed
            elif self._is_current(followed):
                epoch = _epoch_before(local, ends.get(followed.partition.key))
                work = self._rebuild(followed, epoch, local.offset - 1, start)
                task = self._tasks[followed.id] = asyncio.get_running_loop().create_task(work)
                task.add_done_callback(lambda done, key=followed.id: self._forget(key, done))  # type: ignore[misc]

    async def _begins(self, peer: Peer, moved: list[Followed]) -> dict[PartitionKey, LeaderOffset]:
        """Return the offset at which each partition can continue. Raises PeerUnavailable."""
        found: dict[PartitionKey, LeaderOffset] = {}
        if self._remote.skips_copied_records():
            empty = [each for each in moved if each.partition.log.log_start_offset == each.partition.log.log_end_offset]
            pending = await list_offsets(peer, self._node_id, empty, EARLIEST_PENDING_UPLOAD, self._timeout_ms)
            found = {key: each for key, each in pending.items() if not each.code and each.offset >= 0}
        rest = [each for each in moved if each.partition.key not in found]
        return found | await list_offsets(peer, self._node_id, rest, EARLIEST_LOCAL, self._timeout_ms)

    async def _rebuild(self, followed: Followed, epoch: int, offset: int, start: int) -> None:
        try:
            async with self._places:
                state = await self._remote.earlier_state(followed.partition, epoch, offset)
                work = followed.partition.log.continue_behind(
                    state.end_offset, max(start, 0), state.epochs, state.producers, self._clock.now_ms()
                )
                await in_slices(work)
        except (ApiError, OSError) as error:
            self._end(followed, error)
        except Exception as error:
            log.exception("%s cannot continue behind its remote records", followed)
            self._end(followed, error)
        else:
            self._end(followed, None)

    def _end(self, followed: Followed, error: Exception | None) -> None:
        if self._is_current(followed):
            if error is not None:
                with suppress(OSError, ApiError):  # after such an error the log refuses appends
                    restart_unless_whole(followed.partition.log, self._clock.now_ms())
            self._ended(followed, error)

    def _forget(self, key: Key, done: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is done:
            del self._tasks[key]

    def stop(self, key: Key) -> None:
        """Stop the work for a partition. After this call the work does not change the partition's log."""
        task = self._tasks.pop(key, None)
        if task is not None:
            task.cancel()

    def close(self) -> None:
        """Stop the work for all partitions."""
        for key in list(self._tasks):
            self.stop(key)


def _epoch_before(local: LeaderOffset, earlier: LeaderOffset | None) -> int:
    """Return the leader epoch of the last record before the leader's first local record.

    `earlier` is the end of the largest epoch below the epoch of the first local record.
    """
    return earlier.epoch if earlier is not None and earlier.offset >= local.offset else local.epoch
