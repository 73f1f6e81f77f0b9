"""The composition root: one broker, put together and started.

Owns the parts' order of birth and death, and the periodic work. Siblings that may not know each other meet here: the
group coordinator gets a Writer over the hosted partitions, the replicas get their topic configs from the controller's
state. Never reads a request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from kbroker import handlers
from kbroker.clock import Clock, SystemClock
from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, BrokerEndpoint, ClusterState, TopicState
from kbroker.config.model import ConfigError
from kbroker.config.overrides import ALL_DIRS, per_ip_overrides
from kbroker.config.server_config import BrokerConfig
from kbroker.config.table import TOPIC
from kbroker.config.values import parse_all, to_text
from kbroker.controller.controller import Controller
from kbroker.controller.embedded import EmbeddedStore
from kbroker.controller.features import TRANSACTION_VERSION
from kbroker.controller.topic_defaults import topic_defaults
from kbroker.group_coordinator.config import group_config
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.handlers.fetch_session import FetchSessions
from kbroker.handlers.services import Services
from kbroker.log import checkpoints
from kbroker.log.cleaner.settings import CleanerSettings
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.log_config import LogConfig
from kbroker.log.log_dirs import LogDirs, unusable
from kbroker.log.log_manager import LogManager
from kbroker.log.producer_entry import CREDIBLE_IDS
from kbroker.network.dispatch import Dispatcher
from kbroker.network.server import Server, ServerLimits, bind
from kbroker.protocol.wire import new_uuid, uuid_text
from kbroker.replicas import Replicas, TopicSettings
from kbroker.txn.config import transaction_config
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.hanging_transactions import find_hanging, warn_of
from kbroker.txn.marker_sender import MarkerWriter
from kbroker.txn.producer_ids import ProducerIds
from kbroker.wiring.coordinator_log import CoordinatorLog
from kbroker.wiring.local_markers import LocalMarkers

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
_CLEANING_TICK_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker serves: a listener's host and the port it got."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class BrokerNode:
    """One running broker inside an event loop. `start` may fail with ConfigError, LogDirError or OSError."""

    def __init__(self, config: BrokerConfig, clock: Clock | None = None, cluster_id: str | None = None) -> None:
        """Prepare a broker; with `cluster_id` it refuses a directory of any other cluster."""
        self.config = config
        self._cluster_id = cluster_id
        self.clock = clock or SystemClock()
        self.node_id = config.node_id
        self.addresses: list[Address] = []
        self._tick: asyncio.TimerHandle | None = None
        self._cleaning_tick: asyncio.TimerHandle | None = None
        self._started = False
        self._looked_for_hanging = False

    @property
    def cluster_id(self) -> str:
        return self.logs.cluster_id

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(str(a) for a in self.addresses)

    async def start(self) -> None:
        """Load what is on disk, then serve. Raises ConfigError, LogDirError, OSError, RecoveryStopped."""
        config = self.config
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done with the reason when the broker cannot go on: all its log directories have failed, or the metadata's."""
        handlers.load_all()
        limits = _limits(config)
        with contextlib.ExitStack() as sockets:
            # First, so that a start that fails for an address in use leaves nothing on the disk.
            bound = [sockets.enter_context(bind(each.host, each.port, limits)) for each in config.listeners.bind]
            self.cleaner_pool = WorkerPool(_cleaner_settings(config))
            self.logs = _open_logs(config, self.node_id, self._cluster_id, self.cleaner_pool)
            try:
                await self._load()
                await self._listen(bound)
            except BaseException:
                await self._abandon()
                raise
            sockets.pop_all()
        self._schedule_tick()
        self._started = True
        log.info("[KafkaServer id=%d] started", self.node_id)

    async def stop(self) -> None:
        """Answer what is parked, end the connections, flush the logs."""
        if not self._started:
            return
        self._started = False
        for timer in (self._tick, self._cleaning_tick):
            if timer is not None:
                timer.cancel()
        self.transactions.close()
        self.groups.close()
        self.replicas.close()
        await self.server.close()
        self._release(clean=True)
        log.info("[KafkaServer id=%d] stopped", self.node_id)

    async def _abandon(self) -> None:
        """Give back what a start that failed had taken."""
        for coordinator in ("transactions", "groups"):
            if hasattr(self, coordinator):
                getattr(self, coordinator).close()
        if hasattr(self, "server"):
            await self.server.close()
        self._release(clean=True)

    def interrupt(self) -> None:
        """Let a `start` that is reading logs end soon, with RecoveryStopped."""
        if hasattr(self, "logs"):
            self.logs.stop_loading()

    async def _load(self) -> None:
        config = self.config
        self.store = EmbeddedStore(self.logs.directory)
        self.controller = Controller(self.store, self.logs.cluster_id, topic_defaults(config))
        topics = self.controller.state.topics
        self._take_configs(self.controller.state)
        self._configure_dirs()

        def configs(topic: str) -> LogConfig:
            return self._settings(topics.get(topic)).log

        load = partial(self.logs.load, configs, self.clock.now_ms(), self._belongs)
        if self.logs.was_clean:
            load()
        else:
            # This may take minutes, in which signals are to be heard.
            with ThreadPoolExecutor(1, thread_name_prefix="loading") as pool:
                try:
                    await asyncio.get_running_loop().run_in_executor(pool, load)
                except asyncio.CancelledError:
                    self.logs.stop_loading()  # or the pool's end would hold the loop up until all is read
                    raise
        if topics and not self.logs.was_clean:
            self.controller.bump_leader_epochs()
        loop = self._loop = asyncio.get_running_loop()
        self.replicas = Replicas(self.node_id, self.logs, self._settings, self.clock, loop.call_soon)
        self._settle_offline()
        state = self.controller.state
        self._host_all(state)
        state = self.controller.state
        self.logs.wake = self._wake_moves
        self.logs.on_moved = self.replicas.replace_log
        self.logs.on_offline = self._lose_soon
        self._coordinate(loop)
        self.replicas.on_topics_deleted = self.groups.on_topics_deleted
        self.controller.subscribe(self.replicas.apply)
        self.controller.subscribe(self.groups.on_cluster_state)
        self.controller.subscribe(self._lead_coordinators)
        self.controller.subscribe(self._follow_configs)
        self.services = Services(
            node_id=self.node_id,
            config=config,
            clock=self.clock,
            controller=self.controller,
            replicas=self.replicas,
            groups=self.groups,
            producer_ids=self.producer_ids,
            fetch_sessions=FetchSessions(config.get_int("max.incremental.fetch.session.cache.slots")),
            fetch_max_bytes=config.get_int("fetch.max.bytes"),
            transactions=self.transactions,
            markers=self.markers,
        )
        self._lead_coordinators(ClusterState(state.cluster_id), state)

    def _coordinate(self, loop: asyncio.AbstractEventLoop) -> None:
        """Put the coordinators together: both write to topics hosted here, and the one ends what the other holds."""
        config, controller, replicas = self.config, self.controller, self.replicas
        self.groups = GroupCoordinator(
            group_config(config), CoordinatorLog(OFFSETS_TOPIC, controller, replicas), self.clock, controller.state
        )
        self.producer_ids = ProducerIds(controller.allocate_producer_ids, controller.skip_producer_ids)
        used = (each for replica in replicas for each in replica.log.producers.entries if each < CREDIBLE_IDS)
        self.producer_ids.avoid(max(used, default=-1))
        self.markers = LocalMarkers(replicas, self.groups, self.clock)
        self.transactions = TransactionCoordinator(
            transaction_config(config),
            CoordinatorLog(TRANSACTIONS_TOPIC, controller, replicas),
            self.clock,
            self.producer_ids,
            lambda: controller.state.features[TRANSACTION_VERSION],
            MarkerWriter(self._leader_of, lambda node: self.markers if node == self.node_id else None),
            loop.call_soon,
        )

    def _leader_of(self, partition: tuple[str, int]) -> int | None:
        known = self.controller.state.partition(*partition)
        return None if known is None else known.leader

    def _host_all(self, state: ClusterState) -> None:
        """Host what the cluster assigns to this broker; a directory may fail meanwhile."""
        lost: list[tuple[str, int]] = []

        def lose(keys: list[tuple[str, int]]) -> None:
            # At once: what is still to be hosted must not be created anew, and empty, in another directory.
            lost.extend(keys)
            self.replicas.lose(keys)

        self.logs.on_offline = lose
        self.logs.on_fatal = self._fail
        self.replicas.load(state)
        if lost:
            self.controller.lose_replicas(self.node_id, lost)

    def _settle_offline(self) -> None:
        """Give up leadership of what is in a directory that is offline, take it back where one has returned."""
        keys = [(t.name, i) for t in self.controller.state.topics.values() for i in range(len(t.partitions))]
        lost = [key for key in keys if key not in self.logs] if self.logs.some_offline else []
        leaderless = [key for key in keys if (p := self.controller.state.partition(*key)) and p.leader < 0]
        self.replicas.lose(lost)
        self.controller.lose_replicas(self.node_id, lost)
        self.controller.regain_replicas(self.node_id, [key for key in leaderless if key not in lost])

    def _wake_moves(self) -> None:
        """Called on the thread of a move; the loop may be gone by then."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: self.logs.advance_moves(self.clock.now_ms()))

    def _lose_soon(self, keys: list[tuple[str, int]]) -> None:
        """Follow once the append that failed has been answered."""
        asyncio.get_running_loop().call_soon(self._lose, keys)

    def _lose(self, keys: list[tuple[str, int]]) -> None:
        # Topics may have been deleted since: a new one of such a name is not offline.
        keys = [key for key in keys if self.controller.state.partition(*key) is not None]
        self.replicas.lose(keys)
        self.controller.lose_replicas(self.node_id, keys)

    def _fail(self, text: str) -> None:
        """The broker cannot go on; whoever runs it waits for `failed`."""
        log.critical("shutting down: %s", text)
        if not self.failed.done():
            self.failed.set_result(text)

    async def _listen(self, bound: list[socket.socket]) -> None:
        config = self.config
        self.server = Server(self.services, Dispatcher(), _limits(config))
        for listener, sock in zip(config.listeners.bind, bound, strict=True):
            port = await self.server.listen(listener.name, sock)
            advertised = config.listeners.advertised.get(listener.name)
            host = advertised.host if advertised else listener.host or "127.0.0.1"
            self.addresses.append(Address(host, advertised.port if advertised and advertised.port else port))
        first = self.addresses[0]
        rack = config.get_optional_str("broker.rack")
        names = [listener.name for listener in config.listeners.bind]
        by_name = {name: (each.host, each.port) for name, each in zip(names, self.addresses, strict=True)}
        cordoned = self.logs.all_cordoned
        self.controller.register_broker(BrokerEndpoint(self.node_id, first.host, first.port, rack, by_name, cordoned))

    def _lead_coordinators(self, old: ClusterState, new: ClusterState) -> None:
        """Load what a partition of a coordinator's topic holds once this broker leads it."""
        self._lead(self.groups, old.topics.get(OFFSETS_TOPIC), new.topics.get(OFFSETS_TOPIC))
        self._lead(self.transactions, old.topics.get(TRANSACTIONS_TOPIC), new.topics.get(TRANSACTIONS_TOPIC))

    def _lead(
        self, coordinator: GroupCoordinator | TransactionCoordinator, before: TopicState | None, now: TopicState | None
    ) -> None:
        if now is None:
            if before is not None:
                coordinator.on_topic_deleted()
            return
        for index, partition in enumerate(now.partitions):
            known = before.partitions[index] if before and index < len(before.partitions) else None
            if partition.leader != self.node_id:
                coordinator.resign(index)
            elif known is None or known.leader_epoch != partition.leader_epoch:
                coordinator.on_leadership(index, partition.leader_epoch)

    def _configure_dirs(self) -> None:
        self.logs.cordoned = frozenset(
            each if each == ALL_DIRS else os.path.abspath(each)
            for each in self.config.get_list("cordoned.log.dirs") or ()
        )
        self.logs.move_bytes_per_second = self.config.get_int("replica.alter.log.dirs.io.max.bytes.per.second")
        for manager in self.logs.managers:
            manager.recovery_threads = self.config.get_int("num.recovery.threads.per.data.dir")

    def _take_configs(self, state: ClusterState) -> bool:
        own = state.broker_configs.get(str(self.node_id), {})
        return bool(self.config.set_dynamic(state.broker_configs.get("", {}), own))

    def _follow_configs(self, old: ClusterState, new: ClusterState) -> None:
        """Let changed broker configs reach the topics whose defaults they are, the logs and the connections."""
        if old.broker_configs is new.broker_configs or not self._take_configs(new):
            return
        self.replicas.reconfigure(new)
        self._configure_dirs()
        known = self.controller.state.brokers.get(self.node_id)
        if known is not None and known.cordoned != self.logs.all_cordoned:
            self.controller.register_broker(replace(known, cordoned=self.logs.all_cordoned))
        self.cleaner_pool.settings = _cleaner_settings(self.config)
        self.logs.change_cleaning_rate()
        self.logs.producer_id_expiration_ms = self.config.get_int("producer.id.expiration.ms")
        self.groups.set_assignment_interval(self.config.get_int("group.consumer.assignment.interval.ms"))
        self.server.limits = _limits(self.config)

    def _belongs(self, topic: str, partition: int, topic_id: UUID | None) -> bool:
        """Tell whether a directory is one of a topic that exists: a crash may leave those of a deleted one."""
        known = self.controller.state.topics.get(topic)
        if known is None or partition >= len(known.partitions):
            return False
        return topic_id is None or topic_id.bytes == known.topic_id

    def _settings(self, topic: TopicState | None) -> TopicSettings:
        own = {k: v for k, v in topic.configs.items() if k in TOPIC} if topic else {}
        values = parse_all(TOPIC, own, self.config.topic_defaults())
        texts = {name: to_text(value) for name, value in values.items()}
        log_config = LogConfig.from_map({name: text for name, text in texts.items() if text is not None})
        return TopicSettings(log_config, full_validation=values["record.validation"] == "full")

    def _schedule_tick(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._on_tick)

    def _on_tick(self) -> None:
        try:
            self.logs.tick(self.clock.now_ms())
            self.cleaner_pool.tick(self.clock.now_ms())
            self.groups.tick()
            self.transactions.tick()
            self._look_for_hanging()
        except Exception:
            log.exception("periodic work on the logs failed")
        self._schedule_tick()
        if self._cleaning_tick is None:
            self._follow_cleaning()

    def _look_for_hanging(self) -> None:
        """Once after the start, when it is known which transactions are open."""
        if not self._looked_for_hanging and self.transactions.is_loaded:
            self._looked_for_hanging = True
            led = (((each.topic, each.index), each.log.producers) for each in self.replicas if each.leading)
            warn_of(find_hanging(led, self.transactions.all()), self.bootstrap_servers)

    def _follow_cleaning(self) -> None:
        """Look more often while a log is compacted: what the worker has done waits to be taken over."""
        self._cleaning_tick = None
        if self.logs.cleaning:
            loop = asyncio.get_running_loop()
            self._cleaning_tick = loop.call_later(_CLEANING_TICK_SECONDS, self._on_cleaning_tick)

    def _on_cleaning_tick(self) -> None:
        try:
            self.logs.follow_cleaning(self.clock.now_ms())
        except Exception:
            log.exception("following the compaction failed")
        self._follow_cleaning()

    def _release(self, *, clean: bool) -> None:
        store = getattr(self, "store", None)
        if store is not None:
            store.close()
        try:
            self.logs.close(clean, self.clock.now_ms())
        finally:
            self.cleaner_pool.close()


def _open_logs(config: BrokerConfig, node_id: int, cluster_id: str | None, cleaner_pool: WorkerPool) -> LogDirs:
    """Lock the log directories. Raises ConfigError, LogDirError, OSError."""
    directories = [os.path.abspath(directory) for directory in dict.fromkeys(config.log_dirs)]
    metadata = os.path.abspath(config.get_optional_str("metadata.log.dir") or directories[0])
    if metadata not in directories:
        raise ConfigError(f"metadata.log.dir {metadata} is not among log.dirs; this broker keeps its metadata there")
    cluster = _cluster_id(metadata, cluster_id)
    managers = [
        LogManager(
            directory,
            node_id=node_id,
            cluster_id=cluster,
            retention_check_interval_ms=config.get_int("log.retention.check.interval.ms"),
            recovery_point_interval_ms=config.get_int("log.flush.offset.checkpoint.interval.ms"),
            log_start_interval_ms=config.get_int("log.flush.start.offset.checkpoint.interval.ms"),
            high_watermark_interval_ms=config.get_int("replica.high.watermark.checkpoint.interval.ms"),
            producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
            cleaner_pool=cleaner_pool,
        )
        for directory in directories
    ]
    logs = LogDirs(managers, metadata)
    logs.open()
    return logs


def _cleaner_settings(config: BrokerConfig) -> CleanerSettings:
    return CleanerSettings(
        enable=config.get_bool("log.cleaner.enable"),
        threads=config.get_int("log.cleaner.threads"),
        io_max_bytes_per_second=config.get_float("log.cleaner.io.max.bytes.per.second"),
        dedupe_buffer_size=config.get_int("log.cleaner.dedupe.buffer.size"),
        io_buffer_size=config.get_int("log.cleaner.io.buffer.size"),
        backoff_ms=config.get_int("log.cleaner.backoff.ms"),
    )


def _cluster_id(directory: str, wanted: str | None) -> str:
    """Return the id of the cluster: as `wanted`, or as found in `directory`; a new one for a new directory."""
    if wanted is not None:
        if re.fullmatch(r"[A-Za-z0-9_+/=-]{1,64}", wanted) is None:
            raise ConfigError(f"{wanted!r} is no cluster id; it has 22 letters, digits, '-' and '_'")
        return wanted
    try:
        found = checkpoints.read_properties(os.path.join(directory, checkpoints.META_PROPERTIES)) or {}
    except OSError as error:
        raise unusable(directory, error) from error
    return found.get("cluster.id") or uuid_text(new_uuid())


def _limits(config: BrokerConfig) -> ServerLimits:
    return ServerLimits(
        max_request_bytes=config.get_int("socket.request.max.bytes"),
        max_connections=config.get_int("max.connections"),
        max_connections_per_ip=config.get_int("max.connections.per.ip"),
        per_ip_overrides=per_ip_overrides(config.get_str("max.connections.per.ip.overrides")),
        max_idle_ms=config.get_int("connections.max.idle.ms"),
        send_buffer_bytes=config.get_int("socket.send.buffer.bytes"),
        receive_buffer_bytes=config.get_int("socket.receive.buffer.bytes"),
        backlog=config.get_int("socket.listen.backlog.size"),
    )
