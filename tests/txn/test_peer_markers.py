"""Markers for partitions that other brokers lead: their division into requests, and the effects of the answers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from kbroker.txn.marker_sender import Marker, MarkerWriter, Progress
from kbroker.txn.peer_markers import MarkerTargets
from kbroker.txn.transaction import TopicPartition
from tests.peers.memory import Asked, MemoryPeers, turns

WHERE = {2: ("two", 9), 3: ("three", 9)}


class Here:
    """This broker, which writes every marker for the partitions that it leads."""

    def write(self, marker: Marker) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(marker.partitions, ErrorCode.NONE)


def targets(net: MemoryPeers) -> MarkerTargets:
    return MarkerTargets(1, Here(), PeersByNode(net, WHERE.get, "broker-1-txn-marker-sender"), 30_000)


def marker(producer_id: int, *partitions: TopicPartition, epoch: int = 0, commit: bool = True) -> Marker:
    return Marker(producer_id, epoch, 7, commit, 2, partitions)


def told(asked: Asked) -> list[tuple[int, int, int, bool, dict[str, list[int]]]]:
    """Return the content of a request, marker by marker."""
    return [
        (
            each.producer_id,
            each.producer_epoch,
            each.coordinator_epoch,
            each.transaction_result,
            {topic.name: topic.partition_indexes for topic in each.topics},
        )
        for each in asked.request.markers
    ]


def answer(asked: Asked, code: ErrorCode = ErrorCode.NONE) -> None:
    asked.answer(
        WriteTxnMarkersResponse(
            [
                WritableTxnMarkerResult(
                    each.producer_id,
                    [
                        WritableTxnMarkerTopicResult(
                            topic.name,
                            [WritableTxnMarkerPartitionResult(index, code) for index in topic.partition_indexes],
                        )
                        for topic in each.topics
                    ],
                )
                for each in asked.request.markers
            ]
        )
    )


def test_one_request_at_a_time_and_the_next_takes_all_that_came_meanwhile() -> None:
    async def scenario() -> None:
        net = MemoryPeers()
        target = targets(net).of(2)
        assert target is not None
        first = asyncio.ensure_future(target.write(marker(1, ("t", 0), ("t", 1), ("u", 0))))
        asked = await net.next()
        assert (asked.endpoint, asked.version) == (WHERE[2], 1)
        assert told(asked) == [(1, 0, 7, True, {"t": [0, 1], "u": [0]})]
        later = [
            asyncio.ensure_future(target.write(each))
            for each in (marker(2, ("t", 0), commit=False), marker(3, ("t", 0)), marker(2, ("t", 5), commit=False))
        ]
        await turns()
        assert net.pending == []
        answer(asked)
        assert await first == dict.fromkeys([("t", 0), ("t", 1), ("u", 0)], ErrorCode.NONE)
        asked = await net.next()
        assert told(asked) == [(2, 0, 7, False, {"t": [0, 5]}), (3, 0, 7, True, {"t": [0]})]
        answer(asked, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert [set(each.values()) for each in await asyncio.gather(*later)] == [{ErrorCode.NOT_LEADER_OR_FOLLOWER}] * 3

    asyncio.run(scenario())


def test_two_ends_of_one_producer_are_not_in_one_request() -> None:
    """An answer names only the producer id, so the results of the two markers could not be distinguished."""

    async def scenario() -> None:
        net = MemoryPeers()
        target = targets(net).of(2)
        assert target is not None
        both = [
            asyncio.ensure_future(target.write(each)) for each in (marker(1, ("t", 0)), marker(1, ("t", 0), epoch=1))
        ]
        asked = await net.next()
        assert told(asked) == [(1, 0, 7, True, {"t": [0]})]
        answer(asked, ErrorCode.INVALID_PRODUCER_EPOCH)
        asked = await net.next()
        assert told(asked) == [(1, 1, 7, True, {"t": [0]})]
        answer(asked)
        assert [each[("t", 0)] for each in await asyncio.gather(*both)] == [
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.NONE,
        ]

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [PeerUnavailable("lost"), ValueError("on purpose")])
def test_no_answer_fails_what_was_asked_and_what_waits_is_asked_next(error: Exception) -> None:
    async def scenario() -> None:
        net = MemoryPeers()
        target = targets(net).of(2)
        assert target is not None
        first = asyncio.ensure_future(target.write(marker(1, ("t", 0))))
        asked = await net.next()
        second = asyncio.ensure_future(target.write(marker(2, ("t", 0))))
        await turns()
        asked.fail(error)
        assert await first == {("t", 0): ErrorCode.NETWORK_EXCEPTION}
        asked = await net.next()
        assert told(asked) == [(2, 0, 7, True, {"t": [0]})]
        asked.answer(WriteTxnMarkersResponse([]))
        assert await second == {("t", 0): ErrorCode.NETWORK_EXCEPTION}

    asyncio.run(scenario())


def test_a_request_has_a_bound() -> None:
    async def scenario() -> None:
        net = MemoryPeers()
        target = targets(net).of(2)
        assert target is not None
        answers = [asyncio.ensure_future(target.write(marker(n, *(("t", i) for i in range(20))))) for n in range(60)]
        sizes = []
        while not all(each.done() for each in answers):
            asked = await net.next()
            sizes.append(sum(len(each.topics[0].partition_indexes) for each in asked.request.markers))
            answer(asked)
            await turns()
        assert sizes == [500, 500, 200]

    asyncio.run(scenario())


def test_many_transactions_hear_of_their_markers_some_at_a_time() -> None:
    """At most 40 transactions continue in one turn, since each then writes to the log."""

    async def scenario() -> None:
        net, turn, told_in = MemoryPeers(), 0, []
        target = targets(net).of(2)
        assert target is not None
        answers = [asyncio.ensure_future(target.write(marker(n, ("t", 0)))) for n in range(400)]
        for each in answers:
            each.add_done_callback(lambda _done: told_in.append(turn))
        answer(await net.next())
        while len(told_in) < 400:
            turn += 1
            await asyncio.sleep(0)
        assert max(Counter(told_in).values()) <= 40

    asyncio.run(scenario())


def test_each_leader_gets_its_part_and_who_is_unknown_is_asked_later() -> None:
    async def scenario() -> None:
        net = MemoryPeers()
        leaders = {("t", 0): 1, ("t", 1): 2, ("t", 2): 3, ("t", 3): 4, ("t", 4): -1}
        writer = MarkerWriter(leaders.get, targets(net).of)
        rounds = writer.write(marker(1, *leaders, ("gone", 0)))
        by_partitions = {tuple(sorted(each.partitions)): each.progress for each in rounds}
        assert by_partitions[("gone", 0),] == Progress(frozenset({("gone", 0)}))
        assert by_partitions[("t", 0),] == Progress(frozenset({("t", 0)}))
        assert by_partitions[("t", 3),] == by_partitions[("t", 4),] == Progress()
        others = [asyncio.ensure_future(by_partitions[("t", index),]) for index in (1, 2)]  # type: ignore[arg-type]
        for where in (WHERE[2], WHERE[3]):
            asked = await net.next()
            assert asked.endpoint == where
            answer(asked)
        assert [each.done for each in await asyncio.gather(*others)] == [{("t", 1)}, {("t", 2)}]

    asyncio.run(scenario())


def test_who_gives_up_is_not_asked_for() -> None:
    async def scenario() -> None:
        net = MemoryPeers()
        all_targets = targets(net)
        target = all_targets.of(2)
        assert target is not None
        first = asyncio.ensure_future(target.write(marker(1, ("t", 0))))
        asked = await net.next()
        given_up = target.write(marker(2, ("t", 0)))
        given_up.cancel()  # type: ignore[union-attr]
        answer(asked)
        await first
        await turns()
        assert net.pending == []
        all_targets.close()
        assert net.closed == [WHERE[2]]

    asyncio.run(scenario())
