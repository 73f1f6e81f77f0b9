"""The replicas of one broker in a cluster (Apache Kafka: ReplicaManager).

Owns the changes of partitions that the controller requests: to lead, to follow or to stop. Also owns the newest known
controller epoch, and the periodic check for lagging followers. replicated_partition.py contains a partition's
behaviour, and fetchers.py the copying. Never decides about leadership, and never parses a request's bytes. The table of
hosted partitions is `Replicas`, as on a single node. In a cluster a broker hosts a partition only after a request from
the controller, never because of the cluster's state alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol, cast
from uuid import UUID

from kbroker.clock import Clock
from kbroker.cluster_state import NO_LEADER, TopicState
from kbroker.log.directories.partition_dir_names import MadeAhead, NewPartition
from kbroker.long_work import begun_in_slices, turn
from kbroker.peers.interface import Peers
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.inter_broker import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
    LeaderAndIsrTopicState,
    StopReplicaPartitionError,
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from kbroker.protocol.wire import ZERO_UUID
from kbroker.replica_manager.alter_partition_requests import Endpoint, InSyncChanges
from kbroker.replica_manager.config import ReplicationConfig
from kbroker.replica_manager.fetchers import Fetchers
from kbroker.replica_manager.rebuilds import RemoteRecords
from kbroker.replica_manager.replicated_partition import PartitionContext, ReplicatedPartition
from kbroker.replica_manager.replication_quota import FOLLOWER_REPLICAS, LEADER_REPLICAS, ReplicationQuota, is_throttled
from kbroker.replicas import Replicas
from kbroker.replication.leadership import Granted
from kbroker.topic_names import partition_fault, topic_name_fault

log = logging.getLogger(__name__)

_UNCHECKED: Final = -1
_WHATEVER: Final = frozenset({-1, -2})
"""Leader epochs of a StopReplica that count as the newest epoch: no epoch, and the epoch for a deleted topic."""
_DELETED_AT_ONCE: Final = 16

Key = tuple[str, int]


class Member(RemoteRecords, Protocol):
    """The broker as a member of its cluster."""

    def broker_epoch(self) -> int:
        """Return the epoch of this broker's registration."""

    def endpoint_of(self, broker_id: int) -> Endpoint | None:
        """Return a live broker's address for other brokers; None if unknown."""

    def controller_endpoint(self) -> Endpoint | None:
        """Return the controller's address for other brokers; None if unknown."""

    def live_brokers(self) -> Container[int]:
        """Return the ids of the brokers that are allowed to be in sync."""

    def topic_configs(self, name: str) -> Mapping[str, str]:
        """Return a topic's own configs."""

    def replica_changed(self, partition: ReplicatedPartition) -> None:
        """Handle a partition that now leads or follows in a new leader epoch."""

    def replica_stopped(self, partition: ReplicatedPartition) -> None:
        """Handle a partition that has stopped leading and following."""


class ReplicaManager:
    """The partitions that a broker of a cluster leads and follows.

    `controller_epoch` is the newest controller epoch of any request.
    """

    def __init__(
        self,
        node_id: int,
        replicas: Replicas,
        peers: Peers,
        clock: Clock,
        config: ReplicationConfig,
        member: Member,
    ) -> None:
        """Initialize the manager; `begin` starts the background work."""
        self.node_id = node_id
        self.controller_epoch = 0
        self._replicas = replicas
        self._clock = clock
        self._config = config
        self._member = member
        self._changes = InSyncChanges(
            node_id, peers, member.broker_epoch, member.controller_endpoint, config.socket_timeout_ms
        )
        self._context = PartitionContext(node_id, clock, config.lag_max_ms, member.live_brokers, self._changes.propose)
        self._context.sent = ReplicationQuota(config.quota_window)
        self._taken = ReplicationQuota(config.quota_window)
        self._fetchers = Fetchers(
            node_id, peers, clock, config, self._taken, member.broker_epoch, member.endpoint_of, member
        )
        self._unsynced = False
        self._tasks: dict[asyncio.Task[None], None] = {}  # a dict for its stable order in simulations
        self._closed = False

    @property
    def in_sync_changes(self) -> InSyncChanges:
        """The proposals to the controller."""
        return self._changes

    @property
    def is_rack_aware(self) -> bool:
        """Whether the leader directs consumers to the replica in their rack (replica.selector.class)."""
        return self._config.rack_aware

    # --- lifecycle

    def begin(self) -> None:
        """Start the periodic check for lagging followers."""
        self._spawn(self._watch_followers)

    def close(self) -> None:
        """Stop fetching and proposing. When `Replicas` closes, it notifies callers that wait for a partition."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        self._fetchers.close()
        self._changes.close()

    def stop_fetching(self) -> None:
        """Stop fetching before this broker's shutdown; the broker's leaderships continue."""
        self._fetchers.close()

    def _spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do work in slices until `close`."""
        task = asyncio.get_running_loop().create_task(begun_in_slices(work))
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    async def _watch_followers(self) -> None:
        while True:
            await asyncio.sleep(self._config.lag_max_ms / 2000)
            await self.shrink_isr()

    async def shrink_isr(self) -> None:
        """Propose to remove lagging followers from the in-sync replicas, one partition at a time."""
        for each in self._hosted():
            if each.leading and not each.alone:
                each.shrink_isr()
            await turn

    # --- the controller

    def accept(self, controller_epoch: int, broker_epoch: int) -> ErrorCode:
        """Return an error for a request from an older controller or for an earlier registration of this broker.

        A broker epoch that is -1 or above the known epoch is accepted (KafkaApis.isBrokerEpochStale). UpdateMetadata is
        also checked.
        """
        if broker_epoch != _UNCHECKED and broker_epoch < self._member.broker_epoch():
            return ErrorCode.STALE_BROKER_EPOCH
        if controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch = controller_epoch
        return ErrorCode.NONE

    def controller_changed(self) -> None:
        """Handle a possible change of the controller."""
        self._changes.controller_changed()

    def brokers_changed(self) -> None:
        """Handle a change of the live brokers, in slices."""
        self._spawn(self._brokers_changed)

    async def _brokers_changed(self) -> None:
        for each in self._hosted():
            each.brokers_changed()
            await turn

    def _outdated(self, request: LeaderAndIsrRequest | StopReplicaRequest) -> ErrorCode:
        """Return an error for the rest of a request if a newer controller has appeared meanwhile."""
        is_older = request.controller_epoch < self.controller_epoch
        return ErrorCode.STALE_CONTROLLER_EPOCH if is_older else ErrorCode.NONE

    def has_new(self, request: LeaderAndIsrRequest) -> bool:
        """Whether a LeaderAndIsr contains partitions that are not hosted here."""
        get = self._replicas.get
        return any(
            get((topic.topic_name, state.partition_index)) is None
            for topic in request.topic_states
            if topic_name_fault(topic.topic_name) is None
            for state in topic.partition_states
        )

    async def make_ahead(self, request: LeaderAndIsrRequest) -> list[MadeAhead]:
        """Create the files of a LeaderAndIsr's new partitions on threads, before `become_leader_or_follower`.

        Creating a file may wait for the file system's journal: 100 ms or more on busy disks.
        """
        made: list[MadeAhead] = []
        if not self._outdated(request):
            for each in self._replicas.logs.make_ahead(await self._to_make(request)):
                found: list[MadeAhead] = await asyncio.wrap_future(each)
                made += found
        return made

    async def _to_make(self, request: LeaderAndIsrRequest) -> list[NewPartition]:
        found: list[NewPartition] = []
        logs, get, is_offline = self._replicas.logs, self._replicas.get, self._replicas.is_offline
        for topic in request.topic_states:
            topic_id = UUID(bytes=topic.topic_id) if topic.topic_id != ZERO_UUID else None
            for state in topic.partition_states:
                key = topic.topic_name, state.partition_index
                may_be_made = (
                    not partition_fault(*key) and not is_offline(key) and (state.is_new or not logs.some_offline)
                )
                if self.node_id in state.replicas and get(key) is None and may_be_made and key not in logs:
                    found.append(NewPartition(key, topic_id))
                await turn
        return found

    async def become_leader_or_follower(
        self, request: LeaderAndIsrRequest, made: list[MadeAhead]
    ) -> LeaderAndIsrResponse:
        """Apply a LeaderAndIsr request, and create the files that it requires.

        Return after the directories of new partitions have been synced to disk.
        """
        logs = self._replicas.logs
        logs.offer(made)
        try:
            answer = await self._become_each(request)
        finally:
            logs.withdraw(made)
        if self._unsynced:
            await self._sync()
        return answer

    async def _become_each(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Apply a LeaderAndIsr to one partition at a time; return a result for each."""
        refused = self.accept(request.controller_epoch, request.broker_epoch)
        if refused:
            log.warning("LeaderAndIsr of controller %d is refused: %s", request.controller_id, refused.name)
        for live in request.live_leaders if not refused else ():
            self._fetchers.meet(live.broker_id, (live.host_name, live.port))
            await turn
        answer = LeaderAndIsrResponse(refused, [])
        for topic in request.topic_states:
            errors: list[LeaderAndIsrPartitionError] = []
            answer.topics.append(LeaderAndIsrTopicError(topic.topic_id, errors))
            for state in topic.partition_states:
                code = refused or self._outdated(request) or self._become(topic, state)
                errors.append(LeaderAndIsrPartitionError(state.partition_index, code))
                await turn
            await turn
        return answer

    async def _sync(self) -> None:
        """Wait until the directories of new partitions have been synced to disk."""
        self._unsynced = False
        for each in self._replicas.logs.sync_by_threads():
            try:
                await asyncio.wrap_future(each)
            except OSError as error:
                log.error("directories of new partitions may not survive a loss of power: %s", error)

    def _become(self, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState) -> ErrorCode:
        """Check one partition's state, and apply it."""
        try:
            code = self._judge(topic, state)
            return code or self._change(topic, state)
        except Exception:
            # The request's other partitions must not be affected.
            log.exception("%s-%d cannot lead or follow", topic.topic_name, state.partition_index)
            return ErrorCode.UNKNOWN_SERVER_ERROR

    def _judge(self, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState) -> ErrorCode:
        key = topic.topic_name, state.partition_index
        if fault := partition_fault(*key):
            log.warning("LeaderAndIsr is refused for a partition: %s", fault)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if self._replicas.is_offline(key):
            return ErrorCode.KAFKA_STORAGE_ERROR
        if topic.topic_id not in (ZERO_UUID, self._known_id(key) or topic.topic_id):
            return ErrorCode.INCONSISTENT_TOPIC_ID
        partition = self._replicas.get(key)
        if partition is not None and state.leader_epoch <= partition.leader_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if self.node_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NONE

    def _known_id(self, key: Key) -> bytes | None:
        """Return the topic id of an existing log."""
        partition = self._replicas.get(key)
        if partition is not None:
            return partition.topic_id
        home = self._replicas.logs.home(key)
        topic_id = home.logs[key].topic_id if home is not None else None
        return topic_id.bytes if topic_id is not None else None

    def _change(self, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState) -> ErrorCode:
        key = topic.topic_name, state.partition_index
        partition = self._get(key) or self._host(topic, state)
        if partition is None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        granted = Granted(state.leader_epoch, state.partition_epoch, frozenset(state.isr))
        if partition.knows_newer(granted):
            return ErrorCode.NONE
        self._fetchers.remove(key)
        if state.leader == self.node_id:
            partition.lead(granted, tuple(state.replicas))
        else:
            partition.follow(granted, tuple(state.replicas), state.leader)
            if state.leader != NO_LEADER and not self._closed:
                self._fetchers.follow(partition, state.leader, is_in_sync=self.node_id in granted.isr)
        text = "%s-%d: leader %d in epoch %d, in sync %s"
        log.debug(text, *key, state.leader, state.leader_epoch, state.isr)
        self._member.replica_changed(partition)
        return ErrorCode.NONE

    def _host(self, topic: LeaderAndIsrTopicState, state: LeaderAndIsrPartitionState) -> ReplicatedPartition | None:
        """Return a partition, and create its log if the log is missing; return None if the creation is impossible.

        The log of an existing partition may be in an offline directory, and must not be created again in another
        directory.
        """
        name, index, logs = topic.topic_name, state.partition_index, self._replicas.logs
        if not state.is_new and logs.some_offline and (name, index) not in logs:
            return None
        settings = self._replicas.settings_of(self._topic(name, topic.topic_id))
        topic_id = UUID(bytes=topic.topic_id) if topic.topic_id != ZERO_UUID else None
        try:
            self._unsynced |= (name, index) not in logs
            found = logs.get_or_create(name, index, topic_id, settings, self._clock.now_ms())
        except OSError as error:
            log.error("%s-%d cannot be hosted: %s", name, index, error)
            return None
        if found.config is not settings:
            found.update_config(settings)
        partition = ReplicatedPartition(name, topic.topic_id, index, found, self._context)
        self._throttle(partition)
        self._replicas.put(partition)
        return partition

    async def leave(self, request: UpdateMetadataRequest) -> None:
        """Stop hosting partitions that were moved to other brokers; keep their files.

        A broker whose session expired during the move receives no StopReplica. Without this method, such a broker would
        continue to answer clients as the former leader, or from a replica that receives no new records.
        """
        for topic in request.topic_states:
            for state in topic.partition_states:
                key = topic.topic_name, state.partition_index
                partition = self._get(key)
                if (
                    partition is not None
                    and state.replicas
                    and self.node_id not in state.replicas
                    and state.leader_epoch > partition.leader_epoch
                    and topic.topic_id in (ZERO_UUID, partition.topic_id)
                ):
                    log.info("%s-%d was moved to %s", *key, list(state.replicas))
                    self._fetchers.remove(key)
                    self._replicas.take(key)
                    self._member.replica_stopped(partition)
            await turn

    def _topic(self, name: str, topic_id: bytes) -> TopicState:
        return TopicState(name, topic_id, (), self._member.topic_configs(name))

    # --- stopping

    async def stop_replicas(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Apply a StopReplica: stop following and leading partitions, and delete partitions where requested."""
        refused = self.accept(request.controller_epoch, request.broker_epoch)
        if refused:
            log.warning("StopReplica of controller %d is refused: %s", request.controller_id, refused.name)
            return StopReplicaResponse(refused, [])
        errors: list[StopReplicaPartitionError] = []
        to_delete: dict[Key, StopReplicaPartitionError] = {}
        for topic in request.topic_states:
            for state in topic.partition_states:
                key = topic.topic_name, state.partition_index
                error = StopReplicaPartitionError(*key, self._outdated(request) or self._stop(key, state))
                errors.append(error)
                if state.delete_partition and not error.error_code:
                    to_delete[key] = error
                if len(to_delete) >= _DELETED_AT_ONCE:
                    self._delete(to_delete)
                await turn
            await turn
        self._delete(to_delete)
        return StopReplicaResponse(ErrorCode.NONE, errors)

    def _stop(self, key: Key, state: StopReplicaPartitionState) -> ErrorCode:
        if fault := partition_fault(*key):
            log.warning("StopReplica is refused for a partition: %s", fault)
            return ErrorCode.UNKNOWN_SERVER_ERROR
        if self._replicas.is_offline(key):
            return ErrorCode.KAFKA_STORAGE_ERROR
        partition = self._get(key)
        if partition is None:
            return ErrorCode.NONE
        if state.leader_epoch not in _WHATEVER and state.leader_epoch < partition.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        self._fetchers.remove(key)
        if state.delete_partition:
            self._replicas.take(key)
        else:
            partition.leading = False
            partition.poke()
        self._member.replica_stopped(partition)
        return ErrorCode.NONE

    def _delete(self, to_delete: dict[Key, StopReplicaPartitionError]) -> None:
        """Delete the logs of partitions; their files are removed later. An error applies to all these partitions."""
        for key in [key for key in to_delete if self._replicas.get(key) is not None]:
            del to_delete[key]  # the partition was assigned again meanwhile and keeps its log
        if not to_delete:
            return
        try:
            self._replicas.logs.delete_all(to_delete, self._clock.now_ms())
        except OSError as error:
            log.error("files of stopped replicas could not be removed: %s", error)
            for each in to_delete.values():
                each.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        to_delete.clear()

    def _get(self, key: Key) -> ReplicatedPartition | None:
        """Return a hosted partition. In a cluster all hosted partitions are ReplicatedPartitions."""
        return cast("ReplicatedPartition | None", self._replicas.get(key))

    def _hosted(self) -> list[ReplicatedPartition]:
        return cast("list[ReplicatedPartition]", list(self._replicas))

    # --- other changes of partitions

    def lose(self, keys: Iterable[Key]) -> None:
        """Stop hosting partitions whose log directory has failed."""
        keys = list(keys)
        for key in keys:
            self._fetchers.remove(key)
        self._replicas.lose(keys)

    def set_fetchers(self, count: int) -> None:
        """Set the number of fetchers for each leader, in slices (num.replica.fetchers)."""
        self._spawn(partial(self._fetchers.resize, count))

    def set_rates(self, leader: float, follower: float) -> None:
        """Limit the copying of throttled replicas from this broker and to this broker, in bytes per second.

        (leader.replication.throttled.rate, follower.replication.throttled.rate)
        """
        self._context.sent.rate, self._taken.rate = leader, follower

    def _throttle(self, partition: ReplicatedPartition) -> None:
        configs, index = self._member.topic_configs(partition.topic), partition.index
        partition.is_throttled_leader = is_throttled(configs, LEADER_REPLICAS, index, self.node_id)
        partition.is_throttled_follower = is_throttled(configs, FOLLOWER_REPLICAS, index, self.node_id)

    def reconfigure(self, topics: Container[str] | None = None) -> None:
        """Apply changed configs to these topics, in slices; None means changed defaults, which apply to all topics."""
        if topics is None:
            self._replicas.forget_settings()
        self._spawn(partial(self._reconfigure, topics))

    async def _reconfigure(self, topics: Container[str] | None) -> None:
        for each in self._hosted():
            if topics is None or each.topic in topics:
                self._reconfigure_one(each)
            await turn

    def _reconfigure_one(self, each: ReplicatedPartition) -> None:
        settings = self._replicas.settings_of(self._topic(each.topic, each.topic_id))
        if each.log.config is not settings:
            each.log.update_config(settings)
            self._replicas.on_reconfigured(each)
            each.poke()  # consumers may be allowed to read more now
        self._throttle(each)
        each.set_min_isr(settings.min_insync_replicas)
        each.advance()
