"""The list of records in flight is collected in pieces, while the records change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from kbroker.long_work import step, whole
from kbroker.share_partition.delivery import ShareDelivery
from kbroker.share_partition.delivery_state import AT_ONCE
from kbroker.share_partition.in_flight import InUse, in_use
from kbroker.share_partition.share_partition import SharePartition, Wish
from kbroker.share_partition.states import AckBatch, Limits, Span

RECORDS = 1000


def spotted(backoff_ms: int = 0) -> SharePartition:
    """Return a share partition with RECORDS acquired records, of which every second one is released."""
    state, limits = SharePartition(0), Limits(record_locks=RECORDS, backoff_ms=backoff_ms)
    whole(state.acquire(Wish("m", RECORDS, RECORDS), 0, [Span(0, RECORDS - 1)], limits, 0.0))
    released = [AckBatch(offset, offset, [2]) for offset in range(0, RECORDS, 2)]
    whole(state.settle(whole(state.acknowledge("m", released, limits, 0.0)), 0.0, is_stored=True))
    return state


def delivery(*states: SharePartition | None) -> ShareDelivery:
    hosted = [
        SimpleNamespace(partition=SimpleNamespace(key=("t", index)), state=state)
        for index, state in reversed([*enumerate(states)])
    ]
    clock = SimpleNamespace(now_ms=lambda: 5_000_000, monotonic_ms=lambda: 1_000.0)
    return cast("ShareDelivery", SimpleNamespace(of_group=lambda _: hosted, clock=clock))


def found(work: Any) -> list[InUse]:
    told: list[InUse] = whole(work)
    return told


def test_runs_are_told_in_order() -> None:
    zero, one = found(in_use(delivery(spotted(), SharePartition(7)), "g", 10_000))
    assert (one.partition, one.start_offset, one.in_flight) == (1, 7, [])
    assert [each.first_offset for each in zero.in_flight] == list(range(RECORDS))
    first, second = zero.in_flight[:2]
    assert (first.state, first.deliveries, first.member, first.deadline_ms) == ("available", 1, None, None)
    assert (second.state, second.member, second.deadline_ms) == ("acquired", "m", 5_000_000 + 30_000 - 1_000)


def test_what_waits_for_its_next_delivery_is_told() -> None:
    (told,) = found(in_use(delivery(spotted(backoff_ms=2_000)), "g", 1))
    (first,) = told.in_flight
    assert (first.state, first.member, first.deadline_ms) == ("delayed", None, 5_000_000 + 2_000 - 1_000)


def test_no_more_than_asked_for() -> None:
    zero, one = found(in_use(delivery(spotted(), spotted()), "g", RECORDS + 3))
    assert (len(zero.in_flight), len(one.in_flight)) == (RECORDS, 3)
    assert [len(each.in_flight) for each in found(in_use(delivery(spotted(), spotted()), "g", 0))] == [0, 0]
    (only,) = found(in_use(delivery(spotted(), spotted(), None), "g", 5, "t", 1))
    assert (only.partition, len(only.in_flight)) == (1, 5)


def test_others_have_their_turn_and_may_change_everything() -> None:
    state = spotted()
    asked = delivery(state)
    told: list[InUse] = []

    async def work() -> None:
        told.extend(await in_use(asked, "g", 10_000))

    going, steps = work(), 0
    while not step(going):
        steps += 1
        if steps == 3:
            state.runs.drop_below(500)
    offsets = [each.first_offset for each in told[0].in_flight]
    assert offsets == [*range(2 * AT_ONCE), *range(500, RECORDS)], steps
    assert steps >= len(offsets) // AT_ONCE
