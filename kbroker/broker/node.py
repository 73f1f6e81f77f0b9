"""The composition root of a single node: one broker, assembled and started.

Owns the order in which the parts start, stop and follow the cluster's state, and handles partitions that are lost with
a failed log directory. Like base_node.py, connects packages that must not import each other: for instance, the replicas
get their topic configs from the controller's state. Never elects a leader: the controller does. Never reads a request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Self

from kbroker import handlers
from kbroker.broker.base_node import Node, bound_sockets, load_logs, open_logs
from kbroker.broker.dynamic_configs import configure_dirs, take_configs
from kbroker.broker.node_tiers import check_tiers
from kbroker.broker.periodic_work import DeletedTopics, ExpiredTokens, PeriodicWork
from kbroker.clock import Clock, SystemClock
from kbroker.cluster_state import ClusterState
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.controller import Controller
from kbroker.controller.embedded_store import JOURNAL, SNAPSHOT, EmbeddedStore
from kbroker.controller.topic_plans import topic_defaults
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.directories.dir_lock import LogDirError
from kbroker.log.directories.log_manager import LogManager
from kbroker.log.directories.partition_dir_names import entries_of
from kbroker.log.files import LOG_SUFFIX
from kbroker.log.producers.producer_state import CREDIBLE_IDS, ProducerState
from kbroker.long_work import whole
from kbroker.replicas import Replicas, log_config
from kbroker.restore.state_copies import StateCopies
from kbroker.security.authorizer.acls import Acls
from kbroker.security.sasl.add_scram import ScramUser
from kbroker.security.sasl.scram_credential import USERS
from kbroker.security.sasl.settings import offers
from kbroker.security.tokens.token import token_settings
from kbroker.telemetry.instances import Receiver
from kbroker.txn.hanging_transactions import HangingSearch
from kbroker.txn.producer_ids import ProducerIds

log = logging.getLogger(__name__)


class BrokerNode(Node):
    """One running single node, inside an event loop. `BrokerNode.start` creates it."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        logs: LogManager,
        cleaner_pool: WorkerPool,
        store: EmbeddedStore,
        controller: Controller,
    ) -> None:
        """Connect the parts to loaded logs and metadata, without starting them."""
        call_soon = asyncio.get_running_loop().call_soon
        super().__init__(
            config,
            clock,
            logs,
            cleaner_pool,
            controller,
            Replicas(config.node_id, logs, partial(log_config, config), clock, call_soon),
            ProducerIds(controller.allocate_producer_ids, controller.skip_producer_ids, store.settle),
        )
        self.store = store
        self.controller = controller
        self._lost_while_hosting: list[tuple[str, int]] | None = None
        """The partitions lost so far, while the start hosts the assigned partitions; None at other times."""
        settings = self.services.tokens
        self.state_copies: StateCopies | None = None
        if self.tiers is not None:
            self.state_copies = StateCopies(
                self.tiers.shared, logs.cluster_id, logs.metadata.directory_id, store, lambda: self.replicas
            )
        self.periodic_work = PeriodicWork(
            clock,
            logs,
            cleaner_pool,
            self.replicas,
            self.groups,
            self.transactions,
            self.shares,
            lambda: self.services.share,
            self.stuck_groups,
            self.schedules,
            self.views,
            DeletedTopics(controller, logs),
            None if settings is None else ExpiredTokens(controller, settings, clock),
            HangingSearch(self.transactions, self._producers_of_led, lambda: self.bootstrap_servers),
            self.tiers,
            self.state_copies,
        )

    @classmethod
    async def start(
        cls,
        config: BrokerConfig,
        clock: Clock | None = None,
        cluster_id: str | None = None,
        users: Sequence[ScramUser] = (),
        acls: Acls = MappingProxyType({}),
        receiver: Receiver | None = None,
        on_logs: Callable[[LogManager], None] = lambda _logs: None,
    ) -> Self:
        """Load the data on disk, then serve. With `cluster_id`, refuse a directory of a cluster with another id.

        `users`, `acls` and the receiver of clients' metrics are in effect from the first request on. `on_logs` is
        called with the logs before they are read; reading may take long.

        Raises ConfigError, LogDirError, OSError. The start may be cancelled while it reads logs; the next start reads
        them again.
        """
        if config.in_cluster:
            text = "zookeeper.connect is set, but this broker has no cluster: `kbroker start` starts a cluster's broker"
            raise ConfigError(text)
        clock = clock or SystemClock()
        handlers.load_all()
        async with AsyncExitStack() as parts:
            offers(config)  # raises ConfigError for unsupported settings
            bound = bound_sockets(config, parts)
            logs, cleaner_pool = open_logs(config, cluster_id, clock, parts, on_logs)
            store = EmbeddedStore(logs.directory)
            parts.callback(store.close)
            _check_metadata(store, logs)
            controller = Controller(store, logs.cluster_id, topic_defaults(config), token_settings(config))
            controller.begin_cluster(config.get_int("min.insync.replicas"))
            for user in users:
                whole(controller.change_configs(USERS, user.entity, user.revise))
            whole(controller.create_acls(acls))
            take_configs(config, controller.state)
            configure_dirs(logs, config)
            if controller.state.topics and not logs.was_clean:
                # Begin new leader epochs before the logs are read. A start that is cancelled after the read closes the
                # logs cleanly, and then the next start would begin no new leader epochs.
                controller.bump_leader_epochs()
            await load_logs(
                logs, config, clock, controller.state.topics.get, controller.has_partition, controller.deleted_topics
            )
            check_tiers(config, {name: each.configs for name, each in controller.state.topics.items()})
            node = cls(config, clock, logs, cleaner_pool, store, controller)
            assert node.services.telemetry is not None
            node.services.telemetry.receiver = receiver
            parts.push_async_callback(node.server.close)
            parts.callback(node.replicas.close)
            parts.callback(controller.close)
            parts.callback(node.groups.close)
            parts.callback(node.transactions.close)
            parts.callback(node.shares.close)
            parts.push_async_callback(node.schedules.close)
            parts.push_async_callback(node.close_share)
            if node.tiers is not None:
                parts.push_async_callback(node.tiers.close)
            if node.state_copies is not None:
                parts.push_async_callback(node.state_copies.close)
            store.sync_by_thread(asyncio.get_running_loop(), node._journal_failed)
            await node._begin(bound)
            parts.callback(node.periodic_work.close)
            node._parts = parts.pop_all()
        log.info("[KafkaServer id=%d] started", node.node_id)
        return node

    def _producers_of_led(self) -> list[tuple[tuple[str, int], ProducerState]]:
        return [((each.topic, each.index), each.log.producers) for each in self.replicas if each.leading]

    async def _begin(self, bound: list[socket.socket]) -> None:
        self.logs.events = self
        self._settle_offline()
        self._host_all()
        state, unknown = self.controller.state, ClusterState(self.cluster_id)
        self.groups.on_cluster_state(unknown, state)
        self.controller.subscribe(self._follow_topics)
        self.controller.subscribe(self.groups.on_cluster_state)
        self.controller.subscribe(self._coordinators.follow)
        self.controller.subscribe(self._follow_configs)
        self.controller.subscribe(self.views.follow)
        self._coordinators.follow(unknown, state)
        settled = self.controller.published()
        if settled is not None:
            # From the beginning, clients must see which leaderships were lost or regained with a log directory.
            await settled
        used = (each for replica in self.replicas for each in replica.log.producers.entries if each < CREDIBLE_IDS)
        self.producer_ids.avoid(max(used, default=-1))
        self.controller.register_broker(await self._listen(bound))
        self.periodic_work.begin()

    # --- changes

    def _follow_topics(self, old: ClusterState, new: ClusterState) -> None:
        deleted = self.replicas.apply(old, new)
        if deleted:
            self.groups.on_topics_deleted(deleted)
            self.shares.on_topics_deleted(deleted.values())

    def _follow_configs(self, old: ClusterState, new: ClusterState) -> None:
        if not self._dynamic_configs.follow(old, new):
            return
        known = self.controller.state.brokers.get(self.node_id)
        if known is not None and known.cordoned != self.logs.all_cordoned:
            self.controller.register_broker(replace(known, cordoned=self.logs.all_cordoned))

    def _journal_failed(self, error: OSError) -> None:
        self._fail(f"the metadata journal could not be brought to the disk: {error}")

    # --- log directories that fail

    def _settle_offline(self) -> None:
        """Give up leadership of partitions in offline directories. Resume it when a directory is online again."""
        controller = self.controller
        own = [topic for topic in controller.state.topics.values() if topic.source is None]
        keys = [(topic.name, index) for topic in own for index in range(len(topic.partitions))]
        lost = [key for key in keys if key not in self.logs] if self.logs.some_offline else []
        leaderless = [key for key in keys if (p := controller.state.partition(*key)) and p.leader < 0]
        self.replicas.lose(lost)
        controller.lose_replicas(self.node_id, lost)
        controller.regain_replicas(self.node_id, [key for key in leaderless if key not in lost])

    def _host_all(self) -> None:
        """Host the assigned partitions. A directory can fail meanwhile."""
        lost = self._lost_while_hosting = []
        self.replicas.load(self.controller.state)
        self._lost_while_hosting = None
        if lost:
            self.controller.lose_replicas(self.node_id, lost)

    def partitions_lost(self, keys: list[tuple[str, int]]) -> None:
        if self._lost_while_hosting is None:
            super().partitions_lost(keys)
            return
        # Record the loss before the hosting continues. Otherwise a lost partition that is not hosted yet would be
        # created empty in another directory.
        self._lost_while_hosting += keys
        self.replicas.lose(keys)

    def _lose(self, keys: list[tuple[str, int]]) -> None:
        # Topics may have been deleted since the failure.
        keys = [key for key in keys if self.controller.state.partition(*key) is not None]
        self.replicas.lose(keys)
        self.controller.lose_replicas(self.node_id, keys)


def _check_metadata(store: EmbeddedStore, logs: LogManager) -> None:
    """Raise LogDirError if there are partitions without metadata: a broker that starts empty would ignore them."""
    if store.children(""):
        return
    for directory in (manager.directory for manager in logs.online):
        for (topic, index), path in entries_of(directory).partitions:
            if any(name.endswith(LOG_SUFFIX) for name in os.listdir(path)):
                raise LogDirError(
                    f"{logs.directory} has no metadata, although {directory} has partitions such as {topic}-{index}: "
                    f"put {JOURNAL} and {SNAPSHOT} back, or let `kbroker log adopt` find the topics in their partitions"
                )
