"""A share partition compared with a model that keeps each record separately: random histories of fetches,
acknowledgements, expired locks and delays, failed writes, dead letters, moved log starts and restarts.
"""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.long_work import whole
from kbroker.protocol.errors import ApiError
from kbroker.share_coordinator.state_batches import StateBatch
from kbroker.share_partition.dead_letters import EXCEEDED, REJECTED, Letter, cut, stored_letters
from kbroker.share_partition.runs import DELAYED, GAP, HOLE, PENDING, STATE
from kbroker.share_partition.share_partition import SharePartition, Wish
from kbroker.share_partition.states import AckBatch, Limits, Span
from kbroker.share_partition.transitions import Transition
from tests.tries import tries

from .model import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    DONE,
    GONE,
    Model,
    RefusedError,
    Ticket,
)

MEMBERS = ("a", "b", "c")


class World:
    """A log, the real share partition, the model, and what is stored."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.limits = Limits(
            delivery_count=self.random.choice([2, 3, 5]), lock_ms=100, record_locks=self.random.choice([8, 20, 60]),
            dead_letters=self.random.random() < 0.5, backoff_ms=self.random.choice([0, 0, 30]), backoff_max_ms=100,
            backoff_multiplier=self.random.choice([1.0, 1.5, 2.0]),
        )  # fmt: skip
        self.log: list[Span] = []
        self.log_end = self.log_start = 0
        self.writes: deque[tuple[Transition, list[StateBatch], Ticket]] = deque()
        self.letters: list[Letter] = []
        """The dead letters that are not written yet."""
        self.stored: dict[int, tuple[int, int]] = {}
        self.stored_start = 0
        self.durable: set[int] = set()
        """Offsets whose acknowledgement is stored: never to be delivered again."""
        self.real = SharePartition(0)
        self.model = Model(0, [])

    def some(self, low: int, high: int) -> int:
        return self.random.randint(low, max(low, high))

    # -- steps

    def produce(self) -> None:
        for _ in range(self.some(1, 4)):
            if self.random.random() < 0.2:
                self.log_end += self.some(1, 3)  # a hole
            size = self.random.choice([1, 1, 2, 5, 9])
            self.log.append(Span(self.log_end, self.log_end + size - 1))
            self.log_end += size

    def fetch(self) -> None:
        offset = self.real.next_fetch_offset
        assert offset == self.model.next_fetch_offset
        read = [span for span in self.log if span.last_offset >= offset][: self.some(0, 6)]
        wish = Wish(
            self.random.choice(MEMBERS), self.random.choice([1, 3, 10, 50]), self.random.choice([1, 4, 20]),
            self.random.random() < 0.4,
        )  # fmt: skip
        before = {at: record.state for at, record in self.model.records.items()}
        got = whole(self.real.acquire(wish, offset, read, self.limits, self.now))
        assert got == self.model.acquire(wish, offset, read, self.limits, self.now)
        for first, last, count in got:
            assert 1 <= count <= self.limits.delivery_count
            for at in range(first, last + 1):
                assert before.get(at, AVAILABLE) == AVAILABLE, "no record is in two hands"
                assert at not in self.durable
        if got and self.random.random() < 0.1:
            aborted = [span for span in read if self.random.random() < 0.5]
            whole(self.real.archive_useless(aborted))
            self.model.archive_useless(aborted)

    def acknowledge(self) -> None:
        member = self.random.choice(MEMBERS)
        mine = [at for at, record in self.model.records.items() if record.owner == member]
        if mine and self.random.random() < 0.9:
            batches, at = [], self.some(0, len(mine) - 1)
            for _ in range(self.some(1, 3)):
                size = self.some(1, 6)
                span = mine[at : at + size]
                if not span:
                    break
                last = span[-1]
                count = 1 if self.random.random() < 0.5 else last - span[0] + 1
                batches.append(AckBatch(span[0], last, [self.some(0, 4) for _ in range(count)]))
                at += size + self.some(0, 2)
        else:
            first = self.some(0, self.log_end + 3)
            batches = [AckBatch(first, first + self.some(0, 5), [self.some(0, 4)])]
        try:
            expected = self.model.acknowledge(member, batches, self.limits, self.now)
        except RefusedError:
            with pytest.raises(ApiError):
                whole(self.real.acknowledge(member, batches, self.limits, self.now))
            return
        self.write(whole(self.real.acknowledge(member, batches, self.limits, self.now)), expected)

    def release(self) -> None:
        member = self.random.choice(MEMBERS)
        self.write(whole(self.real.release(member, self.limits)), self.model.release(member, self.limits))

    def write(self, decided: Transition, expected: Ticket) -> None:
        assert states_of(decided.batches) == expected.offsets
        assert causes_of(decided.letters) == expected.causes
        assert {at for span in decided.spans for at in range(span[0], span[1] + 1)} == set(expected.offsets)
        self.writes.append((decided, list(decided.batches), expected))

    def end_of_write(self) -> None:
        if not self.writes:
            return
        decided, batches, expected = self.writes.popleft()
        is_stored = self.random.random() < 0.8
        if is_stored:
            self.store(batches)
        whole(self.real.settle(decided, self.now, is_stored=is_stored))
        self.model.settle(expected, self.limits, self.now, is_stored=is_stored)
        if is_stored:
            done = {at for at, state in expected.offsets.items() if state in (ACKNOWLEDGED, ARCHIVING, ARCHIVED)}
            self.durable |= done
            self.letters += decided.letters

    def bury(self) -> None:
        """Record that some dead letters are written."""
        if self.letters:
            written = cut(self.letters, self.some(1, 9))
            decided = whole(self.real.bury(written))
            expected: dict[int, int] = {}
            for letter in written:
                expected |= self.model.bury(letter)
            assert states_of(decided.batches) == expected
            assert not decided.letters
            self.store(decided.batches)

    def store(self, batches: list[StateBatch]) -> None:
        for first, last, state, count in batches:
            for at in range(first, last + 1):
                self.stored[at] = (state, count)
        self.stored_start = max(self.stored_start, self.real.start)

    def time_passes(self) -> None:
        self.now += self.some(1, 60)
        if self.real.next_deadline <= self.now:
            decided = whole(self.real.expire(self.now, self.limits))
            expected, has_freed = self.model.expire(self.now, self.limits)
            assert states_of(decided.batches) == expected.offsets
            assert causes_of(decided.letters) == expected.causes
            assert decided.has_freed == has_freed
            self.model.advance()
            self.store(decided.batches)
            self.letters += decided.letters
        else:
            expected, has_freed = self.model.expire(self.now, self.limits)
            assert not expected.offsets, "the timer is never late"
            assert not has_freed

    def log_start_moves(self) -> None:
        self.log_start = min(self.log_start + self.some(0, 8), self.log_end)
        self.log = [span for span in self.log if span.last_offset >= self.log_start]
        self.real.log_start_moved(self.log_start)
        self.model.drop_below(self.log_start)

    def restart(self) -> None:
        self.writes.clear()
        start = self.stored_start
        known = {at: value for at, value in self.stored.items() if at >= start}
        batches: list[StateBatch] = []
        for at, (state, count) in sorted(known.items()):
            if batches and batches[-1][1:] == (at - 1, state, count) and self.random.random() < 0.7:
                batches[-1] = batches[-1]._replace(last_offset=at)
            else:
                batches.append(StateBatch(at, at, state, count))
        self.real = SharePartition(start)
        whole(self.real.load(batches))
        self.model = Model(start, batches)
        self.letters = stored_letters(batches, self.limits.delivery_count)

    def check(self) -> None:
        real, model = self.real, self.model
        assert (real.start, real.end) == (model.start, model.end)
        assert real.next_fetch_offset == model.next_fetch_offset
        assert real.complete_count == model.complete_count
        runs, records = real.runs, model.records
        seen = 0
        for index in range(len(runs)):
            run = runs.at(index)
            assert run.first == (real.start if index == 0 else runs.last(index - 1) + 1)
            for at in range(run.first, runs.last(index) + 1):
                if run.what & STATE in (GAP, HOLE):
                    assert at not in records
                    assert (at in model.gaps) == (run.what & STATE == GAP)
                    continue
                record, seen = records[at], seen + 1
                state = AVAILABLE if run.what & STATE == DELAYED else run.what & STATE
                assert (state, run.deliveries) == (record.state, record.count), at
                assert (run.what & STATE == DELAYED) == (record.until is not None)
                if record.until is not None:
                    assert run.deadline == record.until
                    assert real.next_deadline <= run.deadline, "a delay ends in time"
                assert bool(run.what & PENDING) == (record.before is not None)
                if record.state == ACQUIRED:
                    owner = run.owner.name if runs.known_owner(run.owner.name) is run.owner else GONE
                    assert (owner, run.deadline) == (record.owner, record.deadline)
                    assert real.next_deadline <= run.deadline
        assert seen == len(records)
        letters = [at for letter in self.letters for at in range(letter.first_offset, letter.last_offset + 1)]
        assert len(letters) == len(set(letters)), "one letter for a record"
        waiting = {at for at, record in records.items() if record.state == ARCHIVING and record.before is None}
        assert waiting == {at for at in letters if at >= real.start}, "each has a letter, and only these"
        heads = [runs.first[index] for index in range(len(runs)) if runs.head(index) == index]
        assert [at for at in heads if at in records] == [batch.first for batch in model.batches]


def states_of(batches: list[StateBatch]) -> dict[int, int]:
    return {at: batch.delivery_state for batch in batches for at in range(batch.first_offset, batch.last_offset + 1)}


def causes_of(letters: list[Letter]) -> dict[int, str]:
    return {at: letter.cause for letter in letters for at in range(letter.first_offset, letter.last_offset + 1)}


STEPS = (
    [World.fetch] * 6 + [World.acknowledge] * 6 + [World.end_of_write] * 5 + [World.produce] * 3
    + [World.time_passes] * 3 + [World.bury] * 2 + [World.release, World.log_start_moves, World.restart]
)  # fmt: skip


@settings(max_examples=tries(300))
@given(st.integers(0, 2**32))
def test_a_share_partition_does_what_the_model_does(seed: int) -> None:
    world = World(seed)
    for _ in range(60):
        world.random.choice(STEPS)(world)
        world.check()


def test_everything_ends_done() -> None:
    """Although writes fail and locks expire, each record ends acknowledged or archived, and none stays in flight."""
    for seed in range(tries(20)):
        world = World(seed)
        for _ in range(100):
            world.random.choice(STEPS)(world)
        while world.writes:
            world.end_of_write()
        for _ in range(2000):
            if world.real.next_fetch_offset >= world.log_end and not world.real.in_flight:
                break
            world.fetch()
            world.time_passes()
            world.bury()
        assert not world.real.runs.first
        assert all(record.state in DONE for record in world.model.records.values())


def test_an_undone_change_of_a_last_delivery_whose_lock_has_ended() -> None:
    """The record is given up with a dead letter, as when any last lock expires; Kafka archives it without one."""
    limits = Limits(delivery_count=2, lock_ms=100, dead_letters=True)
    state = SharePartition(0)
    for now in (0.0, 10.0):
        assert whole(state.acquire(Wish("a", 10), 0, [Span(0, 0)], limits, now))
        decided = whole(state.acknowledge("a", [AckBatch(0, 0, [2 if now == 0 else 1])], limits, now))
        whole(state.settle(decided, 200.0 if now else 5.0, is_stored=now == 0))
    assert state.next_deadline <= 200.0, "the timer ends it at once"
    assert state.complete_count == 0
    ended = whole(state.expire(200.0, limits))
    assert ended.batches == [StateBatch(0, 0, ARCHIVING, 2)]
    assert ended.letters == [Letter(0, 0, 2, EXCEEDED)]


def test_letters_of_two_causes_stay_apart() -> None:
    decided = Transition(Limits())
    decided.add(0, 0, ARCHIVING, 2, REJECTED)
    decided.add(1, 1, ARCHIVING, 2, EXCEEDED)
    decided.add(2, 3, ARCHIVING, 2, EXCEEDED)
    assert decided.letters == [Letter(0, 0, 2, REJECTED), Letter(1, 3, 2, EXCEEDED)]
    assert decided.batches == [StateBatch(0, 3, ARCHIVING, 2)]


def test_a_delayed_record_that_the_log_has_no_more_is_done() -> None:
    limits = Limits(backoff_ms=1000)
    state = SharePartition(0)
    whole(state.acquire(Wish("a", 10), 0, [Span(0, 1)], limits, 0.0))
    decided = whole(state.acknowledge("a", [AckBatch(0, 1, [2, 1])], limits, 0.0))
    whole(state.settle(decided, 0.0, is_stored=True))
    assert state.start == 0
    whole(state.archive_missing(0, 0))
    assert state.advance()
    assert state.start == 2
