"""The coordinators' timers: when they fire, and how much of a turn of the loop they take."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest

from kbroker.coordination.shard import Cancel, Outcome, Schedule
from kbroker.coordination.timers import TURN_MS, Timers

from .world import ManualClock, World, failed


def test_timers_of_a_shard() -> None:
    world = World()
    shard = world.lead()

    def schedule(*timers: Schedule | Cancel) -> None:
        world.runtime.run(0, lambda _s, _n: Outcome(timers=list(timers)), failed)

    schedule(Schedule("a", 50), Schedule("b", 30), Schedule("c", 40), Cancel("c"), Cancel("nothing"))
    schedule(Schedule("a", 80), Schedule("b", 20))
    start = world.clock.now_ms()
    for _ in range(10):
        world.advance(10)
    assert [(key, at - start) for key, at in shard.events[1:]] == [("b", 20), ("a", 80), ("tick", 100)]
    assert [key for _, _, key, _ in shard.seen] == [b"timer"] * 3
    schedule(Schedule("bad", 10), Schedule("d", 10))
    world.advance(10)
    assert shard.events[-1][0] == "d", "one timer's failure is not another's"
    world.runtime.close()
    world.advance(1_000)


def test_a_timer_that_fails_goes_off_again_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    shard = world.lead()
    world.runtime.run(0, lambda _s, _n: Outcome(timers=[Schedule("bad", 10)]), failed)
    start = world.clock.now_ms()
    for _ in range(2_000):
        world.advance(10)
    at = [when - start for key, when in shard.events[1:] if key == "bad"]
    assert at == [10, 510, 1_510, 3_510, 7_510, 15_510]
    assert caplog.text.count("it fires again") == len(at)
    world.runtime.run(0, lambda _s, _n: Outcome(timers=[Cancel("bad")]), failed)
    world.advance(1_000_000)
    assert [when - start for key, when in shard.events[1:] if key == "bad"] == at
    world.runtime.close()


def test_a_timer_that_fails_stops_no_other() -> None:
    clock = ManualClock()
    fired: list[Any] = []

    def fire(key: Any) -> None:
        fired.append(key[1])
        if key[1] == "bad" and fired.count("bad") < 3:
            raise KeyError("a bug")

    timers = Timers(clock, fire)
    for name in ("a", "bad", "b"):
        timers.schedule((0, name), 10)
    clock.ms += 10
    timers.run()
    assert fired == ["a", "bad", "b"]
    clock.ms += 500
    timers.run()
    clock.ms += 1_000
    timers.run()
    clock.ms += 1_000_000
    timers.run()
    assert fired == ["a", "bad", "b", "bad", "bad"]


def test_timers_run_by_the_loop() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        fired = asyncio.Event()
        loop = asyncio.get_running_loop()
        clock.monotonic_ms = lambda: loop.time() * 1000  # type: ignore[method-assign]
        timers = Timers(clock, lambda key: fired.set() if key == (0, "y") else None)
        timers.schedule((0, "x"), 60_000)
        timers.schedule((0, "y"), 5)
        await asyncio.wait_for(fired.wait(), 5)
        timers.close()

    asyncio.run(scenario())


def test_timers_of_many_partitions_share_a_turn_of_the_loop() -> None:
    clock = ManualClock()
    fired: list[Any] = []

    def fire(key: Any) -> None:
        fired.append(key)
        clock.ms += 0.4 * TURN_MS  # it works that long
        if len(fired) <= 3:
            timers.schedule(key, 0)

    timers = Timers(clock, fire)
    for partition in range(8):
        timers.schedule((partition, "look"), partition)
    clock.ms += 10
    timers.run()
    assert fired == [(partition, "look") for partition in range(3)], "three times 0.4 are more than a turn"
    for _ in range(3):
        timers.run()
    assert fired == [(partition, "look") for partition in [*range(8), 0, 1, 2]], "those that go on come behind"


def test_the_loop_breathes_between_the_turns_of_timers() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        fired: list[Any] = []

        def fire(key: Any) -> None:
            fired.append(key)
            clock.ms += TURN_MS

        timers = Timers(clock, fire)
        for partition in range(10):
            timers.schedule((partition, "look"), 0)
        turns = []
        async with asyncio.timeout(60):
            while len(fired) < 10:
                await asyncio.sleep(0)
                turns.append(len(fired))
        assert all(after - before <= 1 for before, after in itertools.pairwise([0, *turns]))
        timers.close()

    asyncio.run(scenario())


def test_many_postponed_timers_keep_one_place_in_the_heap() -> None:
    clock = ManualClock()
    fired: list[Any] = []
    timers = Timers(clock, fired.append)
    for _ in range(1_000):
        timers.schedule((0, "session"), 100)
        clock.ms += 50
        timers.run()
    assert len(timers._heap) == 1
    clock.ms += 100
    timers.run()
    assert fired == [(0, "session")]


def test_random_timers_go_off_once_and_in_order() -> None:
    random.seed(7)
    clock = ManualClock()
    expected: dict[Any, float] = {}
    fired: list[tuple[Any, float]] = []
    timers = Timers(clock, lambda key: fired.append((key, expected.pop(key))))
    for _ in range(5_000):
        key = (0, random.randrange(20))
        if random.random() < 0.2:
            timers.cancel(key)
            expected.pop(key, None)
        else:
            delay = random.randrange(100)
            timers.schedule(key, delay)
            expected[key] = clock.ms + delay
        clock.ms += random.randrange(10)
        before = len(fired)
        timers.run()
        deadlines = [deadline for _, deadline in fired[before:]]
        assert deadlines == sorted(deadlines)
        assert all(deadline > clock.ms for deadline in expected.values())


def test_what_is_due_goes_off_before_a_request_is_decided() -> None:
    """However late the loop's timers are, an expired session does not keep a group from being deleted."""
    world = World()
    shard = world.lead()
    for key in ("a", "b"):
        world.runtime.run(0, lambda _s, _n, key=key: Outcome(timers=[Schedule(key, 50)]), failed)
    world.clock.ms += 49
    assert world.read() == 0
    world.clock.ms += 1
    assert world.read() == 2
    assert [key for key, _ in shard.events[1:]] == ["a", "b"]
    world.runtime.run(0, lambda _s, _n: Outcome(timers=[Schedule("a", 10)]), failed)
    world.clock.ms += 10
    assert [len(held.seen) for _, held in world.runtime.shards() if held] == [3]
    world.runtime.run(0, lambda _s, _n: Outcome(timers=[Schedule("a", 10)]), failed)
    world.clock.ms += 10
    assert world.write(b"c") == "done"
    assert [key for _, _, key, _ in shard.seen][-2:] == [b"timer", b"c"]
    world.runtime.close()


def test_a_request_waits_no_longer_for_what_is_due_than_a_turn() -> None:
    world = World()
    shard = world.lead()
    for key in range(4 * TURN_MS):
        world.runtime.run(0, lambda _s, _n, key=key: Outcome(timers=[Schedule(key, 10)]), failed)
    on_timer = shard.on_timer

    def slow(key: Any, now_ms: int) -> Outcome:
        world.clock.ms += 1
        return on_timer(key, now_ms)

    shard.on_timer = slow  # type: ignore[method-assign]
    world.clock.ms += 10
    assert [world.read() for _ in range(5)] == [TURN_MS, 2 * TURN_MS, 3 * TURN_MS, 4 * TURN_MS, 4 * TURN_MS]
    world.runtime.close()


def test_work_that_goes_on_is_not_done_as_often_as_anybody_asks() -> None:
    world = World()
    shard = world.lead()
    fired: list[Any] = []

    def goes_on(key: Any, _now_ms: int) -> Outcome:
        fired.append(key)
        world.clock.ms += TURN_MS if key == "work" else 0
        return Outcome(timers=[Schedule(key, 0)] if key == "work" else [])

    shard.on_timer = goes_on  # type: ignore[method-assign]
    world.runtime.run(0, lambda _s, _n: Outcome(timers=[Schedule("work", 0), Schedule("session", 3 * TURN_MS)]), failed)
    for _ in range(TURN_MS):
        world.clock.ms += 1
        world.read()
    assert not fired
    world.advance(0)
    world.read()
    assert fired == ["work"], "a turn of the loop goes on with it, a request does not"
    world.advance(0)
    assert fired == ["work", "work"]
    world.read()
    assert fired == ["work", "work", "session", "work"], "what is due brings the work behind it along"
    world.runtime.close()
