"""Metrics of schedule topics: the pending, the late and the delivered records.

Owns their values by partition. Followers report only the pending records, and the bytes that retention keeps
because of pending records. Only leaders deliver.
"""

from __future__ import annotations

from kbroker.broker.base_node import Node
from kbroker.long_work import turn
from kbroker.metrics.values import Values, put_all


async def schedules(node: Node, values: Values, most: int) -> None:
    """Add the partitions of schedule topics, at most `most` of them."""
    for followed in list(node.schedules)[:most]:
        await followed.count()
        partition, counts = followed.partition, followed.counts
        found: list[tuple[str, float]] = [
            ("pending", counts.pending),
            ("held_bytes", partition.log.held_bytes),
        ]
        if partition.leading:
            found += [
                ("due", counts.due),
                ("overdue_ms", followed.late_ms()),
                ("lateness_ms", counts.lateness_ms),
                ("fired_total", counts.fired),
                ("failed_total", counts.failed),
            ]
        labels = {"topic": partition.topic, "partition": str(partition.index)}
        put_all(values, "kbroker_schedule", found, labels)
        await turn
