"""Passes dynamic broker configs to the parts of a broker.

Owns the list of keys that can change while the broker runs, and the list of the parts that use each key. Never
validates: a config is validated before it is stored.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from kbroker.cluster_state import ClusterState
from kbroker.config.model import ALL_DIRS
from kbroker.config.server_config import BrokerConfig
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.log.cleaner.worker_pool import WorkerPool, cleaner_settings
from kbroker.log.directories.log_manager import LogManager
from kbroker.network.server import Server, server_limits
from kbroker.security.tls.of_broker import TlsListeners
from kbroker.tiers.service import Tiers
from kbroker.tiers.settings import tier_settings


class DynamicConfigs:
    """Applies changed broker configs to topics (as their defaults), logs and connections."""

    def __init__(
        self,
        config: BrokerConfig,
        logs: LogManager,
        cleaner_pool: WorkerPool,
        reconfigure: Callable[[ClusterState], None],
        groups: GroupCoordinator,
        server: Server,
        tls: TlsListeners,
        tiers: Tiers | None,
    ) -> None:
        """Create the object. `reconfigure` applies changed defaults to topics."""
        self._config = config
        self._logs = logs
        self._cleaner_pool = cleaner_pool
        self._reconfigure = reconfigure
        self._groups = groups
        self._server = server
        self._tls = tls
        self._tiers = tiers

    def follow(self, old: ClusterState, new: ClusterState) -> bool:
        """Apply the broker configs if the cluster's state has changed them. Return whether any value has changed."""
        config = self._config
        if old.broker_configs is new.broker_configs:
            return False
        changed = take_configs(config, new)
        self._tls.follow(config)
        if not changed:
            return False
        self._reconfigure(new)
        configure_dirs(self._logs, config)
        self._cleaner_pool.settings = cleaner_settings(config)
        self._logs.change_cleaning_rate()
        self._logs.set_producer_id_expiration(config.get_int("producer.id.expiration.ms"))
        self._groups.set_assignment_interval(config.get_int("group.consumer.assignment.interval.ms"))
        self._groups.streams.assignment_interval_default_ms = config.get_int("group.streams.assignment.interval.ms")
        self._groups.set_share_assignment_interval(config.get_int("group.share.assignment.interval.ms"))
        self._server.limit(server_limits(config))
        settings = None if self._tiers is None else tier_settings(config)
        if self._tiers is not None and settings is not None:
            self._tiers.configure(settings)
        return True


def take_configs(config: BrokerConfig, state: ClusterState) -> bool:
    """Apply this broker's dynamic configs to its configuration. Return whether any value has changed."""
    own = state.broker_configs.get(str(config.node_id), {})
    return bool(config.set_dynamic(state.broker_configs.get("", {}), own))


def configure_dirs(logs: LogManager, config: BrokerConfig) -> None:
    """Set those values of the log directories that may change while the directories are open."""
    cordoned = config.get_list("cordoned.log.dirs")
    logs.cordoned = frozenset(each if each == ALL_DIRS else os.path.abspath(each) for each in cordoned)
    logs.move_bytes_per_second = config.get_int("replica.alter.log.dirs.io.max.bytes.per.second")
    for manager in logs.managers:
        manager.recovery_threads = config.get_int("num.recovery.threads.per.data.dir")
