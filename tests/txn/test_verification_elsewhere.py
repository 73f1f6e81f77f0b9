"""Before the leader appends a transactional batch, it asks the coordinator on another broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.handlers.transaction_verification import Client, Question, Verdict, verify
from kbroker.peers.interface import PeersByNode
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kbroker.txn.other_coordinators import OtherCoordinators
from kbroker.txn.shard import Identity
from tests.coordination.world import ManualClock
from tests.peers.memory import MemoryPeers

PRODUCER = Identity(9, 3)


class Context:
    """A broker that leads two partitions; partition 1 already has an open transaction."""

    def __init__(self, coordinator: int = 2) -> None:
        self.net = MemoryPeers()
        self.forgotten: list[int] = []
        self.asked_here: list[Any] = []
        ways = PeersByNode(self.net, {2: ("two", 9)}.get, "verifier")
        transactions = SimpleNamespace(verify=self._verify_here)
        self.services: Any = SimpleNamespace(
            config=SimpleNamespace(get_bool=lambda _key: True),
            clock=ManualClock(),
            transactions=transactions,
            cluster=SimpleNamespace(other_coordinators=OtherCoordinators(1, lambda _name: coordinator, ways, 1000)),
        )
        self.questions = [Question(self._partition(index), 0) for index in range(2)]

    def _partition(self, index: int) -> Any:
        producers = SimpleNamespace(
            begin_verification=lambda *_arguments: f"guard {index}" if index == 0 else None,
            forget_verification=self.forgotten.append,
        )
        return SimpleNamespace(topic="t", index=index, leading=True, log=SimpleNamespace(producers=producers))

    def _verify_here(self, *arguments: Any) -> dict[tuple[str, int], ErrorCode]:
        self.asked_here.append(arguments)
        return {("t", 0): ErrorCode.NONE}

    def verify(self, client: Client) -> Any:
        return verify(self.services, "id", PRODUCER, self.questions, client)


@pytest.mark.parametrize(
    ("client", "code", "told"),
    [
        (Client.KNOWS_LITTLE, ErrorCode.NONE, ErrorCode.NONE),
        (Client.KNOWS_LITTLE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (Client.KNOWS_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (Client.KNOWS_ABORTABLE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (Client.ADDS_IMPLICITLY, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_the_answer_of_another_broker(client: Client, code: ErrorCode, told: ErrorCode) -> None:
    async def scenario() -> None:
        context = Context()
        verdicts = asyncio.ensure_future(context.verify(client))
        asked = await context.net.next()
        (transaction,) = asked.request.transactions
        assert (transaction.transactional_id, transaction.producer_id, transaction.producer_epoch) == ("id", 9, 3)
        assert transaction.verify_only is (client is not Client.ADDS_IMPLICITLY)
        assert [(each.name, each.partitions) for each in transaction.topics] == [("t", [0])]
        result = AddPartitionsToTxnTopicResult("t", [AddPartitionsToTxnPartitionResult(0, code)])
        asked.answer(AddPartitionsToTxnResponse(results_by_transaction=[AddPartitionsToTxnResult("id", [result])]))
        assert await verdicts == {("t", 0): Verdict(told, "guard 0"), ("t", 1): Verdict(ErrorCode.NONE, None)}
        assert context.forgotten == ([9] if code is ErrorCode.PRODUCER_FENCED else [])
        assert context.asked_here == []

    asyncio.run(scenario())


def test_without_an_answer_the_producer_comes_again() -> None:
    async def scenario() -> None:
        context = Context()
        verdicts = asyncio.ensure_future(context.verify(Client.KNOWS_LITTLE))
        (await context.net.next()).lose()
        assert (await verdicts)["t", 0] == Verdict(ErrorCode.NETWORK_EXCEPTION, "guard 0")

    asyncio.run(scenario())


def test_without_a_coordinator_the_producer_comes_again() -> None:
    verdicts = Context(coordinator=-1).verify(Client.KNOWS_LITTLE)
    assert verdicts["t", 0] == Verdict(ErrorCode.COORDINATOR_NOT_AVAILABLE, "guard 0")


def test_the_coordinator_here_is_asked_without_a_way_round() -> None:
    context = Context(coordinator=1)
    assert context.verify(Client.KNOWS_LITTLE)["t", 0] == Verdict(ErrorCode.NONE, "guard 0")
    assert len(context.asked_here) == 1
    assert context.net.pending == []
