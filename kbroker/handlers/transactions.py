"""The APIs that begin, extend and end a transaction.

InitProducerId (key 22), versions 0-5: a producer id and epoch, for idempotence or for transactions.

Behaviour: without a transactional id a new producer id, epoch 0; with one the next epoch of that id, which fences every
other producer of it. An open transaction is aborted first (CONCURRENT_TRANSACTIONS: the client retries). Since v3 a
producer may send its id and epoch, and keeps the id if no other producer has taken it over.
Version notes: before v4 INVALID_PRODUCER_EPOCH stands for PRODUCER_FENCED.
Gaps: v6 (two-phase commit, KIP-939) is not released in Apache Kafka 4.3 either.

AddOffsetsToTxn (key 25), versions 0-4: add the offsets of a group to a transaction.

Behaviour: adds the group's partition of `__consumer_offsets`, as AddPartitionsToTxn would. Producers of transaction
version 2 do not send it: TxnOffsetCommit adds the partition then.
Version notes: before v2 INVALID_PRODUCER_EPOCH stands for PRODUCER_FENCED.

EndTxn (key 26), versions 0-5: commit or abort a transaction.

Behaviour: the response is sent once the outcome is in the log; the markers follow. txn/end_txn.py describes the
responses to retries.
Version notes: before v2 INVALID_PRODUCER_EPOCH stands for PRODUCER_FENCED; v5 is transaction version 2: the end begins
a new epoch, and the response has it, with another producer id if the epochs are used up (KIP-890).
"""

from __future__ import annotations

from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import awaited
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.txn.shard import Identity

_INIT_FENCED_SINCE = 4
_FENCED_SINCE = 2
_EPOCH_BUMP_SINCE = 5


def _failed(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def _fenced(code: ErrorCode, version: int, since: int) -> ErrorCode:
    """Return the code for a client: versions before `since` do not have PRODUCER_FENCED."""
    return ErrorCode.INVALID_PRODUCER_EPOCH if code is ErrorCode.PRODUCER_FENCED and version < since else code


@handles(InitProducerIdRequest, InitProducerIdResponse, "0-5", lambda _request, code, _message: _failed(code))
async def init_producer_id(ctx: RequestContext, request: InitProducerIdRequest) -> InitProducerIdResponse:
    """Return a producer id and epoch."""
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        return _failed(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is None:
        return InitProducerIdResponse(producer_id=ctx.services.producer_ids.next(), producer_epoch=0)
    expected = None if request.producer_id == -1 else Identity(request.producer_id, request.producer_epoch)
    version, transactions = ctx.version, ctx.services.transactions
    answer = await awaited(
        transactions.init_producer_id(request.transactional_id, request.transaction_timeout_ms, expected)
    )
    code = _fenced(answer.code, version, _INIT_FENCED_SINCE)
    if code:
        return _failed(code)
    return InitProducerIdResponse(producer_id=answer.producer.producer_id, producer_epoch=answer.producer.epoch)


@handles(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, "0-4")
async def add_offsets_to_txn(ctx: RequestContext, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    """Add a group's offsets."""
    version = ctx.version
    partition = (OFFSETS_TOPIC, ctx.services.groups.partition_for(request.group_id))
    producer = Identity(request.producer_id, request.producer_epoch)
    answer = ctx.services.transactions.add_partitions(request.transactional_id, producer, [partition], 0)
    return AddOffsetsToTxnResponse(error_code=_fenced(await awaited(answer), version, _FENCED_SINCE))


@handles(EndTxnRequest, EndTxnResponse, "0-5")
async def end_txn(ctx: RequestContext, request: EndTxnRequest) -> EndTxnResponse:
    """End a transaction."""
    version, transactions = ctx.version, ctx.services.transactions
    producer = Identity(request.producer_id, request.producer_epoch)
    client_version = 2 if version >= _EPOCH_BUMP_SINCE else 0
    answer = await awaited(transactions.end(request.transactional_id, producer, request.committed, client_version))
    code = _fenced(answer.code, version, _FENCED_SINCE)
    return EndTxnResponse(
        error_code=code, producer_id=answer.producer.producer_id, producer_epoch=answer.producer.epoch
    )
