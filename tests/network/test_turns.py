"""The share of the loop that connections get, on a fake loop."""

from __future__ import annotations

import pytest

from kbroker.network import turns as module
from kbroker.network.turns import ALONE, SLICE, TURN, Breadth, Turns


class Loop:
    """Runs scheduled callbacks when the test says so."""

    def __init__(self):
        self.soon = []

    def call_soon(self, function):
        self.soon.append(function)

    def turn(self):
        due, self.soon = self.soon, []
        for function in due:
            function()


class Clock:
    def __init__(self):
        self.at = 100.0

    def __call__(self):
        return self.at


class Job:
    """Needs `left` seconds, in steps of `step`; notes in `log` each time it continues."""

    def __init__(self, name, turns, clock, log, left, step=0.0001):
        self.name, self.turns, self.clock, self.log, self.left, self.step = name, turns, clock, log, left, step

    def go_on(self, deadline):
        self.log.append(self.name)
        while self.left > 0:
            self.clock.at += self.step
            self.left -= self.step
            if self.clock.at >= deadline:
                break
        if self.left > 0:
            self.turns.put(self)


@pytest.fixture
def world(monkeypatch):
    loop, clock = Loop(), Clock()
    monkeypatch.setattr(module, "now", clock)
    return loop, clock, Turns(loop), []


def test_those_that_wait_go_on_in_order_each_for_a_slice(world):
    loop, clock, turns, log = world
    for name in "abc":
        turns.put(Job(name, turns, clock, log, left=SLICE * 1.5))
    loop.turn()
    assert log == ["a", "b", "c"]
    loop.turn()
    assert log == ["a", "b", "c"] * 2
    loop.turn()
    assert not loop.soon


def test_a_turn_ends_whatever_waits(world):
    loop, clock, turns, log = world
    for number in range(1000):
        turns.put(Job(number, turns, clock, log, left=1.0))
    before = clock.at
    loop.turn()
    assert TURN <= clock.at - before <= TURN + 0.0002
    for _ in range(100):
        loop.turn()
    assert log[:1000] == list(range(1000)), "nobody is passed over"


def test_with_many_waiting_a_slice_is_shorter(world):
    loop, clock, turns, log = world
    for number in range(16):
        turns.put(Job(number, turns, clock, log, left=1.0, step=0.00001))
    loop.turn()
    assert log == list(range(16))


def test_what_the_poller_tells_waits_once_a_turn_is_used_up(world):
    loop, _, turns, _ = world
    turns.used(TURN / 2)
    assert turns.spent < TURN
    turns.used(TURN / 2)
    assert turns.spent >= TURN
    loop.turn()
    assert turns.spent == 0.0


def test_who_needs_little_goes_before_who_needs_much(world):
    loop, clock, turns, log = world
    for name in "ab":
        turns.put(Job(name, turns, clock, log, left=SLICE))
    for name in "xyz":
        turns.put_short(Job(name, turns, clock, log, left=0.0001))
    loop.turn()
    assert log == ["x", "y", "z", "a", "b"]


def test_who_needs_much_gets_a_slice_however_many_need_little(world):
    loop, clock, turns, log = world
    for number in range(100):
        turns.put_short(Job(number, turns, clock, log, left=0.0001))
    for name in "ab":
        turns.put(Job(name, turns, clock, log, left=1.0, step=0.00005))
    before = clock.at
    loop.turn()
    assert log == [*range(20), "a"]
    assert clock.at - before <= TURN + SLICE + 0.0002
    assert turns.spent >= TURN, "who comes now comes after those that wait"
    loop.turn()
    assert log[21:] == [*range(20, 40), "b"]
    while len(log) < 105:
        loop.turn()
    assert [name for name in log if isinstance(name, int)] == list(range(100)), "in order"
    assert turns.spent == 0.0


def test_a_fault_of_one_leaves_the_others_their_turn(world):
    loop, clock, turns, log = world

    class Broken:
        def go_on(self, _deadline):
            raise RuntimeError

    turns.put_short(Broken())
    turns.put_short(Job("a", turns, clock, log, left=0.0001))
    turns.put(Job("b", turns, clock, log, left=0.0001))
    with pytest.raises(RuntimeError):
        loop.turn()
    loop.turn()
    assert log == ["a", "b"]


def test_a_quiet_loop_is_not_woken(world):
    loop, _, turns, _ = world
    turns.used(0.0001)
    assert not loop.soon


def test_a_lane_takes_so_many_and_the_others_in_order(world):
    loop, clock, turns, log = world
    lane = turns.lane(Breadth.HUGE)
    assert turns.lane(Breadth.NARROW) is None
    jobs = [Job(n, turns, clock, log, left=0.0001) for n in "abc"]
    assert [lane.enter(job) for job in jobs] == [True, False, False]
    assert lane.enter(jobs[0])
    lane.leave(jobs[1])  # it is gone
    lane.leave(jobs[0])
    loop.turn()
    assert log == ["c"]
    assert not lane.enter(jobs[0])
    lane.leave(jobs[2])
    loop.turn()
    assert log == ["c", "a"]


def test_a_fault_of_one_does_not_end_the_turns(world):
    loop, clock, turns, log = world

    class Broken:
        def go_on(self, _deadline):
            raise MemoryError

    turns.used(TURN)
    turns.put(Broken())
    turns.put(Job("b", turns, clock, log, left=0.0001))
    with pytest.raises(MemoryError):
        loop.turn()
    assert turns.spent < TURN
    loop.turn()
    assert log == ["b"]


def test_who_is_served_beside_others_is_not_alone_for_a_while() -> None:
    turns, one, other = Turns(Loop()), 7, 8
    turns.serves(one, 1.0)
    turns.serves(one, 2.0)
    assert not turns.crowded(2.0)
    turns.serves(other, 2.0)
    assert turns.crowded(2.0)
    assert turns.crowded(2.0 + ALONE * 0.9)
    assert not turns.crowded(2.0 + ALONE * 1.1), "the other one may be gone"
    turns.serves(one, 3.0)
    assert turns.crowded(3.0)
    for n in range(1, 10):
        turns.serves(one, 3.0 + n)
        assert not turns.crowded(3.0 + n)


def test_who_waits_makes_it_crowded() -> None:
    for put in (Turns.put, Turns.put_short):
        turns = Turns(Loop())
        put(turns, Job("one", turns, Clock(), [], 0.0))
        assert turns.crowded(100.0)
