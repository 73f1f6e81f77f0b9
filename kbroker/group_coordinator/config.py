"""What an operator may set of the group coordinator; the names in comments are Kafka's."""

from __future__ import annotations

from dataclasses import dataclass

NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""How long the first JoinGroup of a member may stay parked (KAFKA-7610); not configurable in Kafka either."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Times in ms, sizes in what each name says."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    max_size: int = 2**31 - 1  # group.max.size
    offsets_retention_ms: int = 10_080 * 60_000  # offsets.retention.minutes
    offsets_retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    offsets_topic_num_partitions: int = 50  # offsets.topic.num.partitions
    offsets_commit_timeout_ms: int = 5_000  # offsets.commit.timeout.ms
