"""EndTxn (key 26), versions 0-5: commit or abort a transaction.

Behaviour: answered once the outcome is in the log; the markers follow. Which answers a retry gets stands in
txn/end_txn.py.
Version notes: before v2 INVALID_PRODUCER_EPOCH stands for PRODUCER_FENCED; v5 is transaction version 2: the end begins
a new epoch, and the answer tells it, with another producer id where the epochs are used up (KIP-890).
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.coordination.then import then
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import EndTxnRequest, EndTxnResponse
from kbroker.txn.coordinator import Answer
from kbroker.txn.shard import Identity

_FIRST_FENCED_VERSION = 2
_EPOCH_BUMP_SINCE = 5


@handles(EndTxnRequest, EndTxnResponse, "0-5")
def end_txn(ctx: RequestContext, request: EndTxnRequest) -> EndTxnResponse | Awaitable[EndTxnResponse]:
    """End a transaction."""
    version = ctx.version

    def respond(answer: Answer) -> EndTxnResponse:
        code = answer.code
        if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_FENCED_VERSION:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return EndTxnResponse(
            error_code=code, producer_id=answer.producer.producer_id, producer_epoch=answer.producer.epoch
        )

    producer = Identity(request.producer_id, request.producer_epoch)
    client_version = 2 if version >= _EPOCH_BUMP_SINCE else 0
    answer = ctx.services.transactions.end(request.transactional_id, producer, request.committed, client_version)
    return then(answer, respond)
