"""DescribeTransactions (key 65), version 0: the state of transactions, for administrators (KIP-664).

Behaviour: an entry for each transactional id, with an error of its own. While an outcome is being written the
partitions are those without a marker yet.
"""

from __future__ import annotations

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError
from kbroker.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from kbroker.txn.states import NAMES


def _on_error(request: DescribeTransactionsRequest, code: int, _message: str | None) -> DescribeTransactionsResponse:
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(error_code=code, transactional_id=name) for name in request.transactional_ids
        ]
    )


@handles(DescribeTransactionsRequest, DescribeTransactionsResponse, "0", _on_error)
def describe_transactions(ctx: RequestContext, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
    """Describe transactional ids."""
    return DescribeTransactionsResponse(
        transaction_states=[_describe(ctx, transactional_id) for transactional_id in request.transactional_ids]
    )


def _describe(ctx: RequestContext, transactional_id: str) -> TransactionState:
    try:
        txn = ctx.services.transactions.find(transactional_id)
    except ApiError as err:
        return TransactionState(error_code=err.code, transactional_id=transactional_id)
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(txn.partitions):
        by_topic.setdefault(topic, []).append(index)
    return TransactionState(
        transactional_id=transactional_id,
        transaction_state=NAMES[txn.state],
        transaction_timeout_ms=txn.timeout_ms,
        transaction_start_time_ms=txn.start_ms,
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        topics=[TopicData(topic, indexes) for topic, indexes in by_topic.items()],
    )
