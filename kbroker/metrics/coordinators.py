"""The metrics of the coordinators: groups, their lag, dead letters of share groups, transactions, and schemas.

Owns the iteration over the coordinators, in pieces, and the report of partitions that could not be loaded. A partition
whose coordinator is loading has no other metrics.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kbroker.broker.base_node import Node
from kbroker.cluster_state import OFFSETS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from kbroker.coordination.service import CoordinatorService
from kbroker.long_work import turn
from kbroker.metrics.partitions import readable_end
from kbroker.metrics.values import Values, put, put_all
from kbroker.schema_registry.records import SCHEMAS_TOPIC
from kbroker.txn.transaction import NAMES

_KAFKAS = {
    "PreparingRebalance": "numgroupspreparingrebalance",
    "CompletingRebalance": "numgroupscompletingrebalance",
    "Assigning": "numgroupscompletingrebalance",
    "Reconciling": "numgroupscompletingrebalance",
    "Stable": "numgroupsstable",
    "Dead": "numgroupsdead",
    "Empty": "numgroupsempty",
    "NotReady": "numgroupspreparingrebalance",
}
_STATES = {
    "classic": ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty"),
    "consumer": ("Empty", "Assigning", "Reconciling", "Stable", "Dead"),
    "share": ("Empty", "Stable", "Dead"),
    "streams": ("Empty", "NotReady", "Assigning", "Reconciling", "Stable", "Dead"),
}
"""The states of the groups of each protocol, as in Kafka's GroupCoordinatorMetrics."""


def loads(node: Node, values: Values) -> None:
    """Add the states of the coordinators' partitions, and the records that could not be read."""
    coordinators: list[tuple[str, CoordinatorService[Any]]] = [
        (OFFSETS_TOPIC, node.groups),
        (TRANSACTIONS_TOPIC, node.transactions),
        (SHARE_STATE_TOPIC, node.shares),
    ]
    if node.registry is not None:
        coordinators.append((SCHEMAS_TOPIC, node.registry))
    for topic, coordinator in coordinators:
        for state, count in coordinator.partition_states().items():
            put(values, "kbroker_coordinator_partitions", count, {"topic": topic, "state": state})
        for partition, count in coordinator.unreadable_records().items():
            labels = {"topic": topic, "partition": str(partition)}
            put(values, "kbroker_coordinator_unreadable_records", count, labels)


async def groups(node: Node, values: Values, most: int) -> None:
    """Add the groups that this broker coordinates, and at most `most` of their offsets individually."""
    counts: Counter[str] = Counter(dict.fromkeys(["numgroups", "numoffsets", *_KAFKAS.values()], 0))
    by_state = Counter({(protocol, state): 0 for protocol, states in _STATES.items() for state in states})
    for shard in node.groups.loaded():
        for group in list(shard.groups):
            counts["numgroups"] += 1
            counts[_KAFKAS[group.state.value]] += 1
            by_state[group.TYPE, group.state.value] += 1
            await turn
            for topic, held in list(shard.offsets.of_group(group.group_id)[0].items()):
                for partition, (_, value) in list(held.items()):
                    if counts["numoffsets"] < most:
                        _offset(node, values, group.group_id, topic, partition, value.offset)
                    counts["numoffsets"] += 1
                    await turn
    put_all(values, "kafka_coordinator_group_groupmetadatamanager", counts.items())
    for (protocol, state), count in by_state.items():
        put(values, f"kafka_server_group_coordinator_metrics_{protocol}_group_count", count, {"state": state})
    for protocol, states in _STATES.items():
        total = sum(by_state[protocol, state] for state in states)
        put(values, "kafka_server_group_coordinator_metrics_group_count", total, {"protocol": protocol})
    put(values, "kbroker_left_out", max(counts["numoffsets"] - most, 0), {"kind": "offsets"})
    for group_id, records in node.stuck_groups.stuck().items():
        for one in records:
            labels = {"group": group_id, "topic": one.topic, "partition": str(one.partition)}
            put(values, "kbroker_group_stuck_offset", one.offset, labels)
        await turn


def _offset(node: Node, values: Values, group: str, topic: str, index: int, offset: int) -> None:
    if topic not in node.metadata.state.topics:
        return  # the group's offsets are deleted with the group, a few at a time
    labels = {"group": group, "topic": topic, "partition": str(index)}
    put(values, "kbroker_group_offset", offset, labels)
    partition = node.replicas.get((topic, index))
    of_view = node.views.known_end(topic, index) if partition is None else None
    if of_view is not None:
        put(values, "kbroker_group_lag", max(of_view - offset, 0), labels)
    if partition is not None:
        end = readable_end(partition, node.clock.now_ms())
        put(values, "kbroker_group_lag", max(end - offset, 0), labels)


async def dead_letters(node: Node, values: Values) -> None:
    """Add the counts of the dead letters of share groups."""
    for group, counts in list(node.dead_letters.counts().items()):
        found = [
            ("deadletterqueuerecordcount", counts.records),
            ("deadletterqueuetotalproducerequests_total", counts.requests),
            ("deadletterqueuefailedproducerequests_total", counts.failed),
        ]
        put_all(values, "kafka_server_sharegroupmetrics", found, {"group": group})
        await turn


async def transactions(node: Node, values: Values) -> None:
    """Add the number of transactional ids that this broker coordinates, by state."""
    counts: Counter[str] = Counter()
    for shard in node.transactions.loaded():
        for each in list(shard.transactions.values()):
            counts[NAMES[each.state]] += 1
            await turn
    for state, count in counts.items():
        put(values, "kbroker_transactions", count, {"state": state})


async def registry(node: Node, values: Values) -> None:
    """Add the schema registry's requests. If this broker leads `_schemas`, also add the registry's content."""
    if node.registry is None:
        return
    state = node.registry.state
    put(values, "kafka_schema_registry_master_slave_role_master_slave_role", 0 if state is None else 1)
    if state is not None:
        put(values, "kbroker_registry_subjects", state.subject_count)
        put(values, "kbroker_registry_versions", state.live_versions)
    succeeded = failed = 0
    for (endpoint, status), count in node.registry.tally.requests().items():
        put(values, "kbroker_registry_requests_total", count, {"endpoint": endpoint, "status": str(status)})
        if 200 <= status < 400:
            succeeded += count
        else:
            failed += count
        await turn
    put(values, "kafka_schema_registry_api_success_count_api_success_count", succeeded)
    put(values, "kafka_schema_registry_api_failure_count_api_failure_count", failed)
    for endpoint, seconds in node.registry.tally.seconds().items():
        put(values, "kbroker_registry_request_seconds_total", seconds, {"endpoint": endpoint})
