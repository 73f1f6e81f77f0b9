"""The settings of streams groups: the broker's, and each group's within the broker's bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.config.server_config import BrokerConfig
from kbroker.group_coordinator.topics import Topics

NUM_STANDBYS = "num.standby.replicas"
RACK_TAGS = "rack.aware.assignment.tags"


@dataclass(frozen=True, slots=True)
class StreamsConfig:
    """The settings group.streams.*; times are in ms."""

    enabled: bool = True  # "streams" in group.coordinator.rebalance.protocols
    session_timeout_ms: int = 45_000
    min_session_timeout_ms: int = 45_000
    max_session_timeout_ms: int = 60_000
    heartbeat_interval_ms: int = 5_000
    min_heartbeat_interval_ms: int = 5_000
    max_heartbeat_interval_ms: int = 15_000
    max_size: int = 2**31 - 1
    standby_replicas: int = 0
    max_standby_replicas: int = 2
    initial_rebalance_delay_ms: int = 3_000
    assignment_interval_ms: int = 1_000
    min_assignment_interval_ms: int = 0
    max_assignment_interval_ms: int = 15_000
    task_offset_interval_ms: int = 60_000
    min_task_offset_interval_ms: int = 15_000
    acceptable_recovery_lag: int = 10_000
    rack_tags: tuple[str, ...] = ()
    assignor: str = "sticky"


def streams_config(config: BrokerConfig) -> StreamsConfig:
    """Return the settings of streams groups in the broker's config. Raises ConfigError."""
    number = config.get_int
    return StreamsConfig(
        enabled="streams" in (config.get_list("group.coordinator.rebalance.protocols") or ()),
        session_timeout_ms=number("group.streams.session.timeout.ms"),
        min_session_timeout_ms=number("group.streams.min.session.timeout.ms"),
        max_session_timeout_ms=number("group.streams.max.session.timeout.ms"),
        heartbeat_interval_ms=number("group.streams.heartbeat.interval.ms"),
        min_heartbeat_interval_ms=number("group.streams.min.heartbeat.interval.ms"),
        max_heartbeat_interval_ms=number("group.streams.max.heartbeat.interval.ms"),
        max_size=number("group.streams.max.size"),
        standby_replicas=number("group.streams.num.standby.replicas"),
        max_standby_replicas=number("group.streams.max.standby.replicas"),
        initial_rebalance_delay_ms=number("group.streams.initial.rebalance.delay.ms"),
        assignment_interval_ms=number("group.streams.assignment.interval.ms"),
        min_assignment_interval_ms=number("group.streams.min.assignment.interval.ms"),
        max_assignment_interval_ms=number("group.streams.max.assignment.interval.ms"),
        task_offset_interval_ms=number("group.streams.task.offset.interval.ms"),
        min_task_offset_interval_ms=number("group.streams.min.task.offset.interval.ms"),
        acceptable_recovery_lag=number("group.streams.acceptable.recovery.lag"),
        rack_tags=tuple(config.get_list("group.streams.rack.aware.assignment.tags") or ()),
    )


class StreamsSettings:
    """The settings of each streams group; times in ms."""

    def __init__(self, config: StreamsConfig, topics: Topics) -> None:
        self.config = config
        self._topics = topics
        self.assignment_interval_default_ms = config.assignment_interval_ms
        """group.streams.assignment.interval.ms, which may change while the broker runs."""

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the time in ms for which a member may send no heartbeat."""
        config = self.config
        bounds = config.min_session_timeout_ms, config.max_session_timeout_ms
        return self._own(group_id, "session.timeout.ms", config.session_timeout_ms, *bounds)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the heartbeat interval for members, in ms."""
        config = self.config
        bounds = config.min_heartbeat_interval_ms, config.max_heartbeat_interval_ms
        return self._own(group_id, "heartbeat.interval.ms", config.heartbeat_interval_ms, *bounds)

    def assignment_interval_ms(self, group_id: str) -> int:
        """Return the minimum time in ms between two computations of a target."""
        bounds = self.config.min_assignment_interval_ms, self.config.max_assignment_interval_ms
        return self._own(group_id, "assignment.interval.ms", self.assignment_interval_default_ms, *bounds)

    def initial_rebalance_delay_ms(self, group_id: str) -> int:
        """Return the time in ms for which an empty group waits for more members before its first target."""
        return self._own(group_id, "initial.rebalance.delay.ms", self.config.initial_rebalance_delay_ms, 0)

    def task_offset_interval_ms(self, group_id: str) -> int:
        """Return the interval in ms at which a member reports the offsets to which it has restored its tasks."""
        config = self.config
        least = config.min_task_offset_interval_ms
        return self._own(group_id, "task.offset.interval.ms", config.task_offset_interval_ms, least)

    def acceptable_recovery_lag(self, group_id: str) -> int:
        """Return the maximum lag, in records, at which a copy of a task's state counts as caught up."""
        return self._own(group_id, "acceptable.recovery.lag", self.config.acceptable_recovery_lag, 0)

    def standby_replicas(self, group_id: str) -> int:
        """Return the number of standbys of each task."""
        config = self.config
        return self._own(group_id, NUM_STANDBYS, config.standby_replicas, 0, config.max_standby_replicas)

    def assignment_configs(self, group_id: str) -> dict[str, str]:
        """Return the settings on which a target depends, in the form of the group's record."""
        configs = {NUM_STANDBYS: str(self.standby_replicas(group_id))}
        own = self._configs(group_id).get(f"streams.{RACK_TAGS}")
        tags = ",".join(self.config.rack_tags) if own is None else ",".join(each.strip() for each in own.split(","))
        if tags:
            configs[RACK_TAGS] = tags
        return configs

    def _configs(self, group_id: str) -> Mapping[str, str]:
        return self._topics.state.group_configs.get(group_id, {})

    def _own(self, group_id: str, name: str, default: int, low: int, high: int | None = None) -> int:
        text = self._configs(group_id).get(f"streams.{name}")
        if text is None:
            return default
        number = max(int(text), low)
        return number if high is None else min(number, high)
