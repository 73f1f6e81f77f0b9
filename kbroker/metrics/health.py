"""Whether a broker lives, and whether it serves.

Owns what the two questions come to. Runs in the broker's event loop. Never answers anybody: server.py does.

A broker *lives* as long as its event loop answers: it is to be restarted where it does not. It *serves* once clients
can be answered: its listeners are open, its coordinators have loaded what they lead, and, in a cluster, the cluster
knows it. Partitions with fewer replicas in sync than min.insync.replicas are named and do not count, as a broker that
is taken out of service mends none of them; who asks strictly, as a rolling restart does, hears that he is to wait.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.broker.base_node import Node
from kbroker.log.directories.log_manager import LogManager
from kbroker.long_work import turn
from kbroker.metrics.partitions import is_under_min_isr

LOOP_S: Final = 5.0
"""For how long the event loop may leave a question unanswered before the broker counts as dead."""
NAMED: Final = 20
"""Partitions that are named; all are counted."""


async def readiness(
    node: Node | None, logs: LogManager | None, *, stopping: bool, strict: bool
) -> tuple[bool, dict[str, Any]]:
    """Return whether the broker serves, and what to say of it; `logs` are those that a start is reading."""
    if stopping:
        return False, {"status": "not ready", "reasons": ["it is stopping"]}
    if node is None:
        return False, {"status": "not ready", "reasons": [_start(logs)]}
    reasons = []
    if node.failed.done():
        reasons.append(f"it has failed: {node.failed.result()}")
    for what, coordinator in (("groups", node.groups), ("transactions", node.transactions)):
        states = coordinator.partition_states()
        if states["loading"]:
            reasons.append(f"{what} are being loaded")
        if states["failed"]:
            reasons.append(f"{states['failed']} partitions of {what} cannot be loaded")
    reasons += [f"the disk of {each.directory} is full" for each in node.logs.full]
    if node.replicas.unhosted_count:
        reasons.append(f"{node.replicas.unhosted_count} topics have partitions that the disk does not take")
    cluster = node.services.cluster
    if cluster is not None and node.node_id not in node.metadata.state.brokers:
        reasons.append("the cluster does not know it")
    too_few = 0
    named: list[str] = []
    for partition in list(node.replicas):
        if is_under_min_isr(partition):
            too_few += 1
            if len(named) < NAMED:
                named.append(f"{partition.topic}-{partition.index}")
        await turn
    if strict and too_few:
        reasons.append("partitions have fewer replicas in sync than min.insync.replicas")
    said: dict[str, Any] = {"status": "not ready" if reasons else "ready"}
    if reasons:
        said["reasons"] = reasons
    said["under_min_isr"] = {"count": too_few, "partitions": named}
    return not reasons, said


def _start(logs: LogManager | None) -> str:
    """Say how far a start is; after a crash it may read logs for minutes."""
    reading = [each.recovery for each in logs.managers if each.recovery.total] if logs is not None else []
    if not reading:
        return "it is starting"
    total, done = sum(each.total for each in reading), sum(each.done for each in reading)
    left = sum(each.logs for each in reading)
    return f"it is starting: {min(100 * done // total, 100)} % of {total} bytes are read, {left} partitions are left"
