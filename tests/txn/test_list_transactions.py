"""ListTransactions with many transactions: one request at a time, and each lists the states at its start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.handlers.transaction_listings import list_transactions
from kbroker.protocol.messages.transactions import ListTransactionsRequest
from kbroker.txn.transaction import EMPTY, ONGOING, Transaction


@pytest.mark.parametrize("count", [0, 1, 1_000])
def test_many_are_listed_while_others_have_their_turns(count: int) -> None:
    known = [Transaction(f"id-{n}", n, 0, state=ONGOING if n % 2 else EMPTY)
             for n in range(count)]  # fmt: skip
    services = SimpleNamespace(
        clock=SimpleNamespace(now_ms=lambda: 0), transactions=SimpleNamespace(all=lambda: list(known))
    )
    context: Any = SimpleNamespace(services=services, version=2)
    work: Any = list_transactions(context, ListTransactionsRequest(state_filters=["Ongoing", "Nonsense"]))
    turns = 0
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            answer = end.value
            break
        turns += 1
    assert turns >= count
    assert [each.producer_id for each in answer.transaction_states] == list(range(1, count, 2))
    assert answer.unknown_state_filters == ["Nonsense"]
