"""What holds the loop is counted and named, in at most one line per second."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
from itertools import chain, repeat
from types import SimpleNamespace

import pytest

from kbroker.network import loop_watch
from kbroker.network.loop_watch import HELD_LONG, LoopWatch

CLIENT = SimpleNamespace(client_host="/10.0.0.7", client_id="c")


@pytest.fixture(autouse=True)
def nothing_is_collected():
    """Turn off garbage collection: a long collection has its own line, instead of the one that a test waits for."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.WARNING, "kbroker.network.loop_watch")
    here = threading.get_ident()  # brokers of other tests log from their threads
    return lambda: [record.getMessage() for record in caplog.records if record.thread == here]


def watching(story):
    async def main():
        watch = LoopWatch(asyncio.get_running_loop(), lambda _frame: "Metadata v9")
        watch.start()
        gc.disable()  # a collection would be the reason for the first hold
        try:
            await story(watch)
        finally:
            gc.enable()
            watch.close()

    asyncio.run(main())


def test_a_request_is_named_with_its_size_and_client(lines):
    async def story(watch):
        watch.request(memoryview(b"x" * 21), CLIENT, 0.123)
        assert (watch.held, round(watch.longest_ms)) == (1, 123)

    watching(story)
    (line,) = lines()
    assert line.startswith("the event loop was held for 123 ms, at most ")
    assert line.endswith(" ms of them on a processor, by Metadata v9 of 21 bytes from 10.0.0.7, client c")


def test_many_in_one_second_are_one_line(lines):
    async def story(watch):
        for _ in range(5):
            watch.work("Fetch v11", 1, CLIENT, 0.1)
        watch._logged -= 2
        watch.work("Fetch v11", 1, CLIENT, 0.1)
        assert watch.held == 6

    watching(story)
    assert [line.partition(" (and ")[2] for line in lines()] == ["", "4 times since the last line)"]


async def held(watch):
    deadline = time.monotonic() + 10
    while not watch.held:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_what_is_no_request_is_seen_by_a_clock_that_goes_off_late(lines):
    async def story(watch):
        end = time.thread_time() + 0.1 + 3 * HELD_LONG
        while time.thread_time() < end:
            pass
        await held(watch)

    watching(story)
    assert "by something that is no request" in lines()[0]


@pytest.mark.parametrize(("limit", "told"), [(60.0, False), (HELD_LONG, True)])
def test_a_loop_that_only_waited_is_told_of_where_it_is_long(lines, monkeypatch, limit, told):
    """It waited for a processor on a busy machine, or for a disk: that was no work, and nobody can be named."""
    monkeypatch.setattr(loop_watch, "WAITED_LONG", limit)

    async def story(watch):
        time.sleep(0.1 + 2 * HELD_LONG)  # noqa: ASYNC251 - this is what is looked for
        await held(watch)
        assert watch.held == 1

    watching(story)
    assert bool(lines()) is told


def test_a_collection_of_garbage_is_named(lines):
    async def story(watch):
        watch._collection("start", {})
        watch._collecting -= 0.2
        watch._collection("stop", {})

    before = len(gc.callbacks)
    watching(story)
    assert "by Python, collecting garbage" in lines()[0]
    assert len(gc.callbacks) == before


@pytest.mark.parametrize("works", [False, True])
def test_the_line_tells_how_much_of_the_time_was_work(lines, monkeypatch, works):
    # Brokers of other tests have their own watches, in their threads; this one may ask again on a busy machine.
    worked, here, real = chain([10.0], repeat(10.08 if works else 10.0015)), threading.get_ident(), time.thread_time
    thread_time = lambda: next(worked) if threading.get_ident() == here else real()  # noqa: E731
    monkeypatch.setattr(loop_watch.time, "thread_time", thread_time)

    async def story(watch):
        watch.request(memoryview(b"x"), CLIENT, 0.075)

    watching(story)
    assert f"for 75 ms, at most {75 if works else 1} ms of them on a processor" in lines()[0]
