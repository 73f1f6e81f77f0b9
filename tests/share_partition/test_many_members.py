"""Members join and leave; the store fails and fences at random: no record is lost, or delivered once accepted."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time

import pytest

from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.share_coordinator.persister import Change, Done
from tests.tries import tries

from .conversation import GROUP, Member, Served
from .memory import MemoryPersister

RECORDS = 300
DEADLINE_SECONDS = 60
T = ("t", 0)


class Flaky(MemoryPersister):
    """A store that delays some writes, refuses others, and sometimes returns FENCED_STATE_EPOCH."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)

    async def write(self, group: str, topic_id: bytes, partition: int, change: Change) -> Done:
        for _ in range(self.random.choice([0, 0, 1, 5])):
            await asyncio.sleep(0)
        if self.random.random() < 0.15:
            return Done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if self.random.random() < 0.03:
            return Done(ErrorCode.FENCED_STATE_EPOCH)
        return await super().write(group, topic_id, partition, change)


class Story:
    """The events of all members, in one order."""

    def __init__(self) -> None:
        self.count = itertools.count()
        self.accepted: dict[int, int] = {}
        """The place in that order at which a member learned that the acceptance of an offset is stored."""
        self.wrong: list[str] = []

    def delivered(self, began: int, offset: int) -> None:
        at = self.accepted.get(offset)
        if at is not None and at < began:
            self.wrong.append(f"{offset} is delivered again")

    def is_over(self) -> bool:
        return len(self.accepted) == RECORDS or bool(self.wrong)


def work(served: Served, story: Story, name: str, seed: int) -> None:
    """Run a member, with one connection after another."""
    rng = random.Random(seed)
    for life in range(1000):
        with Member(served, f"{name}-{life if rng.random() < 0.5 else 0}") as member:
            for _ in range(rng.randint(1, 12)):
                if story.is_over():
                    return
                began = next(story.count)
                answer = member.fetch(T, wait_ms=20, records=rng.choice([1, 10, 50]), limit=rng.random() < 0.5)
                if answer.error_code:
                    break
                got = [
                    each for topic in answer.responses for part in topic.partitions for each in part.acquired_records
                ]
                for each in got:
                    for offset in range(each.first_offset, each.last_offset + 1):
                        story.delivered(began, offset)
                if rng.random() < 0.1:
                    break  # as if the member's process had died
                for each in got:
                    acknowledge(member, story, rng, each.first_offset, each.last_offset)


def acknowledge(member: Member, story: Story, rng: random.Random, first: int, last: int) -> None:
    kind = rng.choice([1, 1, 1, 2])
    answer = member.acknowledge({T: [(first, last, [kind])]})
    if answer.error_code:
        return
    if kind == 1 and not answer.responses[0].partitions[0].error_code:
        at = next(story.count)
        for offset in range(first, last + 1):
            story.accepted.setdefault(offset, at)


@pytest.mark.parametrize("seed", range(tries(2)))
def test_members_that_come_and_go(seed: int) -> None:
    story = Story()
    with Broker() as broker:
        served = Served(broker, Flaky(seed))
        served.settings.now = served.settings.now._replace(delivery_count=1000, record_locks=100)
        served.topic("t")
        served.produce("t", *[5] * (RECORDS // 5))
        threads = [
            threading.Thread(target=work, daemon=True, args=(served, story, f"m{n}", seed * 10 + n)) for n in range(4)
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while any(thread.is_alive() for thread in threads):
            assert time.monotonic() < deadline, f"{len(story.accepted)} of {RECORDS} records are accepted"
            broker.clock.advance(seconds=16)
            threads[0].join(0.05)
        assert not story.wrong
        assert len(story.accepted) == RECORDS
        served.until(lambda: len(served.share) == 0)
        states = served.persister.records[GROUP, served.topics["t"], 0]
        assert {states[at][0] for at in range(RECORDS)} == {2}, "all are acknowledged, in the store as well"
