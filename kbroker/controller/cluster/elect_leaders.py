"""Elects preferred leaders, on request or for balance, and unclean leaders on request.

Owns ElectLeaders (KIP-460), /admin/preferred_replica_election, and the automatic return of leadership to preferred
replicas (auto.leader.rebalance.enable; KafkaController.checkAndTriggerAutoLeaderRebalance). controller/elections.py
decides the leaders.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from kbroker.cluster_state import NO_LEADER
from kbroker.controller import elections
from kbroker.controller.cluster.context import Partition, State
from kbroker.controller.cluster.partitions import bring_online, elect
from kbroker.controller.cluster.term import Term
from kbroker.controller.pacing import paced
from kbroker.controller.znodes import (
    PREFERRED_ELECTION,
    LeaderAndIsr,
    Unreadable,
    decode_partitions,
    read,
)
from kbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

PREFERRED, UNCLEAN = 0, 1
"""ElectLeaders' types."""
Elected = int | ApiError
"""The new leader, or the error."""


async def elect_leaders(term: Term, kind: int, partitions: Collection[Partition]) -> dict[Partition, Elected]:
    """Elect leaders at a client's request; return the result for each partition."""
    results: dict[Partition, Elected] = {}
    wanted = []
    async for partition in paced(partitions):
        error = _why_not(term, kind, partition)
        if error is None:
            wanted.append(partition)
        else:
            results[partition] = error
    if kind == PREFERRED:
        elected = await prefer(term, wanted)
        failed, text = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "under strategy PreferredReplica"
    else:
        term.context.offline.update(wanted)
        elected = await bring_online(term, wanted, unclean=True)
        failed, text = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "under strategy OfflinePartition"
    for partition in wanted:
        state = elected.get(partition)
        if state is None:
            message = f"Failed to elect leader for partition {partition[0]}-{partition[1]} {text}"
            results[partition] = ApiError(failed, message)
        else:
            results[partition] = state.value.leader
    return results


def _why_not(term: Term, kind: int, partition: Partition) -> ApiError | None:
    context = term.context
    if context.replicas(partition) is None:
        return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
    if context.is_deleted(partition[0]):
        return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
    leader = context.leader(partition)
    if kind == PREFERRED:
        needed = leader != context.assigned(partition)[0]
    else:
        needed = leader == NO_LEADER or not context.is_live(leader)
    return None if needed else ApiError(ErrorCode.ELECTION_NOT_NEEDED)


async def prefer(term: Term, partitions: Collection[Partition]) -> dict[Partition, State]:
    """Make the preferred replicas leaders, where possible."""
    context = term.context

    def decide(partition: Partition, value: LeaderAndIsr) -> LeaderAndIsr | None:
        return elections.elect_preferred(value, context.assigned(partition), context.online(partition), term.epoch)

    return await elect(term, partitions, decide, context.assigned)


async def check(term: Term) -> None:
    """Run the elections that a tool has written into /admin/preferred_replica_election, and watch for more."""
    found = await term.tree.get(PREFERRED_ELECTION, lambda: term.put("preferred", lambda: check(term)))
    if found is None:
        return
    try:
        asked: Iterable[Partition] = read(PREFERRED_ELECTION, found.data, decode_partitions)
    except Unreadable as error:
        log.error("%s: it is removed", error)
        asked = ()
    wanted = [partition async for partition in paced(asked) if _why_not(term, PREFERRED, partition) is None]
    await prefer(term, wanted)
    await term.tree.delete(PREFERRED_ELECTION)
    term.put("preferred", lambda: check(term))


FIRST_REBALANCE_SECONDS = 5
"""The time in seconds from an election to the first check.

Later checks follow leader.imbalance.check.interval.seconds.
"""


async def rebalance(term: Term) -> None:
    """Return leadership to brokers that lead too few of the partitions whose preferred replicas they have."""
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
