"""Times and durations as text: forms, edges, and that no text takes long or raises anything else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.schedules.times import LATEST_MS, TimeFault, as_text, read_duration, read_time, shown

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0), ("-5", -5), ("+7", 7), ("1700000000000", 1_700_000_000_000), (str(LATEST_MS), LATEST_MS),
        ("1970-01-01T00:00:00Z", 0), ("1970-01-01t00:00:01z", 1000), ("1970-01-01 00:00:01Z", 1000),
        ("1970-01-01T01:00:00+01:00", 0), ("1969-12-31T23:30:00-00:30", 0), ("1960-01-01T00:00:00Z", -315_619_200_000),
        ("1970-01-01T00:00:00.5Z", 500), ("1970-01-01T00:00:00.0001Z", 1), ("1970-01-01T00:00:00.1000000000Z", 100),
        ("9999-12-31T23:59:59.999Z", LATEST_MS), ("2028-02-29T00:00:00Z", 1_835_395_200_000),
        ("1970-01-01T00:00:00.999999999999Z", 1000),
    ],
)  # fmt: skip
def test_a_time(text: str, ms: int) -> None:
    assert read_time(text) == ms


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no time"), ("tomorrow", "is no time"), ("1970-01-01", "is no time"), ("1e9", "is no time"),
        ("٣", "is no time"), ("0x10", "is no time"), ("1" * 129, "is no time"), ("1970-01-01T00:00Z", "is no time"),
        ("2026-02-29T00:00:00Z", "no such time"), ("2026-01-01T24:00:00Z", "no such time"),
        ("2026-01-01T00:00:60Z", "no such time"), ("2026-01-01T00:00:00+25:00", "no such time"),
        ("0000-01-01T00:00:00Z", "no such time"), ("2026-01-01T00:00:00", "no offset"),
        (str(LATEST_MS + 1), "after the year 9999"), (str(292_000_000 * 365 * DAY_MS), "after the year 9999"),
        ("9" * 128, "after the year 9999"), ("9999-12-31T23:59:59.9999Z", "after the year 9999"),
        ("9999-12-31T23:59:59-01:00", "after the year 9999"),
    ],
)  # fmt: skip
def test_no_time(text: str, why: str) -> None:
    with pytest.raises(TimeFault, match=why):
        read_time(text)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0), ("250", 250), ("PT5M", 300_000), ("pt5m", 300_000), ("P1D", DAY_MS), ("P2W", 14 * DAY_MS),
        ("P1DT12H30M5.25S", DAY_MS + 45_005_250), ("PT0.0001S", 1), ("PT1,5S", 1500), ("PT36H", 129_600_000),
        ("5m", 300_000), ("1h30m", 5_400_000), ("1.5h", 5_400_000), ("90s", 90_000), ("15ms", 15), ("2d", 2 * DAY_MS),
        ("1d1h1m1s1ms", DAY_MS + 3_661_001), ("0.5ms", 1),
    ],
)  # fmt: skip
def test_a_duration(text: str, ms: int) -> None:
    assert read_duration(text) == ms


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no duration"), ("-5", "is no duration"), ("5 m", "is no duration"), ("m", "is no duration"),
        ("P", "is no duration"), ("PT", "is no duration"), ("P1DT", "is no duration"), ("-PT5M", "is no duration"),
        ("PT1.5M", "is no duration"), ("1h-5m", "is no duration"), ("soon", "is no duration"), ("5M", "is no duration"),
        ("P1Y", "years or months"), ("P1M", "years or months"), ("P1Y2DT3H", "years or months"),
        ("9" * 100, "longer than 9999 years"), ("P99999999D", "longer than 9999 years"),
    ],
)  # fmt: skip
def test_no_duration(text: str, why: str) -> None:
    with pytest.raises(TimeFault, match=why):
        read_duration(text)


@given(st.integers(0, LATEST_MS))
def test_a_written_time_is_read_again(ms: int) -> None:
    assert read_time(as_text(ms)) == ms
    assert read_time(str(ms)) == ms


@given(st.datetimes(datetime(1900, 1, 1), datetime(9998, 1, 1)), st.integers(-1439, 1439))  # noqa: DTZ001
def test_times_are_those_of_the_standard_library(moment: datetime, minutes: int) -> None:
    moment = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert read_time(moment.isoformat()) == -((EPOCH - moment) // timedelta(milliseconds=1))  # rounded up


@given(st.text(max_size=200) | st.text("0123456789PTWDHMSZpt+-:.,ms ", max_size=140))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (read_time, read_duration):
        try:
            assert read(text) <= LATEST_MS
        except TimeFault as fault:
            assert len(str(fault)) < 900  # noqa: PT017 - it may also be read
            assert str(fault).isascii()  # noqa: PT017


def test_a_text_of_a_client_is_shown_short_and_escaped() -> None:
    assert shown("a\n\x1b[31m") == r"'a\n\x1b[31m'"
    assert len(shown("x" * 10_000)) == 65
