"""ListTransactions where there are many: in pieces, and as they were when it was asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.handlers.list_transactions import AT_ONCE, list_transactions
from kbroker.protocol.messages.list_transactions import ListTransactionsRequest
from kbroker.txn.states import EMPTY, ONGOING
from kbroker.txn.transaction import Transaction


@pytest.mark.parametrize("count", [0, 1, AT_ONCE, AT_ONCE + 1, 4 * AT_ONCE])
def test_many_are_listed_while_others_have_their_turns(count: int) -> None:
    known = [Transaction(f"id-{n}", n, 0, state=ONGOING if n % 2 else EMPTY)
             for n in range(count)]  # fmt: skip
    services = SimpleNamespace(
        clock=SimpleNamespace(now_ms=lambda: 0), transactions=SimpleNamespace(all=lambda: list(known))
    )
    context: Any = SimpleNamespace(services=services, version=2)
    request = ListTransactionsRequest(state_filters=["Ongoing", "Nonsense"])

    async def scenario() -> Any:
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        answer: Any = list_transactions(context, request)
        if count > AT_ONCE:
            working = asyncio.create_task(others())
            answer = await asyncio.wait_for(answer, 60)
            working.cancel()
            assert turns >= count // AT_ONCE
        return answer

    answer = asyncio.run(scenario())
    assert [each.producer_id for each in answer.transaction_states] == list(range(1, count, 2))
    assert answer.unknown_state_filters == ["Nonsense"]
