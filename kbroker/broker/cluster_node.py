"""The composition root of a node of a cluster: one broker, which other brokers find through ZooKeeper.

Owns the order in which the parts start and stop in a cluster (Apache Kafka 3.9: KafkaServer), and connects them. Never
reads a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Self
from uuid import UUID

from kbroker import handlers
from kbroker.broker.base_node import Node, OwnPeers, bound_sockets, load_logs, open_logs
from kbroker.broker.controlled_shutdown import shut_down_controlled
from kbroker.broker.dynamic_configs import configure_dirs
from kbroker.broker.membership import Membership, connect, prepare, steadily
from kbroker.broker.node_tiers import check_tiers, use_in_tree
from kbroker.broker.own_produce import PeerPool
from kbroker.broker.periodic_work import ExpiredTokens, PeriodicWork
from kbroker.broker.schemas_source import SchemasSource
from kbroker.broker.schemas_topic import provide_schemas_topic
from kbroker.clock import Clock, SystemClock
from kbroker.cluster_state import NO_LEADER, TRANSACTIONS_TOPIC, BrokerEndpoint, ClusterState, TopicState
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.cluster.cluster_controller import ClusterController
from kbroker.controller.cluster.term import ControllerConfig
from kbroker.controller.features import REGISTERED
from kbroker.controller.member.entity_configs import EntityConfigs
from kbroker.controller.member.finalized_features import FinalizedFeatures
from kbroker.controller.member.metadata import MemberMetadata
from kbroker.controller.member.registration import BrokerRegistration, patience_ms
from kbroker.controller.member.registries import Registries
from kbroker.controller.member.topic_changes import partition_counts
from kbroker.controller.member.zookeeper_acls import ZooKeeperAcls
from kbroker.controller.member.zookeeper_tokens import ZooKeeperTokens
from kbroker.controller.topic_plans import topic_defaults
from kbroker.controller.tree.znode import Create, Denied, MetadataTree, Refused, Unreachable
from kbroker.controller.znodes import (
    BROKER_IDS,
    LOG_DIR_EVENT,
    Endpoint,
    Registration,
    Unreadable,
    encode_log_dir_event,
    read,
)
from kbroker.handlers.services import ClusterServices, in_cluster
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.directories.log_manager import LogManager
from kbroker.peers.connection import TcpPeers
from kbroker.peers.interface import PeersByNode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.record_checks.followed_schemas import FollowedSchemas
from kbroker.record_checks.schema_lookup import ClusterLookup, LocalLookup
from kbroker.replica_manager.config import replication_config
from kbroker.replica_manager.manager import ReplicaManager
from kbroker.replica_manager.replicated_partition import ReplicatedPartition
from kbroker.replicas import Replicas, log_config
from kbroker.schema_registry.records import SCHEMAS_TOPIC
from kbroker.schema_registry.service import NOBODY, Place
from kbroker.security.sasl.add_scram import ScramUser
from kbroker.security.sasl.scram_credential import USERS
from kbroker.security.sasl.settings import login_between_brokers, offers
from kbroker.security.tokens.token import token_settings
from kbroker.share_coordinator.peer_states import PeerStates
from kbroker.tiers.earlier_state import EarlierState
from kbroker.tiers.metadata import Owner
from kbroker.tiers.shared import Use
from kbroker.txn.marker_sender import Target
from kbroker.txn.other_coordinators import OtherCoordinators
from kbroker.txn.peer_markers import MarkerTargets
from kbroker.txn.producer_ids import ProducerIdBlocks

log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.1
_FIRST_METADATA_SECONDS = 10.0
"""The time in seconds for which a start waits for the controller's list of live brokers."""


class ClusterNode(Node):
    """One running broker of a cluster, inside an event loop. `ClusterNode.start` creates it."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        logs: LogManager,
        cleaner_pool: WorkerPool,
        tree: MetadataTree,
        configs: EntityConfigs,
        features: FinalizedFeatures,
        acls: ZooKeeperAcls | None,
        tokens: ZooKeeperTokens | None,
    ) -> None:
        """Connect the parts to loaded logs and metadata, without starting them."""
        peers = TcpPeers(self._client_context, login_between_brokers(config))
        self.peers = peers
        self._killed = False
        self._second_signal = asyncio.Event()
        self._failures = 0
        self._reporting: asyncio.Task[None] | None = None
        self.tree = tree
        self._configs = configs
        self._features = features
        self._acls = acls
        self._tokens = tokens
        self._registries = Registries(tree, config.node_id)
        self.registration = BrokerRegistration(
            tree, config.node_id, patience_ms(config.get_int("zookeeper.session.timeout.ms"))
        )
        self.controller = ClusterController(config.node_id, tree, peers, clock, controller_config(config))
        metadata = MemberMetadata(
            tree,
            configs,
            logs.cluster_id,
            topic_defaults(config),
            self.controller,
            acls,
            tokens,
        )
        self.member = metadata
        call_soon = asyncio.get_running_loop().call_soon
        replicas = Replicas(
            config.node_id,
            logs,
            partial(log_config, config),
            clock,
            call_soon,
            lambda topic, index: metadata.state.partition(topic, index) is not None,
        )
        self.replica_manager = ReplicaManager(config.node_id, replicas, peers, clock, replication_config(config), self)
        timeout_ms = config.get_int("request.timeout.ms")
        # Use one set of connections per purpose, so that slow writes of markers do not delay other requests to a
        # broker.
        self._peers_by_node = [PeersByNode(peers, self.endpoint_of, str(config.node_id)) for _ in range(15)]
        for_markers, for_verification, for_ids, for_shares, *others = self._peers_by_node
        for_offsets, for_letters, for_rereads, *schemas = others[:5]
        segment_reads, segment_writes, *for_schedules = others[5:]
        self._share_states = PeerStates(for_shares, timeout_ms)
        self._asked_by_turns = others
        cluster = ClusterServices(
            broker_epoch=self.broker_epoch,
            metadata=metadata,
            replica_manager=self.replica_manager,
            controller=self.controller,
            other_coordinators=OtherCoordinators(config.node_id, self._coordinator_of, for_verification, timeout_ms),
        )
        self._blocks = ProducerIdBlocks(
            config.node_id, self.broker_epoch, lambda: metadata.state.controller_id, for_ids, clock, timeout_ms
        )
        own_peers = OwnPeers(
            self._share_states,
            for_offsets,
            for_letters,
            for_rereads,
            segment_reads,
            segment_writes,
            PeerPool(for_schedules),
        )
        super().__init__(config, clock, logs, cleaner_pool, metadata, replicas, self._blocks, cluster, own_peers)
        create = partial(provide_schemas_topic, metadata, replicas)
        self._schemas = FollowedSchemas(SchemasSource(config.node_id, tree, metadata, schemas[0], schemas[1], create))
        self.record_checks.lookup = ClusterLookup(self._schemas)
        self.record_checks.without_registry = self._without_registry
        self._marker_targets = MarkerTargets(config.node_id, self.markers, for_markers, timeout_ms)
        self._membership = Membership(tree, self.registration, self.controller, self._fail)
        settings = self.services.tokens
        expired = None
        if settings is not None:
            expired = ExpiredTokens(metadata, settings, clock)
        self.periodic_work = PeriodicWork(
            clock,
            logs,
            cleaner_pool,
            replicas,
            self.groups,
            self.transactions,
            self.shares,
            lambda: self.services.share,
            self.stuck_groups,
            self.schedules,
            self.views,
            expired_tokens=expired,
            tiers=self.tiers,
        )

    @classmethod
    async def start(
        cls,
        config: BrokerConfig,
        clock: Clock | None = None,
        cluster_id: str | None = None,
        tree: MetadataTree | None = None,
        users: Sequence[ScramUser] = (),
        on_logs: Callable[[LogManager], None] = lambda _logs: None,
    ) -> Self:
        """Connect to ZooKeeper, load the data on disk, register, then serve.

        With `cluster_id`, refuse a cluster that has another id.

        `tree` replaces ZooKeeper if the whole cluster is in one process. `users` are created in the cluster. `on_logs`
        is called with the logs before they are read; reading may take long. Raises ConfigError, LogDirError, OSError.
        The start may be cancelled while it reads logs; the next start reads them again.
        """
        clock = clock or SystemClock()
        handlers.load_all(in_cluster=True)
        async with AsyncExitStack() as parts:
            offers(config)  # raises ConfigError for unsupported settings
            login_between_brokers(config)  # likewise
            bound = bound_sockets(config, parts)
            tree = tree or await connect(config)
            parts.push_async_callback(tree.close)
            try:
                return await cls._join(config, clock, cluster_id, tree, bound, parts, users, on_logs)
            except (Unreachable, Denied, Refused, Unreadable) as error:
                raise ConfigError(str(error)) from None

    @classmethod
    async def _join(
        cls,
        config: BrokerConfig,
        clock: Clock,
        cluster_id: str | None,
        tree: MetadataTree,
        bound: list[socket.socket],
        parts: AsyncExitStack,
        users: Sequence[ScramUser],
        on_logs: Callable[[LogManager], None],
    ) -> Self:
        known = await steadily(partial(prepare, tree))
        if cluster_id not in (None, known):
            raise ConfigError(f"{config['zookeeper.connect']} belongs to cluster {known}, not to cluster {cluster_id}")
        features = FinalizedFeatures(tree)
        # Check the features first, so that a broker that cannot join this cluster leaves nothing on disk.
        await steadily(features.load)
        configs = EntityConfigs(tree, clock)
        await steadily(configs.load)
        for user in users:
            await steadily(partial(configs.change, USERS, user.entity, user.revise))
        acls = ZooKeeperAcls(tree, clock) if config.authorization is not None else None
        if acls is not None:
            await steadily(acls.load)
            parts.callback(acls.close)
        settings = token_settings(config)
        tokens = ZooKeeperTokens(tree, settings, clock) if settings is not None else None
        if tokens is not None:
            await steadily(tokens.load)
            parts.callback(tokens.close)
        parts.callback(configs.close)
        parts.callback(features.close)
        await _reencrypt(config, configs)
        config.set_dynamic(configs.of("brokers", ""), configs.of("brokers", str(config.node_id)))
        check_tiers(config, configs.all("topics"))
        logs, cleaner_pool = open_logs(config, known, clock, parts, on_logs)
        configure_dirs(logs, config)
        await load_logs(
            logs, config, clock, lambda name: TopicState(name, b"", (), configs.of("topics", name)), _keep_everything
        )
        node = cls(config, clock, logs, cleaner_pool, tree, configs, features, acls, tokens)
        cluster = in_cluster(node.services)
        parts.push_async_callback(node.controller.close)
        parts.callback(node._membership.close)
        parts.push_async_callback(node.server.close)
        parts.callback(node.replicas.close)
        parts.callback(node.replica_manager.close)
        parts.callback(node.member.close)
        parts.callback(node._registries.close)
        parts.callback(node._schemas.close)
        parts.callback(node.groups.close)
        parts.callback(node.transactions.close)
        parts.callback(node.shares.close)
        parts.callback(node._blocks.close)
        parts.callback(node._marker_targets.close)
        parts.callback(cluster.other_coordinators.close)
        for each in node._peers_by_node:
            parts.callback(each.close)
        parts.callback(node._share_states.close)
        parts.push_async_callback(node.schedules.close)
        parts.push_async_callback(node.close_share)  # also if a start fails after clients could connect
        if node.tiers is not None:
            parts.push_async_callback(node.tiers.close)
        await node._begin(bound)
        parts.callback(node.periodic_work.close)
        parts.push_async_callback(node._leave)
        node._parts = parts.pop_all()
        log.info("[KafkaServer id=%d] started", node.node_id)
        return node

    async def _begin(self, bound: list[socket.socket]) -> None:
        self.logs.events = self
        self.member.subscribe(self.groups.on_cluster_state)
        self.member.subscribe(self._coordinators.follow_deletions)
        self.member.subscribe(self._follow)
        self.member.subscribe(self.views.follow)
        self._configs.follow(self.member.configs_changed)
        if self._acls is not None:
            self._acls.follow(self.member.acls_changed)
        if self._tokens is not None:
            self._tokens.follow(self.member.tokens_changed)
        self._features.follow(self.member.features_changed, self._fail)
        endpoint = await self._listen(bound, serve=False)
        self.member.expect(await steadily(partial(partition_counts, self.tree)))
        await self._membership.begin(self._registered_as(endpoint))
        # Do not serve earlier: without its own broker epoch, this broker would accept controller requests meant for an
        # earlier process.
        self.server.serve()
        self._set_rates()
        self.replica_manager.begin()
        await self.controller.start()
        # After the controller has listed this broker as live, clients that connect to this broker find the cluster.
        await self.knows_live([self.node_id], _FIRST_METADATA_SECONDS)
        # A cluster's first controller finalizes features before it sends any request.
        self._features.reread()
        await self._features.settled()
        self.periodic_work.begin()

    def _registered_as(self, endpoint: BrokerEndpoint) -> Registration:
        return Registration(
            tuple(Endpoint(name, *address) for name, address in endpoint.listeners.items()),
            dict(self.config.listeners.protocols),
            endpoint.rack,
            self.clock.now_ms(),
            REGISTERED,
        )

    async def knows_live(self, brokers: Collection[int], seconds: float) -> bool:
        """Wait until UpdateMetadata lists all these brokers as live. Return False if this takes more than `seconds`."""
        return await self.member.until(lambda state: state.brokers.keys() >= set(brokers), seconds)

    async def kill(self) -> None:
        """Stop like a killed process: without notifications or flushes, and with broken connections."""
        self._killed = True
        self._share_states.close()
        self.server.abort()
        await self.schedules.close(clean=False)
        await self.close_share()  # otherwise the records acquired by this broker's members would be released
        await self.tree.close()
        self.logs.close(clean=False)  # `stop` closes the logs again, cleanly, but that has no effect
        await self.stop()

    def skip_controlled_shutdown(self) -> None:
        self._second_signal.set()

    async def _leave(self) -> None:
        if self._killed:
            return
        if self._reporting is not None:
            self._reporting.cancel()
        await shut_down_controlled(
            self.config,
            self.peers,
            self.broker_epoch,
            self.controller_endpoint,
            self._second_signal,
            self._membership.away,
            lambda: self.controller.is_alone,
        )
        self.replica_manager.stop_fetching()  # only now: leaders wait for this replica until it has left the ISR

    # --- queries of the parts

    def _client_context(self) -> ssl.SSLContext | None:
        """Return the current TLS context for connections to other brokers; None without TLS."""
        return self.tls.client_context()

    def broker_epoch(self) -> int:
        return self.registration.epoch

    def endpoint_of(self, broker_id: int) -> tuple[str, int] | None:
        """Return a broker's address for other brokers; None if the broker is not known as live."""
        broker = self.member.state.brokers.get(broker_id)
        return None if broker is None else broker.listeners.get(self.config.listeners.inter_broker)

    def controller_endpoint(self) -> tuple[str, int] | None:
        """Return the controller's address for other brokers; None while it is unknown."""
        return self.endpoint_of(self.member.state.controller_id)

    def publish_registry(self, url: str) -> None:
        """Publish this broker's schema registry to other brokers, as long as this broker runs."""
        self._registries.publish(url)

    async def registry_place(self) -> Place:
        """Return the leader of `_schemas`.

        If the topic is missing, return this broker, to create it. Raises OSError.
        """
        known = self.member.state.partition(SCHEMAS_TOPIC, 0)
        if known is None or known.leader == self.node_id:
            return Place(self.node_id)
        if known.leader < 0:
            return Place(NOBODY)
        try:
            return Place(known.leader, await self._registries.url_of(known.leader))
        except (Unreachable, Denied) as error:
            raise OSError(f"the registry of broker {known.leader} cannot be looked up: {error}") from None

    def forget_registry(self, broker: int) -> None:
        """Forget a registry's address, because no registry answers there, or the registry is not the leader.

        The address is read again when it is needed.
        """
        self._registries.forget(broker)

    def _let_look_up(self, registry: LocalLookup) -> None:
        self._schemas.here = registry

    async def _without_registry(self) -> list[int]:
        try:
            return sorted(self.member.state.brokers.keys() - await self._registries.brokers())
        except (Unreachable, Denied) as error:
            raise OSError(str(error)) from None

    def live_brokers(self) -> Container[int]:
        return self.member.state.brokers

    def skips_copied_records(self) -> bool:
        return self.config.get_bool("follower.fetch.last.tiered.offset.enable")

    async def earlier_state(self, partition: ReplicatedPartition, epoch: int, offset: int) -> EarlierState:
        if self.tiers is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "this broker has no tiered storage, unlike the leader")
        return await self.tiers.earlier_state(partition, epoch, offset)

    def topic_configs(self, name: str) -> Mapping[str, str]:
        return self._configs.of("topics", name)

    async def _registered_hosts(self) -> list[str]:
        """Return the hosts of the inter-broker listener, from the brokers' registrations.

        The broker needs these hosts to check the controller's UpdateMetadata, so it cannot use the list in that
        request. Raises Unreachable.
        """
        found = []
        for number in await self.tree.children(BROKER_IDS):
            node = await self.tree.get(f"{BROKER_IDS}/{number}")
            with contextlib.suppress(Unreadable):
                registered = None if node is None else read(number, node.data, Registration.decode)
                ends = () if registered is None else registered.endpoints
                found += [each.host for each in ends if each.listener == self.config.listeners.inter_broker]
        return found

    async def _use_of(self, owner: Owner) -> Use:
        return await use_in_tree(self.tree, self.member.state, owner)

    def _marker_target(self, node_id: int) -> Target | None:
        return self._marker_targets.of(node_id)

    def _leader_of(self, partition: tuple[str, int]) -> int | None:
        """Return a partition's leader; NO_LEADER if the controller has perhaps not sent the partition yet."""
        known = super()._leader_of(partition)
        return NO_LEADER if known is None and self.member.may_be_unsent(partition[0]) else known

    def _coordinator_of(self, transactional_id: str) -> int | None:
        """Return the id of the broker that coordinates a transactional id; None if no broker does."""
        partition = self.member.state.partition(TRANSACTIONS_TOPIC, self.transactions.partition_for(transactional_id))
        return None if partition is None or partition.leader < 0 else partition.leader

    # --- changes

    def replica_changed(self, partition: ReplicatedPartition) -> None:
        self._coordinators.changed(partition)

    def replica_stopped(self, partition: ReplicatedPartition) -> None:
        self._coordinators.lost([partition.key])

    def _lose(self, keys: list[tuple[str, int]]) -> None:
        self._report_failure()
        self.replica_manager.lose(keys)
        self._coordinators.lost(keys)

    def _report_failure(self) -> None:
        """Notify the controller that a log directory has failed."""
        self._failures += 1
        if self._reporting is None or self._reporting.done():
            self._reporting = asyncio.get_running_loop().create_task(self._write_failure())

    async def _write_failure(self) -> None:
        event = Create(LOG_DIR_EVENT, encode_log_dir_event(self.node_id), sequential=True)
        reported = 0
        while reported < self._failures:
            failures = self._failures
            try:
                await self.tree.commit([event])
                reported = failures
            except Unreachable:
                await asyncio.sleep(_RETRY_SECONDS)

    def _reconfigure(self, _state: ClusterState) -> None:
        self._set_rates()
        self.replica_manager.set_fetchers(self.config.get_int("num.replica.fetchers"))
        self.replica_manager.reconfigure()

    def _set_rates(self) -> None:
        get = self.config.get_int
        self.replica_manager.set_rates(
            get("leader.replication.throttled.rate"), get("follower.replication.throttled.rate")
        )

    def _follow(self, old: ClusterState, new: ClusterState) -> None:
        """Notify the broker's parts of changed configs, a new controller, changed live brokers and deleted topics."""
        self.replica_manager.controller_changed()
        if self._dynamic_configs.follow(old, new):
            self.controller.configure(controller_config(self.config))
        if old.brokers.keys() != new.brokers.keys():
            self.replica_manager.brokers_changed()
            self._share_states.brokers_changed()
            for each in self._asked_by_turns:
                each.drop_gone()
        if old.topics is new.topics:
            return
        if old.topics.get(SCHEMAS_TOPIC) is not new.topics.get(SCHEMAS_TOPIC):
            self._schemas.moved()
        changed = {
            name
            for name, topic in new.topics.items()
            if (known := old.topics.get(name)) is not topic and known is not None and known.configs != topic.configs
        }
        if changed:
            self.replica_manager.reconfigure(changed)
        for name in changed:
            if new.topics[name].configs.get("unclean.leader.election.enable") == "true":
                self.controller.unclean_election_enabled(name)
        deleted = {name: topic.topic_id for name, topic in old.topics.items() if name not in new.topics}
        for name in (name for views in old.views.values() for name in views if name not in deleted):
            known = old.topics[name]  # no partitions: the source is not known yet, or was deleted
            if known.partitions and new.topics[name].topic_id != known.topic_id:  # the source was created again
                deleted[name] = known.topic_id
        if deleted:
            self.groups.on_topics_deleted(deleted)
        if old.topic_names is not new.topic_names:
            self.shares.on_topics_deleted([each for each in old.topic_names if each not in new.topic_names])


def controller_config(config: BrokerConfig) -> ControllerConfig:
    """Return the part of a broker's configuration that the controller uses."""
    return ControllerConfig(
        inter_broker_listener=config.listeners.inter_broker,
        unclean_leader_election=config.get_bool("unclean.leader.election.enable"),
        delete_topics=config.get_bool("delete.topic.enable"),
        auto_rebalance=config.get_bool("auto.leader.rebalance.enable"),
        imbalance_percentage=config.get_int("leader.imbalance.per.broker.percentage"),
        imbalance_check_seconds=config.get_int("leader.imbalance.check.interval.seconds"),
        socket_timeout_ms=config.get_int("controller.socket.timeout.ms"),
    )


def _keep_everything(_topic: str, _partition: int, _topic_id: UUID | None) -> bool:
    """Return True: any partition may be assigned to this broker, and the controller requests deletions later."""
    return True


async def _reencrypt(config: BrokerConfig, configs: EntityConfigs) -> None:
    """Encrypt this broker's stored passwords with the new secret if the old secret encrypted them."""
    name = str(config.node_id)
    if config.stored.reencrypted(configs.of("brokers", name)) != configs.of("brokers", name):
        await steadily(partial(configs.change, "brokers", name, config.stored.reencrypted))
