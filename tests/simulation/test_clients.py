"""The simulator's clients detect answers that no client may get: each promise is broken once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from kbroker.protocol.messages.group_offsets import (
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from kbroker.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from kbroker.protocol.records import build_batch
from tests.simulation.administrators import Recreator
from tests.simulation.book import LOOSE, PAIRED, TOPIC, Book
from tests.simulation.groups import Committer, Shared
from tests.simulation.producers import Hasty
from tests.simulation.readers import LooseReader, PairedReader, Reader
from tests.simulation.violation import Violation


def judge(coordinates: int = -1) -> Any:
    return SimpleNamespace(
        coordinates=lambda _broker, _group: coordinates,
        acknowledged=lambda *_: None,
        read=lambda *_: None,
    )


def client(kind: Any, coordinates: int = -1, **more: Any) -> Any:
    """Return a client whose loop nobody runs: the test supplies the answers."""
    loop: Any = SimpleNamespace(time=lambda: 0.0)
    made = kind(loop, Random(1), Book(lambda: 1, judge(coordinates)), "client", [1, 2, 3], **more)

    async def nothing(*_: Any) -> None:
        pass

    made.rest = made.refresh = nothing
    return made


def answering(*answers: Any) -> Callable[..., Any]:
    left = list(answers)

    async def answer(*_: Any) -> Any:
        return left.pop(0)

    return answer


@pytest.mark.parametrize("number", [0, 2])
def test_a_reader_that_hears_something_twice_or_not_at_all(number: int) -> None:
    reader = client(Reader, topic=TOPIC, index=0)
    reader.hear(0, b"producer:0:")
    with pytest.raises(Violation):
        reader.hear(1, b"producer:%d:" % number)


def test_a_reader_that_misses_what_was_acknowledged() -> None:
    reader = client(Reader, topic=TOPIC, index=0)
    reader.hear(0, b"producer:0:")
    reader.book.acked[TOPIC, 0, "producer"] = {0: 0}
    reader.book.acked[TOPIC, 1, "producer"] = {0: 0}
    assert not reader.missing()
    reader.book.acked[TOPIC, 0, "producer"][0] = 1
    assert "is at 0, was told 1" in reader.missing()
    reader.book.acked[TOPIC, 0, "producer"] = {0: 0, 1: 1}
    assert "is not there" in reader.missing()


def test_transactions_that_are_torn_or_come_again() -> None:
    reader = client(PairedReader, index=0)
    reader.hear(0, b"3")
    reader.book.transactions.update({3: "committed", 4: "aborted", 5: "unknown"})
    assert not reader.missing()
    reader.book.transactions[5] = "committed"
    assert reader.missing()
    with pytest.raises(Violation, match=PAIRED):
        reader.hear(1, b"3")


def test_who_may_lose_records_hears_no_others() -> None:
    reader = client(LooseReader, index=0)
    reader.hear(0, b"7")
    reader.hear(0, b"3")
    reader.position = 5
    reader.expect_again(ErrorCode.OFFSET_OUT_OF_RANGE, "Fetch")
    assert reader.position == 0
    with pytest.raises(Violation, match=LOOSE):
        reader.hear(1, b"x")


def test_r5_acks_1_is_refused_for_want_of_replicas() -> None:
    producer = client(Hasty)
    refused = PartitionProduceResponse(0, ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    producer.of_leader = answering(ProduceResponse([TopicProduceResponse(LOOSE, partition_responses=[refused])]))
    with pytest.raises(Violation, match="R5"):
        asyncio.run(producer.work())


def test_r5_a_consumer_is_refused_for_want_of_replicas() -> None:
    reader = client(Reader, topic=TOPIC, index=0)
    refused = PartitionData(partition_index=0, error_code=ErrorCode.NOT_ENOUGH_REPLICAS)
    reader.of_leader = answering(FetchResponse(responses=[FetchableTopicResponse(TOPIC, partitions=[refused])]))
    with pytest.raises(Violation, match="R5"):
        asyncio.run(reader.work())


def test_r18_a_topic_shows_records_of_one_that_was_deleted() -> None:
    recreator = client(Recreator)
    acknowledged = ProduceResponse(
        [TopicProduceResponse("fleeting", partition_responses=[PartitionProduceResponse(0, 0, 0)])]
    )
    old = build_batch([(1, None, b"1:0", ())])
    fetched = FetchResponse(
        responses=[FetchableTopicResponse("fleeting", partitions=[PartitionData(partition_index=0, records=old)])]
    )
    recreator.of_leader = answering(acknowledged, acknowledged, acknowledged, fetched)
    with pytest.raises(Violation, match="R18"):
        asyncio.run(recreator._fill(0, 2, b"0123456789abcdef"))


def committed(offset: int) -> OffsetFetchResponse:
    part = OffsetFetchResponsePartition(0, offset, metadata="", error_code=0)
    return OffsetFetchResponse(topics=[OffsetFetchResponseTopic(TOPIC, [part])])


def test_g4_the_newest_coordinator_is_behind() -> None:
    looker = client(Committer, coordinates=4)
    looker.of_coordinator = answering(committed(5), committed(4))
    assert asyncio.run(looker.look({0: 5})) == {0: 5}
    with pytest.raises(Violation, match="G4"):
        asyncio.run(looker.look({0: 5}))


def test_g4_what_nobody_answered_may_still_come_and_a_replaced_coordinator_be_behind_for_a_while() -> None:
    looker = client(Committer)
    looker.of_coordinator = answering(None, committed(4), committed(3), committed(3))
    asyncio.run(looker.commit({0: 4}))
    assert asyncio.run(looker.look({0: 5})) == {0: 4}
    assert asyncio.run(looker.look({0: 5})) is None
    assert "behind since 0.000" in looker.missing()
    looker.loop.time = lambda: 21.0
    with pytest.raises(Violation, match="R12"):
        asyncio.run(looker.look({0: 5}))


def test_g1_a_partition_has_two_owners() -> None:
    shared = Shared()
    shared.own(1, "a", [0, 1])
    shared.own(2, "b", [0, 1])
    with pytest.raises(Violation, match="G1"):
        shared.own(2, "a", [1, 2])


def test_g2_a_commit_of_a_generation_that_is_over() -> None:
    shared = Shared()
    shared.own(2, "a", [0])
    shared.committed(2, 2, {0: 7})
    assert shared.acked == {0: 7}
    with pytest.raises(Violation, match="G2"):
        shared.committed(2, 1, {0: 9})


def test_an_error_that_no_healthy_client_sees() -> None:
    reader = client(Reader, topic=TOPIC, index=0)
    reader.expect_again(ErrorCode.NOT_LEADER_OR_FOLLOWER, "Fetch")
    with pytest.raises(Violation):
        reader.expect_again(ErrorCode.UNKNOWN_SERVER_ERROR, "Fetch")
    assert reader.book.counts == Counter({"told NOT_LEADER_OR_FOLLOWER": 1})
