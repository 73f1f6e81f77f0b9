"""AddPartitionsToTxn (key 24), versions 0-5: partitions become part of a transaction, before anything is written.

Behaviour: all or none; where one does not exist, the others are answered OPERATION_NOT_ATTEMPTED.
Version notes: v0-3 come from producers of transaction version 1; before v2 INVALID_PRODUCER_EPOCH stands for
PRODUCER_FENCED. v4-5 come from brokers, which ask for several transactions at once, and with `verify_only` whether
partitions are in one (TRANSACTION_ABORTABLE where they are not).
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping

from kbroker.coordination.then import then
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from kbroker.txn.shard import Identity
from kbroker.txn.transaction import TopicPartition

_BATCHED_SINCE = 4
_FIRST_FENCED_VERSION = 2

Codes = Mapping[TopicPartition, ErrorCode]


def _on_error(request: AddPartitionsToTxnRequest, code: int, _message: str | None) -> AddPartitionsToTxnResponse:
    topics = request.v3_and_below_topics
    return AddPartitionsToTxnResponse(
        error_code=code,
        results_by_topic_v3_and_below=_results(dict.fromkeys(_partitions(topics), ErrorCode(code))),
    )


@handles(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, "0-5", _on_error)
def add_partitions_to_txn(
    ctx: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | Awaitable[AddPartitionsToTxnResponse]:
    """Add or verify partitions, transaction by transaction."""
    if ctx.version < _BATCHED_SINCE:
        single = AddPartitionsToTxnTransaction(
            transactional_id=request.v3_and_below_transactional_id,
            producer_id=request.v3_and_below_producer_id,
            producer_epoch=request.v3_and_below_producer_epoch,
            topics=request.v3_and_below_topics,
        )
        return then(
            _one(ctx, single), lambda codes: AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(codes))
        )
    answers = [(each.transactional_id, _one(ctx, each)) for each in request.transactions]
    done = {name: answer for name, answer in answers if isinstance(answer, Mapping)}
    if len(done) == len({name for name, _ in answers}):
        return _batched(done)
    return _gather(answers)


async def _gather(answers: list[tuple[str, Codes | Awaitable[Codes]]]) -> AddPartitionsToTxnResponse:
    return _batched({name: each if isinstance(each, Mapping) else await each for name, each in answers})


def _batched(codes: Mapping[str, Codes]) -> AddPartitionsToTxnResponse:
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResult(transactional_id=name, topic_results=_results(each))
            for name, each in codes.items()
        ]
    )


def _one(ctx: RequestContext, asked: AddPartitionsToTxnTransaction) -> Codes | Awaitable[Codes]:
    wanted = _partitions(asked.topics)
    state = ctx.services.controller.state
    unknown = {partition for partition in wanted if state.partition(*partition) is None}
    if unknown:
        missing, rest = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OPERATION_NOT_ATTEMPTED
        return {partition: missing if partition in unknown else rest for partition in wanted}
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


def _partitions(topics: list[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return list(dict.fromkeys((topic.name, index) for topic in topics for index in topic.partitions))


def _results(codes: Codes) -> list[AddPartitionsToTxnTopicResult]:
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for (topic, index), code in codes.items():
        by_topic.setdefault(topic, []).append(AddPartitionsToTxnPartitionResult(index, code))
    return [AddPartitionsToTxnTopicResult(topic, results) for topic, results in by_topic.items()]
