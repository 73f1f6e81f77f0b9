"""Plans new topics and new partitions for requests, before anything is stored.

Owns the checks of such a request, the broker's defaults for it, and the choice of replicas on a single node. Also owns
the settings of the coordinators' internal topics, which are created at first use. Pure except for new topic ids; never
stores.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kbroker import topic_names
from kbroker.cluster_state import (
    OFFSETS_TOPIC,
    REMOTE_LOG_METADATA_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    PartitionState,
    TopicState,
)
from kbroker.config.server_config import BrokerConfig
from kbroker.controller import assignments as assignments_of
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.wire import new_uuid

MAX_PARTITIONS_PER_REQUEST: Final = 10_000
RLMM: Final = "rlmm.config."
"""The prefix of the settings of `__remote_log_metadata` (`remote.log.metadata.manager.impl.prefix`)."""


@dataclass(frozen=True, slots=True)
class InternalTopic:
    """The settings of an internal topic."""

    num_partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def internal_topics(config: BrokerConfig) -> dict[str, InternalTopic]:
    """Return the settings of each internal topic from the broker's config.

    On a single node a topic has only one replica.
    """
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
    share_state = InternalTopic(
        config.get_int("share.coordinator.state.topic.num.partitions"),
        min(config.get_int("share.coordinator.state.topic.replication.factor"), most),
        {
            "cleanup.policy": "delete",  # the share coordinator deletes redundant records
            "compression.type": "producer",
            "min.insync.replicas": str(config.get_int("share.coordinator.state.topic.min.isr")),
            "retention.ms": "-1",
            "segment.bytes": str(config.get_int("share.coordinator.state.topic.segment.bytes")),
        },
    )
    copies = min(config.get_int(f"{RLMM}remote.log.metadata.topic.replication.factor"), most)
    remote_segments = InternalTopic(
        50, copies, {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
    )
    if config.in_cluster:  # these records protect data: one replica alone must not acknowledge or lose them
        safe = {"min.insync.replicas": str(min(2, copies)), "unclean.leader.election.enable": "false"}
        remote_segments = replace(remote_segments, configs={**remote_segments.configs, **safe})
    return {
        OFFSETS_TOPIC: offsets,
        TRANSACTIONS_TOPIC: transactions,
        SHARE_STATE_TOPIC: share_state,
        REMOTE_LOG_METADATA_TOPIC: remote_segments,
    }


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The defaults of a topic, for values of -1 in a request."""

    num_partitions: int
    replication_factor: int
    internal: Mapping[str, InternalTopic]


def topic_defaults(config: BrokerConfig) -> TopicDefaults:
    """Return a broker's defaults for topics. They replace values of -1 in requests."""
    return TopicDefaults(
        config.get_int("num.partitions"), config.get_int("default.replication.factor"), internal_topics(config)
    )


class TopicPlans(ClusterMetadata):
    """The part of ClusterMetadata that plans topics, based on the decided state (`decided`)."""

    def __init__(self, defaults: TopicDefaults, names: Iterable[str]) -> None:
        self._defaults = defaults
        self._names = topic_names.CollidingNames(names)

    def names_changed(self, new: Iterable[str], deleted: Iterable[str]) -> None:
        """Record new and deleted topics, to find colliding names. Such names differ only in '.' and '_'."""
        for name in deleted:
            self._names.discard(name)
        for name in new:
            self._names.add(name)

    def check_is_controller(self) -> None:
        if not self.is_controller:
            raise ApiError(ErrorCode.NOT_CONTROLLER)

    def place(
        self,
        first: int,
        count: int,
        factor: int,
        grown: TopicState | None,  # noqa: ARG002 - for implementations that place by existing replicas
    ) -> tuple[PartitionState, ...]:
        """Choose replicas for new partitions, numbered from `first`, of a new or growing topic."""
        return assignments_of.place(self.decided, first, count, factor)

    def plan_topic(
        self,
        name: str,
        num_partitions: int,
        replication_factor: int,
        assignments: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> TopicState:
        self.check_new_name(name)
        partitions = self._plan_partitions(num_partitions, replication_factor, assignments)
        return TopicState(name, new_uuid(), partitions, dict(configs or {}))

    def check_new_name(self, name: str, beside: Container[str] = ()) -> None:
        if name in self.decided.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        topic_names.check_topic_name(name)
        other = self._names.other(name, beside)
        if other is not None:
            text = f"Topic '{name}' collides with existing topic: {other}"
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, text)

    def plan_auto(self, name: str) -> TopicState:
        internal = self._defaults.internal.get(name)
        if internal is None:
            return self.plan_topic(name, -1, -1)
        return self.plan_topic(name, internal.num_partitions, internal.replication_factor, None, internal.configs)

    def _plan_partitions(
        self, num_partitions: int, replication_factor: int, assignments: Mapping[int, Sequence[int]] | None
    ) -> tuple[PartitionState, ...]:
        if assignments:
            for field, value in (("replication factor", replication_factor), ("numPartitions", num_partitions)):
                if value != -1:
                    text = f"A manual partition assignment was specified, but {field} was not set to -1."
                    raise ApiError(ErrorCode.INVALID_REQUEST, text)
            if sorted(assignments) != list(range(len(assignments))):
                for replicas in assignments.values():
                    assignments_of.check_assignment(self.decided, replicas, None)
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions should be a consecutive 0-based integer sequence"
                )
            return assignments_of.manual(self.decided, [assignments[i] for i in sorted(assignments)], None)
        if replication_factor < -1 or replication_factor == 0:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if num_partitions < -1 or num_partitions == 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value."
            )
        count = self._defaults.num_partitions if num_partitions == -1 else num_partitions
        factor = self._defaults.replication_factor if replication_factor == -1 else replication_factor
        return self.place(0, count, factor, None)

    def plan_growth(self, name: str, count: int, assignments: Sequence[Sequence[int]] | None) -> TopicState:
        topic = self.decided.topics.get(name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if topic.source is not None:
            text = f"Topic '{name}' is a view: it has the partitions of its source '{topic.source}'."
            raise ApiError(ErrorCode.INVALID_REQUEST, text)
        current = len(topic.partitions)
        if count == current:
            raise ApiError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
        if count < current:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {name} currently has {current} partition(s); {count} would not be an increase.",
            )
        additional = count - current
        factor = len(topic.partitions[0].replicas)
        if assignments is None:
            added = self.place(current, additional, factor, topic)
        elif len(assignments) != additional:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {additional} additional partition(s), but only {len(assignments)} assignment(s) "
                "were specified.",
            )
        else:
            added = assignments_of.manual(self.decided, assignments, factor)
        return replace(topic, partitions=topic.partitions + added)
