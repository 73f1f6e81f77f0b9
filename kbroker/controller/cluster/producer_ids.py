"""Blocks of producer ids, each allocated to one broker once (KIP-730).

Owns /latest_producer_id_block. Brokers before 2.8 also write this znode, so each write checks the version that was
read.
"""

from __future__ import annotations

from typing import Final

from kbroker.controller.cluster.term import Term
from kbroker.controller.znodes import PRODUCER_IDS, ProducerIdBlock, Unreadable, read
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import AllocateProducerIdsRequest, AllocateProducerIdsResponse

BLOCK: Final = 1000
"""The number of ids in a block."""
_LAST: Final = 2**63 - 1


async def allocate_producer_ids(term: Term, request: AllocateProducerIdsRequest) -> AllocateProducerIdsResponse:
    """Allocate the next block for a broker. Raises ApiError."""
    broker = term.context.brokers.get(request.broker_id)
    if broker is None:
        raise ApiError(ErrorCode.BROKER_ID_NOT_REGISTERED)
    if broker.epoch != request.broker_epoch:
        raise ApiError(ErrorCode.STALE_BROKER_EPOCH)
    while True:
        found = await term.tree.get(PRODUCER_IDS)
        if found is None:
            await term.tree.create(PRODUCER_IDS)
            continue
        block = _next(request.broker_id, found.data)
        if await term.tree.set(PRODUCER_IDS, block.encode(), found.stat.version) is not None:
            return AllocateProducerIdsResponse(producer_id_start=block.first, producer_id_len=BLOCK)


def _next(broker_id: int, data: bytes) -> ProducerIdBlock:
    if not data:
        return ProducerIdBlock(broker_id, 0, BLOCK - 1)
    try:
        last = read(PRODUCER_IDS, data, ProducerIdBlock.decode).last
    except Unreadable as error:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None
    if last > _LAST - BLOCK:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "Have exhausted all producerIds.")
    return ProducerIdBlock(broker_id, last + 1, last + BLOCK)
