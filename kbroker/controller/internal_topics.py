"""The coordinators' internal topics: their settings for creation at first use.

Owns their partitions, replicas and configs. Never creates one: the controller does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.cluster_state import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from kbroker.config.server_config import BrokerConfig


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """The settings of an internal topic."""

    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def internal_topics(config: BrokerConfig) -> dict[str, InternalTopic]:
    """Return the settings of each from the broker's config; a node that is alone has at most one replica."""
    most = sys.maxsize if config.in_cluster else 1
    offsets = InternalTopic(
        config.get_int("offsets.topic.num.partitions"),
        min(config.get_int("offsets.topic.replication.factor"), most),
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.get_int("offsets.topic.segment.bytes")),
        },
    )
    transactions = InternalTopic(
        config.get_int("transaction.state.log.num.partitions"),
        min(config.get_int("transaction.state.log.replication.factor"), most),
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
            "segment.bytes": str(config.get_int("transaction.state.log.segment.bytes")),
            "unclean.leader.election.enable": "false",
        },
    )
    return {OFFSETS_TOPIC: offsets, TRANSACTIONS_TOPIC: transactions}
