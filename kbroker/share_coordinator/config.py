"""The settings of the share coordinator, from the broker's config. The comments have Kafka's names of the settings."""

from __future__ import annotations

from dataclasses import dataclass

from kbroker.config.server_config import BrokerConfig


@dataclass(frozen=True, slots=True)
class ShareCoordinatorConfig:
    """Times are in ms. The settings of the topic itself are in controller/topic_plans.py."""

    num_partitions: int = 50  # share.coordinator.state.topic.num.partitions
    updates_per_snapshot: int = 500  # share.coordinator.snapshot.update.records.per.snapshot
    write_timeout_ms: int = 5_000  # share.coordinator.write.timeout.ms
    prune_interval_ms: int = 300_000  # share.coordinator.state.topic.prune.interval.ms
    cold_snapshot_interval_ms: int = 300_000  # share.coordinator.cold.partition.snapshot.interval.ms


def share_coordinator_config(config: BrokerConfig) -> ShareCoordinatorConfig:
    """Return the share coordinator's settings."""
    return ShareCoordinatorConfig(
        num_partitions=config.get_int("share.coordinator.state.topic.num.partitions"),
        updates_per_snapshot=config.get_int("share.coordinator.snapshot.update.records.per.snapshot"),
        write_timeout_ms=config.get_int("share.coordinator.write.timeout.ms"),
        prune_interval_ms=config.get_int("share.coordinator.state.topic.prune.interval.ms"),
        cold_snapshot_interval_ms=config.get_int("share.coordinator.cold.partition.snapshot.interval.ms"),
    )
