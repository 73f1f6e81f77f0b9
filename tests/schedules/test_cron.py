"""Cron expressions in time zones, compared with a search second by second that knows nothing of calendars."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kbroker.schedules.cron import Cron, ZoneFault
from kbroker.schedules.times import LATEST_MS, TimeFault, read_time
from tests.tries import tries

CHANGES = [
    ("Europe/Berlin", "2026-03-29T01:00:00Z"), ("Europe/Berlin", "2026-10-25T01:00:00Z"),
    ("America/New_York", "2026-03-08T07:00:00Z"), ("America/New_York", "2026-11-01T06:00:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"), ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),  # half an hour
    ("Africa/Cairo", "2026-04-23T22:00:00Z"), ("Africa/Cairo", "2026-10-29T21:00:00Z"),  # at midnight
    ("Pacific/Apia", "2011-12-30T10:00:00Z"),  # a whole day is left out
    ("Asia/Kolkata", "2026-06-01T00:00:00Z"), ("UTC", "2026-03-29T01:00:00Z"),
]  # fmt: skip
"""Zones, and moments at which their clocks change, or do not."""


def at(text: str) -> int:
    return read_time(text)


def times(cron: Cron, after: str, number: int) -> list[str]:
    """Return the next times in the zone, as text."""
    found, ms = [], at(after)
    for _ in range(number):
        following = cron.next_after(ms)
        assert following is not None
        assert following > ms
        ms = following
        found.append(datetime.fromtimestamp(ms / 1000, ZoneInfo(cron.timezone)).strftime("%a %d %H:%M:%S %z"))
    return found


@cache
def clock(zone: str, begin: int, seconds: int) -> list[datetime]:
    """Return what the clock of a zone shows in each of some seconds."""
    tz = ZoneInfo(zone)
    return [datetime.fromtimestamp(each, tz).replace(tzinfo=None, fold=0) for each in range(begin, begin + seconds)]


def naive(expression: str, zone: str, begin: int, seconds: int) -> Iterator[int]:
    """Yield the seconds of a range in which an expression fires: by looking at the clock in each of them.

    The first second shows what the clock showed before the range.
    """
    sim = CronSim(expression, datetime(2000, 1, 1))  # noqa: DTZ001
    fields = expression.split()
    wildcard = fields[-5].startswith("*") or fields[-4].startswith("*")
    shown = clock(zone, begin, seconds)

    def matches(wall: datetime) -> bool:
        return (
            wall.second in sim.seconds and wall.minute in sim.minutes and wall.hour in sim.hours
            and wall.month in sim.months and sim.match_day(wall)
        )  # fmt: skip

    passed = shown[0]
    """The latest time that the clock has shown so far."""
    for number in range(1, seconds):
        wall = shown[number]
        if wildcard:
            if matches(wall):
                yield begin + number
            continue
        left_out = int((wall - shown[number - 1]) / timedelta(seconds=1)) - 1
        if wall > passed and (
            matches(wall) or any(matches(wall - timedelta(seconds=each)) for each in range(1, left_out + 1))
        ):
            yield begin + number
        passed = max(passed, wall)


NUMBERS = {"s": (0, 59), "m": (0, 59), "h": (0, 23)}


def fields(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    return (
        st.just("*")
        | number.map(str)
        | st.lists(number, min_size=2, max_size=3).map(lambda found: ",".join(map(str, found)))
        | st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
        | st.integers(1, high).map(lambda step: f"*/{step}")
        | st.tuples(number, number, st.integers(1, 9)).map(
            lambda three: f"{min(three[:2])}-{max(three[:2])}/{three[2]}"
        )
    )


EXPRESSIONS = st.tuples(
    st.just("0") | fields(0, 59), fields(0, 59), st.just("2") | st.just("0") | fields(0, 23),
    st.just("*") | fields(1, 31), st.just("*") | fields(1, 12), st.just("*") | fields(0, 7),
).map(" ".join)  # fmt: skip
HOURS = 30


@settings(max_examples=tries(200))
@given(EXPRESSIONS, st.sampled_from(CHANGES), st.integers(-3 * 3600, 3 * 3600))
def test_it_fires_when_a_search_second_by_second_says(expression: str, change: tuple[str, str], shift: int) -> None:
    zone, moment = change
    try:
        cron = Cron(expression, zone)
    except TimeFault:
        assume(False)
    begin = at(moment) // 1000 - 8 * 3600
    end = begin + HOURS * 3600
    expected = [each for each in naive(expression, zone, begin, HOURS * 3600) if each > at(moment) // 1000 + shift]
    found: list[int] = []
    ms = at(moment) + shift * 1000
    while len(found) < 300:
        following = cron.next_after(ms)
        assert following is None or following > ms
        if following is None or following >= end * 1000:
            break
        ms = following
        found.append(ms // 1000)
    assert found == expected[:300]


@given(EXPRESSIONS, st.sampled_from([zone for zone, _ in CHANGES]), st.integers(0, LATEST_MS), st.integers(0, 10**10))
def test_later_is_never_earlier(expression: str, zone: str, ms: int, more: int) -> None:
    try:
        cron = Cron(expression, zone)
    except TimeFault:
        assume(False)
    first, second = cron.next_after(ms), cron.next_after(ms + more)
    assert first is None or first > ms
    if first is not None and second is not None:
        assert first <= second
        assert cron.next_after(first - 1) == first  # there is nothing between
    if first is None:
        assert second is None


def test_a_day_whose_clock_is_put_forward() -> None:
    fixed = times(Cron("15,45 2 * * *", "Europe/Berlin"), "2026-03-28T12:00:00Z", 3)
    assert fixed == ["Sun 29 03:00:00 +0200", "Mon 30 02:15:00 +0200", "Mon 30 02:45:00 +0200"]
    running = times(Cron("0 */30 * * * *", "Europe/Berlin"), "2026-03-29T00:00:00Z", 3)
    assert running == ["Sun 29 01:30:00 +0100", "Sun 29 03:00:00 +0200", "Sun 29 03:30:00 +0200"]


def test_a_day_whose_clock_is_put_back() -> None:
    fixed = times(Cron("30 2 * * *", "Europe/Berlin"), "2026-10-24T12:00:00Z", 2)
    assert fixed == ["Sun 25 02:30:00 +0200", "Mon 26 02:30:00 +0100"]
    running = times(Cron("30 * * * *", "Europe/Berlin"), "2026-10-24T23:45:00Z", 3)
    assert running == ["Sun 25 02:30:00 +0200", "Sun 25 02:30:00 +0100", "Sun 25 03:30:00 +0100"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("@hourly", "Thu 01 01:00:00 +0000"), ("@daily", "Fri 02 00:00:00 +0000"),
        ("@Midnight", "Fri 02 00:00:00 +0000"), ("@weekly", "Sun 04 00:00:00 +0000"),
        ("@monthly", "Sun 01 00:00:00 +0000"), ("@yearly", "Fri 01 00:00:00 +0000"),
        ("*/10 * * * * *", "Thu 01 00:00:10 +0000"), ("0 9 * * mon-fri", "Thu 01 09:00:00 +0000"),
        ("0 0 9 L * *", "Sat 31 09:00:00 +0000"), ("0 0 29 2 *", "Tue 29 00:00:00 +0000"),
    ],
)  # fmt: skip
def test_forms(expression: str, expected: str) -> None:
    assert times(Cron(expression), "2026-01-01T00:00:00Z", 1) == [expected]


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("", "is no schedule"), ("* * * *", "is no schedule"), ("* * * * * * *", "is no schedule"),
        ("@never", "is no schedule"), ("@at5", "is no schedule"), ("0 0 * * é", "is no schedule"),
        ("* " * 200, "is no schedule"), ("61 * * * *", "minute"), ("60 * * * * *", "second"), ("* 24 * * *", "hour"),
        ("* * 0 * *", "day"), ("* * * 13 *", "month"), ("* * * * 8", "day-of-week"), ("*/0 * * * *", "minute"),
        ("5-1 * * * *", "minute"), ("1/2/3 * * * *", "minute"),
    ],
)  # fmt: skip
def test_no_cron_expression(expression: str, why: str) -> None:
    with pytest.raises(TimeFault, match=why):
        Cron(expression)


@pytest.mark.parametrize(
    "expression",
    ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "* * */20 * 1L", "*/7 0 30 2 *"],
)
def test_what_never_fires_is_known_at_once(expression: str) -> None:
    began = time.process_time()
    with pytest.raises(TimeFault):
        Cron(expression)
    assert time.process_time() - began < 0.1


def test_a_time_that_no_clock_ever_shows() -> None:
    began = time.process_time()
    assert Cron("* 30 2 * 3 7L", "Europe/Berlin").next_after(at("2026-01-01T00:00:00Z")) == at("2026-03-29T01:00:00Z")
    assert Cron("0 * 2 * 3 7L", "Europe/Berlin").next_after(at("2026-01-01T00:00:00Z")) is None
    assert time.process_time() - began < 0.5


def test_a_day_that_comes_once_in_40_years() -> None:
    assert times(Cron("0 0 * 2 mon#5"), "2072-03-01T00:00:00Z", 1) == ["Mon 29 00:00:00 +0000"]
    assert Cron("0 0 * 2 mon#5").next_after(at("2072-03-01T00:00:00Z")) == at("2112-02-29T00:00:00Z")


def test_the_end_of_time() -> None:
    assert Cron("* * * * *").next_after(LATEST_MS) is None
    assert Cron("0 0 1 1 *", "Asia/Kolkata").next_after(at("9999-06-01T00:00:00Z")) is None
    assert Cron("0 0 1 1 *").next_after(-(10**15)) is not None


@pytest.mark.parametrize(
    "zone",
    ["", "Mars/Olympus", "../../etc/passwd", "/etc/passwd", "Europe", "Europe/", "right/UTC", "posix/UTC", "localtime",
     "a" * 10_000, "Europe/Berlin\0", "UTC ", "tzdata.zi", "zone.tab"],
)  # fmt: skip
def test_no_time_zone(zone: str) -> None:
    with pytest.raises(ZoneFault, match="is no time zone"):
        Cron("* * * * *", zone)


@given(st.text("0123456789*/,-#LW@ abMONTHJ", max_size=40), st.sampled_from(["UTC", "Europe/Berlin"]))
def test_any_text_is_read_or_refused(text: str, zone: str) -> None:
    began = time.process_time()
    try:
        cron = Cron(text, zone)
    except TimeFault:
        pass
    else:
        following = cron.next_after(1_750_000_000_000)
        assert following is None or following > 1_750_000_000_000
    assert time.process_time() - began < 0.5


def test_times_are_in_utc() -> None:
    assert Cron("0 9 * * *", "Asia/Kolkata").next_after(0) == at("1970-01-01T03:30:00Z")
