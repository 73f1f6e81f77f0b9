"""ListTransactions (key 66), versions 0-2: the transactional ids that this broker coordinates (KIP-664).

Behaviour: filtered by state, producer id, since v1 by how long a transaction has been open, since v2 by a pattern that
the whole id matches (KIP-1152). States that nobody knows are named in the answer, and match nothing.
Differs from Kafka: patterns are of RE2's syntax, which has no back references and no lookaround, so that no pattern
takes more than linear time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kbroker.divided import Divided
from kbroker.handlers.registry import RequestContext, handles
from kbroker.handlers.repeated_groups import distinct
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.transaction_listings import (
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kbroker.txn.states import NAMES
from kbroker.txn.transaction import Transaction

_BY_NAME = {name: state for state, name in NAMES.items()}


@handles(ListTransactionsRequest, ListTransactionsResponse, "0-2")
def list_transactions(ctx: RequestContext, request: ListTransactionsRequest) -> Divided[ListTransactionsResponse]:
    """List transactional ids, as they are now."""
    names = yield from distinct(request.state_filters)
    producer_ids = yield from distinct(request.producer_id_filters)
    unknown = []
    for name in names:
        if name not in _BY_NAME:
            unknown.append(name)
        yield
    wanted = _filter(request, names, producer_ids, ctx.services.clock.now_ms())
    states = []
    for txn in ctx.services.transactions.all():
        if wanted(txn):
            states.append(ListedTransaction(txn.transactional_id, txn.producer_id, NAMES[txn.state]))
        yield
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
    import re2  # late, as in regexes.py

    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as err:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION) from err
