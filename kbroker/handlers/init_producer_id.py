"""InitProducerId (key 22), versions 0-5: a fresh producer id for an idempotent producer.

A transactional id belongs to a transaction coordinator, which this broker is not: NOT_COORDINATOR.
"""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def _failed(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


@handles(InitProducerIdRequest, InitProducerIdResponse, "0-5", lambda _request, code, _message: _failed(code))
def init_producer_id(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Hand out an id; epoch 0."""
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return _failed(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=ctx.services.producer_ids.next(), producer_epoch=0)
    if not request.transactional_id:
        return _failed(ErrorCode.INVALID_REQUEST)
    longest = ctx.services.config.get_int("transaction.max.timeout.ms")
    if not 0 < request.transaction_timeout_ms <= longest:
        return _failed(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    return _failed(ErrorCode.NOT_COORDINATOR)
