"""The table of hosted partitions; on a single node, it follows the cluster's state.

Owns the knowledge which partitions are hosted, were lost, or will be hosted later. Never parses requests and never
elects a leader: it follows the state that the controller publishes. All mutable state here belongs to the event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any
from uuid import UUID

from kbroker.clock import Clock
from kbroker.cluster_state import ClusterState, TopicState
from kbroker.config.server_config import BrokerConfig
from kbroker.config.stored_configs import stored_values
from kbroker.config.table import TOPIC
from kbroker.config.values import to_text
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.log_config import LogConfig
from kbroker.log.partition_log import PartitionLog
from kbroker.log.record_check import NO_CHECKS, RecordChecks
from kbroker.long_work import FewAtOnce, step, turn
from kbroker.partition import Partition
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.replication.leadership import needed_in_sync
from kbroker.topic_metrics import TopicMetrics

log = logging.getLogger(__name__)

_NEVER_LATER = frozenset({"__consumer_offsets", "__transaction_state"})
"""Topics whose changes are not deferred, because a coordinator loads their partitions when a change is published.

But a topic with many new partitions is deferred even then; if the coordinator loads one of its partitions earlier,
`host_now` hosts this partition.
"""
AT_ONCE = 2
"""At most this number of new partitions is hosted before a change is published; hosting one takes 0.2 to 1 ms."""
_SLICE, _SLICE_MS = 8, 1
"""The maximum number of deferred partitions hosted in one turn of the loop, and the ms after which the turn ends.

One partition may take several ms.
"""
_LARGE = 250
"""A changed topic with more partitions is processed in slices, even if all its partitions are hosted already."""
_SETTINGS_KEPT = 1000
"""The maximum number of cached settings, one for each combination of topic configs; computing one takes 0.1 ms."""
_OPENED_AT_ONCE = 8
"""The maximum number of batches that are decompressed at the same time; each may use tens of megabytes."""
_RETRY_MS = 1000
"""The time in ms before hosting is retried for partitions that lacked a file descriptor or disk space."""


def log_config(config: BrokerConfig, topic: TopicState | None) -> LogConfig:
    """Return a topic's log configs with the broker's defaults; None stands for a topic without configs of its own."""
    own = {k: v for k, v in topic.configs.items() if k in TOPIC} if topic else {}
    values = stored_values(TOPIC, own, config.topic_defaults())
    texts = {name: to_text(value) for name, value in values.items()}
    return LogConfig.from_map({name: text for name, text in texts.items() if text is not None})


class Replicas:
    """All hosted partitions of one broker."""

    def __init__(
        self,
        node_id: int,
        logs: LogManager,
        settings: Callable[[TopicState], LogConfig],
        clock: Clock,
        defer: Callable[[Callable[[], None]], object],
        is_elsewhere: Callable[[str, int], bool] = lambda _topic, _index: False,
    ) -> None:
        """`defer` calls a function later; `is_elsewhere` returns whether a partition that is not hosted here exists."""
        self.node_id = node_id
        self.logs = logs
        self._settings = settings
        self._known_settings: dict[frozenset[tuple[str, str]], LogConfig] = {}
        self._clock = clock
        self._defer = defer
        self._later: dict[str, TopicState] = {}
        self._refused: dict[str, TopicState] = {}  # topics with partitions that were not hosted because of an OSError
        self._refused_keys: set[tuple[str, int]] = set()
        self._retry_ms = 0.0
        self._partitions: dict[tuple[str, int], Partition] = {}
        self.traffic = TopicMetrics()
        self._hosting: dict[
            str, tuple[TopicState, Coroutine[Any, Any, None]]
        ] = {}  # deferred topics in progress and their coroutines
        self._when_hosted: list[Callable[[], object]] = []
        self._unsynced = False
        self._offline: set[tuple[str, int]] = set()
        self.get = self._partitions.get
        self.openings: FewAtOnce[Any] = FewAtOnce(_OPENED_AT_ONCE)
        """The checks of batches, if the checks take too long for one step of the loop."""
        self._is_elsewhere = is_elsewhere
        self.checks_of: Callable[[str], RecordChecks] = lambda _topic: NO_CHECKS
        """A function that returns the checks of records that a topic's configs can require."""
        self.on_hosted: Callable[[Partition], None] = lambda _partition: None
        """A function that is called with a newly hosted partition, before it leads or follows."""
        self.on_reconfigured: Callable[[Partition], None] = lambda _partition: None
        """A function that is called with a partition after the settings of its log have changed."""

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def leader(self, topic: str, index: int) -> Partition:
        """Return a partition that this broker leads. Raises ApiError if it does not lead the partition."""
        partition = self.get((topic, index))
        if partition is None:
            raise ApiError(self.why_missing(topic, index))
        if not partition.leading:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def why_missing(self, topic: str, index: int) -> ErrorCode:
        """Return the error code for a partition that `get` does not find."""
        if (topic, index) in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._is_elsewhere(topic, index):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def is_offline(self, key: tuple[str, int]) -> bool:
        """Whether a partition was lost with its log directory."""
        return key in self._offline

    @property
    def offline_count(self) -> int:
        """The number of partitions that were lost with their log directories."""
        return len(self._offline)

    @property
    def unhosted_count(self) -> int:
        """The number of topics with partitions that could not be hosted and will be retried."""
        return len(self._refused)

    def forget_settings(self) -> None:
        """Delete the cached settings, because the broker's defaults have changed."""
        self._known_settings.clear()

    def put(self, partition: Partition) -> None:
        """Host a partition that the caller has opened."""
        self._remove(partition.key)
        partition.traffic = self.traffic.host(partition.topic)
        partition.checks = self.checks_of(partition.topic)
        self._partitions[partition.key] = partition
        self.on_hosted(partition)

    def _remove(self, key: tuple[str, int]) -> Partition | None:
        partition = self._partitions.pop(key, None)
        if partition is not None:
            partition.count()
            self.traffic.unhost(partition.topic)
        return partition

    def take(self, key: tuple[str, int]) -> Partition | None:
        """Stop hosting and leading a partition; keep its log."""
        self._offline.discard(key)
        partition = self._remove(key)
        if partition is not None:
            partition.leading = False
            partition.poke()
        return partition

    def lose(self, keys: Iterable[tuple[str, int]]) -> None:
        """Stop hosting partitions whose log directory has failed, and notify their waiters."""
        for key in keys:
            self._offline.add(key)
            partition = self._remove(key)
            if partition is not None:
                partition.leading = False
                partition.poke()

    def replace_log(self, key: tuple[str, int], partition_log: PartitionLog) -> None:
        """Replace a partition's log with a log in another directory that contains the same data."""
        partition = self.get(key)
        if partition is not None:
            partition.log = partition_log
            partition.poke()

    def apply(self, old: ClusterState, new: ClusterState) -> dict[str, bytes]:
        """Apply a change of the cluster: create, reconfigure, lead and delete partitions.

        Return the ids of deleted topics by name. At most `AT_ONCE` new partitions are hosted before this method
        returns. Slices of time process the other new partitions, and large changed topics. The loop serves requests
        between the slices. Until a partition is hosted, requests for it fail with
        UNKNOWN_TOPIC_OR_PARTITION, and clients retry.
        """
        deleted: dict[str, bytes] = {}
        if old.topics is new.topics:
            return deleted
        for name, topic in old.topics.items():
            successor = new.topics.get(name)
            if successor is None or successor.topic_id != topic.topic_id:
                deleted[name] = topic.topic_id
        if deleted:
            self._drop([old.topics[name] for name in deleted])
        left = AT_ONCE
        for name, topic in new.topics.items():
            if old.topics.get(name) is not topic and topic.source is None:
                fresh = sum((name, index) not in self._partitions for index in range(len(topic.partitions)))
                self._refused.pop(name, None)
                if fresh > left or (len(topic.partitions) > _LARGE and name not in _NEVER_LATER):
                    self._put_off(topic)
                    continue
                left = max(left - fresh, 0)
                self._later.pop(name, None)
                self._host(topic, range(len(topic.partitions)), sync=False)
        self._sync()
        return deleted

    def load(self, state: ClusterState) -> None:
        """Host all partitions that the cluster assigns to this broker, when the broker starts."""
        for topic in state.topics.values():
            self._host(topic, range(len(topic.partitions)))

    def _put_off(self, topic: TopicState) -> None:
        if not self._later:
            self._defer(self._catch_up)
        self._later[topic.name] = topic

    def _catch_up(self) -> None:
        """Host a slice of the deferred partitions."""
        until = self._clock.monotonic_ms() + _SLICE_MS
        for _ in range(_SLICE):
            if self._later:
                self._host_next()
            if self._clock.monotonic_ms() >= until:
                break
        if self._later:
            self._defer(self._catch_up)
        else:
            self._hosting.clear()
            self._sync()
            self._notify_hosted()

    def _notify_hosted(self) -> None:
        calls, self._when_hosted = self._when_hosted, []
        for call in calls:
            call()

    @property
    def has_hosted_all(self) -> bool:
        """Whether no partition is deferred."""
        return not self._later

    def when_hosted(self, call: Callable[[], object]) -> None:
        """Run `call` as soon as each deferred partition is hosted, or its hosting has failed."""
        self._when_hosted.append(call)

    async def hosted_of(self, name: str) -> None:
        """Host the deferred partitions of one topic before other deferred partitions."""
        while name in self._later:
            if next(iter(self._later)) != name:
                self._later = {name: self._later.pop(name), **self._later}
            self._host_next()
            await turn

    def host_now(self, name: str, index: int) -> None:
        """Host one deferred partition."""
        topic = self._later.get(name)
        if topic is not None and index < len(topic.partitions) and (name, index) not in self._partitions:
            self._host(topic, (index,), sync=False)

    def _host_next(self) -> None:
        """Host the next deferred partition."""
        name, topic = next(iter(self._later.items()))
        begun = self._hosting.get(name)
        if begun is None or begun[0] is not topic:
            begun = self._hosting[name] = topic, self._host_each(topic)
        if step(begun[1]):
            del self._later[name], self._hosting[name]

    async def _host_each(self, topic: TopicState) -> None:
        """Host a topic, one partition at a time.

        If a partition cannot be hosted, `tick` retries the remaining partitions later.
        """
        for index in range(len(topic.partitions)):
            if topic.name not in self._refused or (topic.name, index) in self._partitions:
                self._host(topic, (index,), sync=False)
                await turn

    def tick(self) -> None:
        """Retry hosting the partitions that could not be hosted."""
        now_ms = self._clock.monotonic_ms()
        if self._refused and now_ms >= self._retry_ms:
            self._retry_ms = now_ms + _RETRY_MS
            if not self._later:
                self._defer(self._catch_up)
            self._later = self._refused | self._later  # deferred topics are newer than the same topics in `_refused`
            self._refused.clear()

    def close(self) -> None:
        """Stop leading and hosting, and notify all waiters."""
        self._later.clear()
        self._refused.clear()
        self._notify_hosted()
        for partition in self._partitions.values():
            partition.leading = False
            partition.poke()

    def reconfigure(self, state: ClusterState) -> None:
        """Apply changed defaults to every topic; many partitions are processed in slices, as in `apply`."""
        self._known_settings.clear()
        self._hosting.clear()
        left = _LARGE
        for topic in state.topics.values():
            if topic.name in self._later:
                continue
            left -= len(topic.partitions)
            if left < 0 and topic.name not in _NEVER_LATER:
                self._put_off(topic)
            else:
                self._host(topic, range(len(topic.partitions)))

    def settings_of(self, topic: TopicState) -> LogConfig:
        """Return a topic's settings; topics with equal configs share one object."""
        key = frozenset(topic.configs.items())
        found = self._known_settings.get(key)
        if found is None:
            if len(self._known_settings) >= _SETTINGS_KEPT:
                self._known_settings.clear()
            found = self._known_settings[key] = self._settings(topic)
        return found

    def _host(self, topic: TopicState, indexes: Iterable[int], *, sync: bool = True) -> None:
        if topic.source is not None:
            return  # a view stores nothing
        config = self.settings_of(topic)
        created = False
        for index in indexes:
            state = topic.partitions[index]
            if self.node_id not in state.replicas or (topic.name, index) in self._offline:
                continue
            partition = self.get((topic.name, index))
            if partition is None:
                try:
                    partition_log = self.logs.get_or_create(
                        topic.name, index, UUID(bytes=topic.topic_id), config, self._clock.now_ms()
                    )
                except OSError as error:
                    self._refuse(topic, index, error)
                    continue
                self._refused_keys.discard((topic.name, index))
                partition = Partition(topic.name, topic.topic_id, index, partition_log)
                self.put(partition)
                created = True
            elif partition.log.config is not config:
                partition.log.update_config(config)
                self.on_reconfigured(partition)
                partition.poke()  # the new settings may let consumers read more
            partition.replicas, partition.isr = state.replicas, state.isr
            partition.alone = len(state.isr) == 1
            partition.min_isr = needed_in_sync(config.min_insync_replicas, len(state.replicas))
            if partition.leader_epoch != state.leader_epoch:
                partition.count()
                partition.leader_epoch, partition.leader = state.leader_epoch, state.leader
                partition.leading = state.leader == self.node_id
                if partition.leading:
                    partition.begin_counting()
                    self._begin_epoch(partition)
                    if partition.alone:
                        partition.log.set_high_watermark(partition.log.log_end_offset)
                partition.poke()
        self._unsynced |= created
        if sync:
            self._sync()

    def _sync(self) -> None:
        """Sync to disk the directories that were created since the last call."""
        if self._unsynced:
            self._unsynced = False
            self.logs.sync()

    def _refuse(self, topic: TopicState, index: int, error: OSError) -> None:
        """Record that a partition cannot be hosted now, although it exists in the cluster's state."""
        self._refused[topic.name] = topic
        if (topic.name, index) not in self._refused_keys:
            self._refused_keys.add((topic.name, index))
            log.error("%s-%d cannot be hosted and is tried again: %s", topic.name, index, error)

    def _begin_epoch(self, partition: Partition) -> None:
        try:
            partition.log.leader_epochs.assign(partition.leader_epoch, partition.log.log_end_offset)
        except OSError as error:
            # If this fails, the first append stores the epoch. An error must not stop other partitions or the broker's
            # start.
            log.error("%s-%d: leader epoch %d: %s", partition.topic, partition.index, partition.leader_epoch, error)
            partition.log.report_failure(error)

    def _drop(self, topics: list[TopicState]) -> None:
        for topic in topics:
            self._later.pop(topic.name, None)
            self._refused.pop(topic.name, None)
        keys = [(topic.name, index) for topic in topics for index in range(len(topic.partitions))]
        self._offline.difference_update(keys)
        self._refused_keys.difference_update(keys)
        removed = [partition for key in keys if (partition := self._remove(key)) is not None]
        for partition in removed:
            partition.leading = False
            partition.poke()
        try:
            self.logs.delete_all((each.key for each in removed), self._clock.now_ms())
        except OSError as error:
            # The directories remain without a topic. They are renamed when a topic of the same name is created.
            log.error("files of deleted topics could not be removed: %s", error)
