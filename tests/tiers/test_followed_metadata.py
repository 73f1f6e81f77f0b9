"""The copies of the records about remote segments, and the decisions of several brokers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import build_batch
from kbroker.remote.metadata_records import encode_record, segment_record
from kbroker.remote.segment import DeleteState, RemoteSegment, SegmentState
from kbroker.tiers import followed_metadata
from kbroker.tiers.followed_metadata import RemoteMetadata
from kbroker.tiers.metadata import Owner
from tests.coordination.world import ManualClock
from tests.tiers.records import MemorySource, Topic
from tests.tiers.world import known

OWNER = Owner("t", b"t" * 16, 0)
STARTED, FINISHED = SegmentState.COPY_SEGMENT_STARTED, SegmentState.COPY_SEGMENT_FINISHED
DELETING, DELETED = SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED


def segment(number: int) -> RemoteSegment:
    return RemoteSegment(number.to_bytes(16, "big"), 10 * number, 10 * number + 9, 0, 0, 1, 1000, ((0, 10 * number),))


class Brokers:
    """Two brokers that use one topic."""

    def __init__(self) -> None:
        self.topic = Topic()
        self.sources = [MemorySource(self.topic, each) for each in (1, 2)]
        self.brokers = [RemoteMetadata(each.broker_id, each, ManualClock()) for each in self.sources]

    async def begin_copy(self, broker: int, number: int) -> bool:
        return await self.brokers[broker].decide(OWNER, lambda shard, _now: shard.begin_copy(OWNER, segment(number)))

    async def advance(self, broker: int, number: int, state: SegmentState, custom: bytes | None = None) -> bool:
        """Give a segment the next state after the one that the broker knows."""
        known = self.brokers[broker].segments(OWNER).get(segment(number).id) or segment(number)
        return await self.brokers[broker].decide(
            OWNER, lambda shard, now: shard.advance(OWNER, known, state, now, custom)
        )

    def state(self, broker: int, number: int) -> SegmentState | None:
        found = self.brokers[broker].segments(OWNER).get(segment(number).id)
        return None if found is None else found.state

    async def both(self, number: int, state: SegmentState | None) -> None:
        """Wait until both brokers know a segment in a state."""
        async with asyncio.timeout(10):
            while [self.state(each, number) for each in (0, 1)] != [state, state]:
                self.topic.wake()
                await asyncio.sleep(0)


def told(story: Callable[[Brokers], Awaitable[None]]) -> None:
    async def scenario() -> None:
        brokers = Brokers()
        try:
            for each in brokers.brokers:
                await known(each, OWNER)
            await story(brokers)
        finally:
            for each in brokers.brokers:
                await each.close()

    asyncio.run(scenario())


def test_brokers_know_each_others_segments() -> None:
    async def story(brokers: Brokers) -> None:
        assert await brokers.begin_copy(0, 1)
        await brokers.both(1, STARTED)
        assert await brokers.advance(1, 1, FINISHED, b"footer")
        await brokers.both(1, FINISHED)
        assert await brokers.advance(0, 1, DELETING)
        assert await brokers.advance(1, 1, DELETED)
        await brokers.both(1, None)
        assert not await brokers.advance(1, 1, DELETED)

    told(story)


@pytest.mark.parametrize("first", [0, 1])
def test_only_one_of_two_contradicting_decisions_takes_effect(first: int) -> None:
    """A new leader gives up a copy that the former leader ends at the same time. The copy is lost for both or for none.

    If a readable copy could vanish, a follower might have removed the segment from its disk.
    """

    async def story(brokers: Brokers) -> None:
        assert await brokers.begin_copy(0, 1)
        await brokers.both(1, STARTED)
        for each in brokers.sources:
            each.is_deaf = True
        await asyncio.sleep(0.05)  # the reads in progress have ended
        decisions = [
            asyncio.ensure_future(brokers.advance(0, 1, FINISHED, b"footer")),
            asyncio.ensure_future(brokers.advance(1, 1, DELETING)),
        ]
        if first:
            decisions.reverse()
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in decisions)
        written = brokers.topic.batches[brokers.brokers[0].place(OWNER)]
        if first:
            written[1], written[2] = (1).to_bytes(8, "big") + written[2][8:], (2).to_bytes(8, "big") + written[1][8:]
        for each in brokers.sources:
            each.is_deaf = False
        assert await asyncio.gather(*decisions) == [True, False]
        await brokers.both(1, DELETING if first else FINISHED)

    told(story)


def test_a_copy_that_has_become_readable_is_not_deleted_as_unfinished() -> None:
    """A round lists the unfinished copies, and deletes one after the other. Meanwhile a copy may become readable."""

    async def story(brokers: Brokers) -> None:
        assert await brokers.begin_copy(0, 1)
        assert await brokers.advance(0, 1, FINISHED, b"footer")
        await brokers.both(1, FINISHED)
        assert not await brokers.brokers[1].decide(
            OWNER, lambda shard, now: shard.advance(OWNER, segment(1), DELETING, now)
        )
        assert brokers.state(0, 1) is FINISHED

    told(story)


def test_a_record_that_may_be_written_is_not_decided_again() -> None:
    """A second decision would meet the first one's effect, and look like a refusal."""

    async def story(brokers: Brokers) -> None:
        assert await brokers.begin_copy(0, 1)
        brokers.sources[0].fails_after = ErrorCode.NOT_LEADER_OR_FOLLOWER
        with pytest.raises(ApiError) as raised:
            await brokers.advance(0, 1, FINISHED, b"footer")
        assert raised.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        await brokers.both(1, FINISHED)

    told(story)


def test_a_readable_segment_is_deleted_by_who_knows_it() -> None:
    async def story(brokers: Brokers) -> None:
        assert await brokers.begin_copy(0, 1)
        assert await brokers.advance(0, 1, FINISHED, b"footer")
        assert await brokers.advance(0, 1, DELETING)
        await brokers.both(1, DELETING)

    told(story)


def test_nothing_is_known_before_the_end_that_the_leader_knows() -> None:
    async def story(brokers: Brokers) -> None:
        assert await brokers.begin_copy(0, 1)
        source = MemorySource(brokers.topic, 3)
        source.knows_ends = False
        third = RemoteMetadata(3, source, ManualClock())
        for _ in range(3):
            with pytest.raises(ApiError) as raised:
                third.segments(OWNER)
            assert raised.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await asyncio.sleep(0.01)
        source.knows_ends = True
        assert len(await known(third, OWNER)) == 1
        await third.close()

    told(story)


def test_a_topic_that_is_not_known_has_unknown_segments() -> None:
    """No segments would mean that all remote records are lost."""

    async def story(brokers: Brokers) -> None:
        source = MemorySource(brokers.topic, 3)
        source.is_known = False
        third = RemoteMetadata(3, source, ManualClock())
        with pytest.raises(ApiError) as raised:
            third.segments(OWNER)
        assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert source.created
        assert third.led() == []
        await third.close()

    told(story)


def test_the_leader_of_the_records_knows_which_partitions_they_are_about() -> None:
    async def story(brokers: Brokers) -> None:
        assert await brokers.begin_copy(0, 1)
        await brokers.both(1, STARTED)
        assert [each.led() for each in brokers.brokers] == [[OWNER], []]
        brokers.topic.leaders = [2] * 4
        assert [each.led() for each in brokers.brokers] == [[], [OWNER]]

    told(story)


def test_another_leader_is_read() -> None:
    async def story(brokers: Brokers) -> None:
        assert await brokers.begin_copy(0, 1)
        brokers.topic.leaders = [2] * 4
        for each in brokers.brokers:
            each.tick()
        assert await brokers.begin_copy(0, 2)
        await brokers.both(2, STARTED)

    told(story)


def test_a_record_that_is_certainly_not_written_is_written_later() -> None:
    async def story(brokers: Brokers) -> None:
        brokers.sources[0].refusal = ErrorCode.NOT_ENOUGH_REPLICAS
        decision = asyncio.ensure_future(brokers.begin_copy(0, 1))
        await asyncio.sleep(0.1)
        assert not decision.done()
        brokers.sources[0].refusal = ErrorCode.NONE
        assert await decision
        await brokers.both(1, STARTED)

    told(story)


@pytest.mark.parametrize("code", [ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_LEADER_OR_FOLLOWER])
def test_a_record_that_nobody_takes_is_an_error(code: ErrorCode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed_metadata, "_PATIENCE_S", 0.2)

    async def story(brokers: Brokers) -> None:
        brokers.sources[0].refusal = code
        with pytest.raises(ApiError) as raised:
            await brokers.begin_copy(0, 1)
        assert raised.value.code is code
        assert brokers.state(0, 1) is None

    told(story)


def test_a_topic_that_was_cut_is_read_anew() -> None:
    async def story(brokers: Brokers) -> None:
        for number in (1, 2):
            assert await brokers.begin_copy(0, number)
        await brokers.both(2, STARTED)
        place = brokers.brokers[0].place(OWNER)
        del brokers.topic.batches[place][1:]
        brokers.topic.ends[place] = 1
        brokers.topic.wake()
        async with asyncio.timeout(10):
            while True:
                with contextlib.suppress(ApiError):
                    if brokers.state(0, 2) is None:
                        break
                await asyncio.sleep(0)
        assert brokers.state(0, 1) is STARTED

    told(story)


def test_a_new_topic_is_read_anew_and_no_decision_waits_for_the_former() -> None:
    async def story(brokers: Brokers) -> None:
        assert await brokers.begin_copy(0, 1)
        brokers.sources[0].is_deaf = True
        await asyncio.sleep(0.05)  # the read in progress has ended
        decision = asyncio.ensure_future(brokers.begin_copy(0, 2))
        await asyncio.sleep(0.05)
        brokers.topic.id = b"n" * 16
        brokers.topic.batches = [[] for _ in range(4)]
        brokers.topic.ends = [0] * 4
        brokers.sources[0].is_deaf = False
        assert len(await known(brokers.brokers[0], OWNER)) == 0
        with pytest.raises(ApiError) as raised:
            await decision
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        assert await brokers.begin_copy(0, 2)
        assert brokers.state(0, 2) is STARTED

    told(story)


def test_records_that_cannot_be_read_are_passed_over() -> None:
    async def story(brokers: Brokers) -> None:
        place = brokers.brokers[0].place(OWNER)
        brokers.topic.append(place, build_batch([(0, b"k", b"\x00what is this", ())]))
        brokers.topic.append(place, build_batch([(0, b"k", None, ())]))
        damaged = bytearray(build_batch([(0, b"k", encode_record(segment_record(*OWNER, segment(9))), ())]))
        damaged[-3] ^= 1
        brokers.topic.append(place, bytes(damaged))
        assert await brokers.begin_copy(0, 1)
        await brokers.both(1, STARTED)
        assert [each.id for each in brokers.brokers[0].segments(OWNER).all()] == [segment(1).id]

    told(story)


def test_the_deletion_of_a_partition_forgets_it() -> None:
    async def story(brokers: Brokers) -> None:
        assert await brokers.begin_copy(0, 1)
        for state in DeleteState:
            for _ in range(2):  # a repetition changes nothing
                await brokers.brokers[0].decide(
                    OWNER, lambda shard, now, to=state: shard.advance_deletion(OWNER, to, now)
                )  # type: ignore[misc]
        assert brokers.brokers[0].led() == []
        await brokers.both(1, None)

    told(story)


def test_a_close_ends_all_waits() -> None:
    async def story(brokers: Brokers) -> None:
        brokers.sources[0].is_deaf = True
        await asyncio.sleep(0.05)  # the read in progress has ended
        decision = asyncio.ensure_future(brokers.begin_copy(0, 1))
        await asyncio.sleep(0.05)
        await brokers.brokers[0].close()
        with pytest.raises(ApiError):
            await decision

    told(story)
