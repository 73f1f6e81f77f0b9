"""The share of its time in which the loop does nothing."""

from __future__ import annotations

import pytest

from kbroker.metrics.collection import Idle


class World:
    def __init__(self) -> None:
        self.now = self.worked = 0.0
        self.idle = Idle(lambda: self.now, lambda: self.worked)

    def pass_s(self, seconds: float, busy: float) -> float:
        self.now += seconds
        self.worked += seconds * busy
        return self.idle.share()


def test_it_is_the_part_in_which_the_thread_did_not_work() -> None:
    world = World()
    world.idle.share()
    assert world.pass_s(10, busy=0.25) == pytest.approx(0.75)


def test_what_is_older_than_a_minute_is_forgotten() -> None:
    world = World()
    world.idle.share()
    for _ in range(30):
        world.pass_s(2, busy=1.0)
    assert world.idle.share() == pytest.approx(0.0)
    for _ in range(31):
        world.pass_s(2, busy=0.0)
    assert world.idle.share() == pytest.approx(1.0)


def test_who_asks_again_at_once_hears_the_same() -> None:
    world = World()
    world.idle.share()
    share = world.pass_s(10, busy=0.5)
    assert [world.pass_s(0.001, busy=1.0) for _ in range(20)] == [pytest.approx(share, abs=0.01)] * 20


def test_who_was_not_asked_for_long_speaks_of_all_the_time_since() -> None:
    world = World()
    world.idle.share()
    assert world.pass_s(3600, busy=0.5) == pytest.approx(0.5)


def test_nothing_is_kept_beyond_a_bound() -> None:
    world = World()
    for _ in range(10_000):
        world.pass_s(0.5, busy=0.1)
    assert len(world.idle._seen) <= 128
