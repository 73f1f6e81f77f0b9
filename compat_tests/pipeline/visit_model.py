"""Counts visits in the simplest way, for comparison with Spark's numbers; and creates the events to count."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, NamedTuple

from kbroker.pipeline.visits.lookup import UNKNOWN
from kbroker.pipeline.visits.rules import DAY_MS, FUTURE_MS, VisitRules

Key = tuple[str, int]
"""The organisation, and the day as days since the epoch."""


class Record(NamedTuple):
    """An event as a topic holds it: `stamp` in ms."""

    partition: int
    key: str
    value: str | None
    stamp: int


def some_events(seed: int, number: int, begin_ms: int, partitions: int) -> list[Record]:
    """Return events of two days: early, late, duplicate, malformed, near ends of visits, and of unknown visitors."""
    groups = event_stream(seed, begin_ms, 2 * DAY_MS // number, partitions)
    return [record for group in islice(groups, number) for record in group]


def event_stream(seed: int, begin_ms: int, step_ms: int, partitions: int) -> Iterator[list[Record]]:
    """Yield such events endlessly, one or two at a time."""
    rng = random.Random(seed)
    for index in count():
        now = begin_ms + index * step_ms
        visitor = f"v{min(int(rng.paretovariate(0.6)), 60)}"
        time = now - rng.choice([0, 1000, 60_000, 599_000, 600_000, 600_001, 1_800_000, 7_200_000])
        fields: dict[str, Any] = {"id": f"e{index}", "visitor": visitor, "time": time}
        bad = rng.random()
        value: str | None = json.dumps(fields)
        if bad < 0.06:
            others = [None, "{", "[1]", "7", "{}", json.dumps({**fields, "time": "soon"})]
            others += [json.dumps({**fields, "visitor": ""}), json.dumps({**fields, "time": now + FUTURE_MS + 1})]
            value = rng.choice(others)
        record = Record(int(visitor[1:]) % partitions, visitor, value, now)
        yield [record] * (2 if rng.random() < 0.05 else 1)


def lookup_text() -> str:
    """Return the lookup table of the visitors, as CSV."""
    return "\n".join(["visitor,organisation", *(f"v{n},{organisation(f'v{n}')}" for n in range(2, 61)), ""])


def organisation(visitor: str) -> str:
    return UNKNOWN if visitor == "v1" else f"organisation {int(visitor[1:]) % 4}"


def counted(records: list[Record], rules: VisitRules) -> dict[Key, list[int]]:
    """Return [visits, events, late] by organisation and day."""
    clocks: dict[int, int] = {}
    times: defaultdict[str, set[tuple[int, str]]] = defaultdict(set)
    late: Counter[Key] = Counter()
    for record in records:
        clock = clocks[record.partition] = max(record.stamp, clocks.get(record.partition, 0))
        event = event_of(record)
        if event is None:
            continue
        visitor, time, name = event
        if time < clock - rules.lateness_ms:
            late[organisation(visitor), time // DAY_MS] += 1
        else:
            times[visitor].add((time, name))
    found: defaultdict[Key, list[int]] = defaultdict(lambda: [0, 0, 0])
    for visitor, events in times.items():
        before = None
        for time, _ in sorted(events):
            numbers = found[organisation(visitor), time // DAY_MS]
            numbers[0] += before is None or time - before > rules.gap_ms
            numbers[1] += 1
            before = time
    for key, number in late.items():
        found[key][2] += number
    return dict(found)


def event_of(record: Record) -> tuple[str, int, str] | None:
    """Return (visitor, time, id) of a record; None for a malformed one."""
    try:
        fields = json.loads(record.value or "")
        visitor, time = fields["visitor"], fields["time"]
    except (ValueError, KeyError, TypeError):
        return None
    if not visitor or not isinstance(time, int) or time > record.stamp + FUTURE_MS:
        return None
    return visitor, time, fields["id"]
