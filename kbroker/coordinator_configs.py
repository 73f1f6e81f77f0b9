"""What the coordinators and the controller are told by the broker's config.

Owns the way from Kafka's keys to the parts' own settings. Never keeps anything.
"""

from __future__ import annotations

from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.controller import InternalTopic, TopicDefaults
from kbroker.group_coordinator.config import GroupConfig, MigrationPolicy
from kbroker.group_coordinator.consumer.target import assignor_names
from kbroker.group_coordinator.coordinator import TOPIC as OFFSETS_TOPIC
from kbroker.txn.config import TransactionConfig
from kbroker.txn.coordinator import TOPIC as TRANSACTIONS_TOPIC


def topic_defaults(config: BrokerConfig) -> TopicDefaults:
    """Return what topics get that are created without being told: those of clients, and those of the coordinators."""
    offsets = InternalTopic(
        config.get_int("offsets.topic.num.partitions"),
        min(config.get_int("offsets.topic.replication.factor"), 1),
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.get_int("offsets.topic.segment.bytes")),
        },
    )
    transactions = InternalTopic(
        config.get_int("transaction.state.log.num.partitions"),
        min(config.get_int("transaction.state.log.replication.factor"), 1),
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
            "segment.bytes": str(config.get_int("transaction.state.log.segment.bytes")),
            "unclean.leader.election.enable": "false",
        },
    )
    return TopicDefaults(
        config.get_int("num.partitions"),
        config.get_int("default.replication.factor"),
        {OFFSETS_TOPIC: offsets, TRANSACTIONS_TOPIC: transactions},
    )


def group_config(config: BrokerConfig) -> GroupConfig:
    """Return what the group coordinator is told."""
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
        consumer_migration_policy=MigrationPolicy[config.get_str("group.consumer.migration.policy").upper()],
        consumer_assignment_interval_ms=config.get_int("group.consumer.assignment.interval.ms"),
        consumer_min_assignment_interval_ms=config.get_int("group.consumer.min.assignment.interval.ms"),
        consumer_max_assignment_interval_ms=config.get_int("group.consumer.max.assignment.interval.ms"),
        consumer_regex_refresh_interval_ms=config.get_int("group.consumer.regex.refresh.interval.ms"),
    )


def transaction_config(config: BrokerConfig) -> TransactionConfig:
    """Return what the transaction coordinator is told."""
    return TransactionConfig(
        num_partitions=config.get_int("transaction.state.log.num.partitions"),
        max_timeout_ms=config.get_int("transaction.max.timeout.ms"),
        abort_interval_ms=config.get_int("transaction.abort.timed.out.transaction.cleanup.interval.ms"),
        id_expiration_ms=config.get_int("transactional.id.expiration.ms"),
        expiration_interval_ms=config.get_int("transaction.remove.expired.transaction.cleanup.interval.ms"),
    )


def _assignors(config: BrokerConfig) -> tuple[str, ...]:
    try:
        return assignor_names(config.get_list("group.consumer.assignors") or ())
    except ValueError as err:
        raise ConfigError(f"group.consumer.assignors: {err}") from err
