"""Which connections may use memory, which wait, and which are closed."""

from __future__ import annotations

import asyncio

import pytest

from kbroker.network import memory_budget as module
from kbroker.network.memory_budget import DEFAULT_LIMIT, Memory


class Holder:
    def __init__(self, memory, peer="p"):
        self.memory, self.peer, self.asked, self.gone = memory, peer, 0, False

    def go_on_reading(self):
        self.asked += 1

    def abort(self):
        self.gone = True
        self.memory.forget(self)


@pytest.fixture
def run():
    return lambda story: asyncio.run(story())


def test_the_limit_is_queued_max_request_bytes():
    assert Memory(1000).limit == 1000
    assert Memory(-1).limit == DEFAULT_LIMIT


def test_what_all_hold_is_bounded_but_for_the_oldest(run):
    async def story():
        memory = Memory(1000)
        a, b = Holder(memory), Holder(memory)
        assert memory.may_hold(a, 5000), "alone"
        memory.hold(a, 600)
        assert memory.may_hold(b, 400)
        memory.hold(b, 400)
        assert not memory.may_hold(b, 401)
        assert memory.may_hold(a, 5000), "or both would wait for the other"
        memory.wait(b)
        memory.hold(a, 0)
        assert (b.asked, memory.used) == (1, 400)
        memory.forget(b)
        assert memory.used == 0
        memory.close()

    run(story)


def test_room_that_comes_free_is_offered_in_order_until_one_gets_nothing(run):
    """Not to all each time: if hundreds end together, each would cause hundreds of offers."""

    async def story():
        memory = Memory(1000)
        first, *others = holders = [Holder(memory) for _ in range(20)]
        for holder in holders:
            memory.hold(holder, 50)
            memory.wait(holder)
        for holder in others:
            holder.go_on_reading = lambda holder=holder: (
                setattr(holder, "asked", holder.asked + 1),
                memory.wait(holder),
            )
        memory.hold(first, 40)
        assert [holder.asked for holder in holders] == [1, 1] + [0] * 18
        memory.hold(first, 30)
        assert [holder.asked for holder in holders] == [1, 1, 1] + [0] * 17
        memory.close()

    run(story)


def test_it_is_tight_from_half_on(run):
    async def story():
        memory = Memory(1000)
        holder = Holder(memory)
        memory.hold(holder, 500)
        assert not memory.tight
        memory.hold(holder, 501)
        assert memory.tight
        memory.close()

    run(story)


@pytest.mark.parametrize(("patience", "waits", "gone"), [(-1.0, True, True), (-1.0, False, False), (60.0, True, False)])
def test_who_holds_for_long_goes_when_others_wait(run, monkeypatch, patience, waits, gone):
    async def story():
        monkeypatch.setattr(module, "PATIENCE", patience)
        memory = Memory(1000)
        a, b = Holder(memory), Holder(memory)
        memory.hold(a, 1000)
        if waits:
            memory.wait(b)
        memory._relieve()
        assert (a.gone, b.asked) == (gone, int(gone))
        memory.close()

    run(story)


def test_far_over_the_limit_the_oldest_goes_at_once(run):
    async def story():
        memory = Memory(1000)
        holders = [Holder(memory) for _ in range(30)]
        for holder in holders:
            memory.hold(holder, 100)
        memory._relieve()
        assert [h.gone for h in holders] == [True] * 11 + [False] * 19
        memory.close()

    run(story)
