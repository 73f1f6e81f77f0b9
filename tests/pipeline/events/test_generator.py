"""The invented website: properties of its events, for any options."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.events.generator import Arrival, EventOptions, EventSource
from kbroker.pipeline.events.tables import (
    BREAK_MS,
    DAY_MS,
    HOUR_MS,
    LATE_MS,
    MINUTE_MS,
    REST_MS,
    TOP_DELAY_MS,
    busyness,
)
from tests.tries import tries

START = 1_795_219_200_000  # 2026-11-21, UTC
TYPES = {"page_view", "search", "add_to_cart", "purchase"}

some_options = st.builds(
    EventOptions,
    start_ms=st.integers(DAY_MS, 4_000_000_000_000),
    seed=st.integers(),
    rate=st.floats(0.01, 50),
    count=st.integers(0, 3000),
    late=st.floats(0, 0.3),
    duplicates=st.floats(0, 0.3),
    malformed=st.floats(0, 0.3),
    daily=st.booleans(),
    ongoing=st.booleans(),
)


class Day(NamedTuple):
    source: EventSource
    records: list[Arrival]
    events: list[Event]


class Event(NamedTuple):
    arrival: int
    time: int
    visitor: str
    id: str
    record: Arrival

    @property
    def visit(self) -> str:
        return self.id.rpartition("-")[0]


def time_ms(text: str) -> int:
    return round(datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC).timestamp() * 1000)


def usable(record: Arrival) -> Event | None:
    """Read a record as a job does, without knowledge of the source; None for a malformed record."""
    arrival, key, value = record
    try:
        found: Any = json.loads(value)
        time = time_ms(found["time"])
        visitor = found["visitor"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(visitor, str) or time > arrival + HOUR_MS:
        return None
    assert key == visitor.encode()
    assert found["type"] in TYPES
    assert found["url"].startswith("/")
    assert found["referrer"] is None or found["referrer"].startswith("https://")
    assert list(found) == ["id", "visitor", "time", "type", "url", "referrer"]
    return Event(arrival, time, visitor, found["id"], record)


def a_day(**other: Any) -> EventOptions:
    return replace(EventOptions(START, seed=7, rate=0.5, days=1.0), **other)


@pytest.fixture(scope="module")
def day() -> Day:
    source = EventSource(a_day())
    records = list(source)
    return Day(source, records, first_ones(records))


def first_ones(records: list[Arrival]) -> list[Event]:
    found: dict[str, Event] = {}
    for event in filter(None, map(usable, records)):
        found.setdefault(event.id, event)
    return list(found.values())


@settings(max_examples=tries(40))
@given(some_options)
def test_any_options_give_records_in_order_of_arrival(options: EventOptions) -> None:
    source = EventSource(options)
    records, counts, known = list(source), source.counts, {}
    assert len(records) == counts.records == options.count
    assert all(a[0] <= b[0] for a, b in pairwise(records))
    assert all(arrival >= options.start_ms for arrival, _, _ in records)
    duplicates = late = 0
    for event in filter(None, map(usable, records)):
        assert event.time < event.arrival
        if event.id in known:
            duplicates += 1
            assert event.record[1:] == known[event.id].record[1:]
            continue
        known[event.id] = event
        late += event.arrival - event.time > TOP_DELAY_MS
    assert (len(known), late, duplicates) == (counts.events, counts.late, counts.duplicates)


@pytest.mark.long
@settings(max_examples=tries(15))
@given(some_options)
def test_same_options_same_bytes(options: EventOptions) -> None:
    assert list(EventSource(options)) == list(EventSource(options))


def test_another_seed_or_start_shares_no_id() -> None:
    ids = [
        {e.id for e in first_ones(list(EventSource(options)))}
        for options in (a_day(count=500), a_day(count=500, seed=8), a_day(count=500, start_ms=START + DAY_MS))
    ]
    assert not ids[0] & ids[1]
    assert not ids[0] & ids[2]


@pytest.mark.long
def test_a_count_is_the_beginning_of_the_whole(day: Day) -> None:
    assert list(EventSource(a_day(count=1000))) == day.records[:1000]


def test_a_span_holds_its_events_and_no_others(day: Day) -> None:
    source, records, events = day
    assert all(START <= event.time < START + DAY_MS for event in events)
    assert max(event.arrival for event in events) >= START + DAY_MS  # late ones arrive after the span
    assert 0.85 * 0.5 * DAY_MS / 1000 < len(records) < 1.15 * 0.5 * DAY_MS / 1000
    assert source.waiting == 0 or all(entry[0] >= START + DAY_MS for entry in source._visits)


@pytest.mark.long
def test_shares_are_what_was_asked_for() -> None:
    source = EventSource(
        EventOptions(START, rate=20, count=60_000, late=0.1, duplicates=0.2, malformed=0.05, ongoing=True, daily=False)
    )
    for _ in source:
        pass
    counts = source.counts
    assert 0.085 < counts.late / counts.records < 0.115
    assert 0.15 < counts.duplicates / counts.records < 0.22  # the latest of them have not arrived
    assert 0.045 < counts.malformed / counts.records < 0.055


def test_more_duplicates_than_events() -> None:
    source = EventSource(a_day(rate=0.2, duplicates=0.8, late=0.0, malformed=0.1))
    for _ in source:
        pass
    assert 0.78 < source.counts.duplicates / source.counts.records < 0.82
    assert 0.09 < source.counts.malformed / source.counts.records < 0.11


@pytest.mark.long
def test_no_shares_no_faults() -> None:
    source = EventSource(a_day(rate=0.2, late=0.0, duplicates=0.0, malformed=0.0))
    assert all(usable(record) for record in source)
    assert source.counts.late == source.counts.duplicates == source.counts.malformed == 0


def test_late_events_are_within_ten_minutes_and_beyond(day: Day) -> None:
    delays = [event.arrival - event.time for event in day.events]
    late = [delay for delay in delays if delay > TOP_DELAY_MS]
    assert all(LATE_MS[0][0] <= delay <= LATE_MS[1][1] for delay in late)
    assert 0.4 < sum(delay <= 10 * MINUTE_MS for delay in late) / len(late) < 0.6
    assert all(delay > 0 for delay in delays)


def test_half_an_hour_divides_visits(day: Day) -> None:
    """A job that divides by a gap of 30 minutes finds the visits that were simulated."""
    by_visitor: dict[str, list[Event]] = defaultdict(list)
    for event in day.events:
        by_visitor[event.visitor].append(event)
    within, between = [], []
    for events in by_visitor.values():
        events.sort(key=lambda event: event.time)
        for one, other in pairwise(events):
            (within if one.visit == other.visit else between).append(other.time - one.time)
    assert max(within) < BREAK_MS < min(between)
    assert any(gap > BREAK_MS - MINUTE_MS for gap in within)
    assert any(gap < BREAK_MS + MINUTE_MS for gap in between)
    near = BREAK_MS + 2 * MINUTE_MS
    assert all(gap <= near or gap >= REST_MS[0] for gap in between)
    visits = Counter(event.visit for events in by_visitor.values() for event in events)
    assert 5 < sum(visits.values()) / len(visits) < 12


def test_few_visitors_come_often(day: Day) -> None:
    source, _, events = day
    ranks = Counter(int(event.visitor.removeprefix("v")) for event in events)
    assert all(1 <= rank <= source.visitors for rank in ranks)
    top = sum(number for rank, number in ranks.items() if rank <= source.visitors // 10)
    assert len(events) * 0.4 < top < len(events) * 0.8
    first = sum(number for rank, number in ranks.items() if rank <= source.visitors // 100)
    assert first > len(events) / 20


def test_nights_are_quiet(day: Day) -> None:
    hours = Counter((event.time - START) // HOUR_MS for event in day.events)
    assert 5 * sum(hours[hour] for hour in (2, 3, 4)) < sum(hours[hour] for hour in (18, 19, 20))
    assert sum(busyness(START + minute * MINUTE_MS) for minute in range(1440)) / 1440 == pytest.approx(1, abs=1e-3)


@pytest.mark.long
def test_there_is_no_slow_start() -> None:
    source = EventSource(EventOptions(START, rate=100, count=6000, daily=False, ongoing=True, late=0.1))
    arrivals = [arrival for arrival, _, _ in source]
    assert 50_000 < arrivals[-1] - START < 70_000
    assert 0.07 < source.counts.late / 6000 < 0.13


def test_every_form_of_malformed_record() -> None:
    forms: Counter[str] = Counter()
    for arrival, key, value in EventSource(a_day(rate=0.1, malformed=0.3)):
        if usable((arrival, key, value)):
            continue
        try:
            found = json.loads(value)
        except ValueError:
            forms["no JSON"] += 1
            continue
        if not isinstance(found, dict):
            forms["no object"] += 1
        elif not found.get("visitor"):
            forms["no visitor"] += 1
            assert key is None
        else:
            try:
                forms["ahead"] += time_ms(found["time"]) > arrival + HOUR_MS
            except (ValueError, TypeError):
                forms["no time"] += 1
    assert set(forms) == {"no JSON", "no object", "no visitor", "no time", "ahead"}
    assert min(forms.values()) > 20


@pytest.mark.long
def test_what_waits_does_not_grow_with_the_events() -> None:
    """Over ten days, the memory use is the same as over the first two."""
    source = EventSource(EventOptions(START, rate=0.2, days=10, daily=False, visitors=2_000))
    most = [0] * 10
    for number, (arrival, _, _) in enumerate(source):
        if number % 500 == 0:
            day = min((arrival - START) // DAY_MS, 9)
            most[day] = max(most[day], source.waiting + len(source._free_at))
    assert max(most[2:]) < 1.3 * max(most[:2])
    assert max(most) < 2_000


def test_records_have_the_size_of_such_events(day: Day) -> None:
    sizes = [len(event.record[2]) for event in day.events]
    assert 180 < sum(sizes) / len(sizes) < 280
    assert max(sizes) < 350


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (EventOptions(START, late=1.0), "share of late"),
        (EventOptions(START, late=0.5, duplicates=0.5), "come to 1 or more"),
        (EventOptions(START, rate=0.0), "the rate is"),
        (EventOptions(START, rate=float("nan")), "the rate is"),
        (EventOptions(START, rate=1e12), "too many"),
        (EventOptions(START, rate=10, visitors=10), "are needed"),
        (EventOptions(START, visitors=0), "visitors"),
        (EventOptions(START, days=-1), "the days"),
        (EventOptions(START, days=float("inf")), "the days"),
        (EventOptions(START, count=-1), "the count"),
        (EventOptions(-1), "1970"),
        (EventOptions(START, days=1e9), "9999"),
    ],
)
def test_options_that_make_no_sense(options: EventOptions, line: str) -> None:
    with pytest.raises(PipelineError, match=line):
        EventSource(options)


def test_as_many_visitors_as_it_takes_do() -> None:
    with pytest.raises(PipelineError) as refused:
        EventSource(EventOptions(START, rate=1, visitors=1))
    least = int(str(refused.value).rpartition("at least ")[2].split()[0].replace(",", ""))
    assert len(list(EventSource(EventOptions(START, rate=1, visitors=least, count=2000)))) == 2000
