"""Batches without records: compaction leaves them, and a restore fills unused offsets with them. Nobody gets these."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kbroker import Broker
from kbroker.restore.restored_logs import filler

from .conversation import Member, Served, acquired, offsets

T = ("t", 0)
GAP = 100_000_000


@pytest.fixture
def served() -> Iterator[Served]:
    with Broker() as broker:
        made = Served(broker)
        made.topic("t")
        yield made


def fill(served: Served, count: int) -> None:
    """Append a batch without records that has `count` offsets."""
    partition = served.broker.node.replicas.get(T)
    assert partition is not None
    log = partition.log

    def append() -> None:
        end = log.log_end_offset
        log.append_as_follower(memoryview(filler(end, end + count, 0, served.broker.node.clock.now_ms())), 0)
        log.set_high_watermark(log.log_end_offset)

    served.on_loop(append)


@pytest.mark.parametrize("limit", [False, True])
def test_a_huge_empty_batch_is_passed_over(served: Served, limit: bool) -> None:
    served.produce("t", 2)
    fill(served, GAP)
    served.produce("t", 3)
    with Member(served) as member:
        got: list[tuple[int, int, int]] = []
        for _ in range(5):
            new = acquired(member.fetch(T, wait_ms=1_000, records=2, limit=limit))
            assert (
                member.acknowledge({T: [(first, last, [1]) for first, last, _ in new]} if new else {}).error_code == 0
            )
            got += new
        assert [each for first, last, _ in got for each in range(first, last + 1)] == [
            0, 1, GAP + 2, GAP + 3, GAP + 4,
        ]  # fmt: skip
        assert served.in_flight("t") == 0


def test_an_empty_batch_at_the_end(served: Served) -> None:
    """A group that has reached the unused offsets gets the first record behind them."""
    fill(served, GAP)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=500)) == []
        served.produce("t", 1)
        answer = member.fetch(T, wait_ms=10_000)
        assert (acquired(answer), offsets(answer)) == ([(GAP, GAP, 1)], [(GAP, GAP)])


def test_records_before_an_empty_batch_may_be_in_flight(served: Served) -> None:
    served.produce("t", 1)
    fill(served, GAP)
    with Member(served) as member:
        assert acquired(member.fetch(T, wait_ms=1_000)) == [(0, 0, 1)]
        served.produce("t", 1)
        assert acquired(member.fetch(T, wait_ms=200)) == [], "as many offsets are locked as a group may lock"
        assert member.acknowledge({T: [(0, 0, [2])]}).error_code == 0
        assert acquired(member.fetch(T, wait_ms=1_000)) == [(0, 0, 2)]
        assert member.acknowledge({T: [(0, 0, [1])]}).error_code == 0
        assert acquired(member.fetch(T, wait_ms=1_000)) == [(GAP + 1, GAP + 1, 1)]
