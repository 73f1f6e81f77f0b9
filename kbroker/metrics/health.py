"""Whether a broker is alive, and whether it is ready.

Owns both checks. Runs in the broker's event loop. Never sends an answer: server.py does.

A broker is *alive* as long as its event loop responds; otherwise it should be restarted. It is *ready* once it can
serve clients: its listeners are open, its coordinators have loaded the partitions that they lead, and a cluster knows
it. Partitions with fewer in-sync replicas than min.insync.replicas are listed, but the broker is nevertheless ready,
because taking it out of service would not repair these partitions. A strict check, for example for a rolling restart,
waits for these partitions.
"""

from __future__ import annotations

from typing import Any, Final

from kbroker.broker.base_node import Node
from kbroker.coordination.service import CoordinatorService
from kbroker.log.directories.log_manager import LogManager
from kbroker.long_work import turn
from kbroker.metrics.partitions import is_under_min_isr

LOOP_S: Final = 5.0
"""The seconds within which the event loop must respond; otherwise the broker counts as dead."""
NAMED: Final = 20
"""The maximum number of partitions that are listed. All partitions are counted."""


async def readiness(
    node: Node | None, logs: LogManager | None, *, stopping: bool, strict: bool
) -> tuple[bool, dict[str, Any]]:
    """Return whether the broker is ready, and its state. `logs` are the logs that a starting broker reads."""
    if stopping:
        return False, {"status": "not ready", "reasons": ["it is stopping"]}
    if node is None:
        return False, {"status": "not ready", "reasons": [_start(logs)]}
    reasons = []
    if node.failed.done():
        reasons.append(f"it has failed: {node.failed.result()}")
    coordinators: dict[str, CoordinatorService[Any]] = {
        "groups": node.groups,
        "transactions": node.transactions,
        "share partitions": node.shares,
    }
    for kind, coordinator in coordinators.items():
        states = coordinator.partition_states()
        if states["loading"]:
            reasons.append(f"{kind} are being loaded")
        if states["failed"]:
            reasons.append(f"{states['failed']} partitions of {kind} cannot be loaded")
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
    body: dict[str, Any] = {"status": "not ready" if reasons else "ready"}
    if reasons:
        body["reasons"] = reasons
    body["under_min_isr"] = {"count": too_few, "partitions": named}
    return not reasons, body


def _start(logs: LogManager | None) -> str:
    """Describe the progress of a start. After a crash, the start may read logs for minutes."""
    reading = [each.recovery for each in logs.managers if each.recovery.total] if logs is not None else []
    if not reading:
        return "it is starting"
    total, done = sum(each.total for each in reading), sum(each.done for each in reading)
    left = sum(each.logs for each in reading)
    return f"it is starting: {min(100 * done // total, 100)} % of {total} bytes are read, {left} partitions are left"
