"""InitProducerId (key 22), versions 0-5: a producer id and epoch, for idempotence or for transactions.

Behaviour: without a transactional id a fresh producer id, epoch 0; with one the next epoch of that id, which fences
every other producer of it. An open transaction is aborted first (CONCURRENT_TRANSACTIONS: ask again). Since v3 a
producer may say which id and epoch it has, and keeps the id if nobody has taken it over.
Version notes: before v4 INVALID_PRODUCER_EPOCH stands for PRODUCER_FENCED.
Gaps: v6 (two-phase commit, KIP-939) is not released in Apache Kafka 4.3 either.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.coordination.then import then
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from kbroker.txn.coordinator import Answer
from kbroker.txn.shard import Identity

_FIRST_FENCED_VERSION = 4


def _failed(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


@handles(InitProducerIdRequest, InitProducerIdResponse, "0-5", lambda _request, code, _message: _failed(code))
def init_producer_id(
    ctx: RequestContext, request: InitProducerIdRequest
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Give a producer what it writes with."""
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return _failed(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=ctx.services.producer_ids.next(), producer_epoch=0)
    expected = None if request.producer_id == -1 else Identity(request.producer_id, request.producer_epoch)
    version = ctx.version

    def respond(answer: Answer) -> InitProducerIdResponse:
        code = answer.code
        if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_FENCED_VERSION:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        if code:
            return _failed(code)
        return InitProducerIdResponse(producer_id=answer.producer.producer_id, producer_epoch=answer.producer.epoch)

    transactions = ctx.services.transactions
    return then(
        transactions.init_producer_id(request.transactional_id, request.transaction_timeout_ms, expected), respond
    )
