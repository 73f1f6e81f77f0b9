"""The assignment of partitions to fetchers (Apache Kafka: ReplicaFetcherManager).

Owns the leaders' addresses and the fetchers: one or more for each leader of followed partitions. Reads or changes a log
only to determine the first fetch offset.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from zlib import crc32

from kbroker.clock import Clock
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import turn
from kbroker.peers.interface import Peers
from kbroker.replica_manager.config import ReplicationConfig
from kbroker.replica_manager.fetcher import Endpoint, Fetcher
from kbroker.replica_manager.followed import Followed
from kbroker.replica_manager.rebuilds import RemoteRecords, restart_unless_whole
from kbroker.replica_manager.replicated_partition import ReplicatedPartition
from kbroker.replica_manager.replication_quota import ReplicationQuota
from kbroker.replication.following import Condition, Following, certain_end

log = logging.getLogger(__name__)

Key = tuple[str, int]


class Fetchers:
    """All fetchers of a broker."""

    def __init__(
        self,
        node_id: int,
        peers: Peers,
        clock: Clock,
        config: ReplicationConfig,
        quota: ReplicationQuota,
        broker_epoch: Callable[[], int],
        endpoint_of: Callable[[int], Endpoint | None],
        remote: RemoteRecords,
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._clock = clock
        self._config = config
        self._quota = quota
        self._broker_epoch = broker_epoch
        self._endpoint_of = endpoint_of
        self._remote = remote
        self._count = config.num_fetchers
        self._met: dict[int, Endpoint] = {}
        self._fetchers: dict[tuple[int, int], Fetcher] = {}
        self._where: dict[Key, tuple[Fetcher, Followed]] = {}
        self._later: dict[Key, asyncio.TimerHandle] = {}
        """Partitions that could not begin to follow yet, and the timers of their retries."""
        self._closed = False

    def meet(self, broker: int, endpoint: Endpoint) -> None:
        """Record a leader's address from a controller's request, which may arrive before the list of live brokers."""
        self._met[broker] = endpoint

    def _find(self, broker: int) -> Endpoint | None:
        return self._endpoint_of(broker) or self._met.get(broker)

    def follow(self, partition: ReplicatedPartition, leader: int, *, is_in_sync: bool = True) -> None:
        """Start copying a partition from its leader, from the end of its log.

        A log whose rebuild was interrupted begins anew, unless the replica is in sync: then it has all records.

        The partition must not be followed already. If the partition's own log is unreadable, for example because the
        system has no free file descriptor, the start is retried (replica.fetch.backoff.ms) until it succeeds or
        `remove` is called.
        """
        self._follow(partition, leader, "", is_in_sync)

    def _follow(self, partition: ReplicatedPartition, leader: int, logged_error: str, is_in_sync: bool) -> None:
        self._later.pop(partition.key, None)
        if self._closed:
            return
        partition_log = partition.log
        try:
            if not is_in_sync:
                restart_unless_whole(partition_log, self._clock.now_ms())
            last_epoch = self._last_epoch(partition_log)
        except Exception as error:  # noqa: BLE001 - logged below, and retried in any case
            if str(error) != logged_error:
                log.error("%s-%d cannot be followed yet: %r", partition.topic, partition.index, error)
            again = partial(self._follow, partition, leader, str(error), is_in_sync)
            loop = asyncio.get_running_loop()
            self._later[partition.key] = loop.call_later(self._config.backoff_ms / 1000, again)
            if isinstance(error, OSError):
                partition_log.report_failure(error)
            return
        state = Following(leader, partition.leader_epoch, partition_log.log_end_offset, last_epoch)
        followed = Followed(partition, state)
        fetcher = self._fetcher(leader, partition.key)
        fetcher.add(followed)
        self._where[partition.key] = fetcher, followed

    def _last_epoch(self, partition_log: PartitionLog) -> int:
        """Truncate a log to the part that certainly matches the leader's log; return the log's last epoch.

        Raise OSError or ApiError on failure.
        """
        last_epoch = partition_log.proven_epochs().latest
        end_offset = partition_log.log_end_offset
        cut_at = certain_end(last_epoch, end_offset, partition_log.high_watermark)
        if cut_at < end_offset:
            partition_log.truncate_to(cut_at, self._clock.now_ms())
        return last_epoch

    def remove(self, key: Key) -> None:
        """Stop copying a partition."""
        later = self._later.pop(key, None)
        if later is not None:
            later.cancel()
        found = self._where.pop(key, None)
        if found is not None:
            fetcher, followed = found
            fetcher.remove(followed.id)

    def close(self) -> None:
        """Stop copying all partitions."""
        self._closed = True
        for each in self._later.values():
            each.cancel()
        self._later.clear()
        self._where.clear()
        for fetcher in list(self._fetchers.values()):
            fetcher.close()
        self._fetchers.clear()

    async def resize(self, count: int) -> None:
        """Set the number of fetchers for each leader (num.replica.fetchers).

        A partition that changes its fetcher begins at the end of its log, like a new follower. A failed partition
        continues to wait for the controller. (Apache Kafka: AbstractFetcherManager.resizeThreadPool)
        """
        if count == self._count:
            return
        self._count = count
        for key, place in list(self._where.items()):
            fetcher, followed = place
            is_failed = followed.state.condition is Condition.FAILED
            if not is_failed and fetcher.number != self._number(key) and self._where.get(key) is place:
                self.remove(key)
                self.follow(followed.partition, followed.state.leader)
            await turn

    def _number(self, key: Key) -> int:
        return crc32(f"{key[0]}-{key[1]}".encode()) % self._count

    def _fetcher(self, leader: int, key: Key) -> Fetcher:
        number = self._number(key)
        fetcher = self._fetchers.get((leader, number))
        if fetcher is None:
            fetcher = self._fetchers[leader, number] = Fetcher(
                self._node_id,
                leader,
                number,
                self._peers,
                self._clock,
                self._config,
                self._quota,
                self._broker_epoch,
                self._find,
                self._remote,
                self._forget,
            )
        return fetcher

    def _forget(self, fetcher: Fetcher) -> None:
        place = fetcher.source, fetcher.number
        if self._fetchers.get(place) is fetcher:
            del self._fetchers[place]
