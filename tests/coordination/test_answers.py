"""The coordinators' runtime: when waiting requests are answered, and with what."""

from __future__ import annotations

import asyncio
from typing import Any

from kbroker.coordination.shard import CoordinatorRecord, Outcome, Parked
from kbroker.protocol.errors import ApiError, ErrorCode

from .world import Journal, World, failed


def test_answers_wait_for_the_high_watermark_in_order() -> None:
    """Whatever the order in which waiters are woken, nothing is answered before its predecessors."""

    async def scenario() -> None:
        world = World()
        shard = world.lead()
        world.writer.lag = True
        answers = [world.write(key) for key in (b"a", b"b", b"c")]
        assert all(isinstance(a, asyncio.Future) for a in answers)
        assert len(shard.seen) == 3, "decisions build on what is appended"
        read = world.read()
        order: list[int] = []
        for i, answer in enumerate([*answers, read]):
            answer.add_done_callback(lambda _f, i=i: order.append(i))
        await asyncio.sleep(0)
        assert order == []
        world.writer.commit_to(2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert order == [0, 1]
        world.writer.commit_to(3)
        for _ in range(5):
            await asyncio.sleep(0)
        assert order == [0, 1, 2, 3]
        assert [a.result() for a in answers] == ["done"] * 3
        assert read.result() == 3
        world.writer.lag = False
        assert world.write(b"d") == "done"
        world.runtime.close()

    asyncio.run(scenario())


def test_a_decision_without_records_waits_for_what_it_may_have_seen() -> None:
    """As in Kafka's CoordinatorRuntime. If nothing waits, it is answered immediately, without a loop."""
    world = World()
    shard = world.lead()
    assert world.write() == "done"

    async def scenario() -> None:
        world.writer.lag = True
        written, empty = world.write(b"a"), world.write()
        assert isinstance(empty, asyncio.Future)
        assert shard.events[-1] == ((), ErrorCode.NONE), "the one from before"
        others: list[Any] = []
        parked_before = Parked()
        parked_before.wake = others.append

        def answer_both(_shard: Journal, token: Parked, _now: int) -> Outcome:
            return Outcome(replies=[(parked_before, "before"), (token, "own")])

        own = world.runtime.run_parked(0, answer_both, failed)
        held = world.runtime.run_parked(0, lambda shard, token, _now: shard.park(token), failed)
        assert others == ["before"]
        assert isinstance(own, asyncio.Future)
        shard.parked[-1].complete("parked elsewhere")
        assert await held == "parked elsewhere", "who is parked waits for whatever it was parked for"
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(answer.done() for answer in (written, empty, own))
        world.writer.commit_to(world.writer.end)
        assert [await written, await empty, await own] == ["done", "done", "own"]
        assert shard.events[-2:] == [((b"a",), ErrorCode.NONE), ((), ErrorCode.NONE)]
        world.writer.lag = False
        assert world.write() == "done"
        world.runtime.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_decision_without_records_fails_with_what_it_may_have_seen() -> None:
    async def scenario() -> None:
        world = World()
        shard = world.lead()
        world.writer.lag = True
        written, empty = world.write(b"a"), world.write()
        own = world.runtime.run_parked(0, lambda _s, token, _now: Outcome(replies=[(token, "own")]), failed)
        world.advance(5_000)
        not_now = (ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        assert [await written, await empty, await own] == [not_now] * 3
        assert ((), ErrorCode.REQUEST_TIMED_OUT) in shard.events
        world.runtime.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_what_follows_a_decision_may_fail_and_everybody_is_answered() -> None:
    async def scenario() -> None:
        world = World()
        world.lead()
        world.writer.lag = True

        def breaks(_code: ErrorCode, _now: int) -> Outcome:
            raise KeyError("a bug")

        records = [CoordinatorRecord(b"a", None)]
        broken = world.runtime.run(0, lambda _s, _n: Outcome(reply="r", records=records, after=breaks), failed)
        behind = world.write(b"b")
        world.writer.commit_to(world.writer.end)
        assert await broken == (ErrorCode.UNKNOWN_SERVER_ERROR, None)
        assert await behind == "done"
        world.runtime.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_commit_that_does_not_come_times_out() -> None:
    async def scenario() -> None:
        world = World()
        shard = world.lead()
        world.writer.lag = True
        first = world.write(b"a")
        world.advance(4_000)
        second = world.write(b"b")
        world.advance(1_000)
        assert first.result() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        assert (
            shard.events[-1] == ("tick", world.clock.now_ms() - 1_000)
            or ((b"a",), ErrorCode.REQUEST_TIMED_OUT) in shard.events
        )
        world.writer.commit_to(world.writer.end)
        assert await second == "done"
        world.runtime.close()

    asyncio.run(scenario())


def test_a_commit_that_fails() -> None:
    async def scenario() -> None:
        world = World()
        world.lead()
        world.writer.lag = True
        answer = world.write(b"a")
        world.writer.waiters[-1][1].set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        assert await answer == (ErrorCode.NOT_COORDINATOR, None)
        world.runtime.close()

    asyncio.run(scenario())


def test_resigning_answers_all_that_waits() -> None:
    async def scenario() -> None:
        world = World()
        shard = world.lead()
        parked = world.runtime.run_parked(0, lambda shard, token, _now: shard.park(token), failed)
        world.writer.lag = True
        written, read = world.write(b"a"), world.read()
        world.runtime.resign(0)
        moved = (ErrorCode.NOT_COORDINATOR, None)
        assert [await written, await read, await parked] == [moved, moved, "moved"]
        assert shard.events[-2:] == [((b"a",), ErrorCode.NOT_COORDINATOR), "unloaded"]
        assert world.write(b"b") == moved
        world.advance(1_000)
        assert shard.events[-1] == "unloaded", "its timers are gone"
        world.runtime.resign(0)

    asyncio.run(scenario())


def test_a_parked_request_whose_records_fail() -> None:
    async def scenario() -> None:
        world = World()
        shard = world.lead()

        def write_and_park(shard: Journal, token: Parked, _now: int) -> Outcome:
            shard.park(token)
            return shard.write(b"a")

        world.writer.fail = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        not_now = (ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        assert world.runtime.run_parked(0, write_and_park, failed) == not_now
        world.writer.fail, world.writer.lag = None, True
        waiting = world.runtime.run_parked(0, write_and_park, failed)
        world.advance(5_000)
        assert await waiting == not_now
        answered = world.runtime.run_parked(0, write_and_park, failed)
        shard.parked[-1].complete("early")
        shard.parked[-1].complete("late")
        assert await answered == "early"
        world.runtime.close()

    asyncio.run(scenario())


def test_a_parked_request_is_not_answered_with_the_error_of_another_decision() -> None:
    async def scenario() -> None:
        world = World()
        shard = world.lead()
        world.writer.lag = True
        other = world.write(b"a")

        def park_behind(shard: Journal, token: Parked, _now: int) -> Outcome:
            outcome = shard.park(token)
            outcome.after = lambda _code, _now_ms: Outcome()
            return outcome

        waiting = asyncio.ensure_future(world.runtime.run_parked(0, park_behind, failed))
        world.advance(5_000)
        assert (await other)[0] == ErrorCode.COORDINATOR_NOT_AVAILABLE
        await asyncio.sleep(0)
        assert not waiting.done()
        shard.parked[-1].complete("its answer")
        assert await waiting == "its answer"
        world.runtime.close()

    asyncio.run(scenario())
