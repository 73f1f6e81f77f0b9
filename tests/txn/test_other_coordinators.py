"""Requests to transaction coordinators on other brokers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable

import pytest

from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kbroker.txn.other_coordinators import Codes, OtherCoordinators
from kbroker.txn.shard import Identity
from kbroker.txn.transaction import TopicPartition
from tests.peers.memory import Asked, MemoryPeers, turns

P0, P1, U0 = ("t", 0), ("t", 1), ("u", 0)


class Context:
    def __init__(self) -> None:
        self.net = MemoryPeers()
        self.where = {2: ("two", 9), 3: ("three", 9)}
        self.coordinators: dict[str, int] = {"here": 1, "dead": 4, "none": -1}
        ways = PeersByNode(self.net, self.where.get, "verifier")
        self.others = OtherCoordinators(1, lambda name: self.coordinators.get(name, 2), ways, 30_000)

    def ask(
        self, name: str, *partitions: TopicPartition, epoch: int = 0, verify_only: bool = True
    ) -> Codes | Awaitable[Codes]:
        return self.others.ask(name, Identity(9, epoch), partitions, verify_only=verify_only)

    def later(self, name: str, *partitions: TopicPartition, epoch: int = 0) -> asyncio.Future[Codes]:
        found = self.ask(name, *partitions, epoch=epoch)
        assert isinstance(found, asyncio.Future)
        return found


def answer(asked: Asked, codes: dict[str, dict[TopicPartition, int]]) -> None:
    asked.answer(
        AddPartitionsToTxnResponse(
            results_by_transaction=[
                AddPartitionsToTxnResult(
                    name,
                    [
                        AddPartitionsToTxnTopicResult(topic, [AddPartitionsToTxnPartitionResult(index, code)])
                        for (topic, index), code in of_one.items()
                    ],
                )
                for name, of_one in codes.items()
            ]
        )
    )


def names(asked: Asked) -> list[str]:
    return [each.transactional_id for each in asked.request.transactions]


def test_questions_that_come_meanwhile_go_together() -> None:
    async def scenario() -> None:
        context = Context()
        first = context.later("a", P0, U0, P1)
        asked = await context.net.next()
        assert (asked.endpoint, asked.version) == (("two", 9), 5)
        (one,) = asked.request.transactions
        assert (one.transactional_id, one.producer_id, one.producer_epoch, one.verify_only) == ("a", 9, 0, True)
        assert {each.name: each.partitions for each in one.topics} == {"t": [0, 1], "u": [0]}
        others = [context.later("b", P0), context.later("c", P1)]
        await turns()
        assert context.net.pending == []
        answer(asked, {"a": {P0: 0, P1: ErrorCode.TRANSACTION_ABORTABLE, U0: ErrorCode.PRODUCER_FENCED}})
        assert await first == {
            P0: ErrorCode.NONE,
            P1: ErrorCode.TRANSACTION_ABORTABLE,
            U0: ErrorCode.PRODUCER_FENCED,
        }
        asked = await context.net.next()
        assert names(asked) == ["b", "c"]
        answer(asked, {"c": {P1: 0}, "b": {P0: 9999}})
        assert await asyncio.gather(*others) == [{P0: ErrorCode.UNKNOWN_SERVER_ERROR}, {P1: ErrorCode.NONE}]

    asyncio.run(scenario())


def test_brokers_are_asked_side_by_side() -> None:
    async def scenario() -> None:
        context = Context()
        context.coordinators["b"] = 3
        context.later("a", P0)
        found = context.ask("b", P0, verify_only=False)
        assert (await context.net.next()).endpoint == ("two", 9)
        asked = await context.net.next()
        assert asked.endpoint == ("three", 9)
        assert not asked.request.transactions[0].verify_only
        answer(asked, {"b": {P0: 0}})
        assert isinstance(found, asyncio.Future)
        assert await found == {P0: ErrorCode.NONE}
        context.others.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["dead", "none"])
def test_where_nobody_is_to_be_asked(name: str) -> None:
    assert Context().ask(name, P0, P1) == dict.fromkeys((P0, P1), ErrorCode.COORDINATOR_NOT_AVAILABLE)


def test_who_is_here() -> None:
    context = Context()
    assert context.others.is_here("here")
    assert not context.others.is_here("a")
    assert not context.others.is_here("none")


@pytest.mark.parametrize("error", [PeerUnavailable("lost"), ValueError("on purpose")])
def test_no_answer_is_a_network_exception(error: Exception) -> None:
    async def scenario() -> None:
        context = Context()
        lost = context.later("a", P0)
        asked = await context.net.next()
        waits = context.later("b", P0, P1)
        asked.fail(error)
        assert await lost == {P0: ErrorCode.NETWORK_EXCEPTION}
        asked = await context.net.next()
        assert names(asked) == ["b"]
        answer(asked, {"b": {P1: 0}})
        assert await waits == {P0: ErrorCode.NETWORK_EXCEPTION, P1: ErrorCode.NONE}
        waits = context.later("b", P0)
        asked = await context.net.next()
        answer(asked, {})
        assert await waits == {P0: ErrorCode.NETWORK_EXCEPTION}

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    ],
)
def test_an_error_for_the_whole_request(code: ErrorCode, told: ErrorCode) -> None:
    async def scenario() -> None:
        context = Context()
        both = [context.later("a", P0), context.later("b", P1)]
        asked = await context.net.next()
        asked.answer(AddPartitionsToTxnResponse(error_code=code))
        assert await asyncio.gather(*both) == [{P0: told}, {P1: told}]

    asyncio.run(scenario())


def test_of_two_questions_about_an_id_the_newer_epoch_is_asked() -> None:
    async def scenario() -> None:
        context = Context()
        context.later("x", P0)
        asked = await context.net.next()
        first = context.later("a", P0, epoch=1)
        again = context.later("a", P0, epoch=1)
        assert await first == {P0: ErrorCode.NETWORK_EXCEPTION}
        newer = context.later("a", P0, epoch=2)
        assert await again == {P0: ErrorCode.INVALID_PRODUCER_EPOCH}
        assert context.ask("a", P0, epoch=1) == {P0: ErrorCode.INVALID_PRODUCER_EPOCH}
        answer(asked, {"x": {P0: 0}})
        asked = await context.net.next()
        assert [each.producer_epoch for each in asked.request.transactions] == [2]
        answer(asked, {"a": {P0: 0}})
        assert await newer == {P0: ErrorCode.NONE}

    asyncio.run(scenario())


def test_a_request_has_a_bound() -> None:
    async def scenario() -> None:
        context = Context()
        waiting = [context.later(f"id-{number}", P0) for number in range(450)]
        sizes = []
        while not all(each.done() for each in waiting):
            asked = await context.net.next()
            sizes.append(len(names(asked)))
            answer(asked, {name: {P0: 0} for name in names(asked)})
            await turns()
        assert sizes == [200, 200, 50]

    asyncio.run(scenario())


def test_many_questions_are_answered_some_at_a_time() -> None:
    """At most 40 callers continue in one turn, since each then appends a batch."""

    async def scenario() -> None:
        context, turn, told_in = Context(), 0, []
        waiting = [context.later(f"id-{number}", P0) for number in range(200)]
        for each in waiting:
            each.add_done_callback(lambda _done: told_in.append(turn))
        asked = await context.net.next()
        answer(asked, {name: {P0: 0} for name in names(asked)})
        while len(told_in) < 200:
            turn += 1
            await asyncio.sleep(0)
        assert max(Counter(told_in).values()) <= 40

    asyncio.run(scenario())


def test_the_end_tells_everybody() -> None:
    async def scenario() -> None:
        context = Context()
        asked, queued = context.later("a", P0), None
        await context.net.next()
        queued = context.later("b", P0)
        context.others.close()
        assert await asyncio.gather(asked, queued) == [{P0: ErrorCode.NETWORK_EXCEPTION}] * 2

    asyncio.run(scenario())
