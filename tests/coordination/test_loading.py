"""The coordinators' runtime: a log is loaded, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.coordination import loading
from kbroker.coordination.loading import RELOAD_MS
from kbroker.coordination.runtime import Runtime
from kbroker.coordination.shard import CoordinatorRecord, EndOfTransaction, Outcome
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.records import build_batch, build_marker

from .world import FakeWriter, Journal, ManualClock, World, failed


@pytest.fixture
def in_slices(monkeypatch: pytest.MonkeyPatch, loads_end_at_once: None) -> None:
    monkeypatch.setattr(loading, "SLICE_SECONDS", 0.002)


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


@pytest.mark.long
@pytest.mark.usefixtures("in_slices")
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
        # 80,000 records take about 300 ms, a slice takes 2 ms. On a machine ten times as fast there are still several
        # turns.
        assert await world.loaded() >= 4
        assert len(world.runtime.shard(0).seen) == 80_000
        world.runtime.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("in_slices")
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
    """The cause of a failed read may be temporary: a full table of files, a disk that was unavailable."""
    writer = FakeWriter()
    writer.append(0, build_batch([(0, b"broken", b"", ())]), 0)
    world = World(writer)
    world.runtime.lead(0, 1)
    for _ in range(600):
        world.advance(1_000)
    assert world.write(b"a") == (ErrorCode.NOT_COORDINATOR, None)
    attempts = caplog.text.count("cannot be loaded")
    assert 10 < attempts < 20
    assert "the record at offset 0 cannot be read: a broken record" in caplog.text
    assert "Traceback" not in caplog.text
    assert world.runtime.states() == {"active": 0, "loading": 0, "failed": 1}
    assert world.runtime.unreadable() == {0: 1}
    writer.batches.clear()
    writer.append(0, build_batch([(0, b"good", b"", ())]), 0)
    world.advance(60_000)
    assert [key for _, _, key, _ in world.runtime.shard(0).seen] == [b"good"]
    assert world.runtime.epoch(0) == 1
    assert world.runtime.states() == {"active": 1, "loading": 0, "failed": 0}
    assert world.runtime.unreadable() == {}
    world.runtime.close()


def test_a_failure_that_is_no_record_has_its_trace_once(caplog: pytest.LogCaptureFixture) -> None:
    class FailingWriter(FakeWriter):
        def read(self, partition: int, begin: int = 0) -> Iterator[memoryview]:
            raise OSError("too many open files")

    world = World(FailingWriter())
    world.runtime.lead(0, 1)
    for _ in range(10):
        world.advance(1_000)
    assert caplog.text.count("cannot be loaded") > 2
    assert caplog.text.count("Traceback") == 1
    world.runtime.close()


def test_records_that_cannot_be_read_are_stepped_over_where_the_shard_says_so(caplog: pytest.LogCaptureFixture) -> None:
    writer = FakeWriter()
    for key in (b"first", b"broken", b"between", b"broken", b"last"):
        writer.append(0, build_batch([(0, key, b"", ())]), 0)
    journal = Journal()
    journal.steps_over_unreadable = True
    runtime: Runtime[Journal] = Runtime("journal", lambda _partition: journal, writer, ManualClock(), 5_000)
    runtime.lead(0, 1)
    assert [key for _, _, key, _ in runtime.shard(0).seen] == [b"first", b"between", b"last"]
    assert runtime.unreadable() == {0: 2}
    assert "journal 0: the record at offset 1 cannot be read: a broken record; it is skipped" in caplog.text
    assert "journal 0: 1 more records were skipped" in caplog.text
    runtime.close()


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


def test_a_shard_that_is_behind_its_log_is_loaded_anew(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    first = world.lead()
    world.write(b"a")
    first.fails = True
    assert world.write(b"b") == (ErrorCode.NOT_COORDINATOR, None)
    assert first.events[-2:] == [((b"b",), ErrorCode.NOT_COORDINATOR), "unloaded"]
    assert world.read() == world.write(b"c") == (ErrorCode.NOT_COORDINATOR, None)
    assert dict(world.runtime.shards()) == {}
    world.advance(1_000)
    again = world.runtime.shard(0)
    assert [key for _, _, key, _ in again.seen] == [b"a", b"b"], "memory is what the log is"
    assert world.write(b"c") == "done"
    assert caplog.text.count("cannot apply what it has appended") == caplog.text.count("Traceback") == 1
    assert [event for event in first.events if isinstance(event, tuple) and event[0] == "tick"] == []
    world.runtime.close()


def test_a_marker_that_cannot_be_applied() -> None:
    world = World()
    shard = world.lead()
    shard.fails = True
    end = EndOfTransaction(7, 0, 0, commit=True, transaction_version=0)
    asked = world.runtime.run(0, lambda _shard, _now: Outcome(reply="r", marker=end), failed)
    assert asked == (ErrorCode.NOT_COORDINATOR, None)
    world.advance(1_000)
    assert world.runtime.shard(0).events[0] == ("end", 7, True)
    world.runtime.close()


def test_a_shard_that_raises_on_every_load_too_is_loaded_less_and_less_often(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.lead()
    assert world.write(b"broken") == (ErrorCode.NOT_COORDINATOR, None)
    for _ in range(600):
        world.advance(1_000)
    assert 10 < caplog.text.count("the next load is in") < 20
    assert caplog.text.count("Traceback") == 1
    world.runtime.close()


def test_an_after_that_cannot_undo_half_a_replay_does_not_keep_the_shard_from_being_loaded_anew() -> None:
    world = World()
    world.lead()

    def undo(_code: ErrorCode, _now_ms: int) -> Outcome:
        raise KeyError("what the replay did not come to")

    decided = Outcome(reply="done", records=[CoordinatorRecord(b"a", b"v")], after=undo)
    world.runtime.shard(0).fails = True
    assert world.runtime.run(0, lambda _shard, _now: decided, failed) == (ErrorCode.NOT_COORDINATOR, None)
    world.advance(1_000)
    assert world.write(b"b") == "done"
    assert [key for _, _, key, _ in world.runtime.shard(0).seen] == [b"a", b"b"]
    world.runtime.close()


def test_who_waits_is_told_when_a_shard_falls_behind_its_log() -> None:
    async def scenario() -> None:
        world = World()
        shard = world.lead()
        parked = world.runtime.run_parked(0, lambda shard, token, _now: shard.park(token), failed)
        world.writer.lag = True
        waiting = world.write(b"a")
        shard.fails = True
        assert world.write(b"b") == (ErrorCode.NOT_COORDINATOR, None)
        assert await waiting == (ErrorCode.NOT_COORDINATOR, None)
        assert await parked == "moved"
        world.runtime.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("lag", [False, True])
def test_a_shard_whose_after_raises_instead_of_moving_it_is_loaded_anew(lag: bool) -> None:
    """A decision without replay, like those of transactions, changes the shard in its `after`."""

    async def scenario() -> None:
        world = World()
        world.lead()
        world.write(b"a")

        def move(_code: ErrorCode, _now_ms: int) -> Outcome:
            raise ValueError("this is tried on purpose")

        decided = Outcome(reply="done", records=[CoordinatorRecord(b"b", b"v")], after=move, replay=False)
        world.writer.lag = lag
        asked = world.runtime.run(0, lambda _shard, _now: decided, failed)
        if lag:
            behind = world.read()
            world.writer.commit_to(world.writer.end)
            assert await asyncio.wait_for(behind, 10) == (ErrorCode.NOT_COORDINATOR, None)
            asked = await asyncio.wait_for(asked, 10)
        assert asked == (ErrorCode.NOT_COORDINATOR, None)
        world.writer.lag = False
        world.advance(1_000)
        assert [key for _, _, key, _ in world.runtime.shard(0).seen] == [b"a", b"b"]
        assert world.write(b"c") == "done"
        world.runtime.close()

    asyncio.run(scenario())


def uncommitted(*keys: bytes) -> FakeWriter:
    """Return a log whose previous leader has appended what other replicas do not have yet."""
    writer = FakeWriter()
    writer.lag = True
    writer.append(0, build_batch([(0, key, b"v", ()) for key in keys]), 0)
    return writer


def test_nobody_is_told_of_what_may_still_be_lost() -> None:
    async def scenario() -> None:
        writer = uncommitted(b"a", b"b")
        world = World(writer)
        world.runtime.lead(0, 1)
        loading = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, None)
        assert world.read() == world.write(b"c") == loading
        world.runtime.lead(0, 2)
        writer.commit_to(1)
        await asyncio.sleep(0)
        assert world.read() == loading
        writer.commit_to(2)
        await world.loaded()
        shard = world.runtime.shard(0)
        assert shard.events == ["loaded"]
        assert [key for _, _, key, _ in shard.seen] == [b"a", b"b"]
        assert world.runtime.epoch(0) == 2
        writer.lag = False
        assert world.write(b"c") == "done"
        world.runtime.close()

    asyncio.run(scenario())


def test_what_all_in_sync_replicas_have_is_told_though_they_are_too_few_to_write() -> None:
    async def scenario() -> None:
        writer = uncommitted(b"a", b"b")
        writer.copied_to = 2
        writer.fail = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        world = World(writer)
        shard = world.lead()
        assert world.read() == 2
        assert world.write(b"c")[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert [key for _, _, key, _ in shard.seen] == [b"a", b"b"]
        world.runtime.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("ending", ["resign", "close"])
def test_leadership_that_goes_before_all_is_committed(ending: str) -> None:
    async def scenario() -> None:
        writer = uncommitted(b"a")
        world = World(writer)
        world.runtime.lead(0, 1)
        if ending == "resign":
            world.runtime.resign(0)
            assert world.read() == (ErrorCode.NOT_COORDINATOR, None)
        else:
            world.runtime.close()
            assert world.read() == (ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        await asyncio.sleep(0)
        assert writer.waiters[0][1].cancelled()
        writer.commit_to(1)
        await asyncio.sleep(0)
        assert dict(world.runtime.shards()) == {}
        world.runtime.close()

    asyncio.run(scenario())


def test_a_wait_that_fails_is_a_load_that_failed() -> None:
    async def scenario() -> None:
        writer = uncommitted(b"a")
        world = World(writer)
        world.runtime.lead(0, 1)
        writer.waiters[0][1].set_exception(ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        await asyncio.sleep(0)
        assert world.read() == (ErrorCode.NOT_COORDINATOR, None)
        writer.commit_to(1)
        world.advance(RELOAD_MS)
        assert world.read() == 1
        world.runtime.close()

    asyncio.run(scenario())
