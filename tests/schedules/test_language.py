"""What the headers of a schedule topic mean, what is refused, and what remains in the delivered record."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.protocol.records import Headers
from kbroker.schedules.cron import Cron
from kbroker.schedules.language import Every, Schedule, ScheduleError, fired_headers, is_ours, read_schedule
from kbroker.schedules.times import LATEST_MS, as_text

NOW = 1_750_000_000_000
NAMES = [
    "x-deliver-at", "x-deliver-after", "x-delay", "x-schedule", "x-schedule-timezone", "x-deliver-to",
    "x-deliver-partition", "x-deliver-key",
]  # fmt: skip


def read(key: bytes | None = b"k", default: str = "target", **headers: str | bytes | None) -> Schedule | None:
    """Read headers whose names have `_` in place of `-`."""
    given_headers = tuple(
        (name.replace("_", "-"), value.encode() if isinstance(value, str) else value) for name, value in headers.items()
    )
    return read_schedule(key, given_headers, NOW, default)


def test_a_time() -> None:
    assert read(x_deliver_at=str(NOW + 5)) == Schedule(NOW + 5, None, "target", None, b"k")
    assert read(x_deliver_at=as_text(NOW + 5)) == Schedule(NOW + 5, None, "target", None, b"k")
    assert read(x_schedule=f"@at {NOW + 5}") == Schedule(NOW + 5, None, "target", None, b"k")
    assert read(x_deliver_after="PT1M") == Schedule(NOW + 60_000, None, "target", None, b"k")
    assert read(x_delay=" 7 ") == Schedule(NOW + 7, None, "target", None, b"k")


@pytest.mark.parametrize("text", ["0", "-1", "1970-01-01T00:00:00Z", "1700-01-01T00:00:00Z", str(NOW - 1)])
def test_a_time_that_has_passed_is_now(text: str) -> None:
    assert read(x_deliver_at=text) == Schedule(NOW, None, "target", None, b"k")


def test_a_place() -> None:
    headers = {"x_delay": "0", "x_deliver_to": "a.b-c_d", "x_deliver_partition": "7", "x_deliver_key": b"\xff"}
    assert read(**headers) == Schedule(NOW, None, "a.b-c_d", 7, b"\xff")  # type: ignore[arg-type]
    assert read(x_delay="0", x_deliver_key=None) == Schedule(NOW, None, "target", None, None)
    assert read(x_delay="0", x_deliver_key=b"") == Schedule(NOW, None, "target", None, b"")
    assert read(None, x_delay="0") == Schedule(NOW, None, "target", None, None)


def test_a_repetition() -> None:
    assert read(x_schedule="@every 5m") == Schedule(NOW + 300_000, Every(NOW + 300_000, 300_000), "target", None, b"k")
    found = read(x_schedule="0 30 9 * * *", x_schedule_timezone="Europe/Berlin")
    assert found is not None
    assert as_text(found.due_ms) == "2025-06-16T07:30:00Z"
    assert isinstance(found.repeat, Cron)
    assert found.repeat.next_after(found.due_ms) == found.due_ms + 86_400_000


def test_a_record_without_our_headers_has_no_schedule() -> None:
    assert read() is None
    assert read(tag="a", x_delayed="1", x_scheduled_by="me", X_Deliver_At="5", x_delay_ms="5") is None


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"x_deliver_to": "t"}, "no time"),
        ({"x_schedule_timezone": "UTC"}, "no time"),
        ({"x_deliver_at": "5", "x_delay": "5"}, "x-delay and x-deliver-at contradict each other"),
        ({"x_delay": "5", "x_deliver_after": "5"}, "contradict each other"),
        ({"x_delay": "5", "x_schedule": "@every 5s"}, "contradict each other"),
        ({"x_deliver_att": "5"}, "'x-deliver-att' is no header of schedule topics"),
        ({"x_schedule_ttl": "5"}, "'x-schedule-ttl' is no header of schedule topics"),
        ({"x_delay": "5", "x_deliver_to": "no topic"}, "x-deliver-to names no topic"),
        ({"x_delay": "5", "x_deliver_to": "a" * 250}, "x-deliver-to names no topic"),
        ({"x_delay": "5", "x_deliver_to": ".."}, "x-deliver-to names no topic"),
        ({"x_delay": "5", "x_deliver_partition": "-1"}, "x-deliver-partition is not the number"),
        ({"x_delay": "5", "x_deliver_partition": "2147483648"}, "x-deliver-partition is not the number"),
        ({"x_delay": "5", "x_deliver_partition": "²"}, "x-deliver-partition is not the number"),
        ({"x_delay": "-5"}, "x-delay is no duration"),
        ({"x_delay": ""}, "x-delay is empty"),
        ({"x_delay": None}, "x-delay has no value"),
        ({"x_delay": b"\xff"}, "x-delay is no text in UTF-8"),
        ({"x_delay": b"\0\0\0\0\0\0\x27\x10"}, "x-delay is no duration"),
        ({"x_delay": "1" * 513}, "x-delay is longer than 512 bytes"),
        ({"x_delay": str(LATEST_MS)}, "x-delay is after the year 9999"),
        ({"x_deliver_at": "292000000-01-01T00:00:00Z"}, "x-deliver-at is no time"),
        ({"x_deliver_at": str(2**63 - 1)}, "x-deliver-at is after the year 9999"),
        ({"x_deliver_at": "5", "x_schedule_timezone": "UTC"}, "only with a cron expression"),
        ({"x_schedule": "@every 5s", "x_schedule_timezone": "UTC"}, "only with a cron expression"),
        ({"x_schedule": "@at"}, "x-schedule is no time"),
        ({"x_schedule": "@every"}, "x-schedule is no duration"),
        ({"x_schedule": "@every 999"}, "x-schedule repeats more often than once a second"),
        ({"x_schedule": "@every 0s"}, "x-schedule repeats more often than once a second"),
        ({"x_schedule": "@every 9999999999d"}, "x-schedule is longer than 9999 years"),
        ({"x_schedule": "0 0 30 2 *"}, "x-schedule never fires"),
        ({"x_schedule": "* * */20 * 1L"}, "x-schedule never fires"),
        ({"x_schedule": "0 9 * * *", "x_schedule_timezone": "Mars"}, "x-schedule-timezone is no time zone"),
    ],
)
def test_wrong_headers(headers: dict[str, str | bytes | None], why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        read(**headers)  # type: ignore[arg-type]


def test_a_header_given_twice_contradicts_itself() -> None:
    with pytest.raises(ScheduleError, match="x-delay is given twice"):
        read_schedule(b"k", (("x-delay", b"5"), ("x-delay", b"5")), NOW, "target")


def test_a_target_is_needed() -> None:
    with pytest.raises(ScheduleError, match="no target"):
        read(default="", x_delay="5")


@pytest.mark.parametrize("schedule", ["@every 5s", "* * * * *", "@daily"])
def test_what_repeats_needs_a_key_to_be_cancelled_by(schedule: str) -> None:
    with pytest.raises(ScheduleError, match="needs a key"):
        read(None, x_schedule=schedule)
    assert read(b"", x_schedule=schedule) is not None


@given(st.integers(0, LATEST_MS), st.integers(1000, 10**12), st.integers(0, LATEST_MS))
def test_a_fixed_interval_keeps_its_grid(first: int, interval: int, ms: int) -> None:
    following = Every(first, interval).next_after(ms)
    if following is None:
        assert ms + interval > LATEST_MS
        return
    assert following > ms
    assert following >= first
    assert not (following - first) % interval
    assert following == first or following - interval <= ms


def test_the_delivered_record_has_the_other_headers_and_where_it_came_from() -> None:
    headers = (
        ("a", b"1"), ("x-delay", b"5"), ("__schedule.at", b"forged"), ("x-deliver-to", b"t"), ("a", None),
        ("x-schedule-timezone", b"UTC"), ("x-scheduled-by", b"me"), ("__schedule.other", b"forged"), ("__dlq.x", b"2"),
    )  # fmt: skip
    assert fired_headers(headers, "later", 3, 17, NOW) == (
        ("a", b"1"), ("a", None), ("x-scheduled-by", b"me"), ("__dlq.x", b"2"), ("__schedule.topic", b"later"),
        ("__schedule.partition", b"3"), ("__schedule.offset", b"17"), ("__schedule.at", b"%d" % NOW),
    )  # fmt: skip


HEADERS = st.lists(
    st.tuples(
        st.sampled_from([*NAMES, "a", "x-deliver-x", "__schedule.at"]) | st.text(max_size=5),
        st.none()
        | st.binary(max_size=20)
        | st.sampled_from([b"5", b"PT5M", b"@every 1s", b"@at 5", b"* * * * *", b"UTC", b"2026-01-01T00:00:00Z"]),
    ),
    max_size=5,
).map(tuple)  # fmt: skip


@given(st.none() | st.binary(max_size=3), HEADERS, st.sampled_from(["", "target"]))
def test_any_headers_are_read_or_refused(key: bytes | None, headers: Headers, default: str) -> None:
    began = time.process_time()
    try:
        found = read_schedule(key, headers, NOW, default)
    except ScheduleError as error:
        assert len(str(error)) < 900  # noqa: PT017 - it may also be read
    else:
        assert (found is None) == (not any(is_ours(name) for name, _ in headers))
        if found is not None:
            assert NOW <= found.due_ms <= LATEST_MS
            assert found.topic
            again = read_schedule(key, headers, NOW, default)
            assert again == found
    assert time.process_time() - began < 0.5


@given(HEADERS)
def test_nothing_of_a_schedule_remains_that_a_next_schedule_topic_would_obey(headers: Headers) -> None:
    fired = fired_headers(headers, "later", 0, 0, 0)
    assert not any(is_ours(name) for name, _ in fired)
    assert [name for name, _ in fired].count("__schedule.at") == 1
