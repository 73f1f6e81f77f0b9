"""The automatic return of leadership to first replicas.

Owns the conditions (auto.leader.rebalance.enable; KafkaController.checkAndTriggerAutoLeaderRebalance).
"""

from __future__ import annotations

import logging

from kbroker.controller.cluster.context import Partition
from kbroker.controller.cluster.elect_leaders import prefer
from kbroker.controller.cluster.pacing import paced
from kbroker.controller.cluster.term import Term

FIRST_SECONDS = 5
"""Seconds from a controller's election to the first check; then leader.imbalance.check.interval.seconds counts."""

log = logging.getLogger(__name__)


async def rebalance(term: Term) -> None:
    """Return leadership to the preferred replicas of brokers that lead too few of their partitions."""
    context = term.context
    preferred: dict[int, int] = {}
    missed: dict[int, list[Partition]] = {}
    async for partition in paced(list(context.partitions())):
        state, replicas = context.states.get(partition), context.assigned(partition)
        if context.is_deleted(partition[0]) or not replicas:
            continue
        preferred[replicas[0]] = preferred.get(replicas[0], 0) + 1
        if state is not None and state.value.leader != replicas[0]:
            missed.setdefault(replicas[0], []).append(partition)
    for broker, partitions in missed.items():
        if len(partitions) / preferred[broker] * 100 > term.config.imbalance_percentage:
            able = [each for each in partitions if _may_lead(term, broker, each)]
            if able:
                log.info("Broker %d gets %d leaderships back", broker, len(able))
                await prefer(term, able)


def _may_lead(term: Term, broker: int, partition: Partition) -> bool:
    return term.context.is_online(broker, partition) and broker in term.context.states[partition].value.isr
