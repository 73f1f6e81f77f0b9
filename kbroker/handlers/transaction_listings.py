"""The APIs that list and describe transactions (KIP-664).

DescribeTransactions (key 65), version 0: the state of transactions, for administrators (KIP-664).

Behaviour: returns an entry with an error code for each transactional id. While the coordinator writes markers, the
entry contains only the partitions without a marker.

ListTransactions (key 66), versions 0-2: the transactional ids that this broker coordinates (KIP-664).

Behaviour: filters by state and producer id, since v1 by the duration of an open transaction, since v2 by a pattern that
must match the complete id (KIP-1152). The response names unknown states, which match nothing.

Differs from Kafka: patterns have RE2's syntax, without back references and lookaround, so that every match takes linear
time.

DescribeProducers (key 61), version 0: the idempotent producers whose state a partition keeps (KIP-664).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kbroker.handlers.groups import distinct
from kbroker.handlers.mirrored_errors import mirrored
from kbroker.handlers.registry import RequestContext, handles
from kbroker.log.producers.producer_state import ProducerEntry
from kbroker.long_work import each, every, turn
from kbroker.partition import Partition
from kbroker.protocol.errors import DEFAULT_MESSAGES, ApiError, ErrorCode
from kbroker.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
    PartitionResponse,
    ProducerState,
    TopicData,
    TopicRequest,
    TopicResponse,
    TransactionState,
)
from kbroker.topic_names import topic_name_fault
from kbroker.txn.transaction import NAMES, Transaction

MAX_REPEATED = 1_000_000
"""The maximum number of partitions in the repeated transactions of one response (about 4 MB).

A transaction is repeated if the request repeats its id.
"""
_BY_NAME = {name: state for state, name in NAMES.items()}


@handles(
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    "0",
    mirrored(DescribeTransactionsResponse, "transactional_ids"),
)
async def describe_transactions(
    ctx: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    """Describe transactional ids. If an id is repeated, its first result is repeated, within a limit."""
    known: dict[str, TransactionState] = {}
    left = MAX_REPEATED
    states = []
    for transactional_id in request.transactional_ids:
        state = known.get(transactional_id)
        if state is None:
            state = known[transactional_id] = await _describe(ctx, transactional_id)
        else:
            left -= sum(len(topic.partitions) for topic in state.topics)
            if left < 0:
                state = TransactionState(error_code=ErrorCode.INVALID_REQUEST, transactional_id=transactional_id)
        states.append(state)
        await turn
    return DescribeTransactionsResponse(transaction_states=states)


async def _describe(ctx: RequestContext, transactional_id: str) -> TransactionState:
    try:
        txn = ctx.services.transactions.find(transactional_id)
    except ApiError as err:
        return TransactionState(error_code=err.code, transactional_id=transactional_id)
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(txn.partitions):
        by_topic.setdefault(topic, []).append(index)
        await turn
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=NAMES[txn.state],
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.start_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        topics=[TopicData(topic, indexes) for topic, indexes in by_topic.items()],
    )


@handles(ListTransactionsRequest, ListTransactionsResponse, "0-2")
async def list_transactions(ctx: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """List the current transactional ids."""
    names = await distinct(request.state_filters)
    producer_ids = await distinct(request.producer_id_filters)
    unknown = []
    for name in names:
        if name not in _BY_NAME:
            unknown.append(name)
        await turn
    wanted = _filter(request, names, producer_ids, ctx.services.clock.now_ms())
    states = []
    for txn in ctx.services.transactions.all():
        if wanted(txn):
            states.append(ListedTransaction(txn.transactional_id, txn.producer_id, NAMES[txn.state]))
        await turn
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=states)


def _filter(
    request: ListTransactionsRequest, names: Mapping[str, None], producer_ids: Mapping[int, None], now_ms: int
) -> Callable[[Transaction], bool]:
    states = {state for name, state in _BY_NAME.items() if name in names}
    longer_than = request.duration_filter
    pattern = _compile(request.transactional_id_pattern)

    def wanted(txn: Transaction) -> bool:
        return (
            (not producer_ids or txn.producer_id in producer_ids)
            and (not names or txn.state in states)
            and (longer_than < 0 or now_ms - txn.start_ms > longer_than)
            and (pattern is None or bool(pattern.fullmatch(txn.transactional_id)))
        )

    return wanted


def _compile(pattern: str | None) -> Any:
    if not pattern:
        return None
    import re2  # imported late, as in regexes.py

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as err:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION) from err


MAX_REPEATED_PRODUCERS = 100_000
"""The maximum number of producers in the repeated partitions of one response (about 4 MB).

A partition is repeated if the request repeats it.
"""


def _failed(index: int, code: ErrorCode, message: str | None) -> PartitionResponse:
    return PartitionResponse(partition_index=index, error_code=code, error_message=message)


@handles(DescribeProducersRequest, DescribeProducersResponse, "0", mirrored(DescribeProducersResponse))
async def describe_producers(ctx: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
    """List producers, one partition at a time. A repeated partition gets its first list again, within a limit."""
    known: dict[Partition, list[ProducerState]] = {}
    left = MAX_REPEATED_PRODUCERS

    async def one(topic: str, index: int) -> PartitionResponse:
        nonlocal left
        refused = _refused(ctx, topic, index)
        partition = ctx.services.replicas.get((topic, index))
        if refused is not None or partition is None:
            return refused or _failed(index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)
        producers = known.get(partition)
        if producers is None:
            producers = known[partition] = await each(partition.log.active_producers(), _state)
        else:
            left -= len(producers)
            if left < 0:
                return _failed(index, ErrorCode.INVALID_REQUEST, "The request names this partition too often.")
        return PartitionResponse(partition_index=index, active_producers=producers)

    async def of_topic(asked: TopicRequest) -> TopicResponse:
        return TopicResponse(asked.name, await every(asked.partition_indexes, lambda i: one(asked.name, i)))

    return DescribeProducersResponse(topics=await every(request.topics, of_topic))


def _refused(ctx: RequestContext, topic: str, index: int) -> PartitionResponse | None:
    """Return the error if this broker has no replica of the partition, or None. A follower uses its own log."""
    fault = topic_name_fault(topic)
    if fault is not None:
        return _failed(index, ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {fault}")
    if topic not in ctx.services.controller.state.topics:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return _failed(index, code, DEFAULT_MESSAGES[code])
    if ctx.services.replicas.get((topic, index)) is not None:
        return None
    code = ctx.services.replicas.why_missing(topic, index)
    if code != ErrorCode.KAFKA_STORAGE_ERROR and ctx.services.controller.state.partition(topic, index) is not None:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return _failed(index, code, None)


def _state(p: ProducerEntry) -> ProducerState:
    return ProducerState(
        producer_id=p.producer_id,
        producer_epoch=p.producer_epoch,
        last_sequence=p.last_sequence,
        last_timestamp=p.last_timestamp,
        coordinator_epoch=p.coordinator_epoch,
        current_txn_start_offset=p.current_txn_first_offset,
    )
