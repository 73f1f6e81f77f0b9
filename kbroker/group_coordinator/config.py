"""The settings of the group coordinator: the broker's, and a single group's.

Owns the values that apply to a group now. A group's own values are Kafka's group configs, which the broker checked when
they were set. The broker's bounds may have changed since then, so the values are limited to these bounds again. Also
owns the known assignors by name, and the choice of a group's assignor: the default assignor if the members prefer none.
The comments have Kafka's names of the settings. Settings that are internal in Kafka are constants here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.group_coordinator.assignment import Assign
from kbroker.group_coordinator.assignors.range import range_assignor
from kbroker.group_coordinator.assignors.uniform import uniform
from kbroker.group_coordinator.streams_settings import StreamsConfig, streams_config
from kbroker.group_coordinator.topics import Topics

ASSIGNORS: dict[str, Assign] = {"uniform": uniform, "range": range_assignor}
_CLASS_PACKAGE = "org.apache.kafka.coordinator.group.assignor."
_CLASSES = {_CLASS_PACKAGE + "UniformAssignor": "uniform", _CLASS_PACKAGE + "RangeAssignor": "range"}
NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""The maximum time in ms for which the first JoinGroup of a classic member stays parked (KAFKA-7610).

Kafka has no config for it.
"""


class MigrationPolicy(Enum):
    """The allowed conversions between the protocols for groups with members: (to consumer, to classic)."""

    BIDIRECTIONAL = (True, True)
    UPGRADE = (True, False)
    DOWNGRADE = (False, True)
    DISABLED = (False, False)

    @property
    def upgrades(self) -> bool:
        """Whether a classic group becomes a consumer group when a consumer member joins."""
        return self.value[0]

    @property
    def downgrades(self) -> bool:
        """Whether a consumer group becomes a classic group when its last consumer member leaves."""
        return self.value[1]


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The broker's settings. Times are in ms; the unit of each size is in its name."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    max_size: int = 2**31 - 1  # group.max.size
    offsets_retention_ms: int = 10_080 * 60_000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    offsets_topic_num_partitions: int = 50  # offsets.topic.num.partitions
    offsets_commit_timeout_ms: int = 5_000  # offsets.commit.timeout.ms
    consumer_enabled: bool = True  # "consumer" in group.coordinator.rebalance.protocols
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_min_session_timeout_ms: int = 45_000  # group.consumer.min.session.timeout.ms
    consumer_max_session_timeout_ms: int = 60_000  # group.consumer.max.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_min_heartbeat_interval_ms: int = 5_000  # group.consumer.min.heartbeat.interval.ms
    consumer_max_heartbeat_interval_ms: int = 15_000  # group.consumer.max.heartbeat.interval.ms
    consumer_max_size: int = 2**31 - 1  # group.consumer.max.size
    consumer_assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors, by name
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL  # group.consumer.migration.policy
    consumer_assignment_interval_ms: int = 1_000  # group.consumer.assignment.interval.ms
    consumer_min_assignment_interval_ms: int = 0  # group.consumer.min.assignment.interval.ms
    consumer_max_assignment_interval_ms: int = 15_000  # group.consumer.max.assignment.interval.ms
    consumer_regex_refresh_interval_ms: int = 600_000  # group.consumer.regex.refresh.interval.ms
    streams: StreamsConfig = field(default_factory=StreamsConfig)
    share_assignor: str = "simple"  # group.share.assignors, by name
    share_session_timeout_ms: int = 45_000  # group.share.session.timeout.ms
    share_min_session_timeout_ms: int = 45_000  # group.share.min.session.timeout.ms
    share_max_session_timeout_ms: int = 60_000  # group.share.max.session.timeout.ms
    share_heartbeat_interval_ms: int = 5_000  # group.share.heartbeat.interval.ms
    share_min_heartbeat_interval_ms: int = 5_000  # group.share.min.heartbeat.interval.ms
    share_max_heartbeat_interval_ms: int = 15_000  # group.share.max.heartbeat.interval.ms
    share_max_size: int = 200  # group.share.max.size
    share_assignment_interval_ms: int = 1_000  # group.share.assignment.interval.ms
    share_min_assignment_interval_ms: int = 0  # group.share.min.assignment.interval.ms
    share_max_assignment_interval_ms: int = 15_000  # group.share.max.assignment.interval.ms
    share_initialize_retry_interval_ms: int = 30_000  # group.share.initialize.retry.interval.ms


def group_config(config: BrokerConfig) -> GroupConfig:
    """Return the group settings of the broker's config. Raises ConfigError."""
    return GroupConfig(
        offsets_topic_num_partitions=config.get_int("offsets.topic.num.partitions"),
        min_session_timeout_ms=config.get_int("group.min.session.timeout.ms"),
        max_session_timeout_ms=config.get_int("group.max.session.timeout.ms"),
        initial_rebalance_delay_ms=config.get_int("group.initial.rebalance.delay.ms"),
        max_size=config.get_int("group.max.size"),
        offsets_retention_ms=config.get_int("offsets.retention.minutes") * 60_000,
        offsets_retention_check_interval_ms=config.get_int("offsets.retention.check.interval.ms"),
        offset_metadata_max_bytes=config.get_int("offset.metadata.max.bytes"),
        offsets_commit_timeout_ms=config.get_int("offsets.commit.timeout.ms"),
        consumer_enabled="consumer" in (config.get_list("group.coordinator.rebalance.protocols") or ()),
        consumer_session_timeout_ms=config.get_int("group.consumer.session.timeout.ms"),
        consumer_min_session_timeout_ms=config.get_int("group.consumer.min.session.timeout.ms"),
        consumer_max_session_timeout_ms=config.get_int("group.consumer.max.session.timeout.ms"),
        consumer_heartbeat_interval_ms=config.get_int("group.consumer.heartbeat.interval.ms"),
        consumer_min_heartbeat_interval_ms=config.get_int("group.consumer.min.heartbeat.interval.ms"),
        consumer_max_heartbeat_interval_ms=config.get_int("group.consumer.max.heartbeat.interval.ms"),
        consumer_max_size=config.get_int("group.consumer.max.size"),
        consumer_assignors=_assignors(config),
        share_assignor=_share_assignor(config),
        consumer_migration_policy=MigrationPolicy[config.get_str("group.consumer.migration.policy").upper()],
        consumer_assignment_interval_ms=config.get_int("group.consumer.assignment.interval.ms"),
        consumer_min_assignment_interval_ms=config.get_int("group.consumer.min.assignment.interval.ms"),
        consumer_max_assignment_interval_ms=config.get_int("group.consumer.max.assignment.interval.ms"),
        consumer_regex_refresh_interval_ms=config.get_int("group.consumer.regex.refresh.interval.ms"),
        streams=streams_config(config),
        share_session_timeout_ms=config.get_int("group.share.session.timeout.ms"),
        share_min_session_timeout_ms=config.get_int("group.share.min.session.timeout.ms"),
        share_max_session_timeout_ms=config.get_int("group.share.max.session.timeout.ms"),
        share_heartbeat_interval_ms=config.get_int("group.share.heartbeat.interval.ms"),
        share_min_heartbeat_interval_ms=config.get_int("group.share.min.heartbeat.interval.ms"),
        share_max_heartbeat_interval_ms=config.get_int("group.share.max.heartbeat.interval.ms"),
        share_max_size=config.get_int("group.share.max.size"),
        share_assignment_interval_ms=config.get_int("group.share.assignment.interval.ms"),
        share_min_assignment_interval_ms=config.get_int("group.share.min.assignment.interval.ms"),
        share_max_assignment_interval_ms=config.get_int("group.share.max.assignment.interval.ms"),
        share_initialize_retry_interval_ms=config.get_int("group.share.initialize.retry.interval.ms"),
    )


def _assignors(config: BrokerConfig) -> tuple[str, ...]:
    try:
        return assignor_names(config.get_list("group.consumer.assignors") or ())
    except ValueError as err:
        raise ConfigError(f"group.consumer.assignors: {err}") from err


def _share_assignor(config: BrokerConfig) -> str:
    names = config.get_list("group.share.assignors") or ()
    if len(names) != 1:
        raise ConfigError(f"group.share.assignors must contain exactly one assignor, but found {len(names)}")
    if names[0] not in ("simple", _CLASS_PACKAGE + "SimpleAssignor"):
        raise ConfigError(f"group.share.assignors: {names[0]} is no assignor of this broker; it has simple")
    return "simple"


class Settings:
    """The settings of each consumer group and share group; all times in ms."""

    def __init__(self, config: GroupConfig, topics: Topics) -> None:
        self.config = config
        self._topics = topics
        self.assignment_interval_default_ms = config.consumer_assignment_interval_ms
        """group.consumer.assignment.interval.ms, which may change while the broker runs."""
        self.share_assignment_interval_default_ms = config.share_assignment_interval_ms
        """group.share.assignment.interval.ms, which may change while the broker runs."""

    def session_timeout_ms(self, group_id: str) -> int:
        """Return the time in ms for which a member may send no heartbeat."""
        own, config = self._topics.state.group_configs.get(group_id), self.config
        low, high = config.consumer_min_session_timeout_ms, config.consumer_max_session_timeout_ms
        default = config.consumer_session_timeout_ms
        return default if own is None else _bounded(own, "consumer.session.timeout.ms", default, low, high)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the heartbeat interval for members, in ms."""
        own, config = self._topics.state.group_configs.get(group_id), self.config
        low, high = config.consumer_min_heartbeat_interval_ms, config.consumer_max_heartbeat_interval_ms
        default = config.consumer_heartbeat_interval_ms
        return default if own is None else _bounded(own, "consumer.heartbeat.interval.ms", default, low, high)

    def assignment_interval_ms(self, group_id: str) -> int:
        """Return the minimum time in ms between two computations of a target assignment."""
        own, config = self._topics.state.group_configs.get(group_id), self.config
        low, high = config.consumer_min_assignment_interval_ms, config.consumer_max_assignment_interval_ms
        default = self.assignment_interval_default_ms
        return default if own is None else _bounded(own, "consumer.assignment.interval.ms", default, low, high)

    def share_session_timeout_ms(self, group_id: str) -> int:
        """Return the time in ms for which a member of a share group may send no heartbeat."""
        own, config = self._topics.state.group_configs.get(group_id), self.config
        low, high = config.share_min_session_timeout_ms, config.share_max_session_timeout_ms
        default = config.share_session_timeout_ms
        return default if own is None else _bounded(own, "share.session.timeout.ms", default, low, high)

    def share_heartbeat_interval_ms(self, group_id: str) -> int:
        """Return the heartbeat interval for members of a share group, in ms."""
        own, config = self._topics.state.group_configs.get(group_id), self.config
        low, high = config.share_min_heartbeat_interval_ms, config.share_max_heartbeat_interval_ms
        default = config.share_heartbeat_interval_ms
        return default if own is None else _bounded(own, "share.heartbeat.interval.ms", default, low, high)

    def share_assignment_interval_ms(self, group_id: str) -> int:
        """Return the minimum time in ms between two computations of a share group's target."""
        own, config = self._topics.state.group_configs.get(group_id), self.config
        low, high = config.share_min_assignment_interval_ms, config.share_max_assignment_interval_ms
        default = self.share_assignment_interval_default_ms
        return default if own is None else _bounded(own, "share.assignment.interval.ms", default, low, high)


def _bounded(configs: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = configs.get(name)
    return default if text is None else min(max(int(text), low), high)


def assignor_names(configured: Iterable[str]) -> tuple[str, ...]:
    """Return the names in group.consumer.assignors.

    The config may contain the class names of Kafka's two assignors. Raises ValueError.
    """
    names = tuple(_CLASSES.get(each, each) for each in configured)
    for name in names:
        if name not in ASSIGNORS:
            raise ValueError(f"{name} is no assignor of this broker; it has {' and '.join(ASSIGNORS)}")
    return names


def choose_assignor(preferred: str | None, configured: Sequence[str]) -> str:
    """Return the preferred assignor if group.consumer.assignors contains it, else the first assignor of the config."""
    return configured[0] if preferred is None or preferred not in configured else preferred
