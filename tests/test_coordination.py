"""The coordinators' runtime: order of append, replay and answer; loading; timers."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Hashable, Iterator
from typing import Any

import pytest

from kbroker.coordination import Runtime
from kbroker.coordination_outcome import (
    Cancel,
    CoordinatorRecord,
    Outcome,
    Parked,
    Schedule,
    answerable,
    java_hash,
    partition_for,
    then,
)
from kbroker.coordination_timers import TURN_MS, Timers
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import build_batch, build_marker, iter_batches


class ManualClock:
    def __init__(self) -> None:
        self.ms = 1_000_000.0

    def now_ms(self) -> int:
        return int(self.ms)

    def monotonic_ms(self) -> float:
        return self.ms


class FakeWriter:
    """A log of bytes whose high watermark the test moves. `lag` makes appends wait for it."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end = 0
        self.high_watermark = 0
        self.lag = False
        self.fail: BaseException | None = None
        self.waiters: list[tuple[int, asyncio.Future[None]]] = []
        self.count = 4
        self.max_bytes = 1 << 20

    def partition_count(self) -> int:
        return self.count

    def append(self, partition: int, batch: bytes, now_ms: int) -> int:
        if self.fail is not None:
            raise self.fail
        if len(batch) > self.max_bytes:
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE)
        ((_, header),) = iter_batches(batch)
        rebased = self.end.to_bytes(8, "big") + batch[8:]
        self.batches.append(rebased)
        self.end += header.record_count
        if not self.lag:
            self.high_watermark = self.end
        return self.end

    def max_batch_bytes(self, partition: int) -> int:
        return self.max_bytes

    def committed(self, partition: int, offset: int) -> Awaitable[None] | None:
        if offset <= self.high_watermark:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append((offset, future))
        return future

    def commit_to(self, offset: int) -> None:
        self.high_watermark = offset
        for end, future in self.waiters:
            if end <= offset and not future.done():
                future.set_result(None)

    def read(self, partition: int) -> Iterator[memoryview]:
        for batch in self.batches:
            yield memoryview(batch)

    def ensure_topic(self) -> None:
        self.count = 4


class Journal:
    """A shard that only remembers. A request is a list of keys to write."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, bytes, bytes | None]] = []
        self.events: list[Any] = []
        self.parked: list[Parked] = []

    def replay(self, offset: int, producer_id: int, key: bytes, value: bytes | None) -> None:
        if key == b"broken":
            raise ValueError("a broken record")
        self.seen.append((offset, producer_id, key, value))

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        self.events.append(("end", producer_id, committed))

    def on_loaded(self, now_ms: int) -> Outcome:
        self.events.append("loaded")
        return Outcome(timers=[Schedule("tick", 100)])

    def on_unloaded(self, now_ms: int) -> Outcome:
        self.events.append("unloaded")
        return Outcome(replies=[(parked, "moved") for parked in self.parked])

    def on_timer(self, key: Hashable, now_ms: int) -> Outcome:
        self.events.append((key, now_ms))
        if key == "bad":
            raise ValueError("a timer that fails")
        return Outcome(records=[CoordinatorRecord(b"timer", None)])

    def write(self, *keys: bytes, **options: Any) -> Outcome:
        def after(code: ErrorCode, now_ms: int) -> Outcome:
            self.events.append((keys, code))
            return Outcome()

        return Outcome(reply="done", records=[CoordinatorRecord(k, b"v") for k in keys], after=after, **options)

    def park(self, parked: Parked) -> Outcome:
        self.parked.append(parked)
        return Outcome()


class World:
    def __init__(self, writer: FakeWriter | None = None) -> None:
        self.writer = writer or FakeWriter()
        self.clock = ManualClock()
        self.runtime: Runtime[Journal] = Runtime(
            "journal", lambda _partition: Journal(), self.writer, self.clock, 5_000
        )

    def lead(self, partition: int = 0, epoch: int = 1) -> Journal:
        self.runtime.lead(partition, epoch)
        return self.runtime.shard(partition)

    def write(self, *keys: bytes, **options: Any) -> Any:
        return self.runtime.run(0, lambda shard, _now: shard.write(*keys, **options), failed)

    def read(self) -> Any:
        return self.runtime.read(0, lambda shard, _now: len(shard.seen), failed)

    async def loaded(self) -> int:
        """Wait until all partitions are loaded; return how many turns of the loop others had meanwhile."""
        for turns in range(100_000):
            if None not in dict(self.runtime.shards()).values():
                return turns
            await asyncio.sleep(0)
        raise AssertionError("the load does not end")

    def advance(self, ms: float) -> None:
        self.clock.ms += ms
        self.runtime.tick()


def failed(code: ErrorCode, message: str | None) -> Any:
    return (code, message)


def test_a_decision_is_written_replayed_and_answered_at_once() -> None:
    """One node: no loop is needed, so no task can have been made."""
    world = World()
    shard = world.lead()
    assert world.write(b"a", b"b") == "done"
    assert world.write(b"c") == "done"
    assert [(offset, key) for offset, _, key, _ in shard.seen] == [(0, b"a"), (1, b"b"), (2, b"c")]
    assert shard.events == ["loaded", ((b"a", b"b"), ErrorCode.NONE), ((b"c",), ErrorCode.NONE)]
    assert len(world.writer.batches) == 2
    assert world.read() == 3


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (ApiError(ErrorCode.NOT_ENOUGH_REPLICAS), ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER), ErrorCode.NOT_COORDINATOR),
        (ApiError(ErrorCode.MESSAGE_TOO_LARGE), ErrorCode.UNKNOWN_SERVER_ERROR),
        (OSError(28, "no space"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_failed_append_changes_nothing(error: Exception, answer: ErrorCode) -> None:
    world = World()
    shard = world.lead()
    world.writer.fail = error
    assert world.write(b"a") == (answer, None)
    assert shard.seen == []
    assert shard.events[-1] == ((b"a",), getattr(error, "code", ErrorCode.UNKNOWN_SERVER_ERROR))


def test_refused_records_count_as_a_failed_append() -> None:
    world = World()
    shard = world.lead()
    assert world.write(refused=ErrorCode.UNKNOWN_SERVER_ERROR) == (ErrorCode.UNKNOWN_SERVER_ERROR, None)
    assert shard.events[-1] == ((), ErrorCode.UNKNOWN_SERVER_ERROR)
    assert not world.writer.batches


def test_records_of_what_has_happened_already_are_not_replayed() -> None:
    world = World()
    shard = world.lead()
    assert world.write(b"a", replay=False) == "done"
    assert shard.seen == []
    assert world.writer.end == 1


def test_a_long_list_is_split_unless_it_is_atomic() -> None:
    world = World()
    shard = world.lead()
    keys = [i.to_bytes(4, "big") * 100 for i in range(3000)]
    world.write(*keys, atomic=False)
    assert len(world.writer.batches) > 3
    assert [key for _, _, key, _ in shard.seen] == keys
    assert [offset for offset, *_ in shard.seen] == list(range(3000))


def test_a_long_list_is_written_whatever_the_largest_batch() -> None:
    world = World()
    shard = world.lead()
    world.writer.max_bytes = 500
    keys = [i.to_bytes(4, "big") * 10 for i in range(100)]
    assert world.write(*keys, atomic=False) == "done"
    assert [key for _, _, key, _ in shard.seen] == keys
    assert world.write(*keys) == (ErrorCode.UNKNOWN_SERVER_ERROR, None), "all or nothing is nothing"
    assert len(shard.seen) == len(keys)


def test_one_record_that_is_too_large_does_not_keep_the_others() -> None:
    world = World()
    shard = world.lead()
    world.writer.max_bytes = 500
    assert world.write(b"a", b"b", b"x" * 600, b"c", atomic=False) == (ErrorCode.UNKNOWN_SERVER_ERROR, None)
    assert [(offset, key) for offset, _, key, _ in shard.seen] == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_errors_of_decisions() -> None:
    world = World()
    assert world.write(b"a") == (ErrorCode.NOT_COORDINATOR, None)
    assert world.read() == (ErrorCode.NOT_COORDINATOR, None)
    world.lead()

    def refuse(_shard: Journal, _now: int) -> Outcome:
        raise ApiError(ErrorCode.ILLEGAL_GENERATION, "why")

    def break_down(_shard: Journal, _now: int) -> Outcome:
        raise KeyError("a bug")

    assert world.runtime.run(0, refuse, failed) == (ErrorCode.ILLEGAL_GENERATION, "why")
    assert world.runtime.run(0, break_down, failed) == (ErrorCode.UNKNOWN_SERVER_ERROR, None)
    parked_refuse = world.runtime.run_parked(0, lambda shard, _p, now: refuse(shard, now), failed)
    assert parked_refuse == (ErrorCode.ILLEGAL_GENERATION, "why")
    parked_bug = world.runtime.run_parked(0, lambda shard, _p, now: break_down(shard, now), failed)
    assert parked_bug == (ErrorCode.UNKNOWN_SERVER_ERROR, None)
    world.runtime.close()
    assert world.write(b"a") == (ErrorCode.COORDINATOR_NOT_AVAILABLE, None)


def test_answers_wait_for_the_high_watermark_in_order() -> None:
    """Whatever order waiters are woken in, nothing is answered before what precedes it."""

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
    """As Kafka's CoordinatorRuntime. Where nothing waits it is answered at once, without a loop."""
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


def test_loading_replays_what_was_written() -> None:
    world = World()
    shard = world.lead()
    world.write(b"a", b"b")
    of_7: dict[str, Any] = {"producer_id": 7, "producer_epoch": 0}
    world.writer.append(0, build_batch([(0, b"t", b"1", ())], base_sequence=0, transactional=True, **of_7), 0)
    world.writer.append(0, build_marker(commit=True, coordinator_epoch=0, timestamp=0, **of_7), 0)
    world.writer.append(0, build_batch([(0, b"i", b"2", ())], producer_id=8, producer_epoch=0, base_sequence=0), 0)
    again = World(world.writer).lead()
    assert again.seen == [*shard.seen, (2, 7, b"t", b"1"), (4, -1, b"i", b"2")]
    assert again.events == [("end", 7, True), "loaded"]


def test_a_large_load_does_not_hold_the_loop() -> None:
    async def scenario() -> None:
        writer = FakeWriter()
        records = [(0, f"key-{i}".encode(), b"v" * 30, ()) for i in range(2_000)]
        for _ in range(40):
            writer.append(0, build_batch(records), 0)
        world = World(writer)
        world.runtime.lead(0, 1)
        world.runtime.lead(1, 1)
        loading = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
        assert world.write(b"a") == world.read() == loading
        assert dict(world.runtime.shards()) == {0: None, 1: None}
        # 80,000 records take some 300 ms, a slice 10 ms. On a machine ten times as fast there are still some turns.
        assert await world.loaded() >= 4
        assert len(world.runtime.shard(0).seen) == 80_000
        world.runtime.close()

    asyncio.run(scenario())


def test_leadership_that_goes_while_loading() -> None:
    async def scenario() -> None:
        writer = FakeWriter()
        records = [(0, b"key", b"v", ())] * 2_000
        for _ in range(60):
            writer.append(0, build_batch(records), 0)
        world = World(writer)
        world.runtime.lead(0, 1)
        world.runtime.lead(0, 1)
        world.runtime.resign(0)
        assert world.write(b"a") == (ErrorCode.NOT_COORDINATOR, None)
        world.runtime.lead(0, 2)
        world.runtime.lead(0, 1)
        await world.loaded()
        assert len(world.runtime.shard(0).seen) == 120_000
        held = world.runtime.shard(0)
        world.runtime.lead(0, 3)
        assert world.runtime.shard(0) is held, "a new epoch of the same leader changes nothing"
        world.runtime.lead(1, 1)
        world.runtime.close()

    asyncio.run(scenario())


def test_a_log_that_cannot_be_read() -> None:
    async def scenario() -> None:
        writer = FakeWriter()
        writer.append(0, build_batch([(0, b"broken", b"", ())]), 0)
        world = World(writer)
        world.runtime.lead(0, 1)
        assert world.write(b"a") == (ErrorCode.NOT_COORDINATOR, None)
        assert dict(world.runtime.shards()) == {}
        writer.batches.clear()
        assert world.lead(0, 2).seen == []
        world.runtime.close()

    asyncio.run(scenario())


def test_a_load_that_failed_is_tried_again_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    """What kept it from being read may go: a full table of files, a disk that was away."""
    writer = FakeWriter()
    writer.append(0, build_batch([(0, b"broken", b"", ())]), 0)
    world = World(writer)
    world.runtime.lead(0, 1)
    for _ in range(600):
        world.advance(1_000)
    assert world.write(b"a") == (ErrorCode.NOT_COORDINATOR, None)
    attempts = caplog.text.count("cannot be loaded")
    assert 10 < attempts < 20
    assert caplog.text.count("Traceback") == 1
    writer.batches.clear()
    writer.append(0, build_batch([(0, b"good", b"", ())]), 0)
    world.advance(60_000)
    assert [key for _, _, key, _ in world.runtime.shard(0).seen] == [b"good"]
    assert world.runtime.epoch(0) == 1
    world.runtime.close()


def test_a_load_that_failed_is_not_tried_again_by_who_has_resigned() -> None:
    writer = FakeWriter()
    writer.append(0, build_batch([(0, b"broken", b"", ())]), 0)
    world = World(writer)
    world.runtime.lead(0, 1)
    world.runtime.resign(0)
    writer.batches.clear()
    world.advance(600_000)
    assert dict(world.runtime.shards()) == {}
    world.runtime.close()


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
    assert caplog.text.count("it goes off again") == len(at)
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
        clock.ms += 2  # it works that long
        if len(fired) <= 3:
            timers.schedule(key, 0)

    timers = Timers(clock, fire)
    for partition in range(8):
        timers.schedule((partition, "look"), partition)
    clock.ms += 10
    timers.run()
    assert fired == [(partition, "look") for partition in range(3)], "three times 2 ms are more than the time of a turn"
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


@pytest.mark.parametrize(
    ("text", "value"), [("", 0), ("a", 97), ("group", 98629247), ("😀", 1772899), ("polygenelubricants", -(2**31))]
)
def test_java_hash(text: str, value: int) -> None:
    assert java_hash(text) == value


def test_partition_for() -> None:
    assert partition_for("polygenelubricants", 50) == 0
    assert partition_for("group", 50) == 47
    negative = next(name for name in (f"consumer-{i}" for i in range(1000)) if java_hash(name) < 0)
    assert partition_for(negative, 50) == -java_hash(negative) % 50


def test_small_parts() -> None:
    assert answerable(ErrorCode.ILLEGAL_GENERATION) is ErrorCode.ILLEGAL_GENERATION
    assert answerable(ErrorCode.NETWORK_EXCEPTION) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert then(1, str) == "1"

    async def one() -> int:
        return 1

    later: Any = then(one(), str)
    assert asyncio.run(later) == "1"
