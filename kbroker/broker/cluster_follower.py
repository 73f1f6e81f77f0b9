"""What one broker does about a change of the cluster's state, and what it tells the controller of its own.

Owns leadership of the coordinators' partitions, the partitions that a failed log directory took along, and dynamic
broker configs on their way to the parts. Never decides who leads: the controller does.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from dataclasses import replace

from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC, ClusterState, TopicState
from kbroker.config.model import ALL_DIRS
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.controller import Controller
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.log.cleaner.settings import cleaner_settings
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.directories.log_manager import LogManager
from kbroker.network.server import Server, server_limits
from kbroker.replicas import Replicas
from kbroker.txn.coordinator import TransactionCoordinator

log = logging.getLogger(__name__)

Keys = list[tuple[str, int]]


class ClusterFollower:
    """One broker's part in the cluster, from `begin` on. `fail(text)` hears that the broker cannot go on."""

    def __init__(
        self,
        config: BrokerConfig,
        controller: Controller,
        logs: LogManager,
        cleaner_pool: WorkerPool,
        replicas: Replicas,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        server: Server,
        fail: Callable[[str], None],
    ) -> None:
        self._config = config
        self._controller = controller
        self._logs = logs
        self._cleaner_pool = cleaner_pool
        self._replicas = replicas
        self._groups = groups
        self._transactions = transactions
        self._server = server
        self._fail = fail

    def begin(self) -> None:
        """Host what the cluster assigns to this broker, coordinate what it leads, and follow every change."""
        controller, logs, replicas = self._controller, self._logs, self._replicas
        logs.on_fatal = self._fail
        self._settle_offline()
        self._host_all()
        logs.on_moved = replicas.replace_log
        logs.on_offline = self._lose_soon
        replicas.on_topics_deleted = self._groups.on_topics_deleted
        state = controller.state
        unknown = ClusterState(state.cluster_id)
        self._groups.on_cluster_state(unknown, state)
        controller.subscribe(replicas.apply)
        controller.subscribe(self._groups.on_cluster_state)
        controller.subscribe(self._lead_coordinators)
        controller.subscribe(self._follow_configs)
        self._lead_coordinators(unknown, state)

    # --- log directories that fail

    def _settle_offline(self) -> None:
        """Give up leadership of what is in a directory that is offline, take it back where one has returned."""
        controller, node_id = self._controller, self._config.node_id
        keys = [(t.name, i) for t in controller.state.topics.values() for i in range(len(t.partitions))]
        lost = [key for key in keys if key not in self._logs] if self._logs.some_offline else []
        leaderless = [key for key in keys if (p := controller.state.partition(*key)) and p.leader < 0]
        self._replicas.lose(lost)
        controller.lose_replicas(node_id, lost)
        controller.regain_replicas(node_id, [key for key in leaderless if key not in lost])

    def _host_all(self) -> None:
        """Host what is assigned; a directory may fail meanwhile."""
        lost: Keys = []

        def lose(keys: Keys) -> None:
            # At once: what is still to be hosted must not be created anew, and empty, in another directory.
            lost.extend(keys)
            self._replicas.lose(keys)

        self._logs.on_offline = lose
        self._replicas.load(self._controller.state)
        if lost:
            self._controller.lose_replicas(self._config.node_id, lost)

    def _lose_soon(self, keys: Keys) -> None:
        """Follow once the append that failed has been answered."""
        asyncio.get_running_loop().call_soon(self._lose, keys)

    def _lose(self, keys: Keys) -> None:
        # Topics may have been deleted since: a new one of such a name is not offline.
        keys = [key for key in keys if self._controller.state.partition(*key) is not None]
        self._replicas.lose(keys)
        self._controller.lose_replicas(self._config.node_id, keys)

    # --- leadership of the coordinators' partitions

    def _lead_coordinators(self, old: ClusterState, new: ClusterState) -> None:
        """Load what a partition of a coordinator's topic holds once this broker leads it."""
        self._lead(self._groups, old.topics.get(OFFSETS_TOPIC), new.topics.get(OFFSETS_TOPIC))
        self._lead(self._transactions, old.topics.get(TRANSACTIONS_TOPIC), new.topics.get(TRANSACTIONS_TOPIC))

    def _lead(
        self, coordinator: GroupCoordinator | TransactionCoordinator, before: TopicState | None, now: TopicState | None
    ) -> None:
        if now is None:
            if before is not None:
                coordinator.on_topic_deleted()
            return
        for index, partition in enumerate(now.partitions):
            known = before.partitions[index] if before and index < len(before.partitions) else None
            if partition.leader != self._config.node_id:
                coordinator.resign(index)
            elif known is None or known.leader_epoch != partition.leader_epoch:
                coordinator.on_leadership(index, partition.leader_epoch)

    # --- dynamic broker configs

    def _follow_configs(self, old: ClusterState, new: ClusterState) -> None:
        """Let changed broker configs reach the topics whose defaults they are, the logs and the connections."""
        config, controller = self._config, self._controller
        if old.broker_configs is new.broker_configs or not take_configs(config, new):
            return
        self._replicas.reconfigure(new)
        configure_dirs(self._logs, config)
        known = controller.state.brokers.get(config.node_id)
        if known is not None and known.cordoned != self._logs.all_cordoned:
            controller.register_broker(replace(known, cordoned=self._logs.all_cordoned))
        self._cleaner_pool.settings = cleaner_settings(config)
        self._logs.change_cleaning_rate()
        self._logs.set_producer_id_expiration(config.get_int("producer.id.expiration.ms"))
        self._groups.set_assignment_interval(config.get_int("group.consumer.assignment.interval.ms"))
        self._server.limits = server_limits(config)


def take_configs(config: BrokerConfig, state: ClusterState) -> bool:
    """Take the dynamic configs of this broker into its configuration; return whether any value changed."""
    own = state.broker_configs.get(str(config.node_id), {})
    return bool(config.set_dynamic(state.broker_configs.get("", {}), own))


def configure_dirs(logs: LogManager, config: BrokerConfig) -> None:
    """Tell the log directories what may change while they are open."""
    cordoned = config.get_list("cordoned.log.dirs")
    logs.cordoned = frozenset(each if each == ALL_DIRS else os.path.abspath(each) for each in cordoned)
    logs.move_bytes_per_second = config.get_int("replica.alter.log.dirs.io.max.bytes.per.second")
    for manager in logs.managers:
        manager.recovery_threads = config.get_int("num.recovery.threads.per.data.dir")
