"""A single node's reactions to changes of the cluster's state, and its reports to the controller.

Owns the order in which the parts follow, and the partitions lost with a failed log directory. Never decides about
leadership: the controller does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from kbroker.broker.coordinator_topics import CoordinatorLeadership
from kbroker.broker.dynamic_configs import DynamicConfigs
from kbroker.cluster_state import ClusterState
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.controller import Controller
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.log.directories.log_manager import LogManager
from kbroker.replicas import Replicas

log = logging.getLogger(__name__)

Keys = list[tuple[str, int]]


class ClusterFollower:
    """One broker's part in the cluster, from `begin` on. `fail(text)` is called when the broker cannot go on."""

    def __init__(
        self,
        config: BrokerConfig,
        controller: Controller,
        logs: LogManager,
        replicas: Replicas,
        groups: GroupCoordinator,
        coordinators: CoordinatorLeadership,
        configs: DynamicConfigs,
        fail: Callable[[str], None],
    ) -> None:
        self._config = config
        self._controller = controller
        self._logs = logs
        self._replicas = replicas
        self._groups = groups
        self._coordinators = coordinators
        self._configs = configs
        self._fail = fail

    def begin(self) -> None:
        """Host the partitions assigned to this broker, coordinate those it leads, and follow every change."""
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
        controller.subscribe(self._coordinators.follow)
        controller.subscribe(self._follow_configs)
        self._coordinators.follow(unknown, state)

    # --- log directories that fail

    def _settle_offline(self) -> None:
        """Give up leadership of partitions in offline directories, and take it back for returned ones."""
        controller, node_id = self._controller, self._config.node_id
        keys = [(t.name, i) for t in controller.state.topics.values() for i in range(len(t.partitions))]
        lost = [key for key in keys if key not in self._logs] if self._logs.some_offline else []
        leaderless = [key for key in keys if (p := controller.state.partition(*key)) and p.leader < 0]
        self._replicas.lose(lost)
        controller.lose_replicas(node_id, lost)
        controller.regain_replicas(node_id, [key for key in leaderless if key not in lost])

    def _host_all(self) -> None:
        """Host the assigned partitions; a directory may fail meanwhile."""
        lost: Keys = []

        def lose(keys: Keys) -> None:
            # At once. Otherwise a partition that is still to be hosted would be created, empty, in another directory.
            lost.extend(keys)
            self._replicas.lose(keys)

        self._logs.on_offline = lose
        self._replicas.load(self._controller.state)
        if lost:
            self._controller.lose_replicas(self._config.node_id, lost)

    def _lose_soon(self, keys: Keys) -> None:
        """Handle the loss once the failed append has been answered."""
        asyncio.get_running_loop().call_soon(self._lose, keys)

    def _lose(self, keys: Keys) -> None:
        # Topics may have been deleted since: a new one of the same name is not offline.
        keys = [key for key in keys if self._controller.state.partition(*key) is not None]
        self._replicas.lose(keys)
        self._controller.lose_replicas(self._config.node_id, keys)

    # --- dynamic broker configs

    def _follow_configs(self, old: ClusterState, new: ClusterState) -> None:
        if not self._configs.follow(old, new):
            return
        known = self._controller.state.brokers.get(self._config.node_id)
        if known is not None and known.cordoned != self._logs.all_cordoned:
            self._controller.register_broker(replace(known, cordoned=self._logs.all_cordoned))
