"""The composition root: one broker, put together and started.

Owns the parts' order of birth and death. Siblings that may not know each other meet here: the group coordinator gets a
Writer over the hosted partitions, the replicas get their topic configs from the controller's state. Never reads a
request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Self
from uuid import UUID

from kbroker import handlers
from kbroker.broker.cluster_follower import ClusterFollower, configure_dirs, take_configs
from kbroker.broker.coordinator_log import CoordinatorLog
from kbroker.broker.deleted_topics import DeletedTopics
from kbroker.broker.local_markers import LocalMarkers
from kbroker.broker.periodic_work import PeriodicWork
from kbroker.clock import Clock, SystemClock
from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, BrokerEndpoint
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_store import JOURNAL, SNAPSHOT, EmbeddedStore
from kbroker.controller.features import TRANSACTION_VERSION
from kbroker.controller.internal_topics import internal_topics
from kbroker.controller.topic_plans import TopicDefaults
from kbroker.group_coordinator.config import group_config
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.handlers.fetch_session import FetchSessions
from kbroker.handlers.services import Services
from kbroker.log.cleaner.settings import cleaner_settings
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.directories.dir_lock import LogDirError
from kbroker.log.directories.log_directory import LogDirectory
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.directories.partition_dirs import entries_of
from kbroker.log.files import LOG_SUFFIX
from kbroker.log.log_config import LogConfig
from kbroker.log.open_files import OpenFiles
from kbroker.log.producers.producer_state import CREDIBLE_IDS
from kbroker.network.dispatch import Dispatcher
from kbroker.network.server import Server, bind, own_host_name, server_limits
from kbroker.replicas import Replicas, topic_settings
from kbroker.txn.config import transaction_config
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.marker_sender import MarkerWriter
from kbroker.txn.producer_ids import ProducerIds

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker serves: a listener's host and the port it got."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BrokerNode:
    """One running broker inside an event loop; `BrokerNode.start` makes one."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        logs: LogManager,
        cleaner_pool: WorkerPool,
        store: EmbeddedStore,
        controller: Controller,
    ) -> None:
        """Put the parts together over logs and metadata that are loaded. None of them does anything yet."""
        loop = asyncio.get_running_loop()
        self.config = config
        self.clock = clock
        self.node_id = config.node_id
        self.logs = logs
        self.cleaner_pool = cleaner_pool
        self.store = store
        self.controller = controller
        self.addresses: list[Address] = []
        self.failed: asyncio.Future[str] = loop.create_future()
        """Done with the reason when the broker cannot go on: all its log directories have failed, or the metadata's."""
        self.replicas = Replicas(self.node_id, logs, partial(topic_settings, config), clock, loop.call_soon)
        self.groups = GroupCoordinator(
            group_config(config), CoordinatorLog(OFFSETS_TOPIC, controller, self.replicas), clock
        )
        self.producer_ids = ProducerIds(controller.allocate_producer_ids, controller.skip_producer_ids, store.settle)
        self.markers = LocalMarkers(self.replicas, self.groups, clock)
        self.transactions = TransactionCoordinator(
            transaction_config(config),
            CoordinatorLog(TRANSACTIONS_TOPIC, controller, self.replicas),
            clock,
            self.producer_ids,
            lambda: controller.state.features[TRANSACTION_VERSION],
            MarkerWriter(self._leader_of, lambda node: self.markers if node == self.node_id else None),
            loop.call_soon,
        )
        dispatcher = Dispatcher()
        self.services = Services(
            node_id=self.node_id,
            config=config,
            clock=clock,
            controller=controller,
            replicas=self.replicas,
            groups=self.groups,
            producer_ids=self.producer_ids,
            fetch_sessions=FetchSessions(config.get_int("max.incremental.fetch.session.cache.slots")),
            fetch_max_bytes=config.get_int("fetch.max.bytes"),
            transactions=self.transactions,
            markers=self.markers,
            on_levels_changed=dispatcher.forget_entries,
        )
        self.server = Server(self.services, dispatcher, server_limits(config))
        self._follower = ClusterFollower(
            config,
            controller,
            logs,
            cleaner_pool,
            self.replicas,
            self.groups,
            self.transactions,
            self.server,
            self._fail,
        )
        self.periodic_work = PeriodicWork(
            clock,
            logs,
            cleaner_pool,
            self.replicas,
            self.groups,
            self.transactions,
            DeletedTopics(controller, logs),
        )
        self._parts = AsyncExitStack()

    @classmethod
    async def start(cls, config: BrokerConfig, clock: Clock | None = None, cluster_id: str | None = None) -> Self:
        """Load what is on disk, then serve; with `cluster_id` refuse a directory of any other cluster.

        Raises ConfigError, LogDirError, OSError. May be cancelled while it reads logs; the next start reads them again.
        """
        if config.in_cluster:
            raise ConfigError("zookeeper.connect is set, but clusters do not exist yet: remove it to run a single node")
        clock = clock or SystemClock()
        handlers.load_all()
        async with AsyncExitStack() as parts:
            # First, so that a start that fails for an address in use leaves nothing on the disk.
            limits = server_limits(config)
            bound = [parts.enter_context(bind(each.host, each.port, limits)) for each in config.listeners.bind]
            cleaner_pool = WorkerPool(cleaner_settings(config))
            parts.callback(cleaner_pool.close)
            logs = _log_dirs(config, cluster_id, cleaner_pool)
            logs.open()
            parts.callback(lambda: logs.close(clean=True, now_ms=clock.now_ms()))
            store = EmbeddedStore(logs.directory)
            parts.callback(store.close)
            _check_metadata(store, logs)
            defaults = TopicDefaults(
                config.get_int("num.partitions"), config.get_int("default.replication.factor"), internal_topics(config)
            )
            controller = Controller(store, logs.cluster_id, defaults)
            controller.begin_cluster(config.get_int("min.insync.replicas"))
            take_configs(config, controller.state)
            configure_dirs(logs, config)
            await _load(logs, controller, config, clock)
            node = cls(config, clock, logs, cleaner_pool, store, controller)
            parts.push_async_callback(node.server.close)
            parts.callback(node.replicas.close)
            parts.callback(controller.close)
            parts.callback(node.groups.close)
            parts.callback(node.transactions.close)
            store.sync_by_thread(asyncio.get_running_loop(), node._journal_failed)
            await node._begin(bound)
            parts.callback(node.periodic_work.close)
            node._parts = parts.pop_all()
        log.info("[KafkaServer id=%d] started", node.node_id)
        return node

    async def stop(self) -> None:
        """Answer what is parked, end the connections, flush the logs."""
        parts = self._parts.pop_all()
        await parts.aclose()
        log.info("[KafkaServer id=%d] stopped", self.node_id)

    @property
    def cluster_id(self) -> str:
        return self.logs.cluster_id

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(str(a) for a in self.addresses)

    async def _begin(self, bound: list[socket.socket]) -> None:
        loop = asyncio.get_running_loop()

        def advance_moves() -> None:
            """Called on the thread of a move; the loop may be gone by then."""
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(lambda: self.logs.advance_moves(self.clock.now_ms()))

        self.logs.wake = advance_moves
        self._follower.begin()
        settled = self.controller.published()
        if settled is not None:
            # Leadership that went or came back with a directory: clients are told of it from the first.
            await settled
        used = (each for replica in self.replicas for each in replica.log.producers.entries if each < CREDIBLE_IDS)
        self.producer_ids.avoid(max(used, default=-1))
        await self._listen(bound)
        self.periodic_work.begin(self.bootstrap_servers)

    async def _listen(self, bound: list[socket.socket]) -> None:
        config = self.config
        for listener, sock in zip(config.listeners.bind, bound, strict=True):
            port = await self.server.listen(listener.name, sock)
            advertised = config.listeners.advertised.get(listener.name)
            host = advertised.host if advertised else listener.host or own_host_name()
            self.addresses.append(Address(host, advertised.port if advertised and advertised.port else port))
        first = self.addresses[0]
        rack = config.get_optional_str("broker.rack")
        names = [listener.name for listener in config.listeners.bind]
        by_name = {name: (each.host, each.port) for name, each in zip(names, self.addresses, strict=True)}
        cordoned = self.logs.all_cordoned
        self.controller.register_broker(BrokerEndpoint(self.node_id, first.host, first.port, rack, by_name, cordoned))

    def _leader_of(self, partition: tuple[str, int]) -> int | None:
        known = self.controller.state.partition(*partition)
        return None if known is None else known.leader

    def _journal_failed(self, error: OSError) -> None:
        self._fail(f"the metadata journal could not be brought to the disk: {error}")

    def _fail(self, text: str) -> None:
        """The broker cannot go on; whoever runs it waits for `failed`."""
        log.critical("shutting down: %s", text)
        if not self.failed.done():
            self.failed.set_result(text)


def _log_dirs(config: BrokerConfig, cluster_id: str | None, cleaner_pool: WorkerPool) -> LogManager:
    """Return the log directories, not opened yet. Raises ConfigError."""
    directories = [os.path.abspath(directory) for directory in dict.fromkeys(config.log_dirs)]
    metadata = os.path.abspath(config.get_optional_str("metadata.log.dir") or directories[0])
    if metadata not in directories:
        raise ConfigError(f"metadata.log.dir {metadata} is not among log.dirs; this broker keeps its metadata there")
    if cluster_id is not None and re.fullmatch(r"[A-Za-z0-9_+/=-]{1,64}", cluster_id) is None:
        raise ConfigError(f"{cluster_id!r} is no cluster id; it has 22 letters, digits, '-' and '_'")
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
            cleaner_pool=cleaner_pool,
            files=files,
        )
        for directory in directories
    ]
    return LogManager(managers, metadata)


def _check_metadata(store: EmbeddedStore, logs: LogManager) -> None:
    """Raise LogDirError where there are partitions, but nothing is stored: an empty broker would pass them over."""
    if store.children(""):
        return
    for directory in (manager.directory for manager in logs.online):
        for (topic, index), path in entries_of(directory).partitions:
            if any(name.endswith(LOG_SUFFIX) for name in os.listdir(path)):
                raise LogDirError(
                    f"{logs.directory} has no metadata, although {directory} holds partitions, as {topic}-{index}: "
                    f"put {JOURNAL} and {SNAPSHOT} back, or let `kbroker log adopt` find the topics in their partitions"
                )


async def _load(logs: LogManager, controller: Controller, config: BrokerConfig, clock: Clock) -> None:
    """Open every log. After a crash this may take minutes, in which signals are to be heard."""
    topics = controller.state.topics

    def configs(topic: str) -> LogConfig:
        return topic_settings(config, topics.get(topic)).log

    def belongs(topic: str, partition: int, topic_id: UUID | None) -> bool:
        """Tell whether a directory is one of a topic that exists."""
        known = topics.get(topic)
        if known is None or partition >= len(known.partitions):
            return False
        return topic_id is None or topic_id.bytes == known.topic_id

    load = partial(logs.load, configs, clock.now_ms(), belongs, frozenset(controller.deleted_topics))
    if logs.was_clean:
        load()
        return
    if topics:
        controller.bump_leader_epochs()  # first: a start that is cancelled once all is read closes the logs cleanly
    with ThreadPoolExecutor(1, thread_name_prefix="loading") as pool:
        try:
            await asyncio.get_running_loop().run_in_executor(pool, load)
        except asyncio.CancelledError:
            logs.stop_loading()  # or the pool's end would hold the loop up until all is read
            raise
