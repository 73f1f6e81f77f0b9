"""ListTransactions (key 66), versions 0-2: the transactional ids that this broker coordinates (KIP-664).

Behaviour: filtered by state, producer id, since v1 by how long a transaction has been open, since v2 by a pattern that
the whole id matches (KIP-1152). States that nobody knows are named in the answer, and match nothing.
Differs from Kafka: patterns are of RE2's syntax, which has no back references and no lookaround, so that no pattern
takes more than linear time.
"""

from __future__ import annotations

from typing import Any

import re2

from kbroker.handlers.registry import RequestContext, handles
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from kbroker.txn.states import NAMES

_BY_NAME = {name: state for state, name in NAMES.items()}


@handles(ListTransactionsRequest, ListTransactionsResponse, "0-2")
def list_transactions(ctx: RequestContext, request: ListTransactionsRequest) -> ListTransactionsResponse:
    """List transactional ids."""
    wanted = {_BY_NAME[name] for name in request.state_filters if name in _BY_NAME}
    producer_ids = set(request.producer_id_filters)
    now_ms, longer_than = ctx.services.clock.now_ms(), request.duration_filter
    pattern = _compile(request.transactional_id_pattern)
    return ListTransactionsResponse(
        unknown_state_filters=[name for name in dict.fromkeys(request.state_filters) if name not in _BY_NAME],
        transaction_states=[
            TransactionState(txn.transactional_id, txn.producer_id, NAMES[txn.state])
            for txn in ctx.services.transactions.all()
            if (not producer_ids or txn.producer_id in producer_ids)
            and (not request.state_filters or txn.state in wanted)
            and (longer_than < 0 or now_ms - txn.start_ms > longer_than)
            and (pattern is None or pattern.fullmatch(txn.transactional_id))
        ],
    )


def _compile(pattern: str | None) -> Any:
    if not pattern:
        return None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as err:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION) from err
