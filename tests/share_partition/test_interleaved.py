"""Requests about one share partition that interleave at every turn: the rules that hold for each request still hold."""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError
from kbroker.share_partition import delivery_state, share_partition, transitions
from kbroker.share_partition.dead_letters import Letter, cut
from kbroker.share_partition.runs import DELAYED, NO_LOCK, PENDING, STATE
from kbroker.share_partition.share_partition import SharePartition, Wish
from kbroker.share_partition.states import AckBatch, Acquired, Limits, RecordState, Span
from kbroker.share_partition.transitions import Transition
from tests.tries import tries

MEMBERS = ("a", "b", "c")
LIMITS = Limits(delivery_count=4, lock_ms=50, record_locks=60)
OF_OURS = LIMITS._replace(dead_letters=True, backoff_ms=10, backoff_max_ms=30)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (delivery_state, share_partition, transitions):
        monkeypatch.setattr(module, "AT_ONCE", 2)


class Interleaved:
    """Work in progress on one share partition."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.real = SharePartition(0)
        self.limits = self.random.choice([LIMITS, OF_OURS])
        self.letters: list[Letter] = []
        self.log = [Span(at, at + 2) for at in range(0, 3000, 3)]
        self.active: list[Coroutine[Any, Any, None]] = []
        self.is_fetching = self.is_expiring = False
        self.writes: list[Transition] = []
        self.is_settling = False
        self.holds: dict[int, tuple[str, float]] = {}
        """The member that last acquired each record, and the end of its lock."""
        self.done: dict[int, int] = {}
        """The delivery count of each record whose acknowledgement is stored; such a record is never delivered again."""
        self.largest = 0

    async def fetch(self) -> None:
        if self.is_fetching:
            return
        self.is_fetching = True
        try:
            offset, member = self.real.next_fetch_offset, self.random.choice(MEMBERS)
            read = [span for span in self.log if span.last_offset >= offset][:12]
            began = self.now
            wish = Wish(member, self.random.choice([3, 20, 40]), 6, self.random.random() < 0.3)
            got = await self.real.acquire(wish, offset, read, self.limits, began)
            self.given(member, got, began)
        finally:
            self.is_fetching = False

    def given(self, member: str, got: list[Acquired], began: float) -> None:
        for first, last, count in got:
            assert 1 <= count <= LIMITS.delivery_count
            for at in range(first, last + 1):
                assert count <= self.done.get(at, count), "what is acknowledged is not given again"
                self.holds[at] = member, began + LIMITS.lock_ms
                self.largest = max(self.largest, at)

    async def acknowledge(self) -> None:
        member = self.random.choice(MEMBERS)
        mine = sorted(at for at, (owner, _) in self.holds.items() if owner == member and at >= self.real.start)
        if not mine:
            return
        first = self.random.choice(mine)
        last = min(first + self.random.randint(0, 9), self.largest)
        types = [self.random.choice([1, 2, 3]) for _ in range(last - first + 1)]
        if self.random.random() < 0.5:
            types = types[:1]
        try:
            self.writes.append(
                await self.real.acknowledge(member, [AckBatch(first, last, types)], self.limits, self.now)
            )
        except ApiError:
            return

    async def settle(self) -> None:
        if self.is_settling or not self.writes:
            return
        self.is_settling = True
        decided, is_stored = self.writes.pop(0), self.random.random() < 0.7
        if is_stored:
            for first, last, state, count in decided.batches:
                if state != RecordState.AVAILABLE:
                    self.done |= dict.fromkeys(range(first, last + 1), count)
        await self.real.settle(decided, self.now, is_stored=is_stored)
        self.letters += decided.letters if is_stored else []
        self.is_settling = False

    async def release(self) -> None:
        self.writes.append(await self.real.release(self.random.choice(MEMBERS), self.limits))

    async def expire(self) -> None:
        if self.is_expiring or self.real.next_deadline > self.now:
            return
        self.is_expiring = True
        self.letters += (await self.real.expire(self.now, self.limits)).letters
        self.is_expiring = False

    async def bury(self) -> None:
        written = cut(self.letters, self.random.randint(1, 9))
        await self.real.bury(written)

    async def log_start_moves(self) -> None:
        self.real.log_start_moved(self.real.start + self.random.randint(0, 3))

    def step(self) -> None:
        self.now += self.random.choice([0, 0, 1, 5])
        if len(self.active) < 5:
            kinds = [self.fetch, self.fetch, self.acknowledge, self.acknowledge, self.settle, self.settle]
            kinds += [self.expire, self.release, self.bury, self.log_start_moves]
            self.active.append(self.random.choice(kinds)())
        work = self.random.choice(self.active)
        if self.random.random() < 0.01 and work.__name__ in ("fetch", "acknowledge"):
            work.close()  # the connection has ended
            self.active.remove(work)
            return
        try:
            work.send(None)
        except StopIteration:
            self.active.remove(work)

    def check(self) -> None:
        runs = self.real.runs
        complete = 0
        for index in range(len(runs)):
            run = runs.at(index)
            state, size = run.what & STATE, runs.last(index) - run.first + 1
            assert size > 0
            complete += size if state in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED) else 0
            if state == RecordState.ACQUIRED:
                assert run.owner is not None
                assert run.deadline < NO_LOCK
                assert self.is_expiring or self.real.next_deadline <= run.deadline, "a lock ends in time"
            if state == DELAYED:
                assert self.is_expiring or self.real.next_deadline <= run.deadline < NO_LOCK, "a delay ends in time"
        assert self.real.complete_count == complete


@settings(max_examples=tries(60))
@given(st.integers(0, 2**32))
def test_interleaved_work(seed: int) -> None:
    world = Interleaved(seed)
    for _ in range(300):
        world.step()
        world.check()
    for work in world.active:
        whole(work)
    while world.writes:
        whole(world.settle())
    world.check()
    assert not any(what & PENDING for what in world.real.runs.what), "nothing stays pending"
    world.now += LIMITS.lock_ms + 10
    whole(world.expire())
    assert not any(what & STATE == RecordState.ACQUIRED for what in world.real.runs.what), "no lock stays"
    while world.letters:
        whole(world.bury())
    assert not any(what & STATE == RecordState.ARCHIVING for what in world.real.runs.what), "each had a letter"
