"""The APIs that begin, extend and end a transaction.

InitProducerId (key 22), versions 0-5: a producer id and epoch, for idempotence or for transactions.

Behaviour: without a transactional id, returns a new producer id with epoch 0. With a transactional id, returns its
producer id with the next epoch, which fences all other producers with the same transactional id. An open transaction is
aborted first (CONCURRENT_TRANSACTIONS: the client retries). Since v3 a producer may send its id and epoch, and keeps
the id unless another producer has taken over the transactional id.

Version notes: before v4 the error is INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.

Gaps: v6 (two-phase commit, KIP-939) is not released in Apache Kafka 4.4 either.

AddOffsetsToTxn (key 25), versions 0-4: add the offsets of a group to a transaction.

Behaviour: adds the group's partition of `__consumer_offsets`, like AddPartitionsToTxn. Producers with transaction
version 2 do not send this request, because TxnOffsetCommit adds the partition for them.

Version notes: before v2 the error is INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.

EndTxn (key 26), versions 0-5: commit or abort a transaction.

Behaviour: the response is sent once the outcome is in the log; the markers follow. txn/end_txn.py describes the
responses to retries.

Version notes: before v2 the error is INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED. v5 is for transaction version
2: the end of a transaction begins a new producer epoch (KIP-890). The response has the new epoch, and also a new
producer id if the old id has no more epochs.

AddPartitionsToTxn (key 24), versions 0-5: add partitions to a transaction, before the producer writes to them.

Behaviour: adds all partitions or none. If one partition does not exist, the other partitions get
OPERATION_NOT_ATTEMPTED.

Version notes: producers with transaction version 1 send v0-3, and are not allowed to write to internal topics; before
v2 the error is INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED. Brokers send v4-5. These versions name several
transactions, and with `verify_only` check that partitions are in a transaction (TRANSACTION_ABORTABLE if they are not).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from kbroker.cluster_state import OFFSETS_TOPIC
from kbroker.handlers.registry import RequestContext, handles
from kbroker.long_work import awaited, each, then, turn
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.topic_names import INTERNAL_TOPICS
from kbroker.txn.shard import Identity
from kbroker.txn.transaction import TopicPartition

_INIT_FENCED_SINCE = 4
_FENCED_SINCE = 2
_EPOCH_BUMP_SINCE = 5


def _failed(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


def _fenced(code: ErrorCode, version: int, since: int) -> ErrorCode:
    """Return the error code for the client. Versions before `since` do not know PRODUCER_FENCED."""
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
    """Add a group's offsets to a transaction."""
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


_BATCHED_SINCE = 4
_FIRST_FENCED_VERSION = 2

Codes = Mapping[TopicPartition, ErrorCode]


async def _on_error(request: AddPartitionsToTxnRequest, code: int, _message: str | None) -> AddPartitionsToTxnResponse:
    wanted = await _partitions(request.v3_and_below_topics)
    results = await _results(dict.fromkeys(wanted, ErrorCode(code)))
    return AddPartitionsToTxnResponse(error_code=code, results_by_topic_v3_and_below=results)


@handles(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, "0-5", _on_error)
async def add_partitions_to_txn(
    ctx: RequestContext, request: AddPartitionsToTxnRequest, *, may_write: Callable[[str], bool] = lambda _topic: True
) -> AddPartitionsToTxnResponse:
    """Add or verify partitions, one transaction at a time. `may_write` checks a producer's right to write."""
    if ctx.version < _BATCHED_SINCE:
        single = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        answer = await _one(ctx, single, lambda topic: topic not in INTERNAL_TOPICS and may_write(topic))
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=await _results(await awaited(answer)))
    answers: dict[str, Codes | Awaitable[Codes]] = {}
    for asked in request.transactions:
        answers[asked.transactional_id] = await _one(ctx, asked)
        await turn
    results = []
    for name, codes in answers.items():
        topics = await _results(await awaited(codes))
        results.append(AddPartitionsToTxnResult(transactional_id=name, topic_results=topics))
        await turn
    return AddPartitionsToTxnResponse(results_by_transaction=results)


async def _one(
    ctx: RequestContext, asked: AddPartitionsToTxnTransaction, may_write: Callable[[str], bool] | None = None
) -> Codes | Awaitable[Codes]:
    wanted = await _partitions(asked.topics)
    state = ctx.services.controller.state
    codes: dict[TopicPartition, ErrorCode] = {}
    is_refused = False
    for partition in wanted:
        code = ErrorCode.OPERATION_NOT_ATTEMPTED
        if may_write is not None and not may_write(partition[0]):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif (topic := state.topics.get(partition[0])) is not None and topic.source is not None:
            code = ErrorCode.INVALID_REQUEST  # a view can only be read
        elif state.partition(*partition) is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        codes[partition] = code
        is_refused = is_refused or code is not ErrorCode.OPERATION_NOT_ATTEMPTED
        await turn
    if is_refused:
        return codes
    producer = Identity(asked.producer_id, asked.producer_epoch)
    transactions, version = ctx.services.transactions, ctx.version
    if asked.verify_only:
        return transactions.verify(asked.transactional_id, producer, wanted)

    def respond(code: ErrorCode) -> Codes:
        if code is ErrorCode.PRODUCER_FENCED and version < _FIRST_FENCED_VERSION:
            code = ErrorCode.INVALID_PRODUCER_EPOCH
        return dict.fromkeys(wanted, code)

    client_version = 2 if version >= _BATCHED_SINCE else 0
    answer = transactions.add_partitions(asked.transactional_id, producer, wanted, client_version)
    return then(answer, respond)


async def _partitions(topics: Iterable[AddPartitionsToTxnTopic]) -> Collection[TopicPartition]:
    """Return the named partitions without duplicates, in their order."""
    wanted: dict[TopicPartition, None] = {}
    for topic in topics:
        for index in topic.partitions:
            wanted[topic.name, index] = None
            await turn
        await turn
    return wanted.keys()


async def _results(codes: Codes) -> list[AddPartitionsToTxnTopicResult]:
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, index), code in codes.items():
        by_topic.setdefault(topic, []).append(AddPartitionsToTxnPartitionResult(index, code))
        await turn
    return await each(by_topic.items(), lambda found: AddPartitionsToTxnTopicResult(*found))
