"""What topics get that are created without being told: those of clients, and those of the coordinators."""

from __future__ import annotations

from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.controller import InternalTopic, TopicDefaults


def topic_defaults(config: BrokerConfig) -> TopicDefaults:
    """Return what the broker's config says of that."""
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
