"""ListTransactions (key 66), versions 0-2: the transactional ids that this broker coordinates (KIP-664).

Behaviour: filtered by state, producer id, since v1 by how long a transaction has been open, since v2 by a pattern that
the whole id matches (KIP-1152). States that nobody knows are named in the answer, and match nothing.
Differs from Kafka: patterns are of RE2's syntax, which has no back references and no lookaround, so that no pattern
takes more than linear time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
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
from kbroker.txn.transaction import Transaction

_BY_NAME = {name: state for state, name in NAMES.items()}


AT_ONCE = 5_000
"""Transactions looked at before others have a turn: some 10 ms."""


@handles(ListTransactionsRequest, ListTransactionsResponse, "0-2")
def list_transactions(
    ctx: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse | Awaitable[ListTransactionsResponse]:
    """List transactional ids, as they are now."""
    wanted = _filter(request, ctx.services.clock.now_ms())
    response = ListTransactionsResponse(
        unknown_state_filters=[name for name in dict.fromkeys(request.state_filters) if name not in _BY_NAME],
        transaction_states=[],
    )
    known = ctx.services.transactions.all()
    if len(known) > AT_ONCE:
        return _list_slowly(known, wanted, response)
    response.transaction_states = _listed(known, wanted)
    return response


async def _list_slowly(
    known: Sequence[Transaction], wanted: Callable[[Transaction], bool], response: ListTransactionsResponse
) -> ListTransactionsResponse:
    for start in range(0, len(known), AT_ONCE):
        response.transaction_states += _listed(known[start : start + AT_ONCE], wanted)
        await asyncio.sleep(0)
    return response


def _listed(known: Sequence[Transaction], wanted: Callable[[Transaction], bool]) -> list[TransactionState]:
    return [TransactionState(t.transactional_id, t.producer_id, NAMES[t.state]) for t in known if wanted(t)]


def _filter(request: ListTransactionsRequest, now_ms: int) -> Callable[[Transaction], bool]:
    states = {_BY_NAME[name] for name in request.state_filters if name in _BY_NAME}
    producer_ids = set(request.producer_id_filters)
    longer_than = request.duration_filter
    pattern = _compile(request.transactional_id_pattern)

    def wanted(txn: Transaction) -> bool:
        return (
            (not producer_ids or txn.producer_id in producer_ids)
            and (not request.state_filters or txn.state in states)
            and (longer_than < 0 or now_ms - txn.start_ms > longer_than)
            and (pattern is None or bool(pattern.fullmatch(txn.transactional_id)))
        )

    return wanted


def _compile(pattern: str | None) -> Any:
    if not pattern:
        return None
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as err:
        raise ApiError(ErrorCode.INVALID_REGULAR_EXPRESSION) from err
