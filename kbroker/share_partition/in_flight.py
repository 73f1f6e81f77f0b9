"""The records in flight of a group, as values for people and tests. Only share partitions in use are included.

Owns only the form of these values. Never changes anything, and never loads a share partition that is not in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kbroker.long_work import turn
from kbroker.share_partition.delivery import ShareDelivery
from kbroker.share_partition.delivery_state import AT_ONCE
from kbroker.share_partition.hosted import Hosted
from kbroker.share_partition.runs import DELAYED, NO_LOCK, PENDING, STATE, Run
from kbroker.share_partition.states import RecordState

_NAMES: Final = {**{int(each): each.name.lower() for each in RecordState}, DELAYED: "delayed"}
"""The names of the states of records. Gaps and holes, which are not records, have no name."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """Neighbouring records of a partition in the same state, between the group's start offset and its end offset.

    They were delivered `deliveries` times. `member` is the member that has acquired them, or None. `deadline_ms` is
    None for records that are neither acquired nor waiting for their next delivery (delayed).
    """

    topic: str
    partition: int
    first_offset: int
    last_offset: int
    state: str
    """ "available", "acquired", "delayed", "acknowledged", "archiving" or "archived"."""
    deliveries: int
    member: str | None
    """The id of the member that has acquired the records."""
    deadline_ms: int | None
    """The end of the lock or delay, in ms since 1970 by the broker's clock."""
    is_stored: bool
    """Whether the state is stored. If not, the broker is writing the state."""


@dataclass(slots=True)
class InUse:
    """One share partition in use: the group's start offset, the number of done records after it, and records in flight.

    Done records are acknowledged or archived.
    """

    topic: str
    partition: int
    start_offset: int
    done: int
    in_flight: list[InFlight] = field(default_factory=list)


async def in_use(
    delivery: ShareDelivery, group: str, most: int, topic: str | None = None, partition: int | None = None
) -> list[InUse]:
    """Return the share partitions of a group in order, with at most `most` elements of `in_flight` in total."""
    found: list[InUse] = []
    for hosted in sorted(delivery.of_group(group), key=lambda each: each.partition.key):
        await turn
        name, index = hosted.partition.key
        if hosted.state is not None and topic in (None, name) and partition in (None, index):
            one = InUse(name, index, hosted.state.start, hosted.state.complete_count)
            found.append(one)
            await _add_runs(delivery, hosted, one, most)
            most -= len(one.in_flight)
    return found


async def _add_runs(delivery: ShareDelivery, hosted: Hosted, one: InUse, most: int) -> None:
    """Add the records in flight, in pieces. A record that changes meanwhile may have its old or its new state."""
    offset = one.start_offset
    while len(one.in_flight) < most and hosted.state is not None and offset < hosted.state.end:
        runs = hosted.state.runs
        offset = max(offset, runs.start)
        begin = runs.index(offset)
        ahead = delivery.clock.now_ms() - delivery.clock.monotonic_ms()
        for index in range(begin, min(begin + AT_ONCE, len(runs))):
            run, last = runs.at(index), runs.last(index)
            name = _NAMES.get(run.what & STATE)
            if name is not None and len(one.in_flight) < most:
                one.in_flight.append(_value(one, run._replace(first=max(run.first, offset)), last, name, ahead))
            offset = last + 1
        await turn


def _value(one: InUse, run: Run, last: int, state: str, ahead: float) -> InFlight:
    return InFlight(
        one.topic,
        one.partition,
        run.first,
        last,
        state,
        run.deliveries,
        None if run.owner is None else run.owner.name,
        None if run.deadline == NO_LOCK else round(run.deadline + ahead),
        not run.what & PENDING,
    )
