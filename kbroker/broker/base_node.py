"""The parts that every broker has, whether it is a single node or a node of a cluster.

Owns the wiring of the parts that both kinds of node have, their addresses, and the stop of a broker. Connects packages
that must not import each other: for instance, it passes to the coordinators the writers to the hosted partitions. Never
starts anything: node.py starts a single node, cluster_node.py a node of a cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from kbroker.broker.coordinator_topics import CoordinatorLeadership, CoordinatorLog
from kbroker.broker.dead_letters import DeadLetterWriter
from kbroker.broker.dynamic_configs import DynamicConfigs
from kbroker.broker.latest_offsets import LatestOffsets
from kbroker.broker.local_markers import LocalMarkers
from kbroker.broker.node_tiers import new_tiers, use_in
from kbroker.broker.own_produce import OwnProduce, PeerPool, ProduceAnywhere, ProduceHere
from kbroker.broker.places import Places
from kbroker.broker.produce_checks import ProduceChecks
from kbroker.broker.quotas import BrokerQuotas
from kbroker.broker.refused_records import RefusedRecords
from kbroker.broker.schemas_topic import provide_schemas_topic
from kbroker.broker.segment_records import SegmentRecords
from kbroker.broker.share_persister import SharePersister
from kbroker.broker.share_settings import ShareSettings
from kbroker.broker.stuck_groups import StuckGroups
from kbroker.clock import Clock
from kbroker.cluster_state import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    BrokerEndpoint,
    ClusterState,
    TopicState,
)
from kbroker.config.between_keys import check_metadata_dir
from kbroker.config.listeners import own_host_name
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.controller.features import TRANSACTION_VERSION
from kbroker.group_coordinator.config import group_config
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.group_coordinator.share_groups import Sharing
from kbroker.handlers.fetch_session import FetchSessions
from kbroker.handlers.from_brokers import BrokerHosts
from kbroker.handlers.services import ClusterServices, Services
from kbroker.log.cleaner.worker_pool import WorkerPool, cleaner_settings
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.log_manager import LogEvents, LogManager
from kbroker.log.directories.meta_properties import is_cluster_id
from kbroker.log.open_files import OpenFiles
from kbroker.log.partition_log import PartitionLog
from kbroker.network.dispatch import Dispatcher
from kbroker.network.server import Server, bind, server_limits
from kbroker.partition import Partition
from kbroker.peers.interface import PeersByNode
from kbroker.protocol.errors import ErrorCode
from kbroker.record_checks.checks import BrokerChecks
from kbroker.record_checks.schema_lookup import LocalLookup
from kbroker.replicas import Replicas, log_config
from kbroker.scheduling.service import Schedules
from kbroker.scheduling.shared import Shared
from kbroker.schema_registry.records import SCHEMAS_TOPIC
from kbroker.schema_registry.service import RegistryService
from kbroker.security.authorizer.authorizer import Authorizer
from kbroker.security.principal import Principal
from kbroker.security.sasl.scram_credential import ScramCredential, credential_of
from kbroker.security.sasl.settings import Credentials, offers
from kbroker.security.tls.of_broker import TlsListeners
from kbroker.security.tokens.known import TokenLogins
from kbroker.security.tokens.token import token_settings
from kbroker.share_coordinator.config import share_coordinator_config
from kbroker.share_coordinator.coordinator import ShareCoordinator
from kbroker.share_coordinator.peer_states import PeerStates
from kbroker.share_partition.delivery import ShareDelivery
from kbroker.telemetry.instances import ClientTelemetry
from kbroker.tiers.metadata import Owner
from kbroker.tiers.shared import Use
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.marker_sender import MarkerWriter, Target
from kbroker.txn.shard import ProducerIdSupply, transaction_config
from kbroker.views.hosted_views import HostedViews

log = logging.getLogger(__name__)

_REGISTRY_WRITE_TIMEOUT_MS: Final = 5_000
_SCHEDULED_AT_ONCE, _SCHEDULED_AT_ONCE_EACH = 32, 4
"""The maximum number of concurrent batches of schedule topics: in total, and to one leader."""


@dataclass(frozen=True, slots=True)
class Address:
    """A broker's address: the host and the port of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class OwnPeers(NamedTuple):
    """The connections for this broker's own work on other brokers.

    Share groups have connections to share coordinators, leaders' offsets and dead letter topics.
    """

    states: PeerStates | None = None
    offsets: PeersByNode | None = None
    letters: PeersByNode | None = None
    rereads: PeersByNode | None = None
    segment_reads: PeersByNode | None = None
    segment_writes: PeersByNode | None = None
    """For the records about remote segments."""
    schedules: PeerPool | None = None
    """For records from schedule topics: several connections to each broker, so that no target delays another target."""


class Node(LogEvents, ABC):
    """The parts of one broker inside an event loop. They are not started yet."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        logs: LogManager,
        cleaner_pool: WorkerPool,
        metadata: ClusterMetadata,
        replicas: Replicas,
        producer_ids: ProducerIdSupply,
        cluster: ClusterServices | None = None,
        own_peers: OwnPeers | None = None,
    ) -> None:
        """Connect the parts to loaded logs and metadata. Raises ConfigError if TLS cannot work."""
        self._loop = loop = asyncio.get_running_loop()
        self.config = config
        self.clock = clock
        self.node_id = config.node_id
        self.logs = logs
        self.cleaner_pool = cleaner_pool
        self.metadata = metadata
        self.addresses: list[Address] = []
        self.failed: asyncio.Future[str] = loop.create_future()
        """A future with the reason to stop: all log directories, or the directory with the metadata, have failed."""
        self.replicas = replicas
        self.registry: RegistryService | None = None
        """The schema registry, once `open_registry` has opened it."""
        self.record_checks = BrokerChecks()
        replicas.checks_of = ProduceChecks(self.record_checks, metadata, replicas, clock, alone=cluster is None).of
        share_log = CoordinatorLog(SHARE_STATE_TOPIC, metadata, replicas)
        self.shares = ShareCoordinator(share_coordinator_config(config), share_log, clock, lambda: metadata.state)
        here, others = ProduceHere(replicas, clock), own_peers or OwnPeers()
        own: OwnProduce = here
        if others.letters is not None:
            own = ProduceAnywhere(config.node_id, here, self._leader_of, others.letters)
        self.schedules = self._new_schedules(metadata, replicas, producer_ids, clock, here, others.schedules)
        for_records: OwnProduce = here
        if others.segment_writes is not None:
            for_records = ProduceAnywhere(config.node_id, here, self._leader_of, others.segment_writes)
        records = SegmentRecords(config.node_id, metadata, replicas, for_records, others.segment_reads)
        self.tiers = tiers = new_tiers(config, logs, replicas, records, self._use_of, clock)
        replicas.on_hosted, replicas.on_reconfigured = self._hosted, self._reconfigured
        self.dead_letters = DeadLetterWriter(
            config, metadata, own, clock, remote=None if tiers is None else tiers.batches_at
        )
        self._refused = self.record_checks.letters = RefusedRecords(metadata, own)
        self.views = HostedViews(
            replicas.get, replicas.why_missing, clock, lambda: metadata.state, replicas.openings, replicas.traffic,
            lambda: replicas,
        )  # fmt: skip
        persister = SharePersister(config.node_id, self.shares, metadata, replicas, others.states, clock)
        settings = ShareSettings(config, clock, lambda: metadata.state)
        most_sessions = config.get_int("group.share.max.share.sessions")
        self._share = ShareDelivery(
            self._led_for_share, persister, self.dead_letters, settings, clock, most_sessions, self.views.has_id,
            None if tiers is None else tiers.offset_at,
        )  # fmt: skip
        timeout_ms = config.get_int("request.timeout.ms")
        latest = LatestOffsets(config.node_id, replicas, clock, lambda: metadata.state, others.offsets, timeout_ms)
        sharing = Sharing(persister, latest.of, self._forget_share_partition)
        self.groups = GroupCoordinator(
            group_config(config), CoordinatorLog(OFFSETS_TOPIC, metadata, replicas), clock, sharing=sharing
        )
        self.stuck_groups = StuckGroups(
            config.node_id,
            self.groups,
            replicas,
            latest,
            lambda: self._share,
            lambda: metadata.state,
            clock,
            self.views,
            others.rereads,
        )
        self.groups.stuck, self.groups.rereads = self.stuck_groups.stuck, self.stuck_groups.rereads
        self.producer_ids = producer_ids
        self.markers = LocalMarkers(replicas, self.groups, clock, timeout_ms)
        self.transactions = TransactionCoordinator(
            transaction_config(config),
            CoordinatorLog(TRANSACTIONS_TOPIC, metadata, replicas),
            clock,
            producer_ids,
            lambda: metadata.state.features[TRANSACTION_VERSION],
            MarkerWriter(self._leader_of, self._marker_target),
            loop.call_soon,
        )
        authorizer = self._authorizer(metadata)
        self.tls = TlsListeners(config)
        self.quotas = BrokerQuotas(config, clock, metadata)
        logins = TokenLogins(lambda: metadata.state.tokens, clock.now_ms)
        credentials = Credentials(self.credential_of, logins)
        self._broker_hosts: BrokerHosts | None = None
        if config.get_str("inter.broker.apis.from") == "brokers":
            self._broker_hosts = BrokerHosts(config.listeners.inter_broker, self._registered_hosts)
        dispatcher = Dispatcher(
            in_cluster=cluster is not None,
            authorizer=authorizer,
            quotas=self.quotas.clients,
            brokers=self._broker_hosts,
        )
        self.services = Services(
            node_id=self.node_id,
            config=config,
            clock=clock,
            controller=metadata,
            replicas=replicas,
            groups=self.groups,
            producer_ids=producer_ids,
            fetch_sessions=FetchSessions(config.get_int("max.incremental.fetch.session.cache.slots")),
            fetch_max_bytes=config.get_int("fetch.max.bytes"),
            transactions=self.transactions,
            shares=self.shares,
            share=self._share,
            markers=self.markers,
            tls=self.tls,
            views=self.views,
            tiers=self.tiers,
            tokens=token_settings(config),
            cluster=cluster,
            telemetry=self._telemetry(metadata) if cluster is None else None,
            authorizer=authorizer,
            record_checks=self.record_checks,
            on_levels_changed=dispatcher.refresh,
        )
        self.server = Server(
            self.services,
            dispatcher,
            server_limits(config),
            self.tls.by_name,
            offers(config, credentials),
            self.quotas.connections,
        )
        self._coordinators = CoordinatorLeadership(self.node_id, self.groups, self.transactions, self.shares)
        self._dynamic_configs = DynamicConfigs(
            config, logs, cleaner_pool, self._reconfigure, self.groups, self.server, self.tls, self.tiers
        )
        self._parts = AsyncExitStack()

    async def _registered_hosts(self) -> list[str]:
        """Return the hosts of the inter-broker listener. A single node knows only itself."""
        listener = self.config.listeners.inter_broker
        found = [each.listeners.get(listener) for each in self.metadata.state.brokers.values()]
        return [each[0] for each in found if each is not None]

    def _telemetry(self, metadata: ClusterMetadata) -> ClientTelemetry:
        """Return the requester of clients' metrics, which follows the cluster's subscriptions."""
        telemetry = ClientTelemetry(self.config.get_int("telemetry.max.bytes"), lambda: uuid4().bytes)
        telemetry.subscriptions.follow(metadata.state.client_metrics_configs)
        metadata.subscribe(lambda _old, new: telemetry.subscriptions.follow(new.client_metrics_configs))
        return telemetry

    def _authorizer(self, metadata: ClusterMetadata) -> Authorizer | None:
        """Return the authorizer of clients' requests, which follows the cluster's ACLs."""
        wanted = self.config.authorization
        if wanted is None:
            return None
        users = [Principal.parse(each) for each in wanted.super_users]
        authorizer = Authorizer(users, allow_if_no_acl=wanted.allow_if_no_acl)
        authorizer.replace(metadata.state.acls)

        def follow(old: ClusterState, new: ClusterState) -> None:
            if new.acls is not old.acls:
                authorizer.replace(new.acls)

        metadata.subscribe(follow)
        return authorizer

    def skip_controlled_shutdown(self) -> None:
        """Make the current or a later stop skip the controlled shutdown."""

    def open_registry(self) -> RegistryService:
        """Start to keep a schema registry in `_schemas`. Call this method only once, after the start."""
        registry_log = CoordinatorLog(SCHEMAS_TOPIC, self.metadata, self.replicas)
        create = partial(provide_schemas_topic, self.metadata, self.replicas)
        alone = self.services.cluster is None
        self.registry = registry = RegistryService(
            registry_log, self.clock, _REGISTRY_WRITE_TIMEOUT_MS, create, alone=alone
        )
        self._parts.callback(registry.close)
        self._coordinators.add(SCHEMAS_TOPIC, registry, [each for each in self.replicas if each.topic == SCHEMAS_TOPIC])
        self._let_look_up(LocalLookup(registry))
        return registry

    def _let_look_up(self, registry: LocalLookup) -> None:
        """Let the record checks look up schemas in this broker's registry."""
        self.record_checks.lookup = registry

    def _new_schedules(
        self,
        metadata: ClusterMetadata,
        replicas: Replicas,
        producer_ids: ProducerIdSupply,
        clock: Clock,
        here: ProduceHere,
        peers: PeerPool | None,
    ) -> Schedules:
        """Return the parts that fire the records of schedule topics."""
        own = here if peers is None else ProduceAnywhere(self.config.node_id, here, self._leader_of, peers)

        def topic(name: str) -> TopicState | None:
            return metadata.state.topics.get(name)

        def most_bytes(topic: TopicState) -> int:
            return int(topic.configs.get("max.message.bytes") or self.config.get_int("message.max.bytes"))

        return Schedules(
            Shared(
                clock,
                topic,
                most_bytes,
                producer_ids,
                own,
                Places(_SCHEDULED_AT_ONCE, _SCHEDULED_AT_ONCE_EACH),
                lambda partition: replicas.get(partition.key) is partition,
            )
        )

    async def _use_of(self, owner: Owner) -> Use:
        """Return how a partition uses remote storage. Raises ApiError."""
        return use_in(self.metadata.state, owner)

    def _hosted(self, partition: Partition) -> None:
        self.schedules.hosted(partition)
        if self.tiers is not None:
            self.tiers.hosted(partition)

    def _reconfigured(self, partition: Partition) -> None:
        self.schedules.reconfigured(partition)
        if self.tiers is not None:
            self.tiers.reconfigured(partition)

    async def close_share(self) -> None:
        """End the work for members of share groups. The next leader makes their acquired records available again."""
        await self.services.share.close()

    async def stop(self) -> None:
        """Answer the waiting requests, close the connections, and flush the logs."""
        self.quotas.close()
        self.views.close()
        parts = self._parts.pop_all()
        await parts.aclose()
        self._refused.close()
        self.record_checks.close()
        if self._broker_hosts is not None:
            self._broker_hosts.close()
        log.info("[KafkaServer id=%d] stopped", self.node_id)

    @property
    def cluster_id(self) -> str:
        return self.logs.cluster_id

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(str(a) for a in self.addresses)

    async def _listen(self, bound: list[socket.socket], *, serve: bool = True) -> BrokerEndpoint:
        """Open all listeners, and accept connections with `serve`. Return this broker's address."""
        for listener, sock in zip(self.config.listeners.bind, bound, strict=True):
            await self.server.listen(listener.name, sock, serve=serve)
        return self._reached_at(bound)

    def _reached_at(self, bound: list[socket.socket]) -> BrokerEndpoint:
        config = self.config
        self.addresses.clear()
        for listener, sock in zip(config.listeners.bind, bound, strict=True):
            port = sock.getsockname()[1]
            advertised = config.listeners.advertised.get(listener.name)
            host = advertised.host if advertised else listener.host or own_host_name()
            self.addresses.append(Address(host, advertised.port if advertised and advertised.port else port))
        first = self.addresses[0]
        rack = config.get_optional_str("broker.rack")
        names = [listener.name for listener in config.listeners.bind]
        by_name = {name: (each.host, each.port) for name, each in zip(names, self.addresses, strict=True)}
        return BrokerEndpoint(self.node_id, first.host, first.port, rack, by_name, self.logs.all_cordoned)

    def _reconfigure(self, state: ClusterState) -> None:
        """Apply the changed defaults to every topic."""
        self.replicas.reconfigure(state)

    def credential_of(self, user: str, mechanism: str) -> ScramCredential | None:
        """Return a user's credential for a SCRAM mechanism. Any thread may call this, because a state never changes."""
        return credential_of(self.metadata.state.user_configs, user, mechanism)

    def _forget_share_partition(self, group: str, topic_id: bytes, index: int) -> None:
        """Drop the local state of a share partition that was deleted or replaced.

        A new state is read when it is needed.
        """
        hosted = self._share.get(group, topic_id, index)
        if hosted is not None:
            hosted.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _led_for_share(self, topic: str, index: int) -> Partition:
        """Return a topic's partition, or a view's source partition, if this broker leads it. Raises ApiError."""
        view = self.views.topic(topic)
        return self.replicas.leader(topic if view is None or view.source is None else view.source, index)

    def _leader_of(self, partition: tuple[str, int]) -> int | None:
        known = self.metadata.state.partition(*partition)
        return None if known is None else known.leader

    def _marker_target(self, node_id: int) -> Target | None:
        """Return the writer of markers for the partitions that a broker leads."""
        return self.markers if node_id == self.node_id else None

    # --- events of the logs

    def move_ready(self) -> None:
        """Continue the move of a log to another directory, on the event loop.

        The move's thread calls this; the loop may be closed by then.
        """
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self.logs.advance_moves(self.clock.now_ms()))

    def log_moved(self, key: tuple[str, int], log: PartitionLog) -> None:
        self.replicas.replace_log(key, log)

    def partitions_lost(self, keys: list[tuple[str, int]]) -> None:
        """Handle the failure of a log directory, after the failed append has been answered."""
        self._loop.call_soon(self._lose, keys)

    @abstractmethod
    def _lose(self, keys: list[tuple[str, int]]) -> None:
        """Stop hosting partitions whose log directory has failed, and notify the controller."""

    def logs_failed(self, text: str) -> None:
        self._fail(text)

    def _fail(self, text: str) -> None:
        """Handle a fatal failure by setting `failed`. The broker's runner waits for it, and stops the broker."""
        log.critical("shutting down: %s", text)
        if not self.failed.done():
            self.failed.set_result(text)


def bound_sockets(config: BrokerConfig, parts: AsyncExitStack) -> list[socket.socket]:
    """Bind all listeners.

    This is the first step of a start. If an address is in use, the start fails and leaves nothing on disk.
    """
    limits = server_limits(config)
    return [parts.enter_context(bind(each.host, each.port, limits)) for each in config.listeners.bind]


def open_logs(
    config: BrokerConfig,
    cluster_id: str | None,
    clock: Clock,
    parts: AsyncExitStack,
    on_logs: Callable[[LogManager], None],
) -> tuple[LogManager, WorkerPool]:
    """Open the log directories, without their logs, and the pool of their cleaner. Raises ConfigError, LogDirError."""
    cleaner_pool = WorkerPool(cleaner_settings(config))
    parts.callback(cleaner_pool.close)
    logs = log_dirs(config, cluster_id, cleaner_pool)
    logs.open()
    on_logs(logs)
    parts.callback(lambda: logs.close(clean=True, now_ms=clock.now_ms()))
    return logs, cleaner_pool


def log_dirs(config: BrokerConfig, cluster_id: str | None, cleaner_pool: WorkerPool) -> LogManager:
    """Return the log directories without opening them. Raises ConfigError."""
    directories = [os.path.abspath(directory) for directory in dict.fromkeys(config.log_dirs)]
    metadata = os.path.abspath(config.get_optional_str("metadata.log.dir") or directories[0])
    check_metadata_dir(metadata, directories)
    if cluster_id is not None and not is_cluster_id(cluster_id):
        raise ConfigError(f"{cluster_id!r} is no cluster id; it has 22 characters: letters, digits, '-' and '_'")
    files = OpenFiles()
    managers = [
        LogDirectory(
            directory,
            node_id=config.node_id,
            cluster_id=cluster_id,
            retention_check_interval_ms=config.get_int("log.retention.check.interval.ms"),
            recovery_point_interval_ms=config.get_int("log.flush.offset.checkpoint.interval.ms"),
            log_start_interval_ms=config.get_int("log.flush.start.offset.checkpoint.interval.ms"),
            high_watermark_interval_ms=config.get_int("replica.high.watermark.checkpoint.interval.ms"),
            producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
            producer_id_check_interval_ms=config.get_int("producer.id.expiration.check.interval.ms"),
            initial_delay_ms=config.get_int("log.initial.task.delay.ms"),
            cleaner_pool=cleaner_pool,
            files=files,
            in_cluster=config.in_cluster,
        )
        for directory in directories
    ]
    return LogManager(managers, metadata, keeps_metadata=not config.in_cluster)


async def load_logs(
    logs: LogManager,
    config: BrokerConfig,
    clock: Clock,
    topic_of: Callable[[str], TopicState | None],
    belongs: Callable[[str, int, UUID | None], bool],
    deleted: Collection[bytes] = (),
) -> None:
    """Open every log. After a crash this may take minutes, so it runs in a thread, and signals are still handled.

    `topic_of` returns a topic with its configs. `belongs` returns whether a directory belongs to an existing topic. If
    the directory has a topic id, the topic must have the same id. `deleted` are the ids of deleted topics whose
    directories may still exist.
    """

    def load() -> None:
        logs.load(lambda name: log_config(config, topic_of(name)), clock.now_ms(), belongs, frozenset(deleted))

    if logs.was_clean:
        load()
        return
    with ThreadPoolExecutor(1, thread_name_prefix="loading") as pool:
        try:
            await asyncio.get_running_loop().run_in_executor(pool, load)
        except asyncio.CancelledError:
            logs.stop_loading()  # otherwise the pool's shutdown would block the loop until everything has been read
            raise
