"""The runtime in the shards' tests mistakes no error of a shard for an answer."""

from __future__ import annotations

import pytest

from kbroker.coordination.shard import CoordinatorRecord, Outcome, Schedule
from tests.coordination.still import Still
from tests.coordination.world import Journal


def still() -> Still[Journal]:
    return Still(lambda _partition: Journal(), ())


def test_a_decision_that_raises() -> None:
    with pytest.raises(ZeroDivisionError):
        still().ask(lambda _shard, _now: Outcome(reply=1 // 0))


def test_a_replay_that_raises() -> None:
    with pytest.raises(ValueError, match="broken record"):
        still().ask(lambda _shard, _now: Outcome(records=[CoordinatorRecord(b"broken", b"v")]))


def test_a_timer_that_raises() -> None:
    world = still()
    world.ask(lambda _shard, _now: Outcome(timers=[Schedule(("bad",), 10)]))
    world.shard.on_timer = lambda _key, now_ms: Outcome(reply=now_ms // 0)  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        world.advance(10)
