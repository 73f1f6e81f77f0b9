"""ControlledShutdown: moves the leaderships of a broker to other brokers before the broker stops.

Owns the choice of partitions: those that have another in-sync replica (KIP-9; KafkaController.doControlledShutdown).
The broker also stops its follower replicas. The controller does not elect the broker again until it registers again.
"""

from __future__ import annotations

import logging

from kbroker.controller import elections
from kbroker.controller.cluster.context import Partition
from kbroker.controller.cluster.partitions import elect, take_out
from kbroker.controller.cluster.term import Term
from kbroker.controller.pacing import paced
from kbroker.controller.znodes import LeaderAndIsr
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)

log = logging.getLogger(__name__)


async def controlled_shutdown(term: Term, request: ControlledShutdownRequest) -> ControlledShutdownResponse:
    """Move a broker's leaderships to other brokers; return the partitions that it still leads. Raises ApiError."""
    context, leaving = term.context, request.broker_id
    broker = context.brokers.get(leaving)
    if broker is None:
        known_epoch = request.broker_epoch != -1
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR if known_epoch else ErrorCode.BROKER_NOT_AVAILABLE)
    if request.broker_epoch != -1 and request.broker_epoch < broker.epoch:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
    log.info("Broker %d is about to stop", leaving)
    context.leaving.add(leaving)
    led, followed = await _leaderships(term, leaving)
    await _move(term, led)
    # The broker stops following first, so that no leader adds it to the in-sync replicas again.
    batch = term.batch()
    for partition in followed:
        batch.stop(leaving, partition, delete=False)
    await batch.send()
    batch = term.batch()
    await take_out(term, leaving, followed, batch)
    await batch.send()
    left = [partition async for partition in paced(led) if context.leader(partition) == leaving]
    return ControlledShutdownResponse(remaining_partitions=[RemainingPartition(*partition) for partition in left])


async def _leaderships(term: Term, broker: int) -> tuple[list[Partition], list[Partition]]:
    """Return the partitions that a broker leads, and those that it follows. Skip partitions without other replicas."""
    context = term.context
    led: list[Partition] = []
    followed: list[Partition] = []
    async for partition in paced(list(context.on_broker(broker))):
        if len(context.assigned(partition)) < 2 or partition not in context.states or context.is_deleted(partition[0]):
            continue
        (led if context.leader(partition) == broker else followed).append(partition)
    return led, followed


async def _move(term: Term, led: list[Partition]) -> None:
    context = term.context

    def online(partition: Partition) -> tuple[int, ...]:
        return context.online(partition, also_leaving=True)

    def decide(partition: Partition, value: LeaderAndIsr) -> LeaderAndIsr | None:
        leaving = context.leaving
        return elections.elect_for_shutdown(value, context.assigned(partition), online(partition), leaving, term.epoch)

    await elect(term, led, decide, online)
