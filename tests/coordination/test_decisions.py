"""The coordinators' runtime: a decision is written, replayed and answered, or nothing happens."""

from __future__ import annotations

import pytest

from kbroker.coordination.shard import Outcome
from kbroker.protocol.errors import ApiError, ErrorCode

from .world import Journal, World, failed


def test_a_decision_is_written_replayed_and_answered_at_once() -> None:
    """There is a single node: no loop is needed, so no task can have been created."""
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
