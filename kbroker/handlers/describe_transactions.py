"""DescribeTransactions (key 65), version 0: the state of transactions, for administrators (KIP-664).

Behaviour: an entry for each transactional id, with an error of its own. While an outcome is being written the
partitions are those without a marker yet.
"""

from __future__ import annotations

from kbroker.divided import Divided, each
from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.transaction_listings import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from kbroker.txn.states import NAMES

MAX_REPEATED = 1_000_000
"""Partitions that are listed again because their transaction is named again, in one answer: some 4 MB."""


def _on_error(
    request: DescribeTransactionsRequest, code: int, _message: str | None
) -> Divided[DescribeTransactionsResponse]:
    failed = each(request.transactional_ids, lambda name: TransactionState(error_code=code, transactional_id=name))
    return DescribeTransactionsResponse(transaction_states=(yield from failed))


@handles(DescribeTransactionsRequest, DescribeTransactionsResponse, "0", _on_error)
def describe_transactions(
    ctx: RequestContext, request: DescribeTransactionsRequest
) -> Divided[DescribeTransactionsResponse]:
    """Describe transactional ids; one that is named again shares its answer, within a bound."""
    known: dict[str, TransactionState] = {}
    left = MAX_REPEATED
    states = []
    for transactional_id in request.transactional_ids:
        state = known.get(transactional_id)
        if state is None:
            state = known[transactional_id] = yield from _describe(ctx, transactional_id)
        else:
            left -= sum(len(topic.partitions) for topic in state.topics)
            if left < 0:
                state = TransactionState(error_code=ErrorCode.INVALID_REQUEST, transactional_id=transactional_id)
        states.append(state)
        yield
    return DescribeTransactionsResponse(transaction_states=states)


def _describe(ctx: RequestContext, transactional_id: str) -> Divided[TransactionState]:
    try:
        txn = ctx.services.transactions.find(transactional_id)
    except ApiError as err:
        return TransactionState(error_code=err.code, transactional_id=transactional_id)
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(txn.partitions):
        by_topic.setdefault(topic, []).append(index)
        yield
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=NAMES[txn.state],
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.start_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        topics=[TopicData(topic, indexes) for topic, indexes in by_topic.items()],
    )
