"""AddOffsetsToTxn (key 25), versions 0-4: the offsets of a group become part of a transaction.

Behaviour: adds the group's partition of `__consumer_offsets`, as AddPartitionsToTxn would. Producers of transaction
version 2 do without: TxnOffsetCommit adds it then.
Version notes: before v2 INVALID_PRODUCER_EPOCH stands for PRODUCER_FENCED.
"""

from __future__ import annotations

from collections.abc import Awaitable

from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.coordination.then import then
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from kbroker.txn.shard import Identity

_FIRST_FENCED_VERSION = 2


@handles(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, "0-4")
def add_offsets_to_txn(
    ctx: RequestContext, request: AddOffsetsToTxnRequest
) -> AddOffsetsToTxnResponse | Awaitable[AddOffsetsToTxnResponse]:
    """Add a group's offsets."""
    version = ctx.version
    partition = (OFFSETS_TOPIC, ctx.services.groups.partition_for(request.group_id))

    def respond(code: ErrorCode) -> AddOffsetsToTxnResponse:
        if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_FENCED_VERSION:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return AddOffsetsToTxnResponse(error_code=code)

    producer = Identity(request.producer_id, request.producer_epoch)
    answer = ctx.services.transactions.add_partitions(request.transactional_id, producer, [partition], 0)
    return then(answer, respond)
