"""The check's own reader of records, and its computed sizes, compared with the code that reads and builds batches."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.append_info import AppendError
from kbroker.log.append_validation import BatchRules
from kbroker.log.log_config import LogConfig
from kbroker.log.record_check import may_write_anywhere
from kbroker.long_work import step
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import HEADER_SIZE, NewRecord, build_batch, read_records
from kbroker.schedules.language import fired_headers, read_schedule, size_of_fired_headers
from kbroker.schedules.produce_check import ScheduleCheck, _records
from kbroker.schedules.times import LATEST_MS

RULES = BatchRules("later-0", LogConfig(schedule_enable=True))
DATA = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=20), DATA), max_size=5)
OTHER_HEADERS = st.lists(
    st.tuples(st.text(max_size=20).filter(lambda name: not name.startswith("x-")), DATA), max_size=5
)
"""Headers without those of a schedule. Hypothesis also draws the names that are in the code."""
RECORDS = st.lists(st.tuples(st.integers(0, 2**40), DATA, DATA, HEADERS), min_size=1, max_size=10)


@given(RECORDS)
def test_records_are_read_as_elsewhere(records: list[NewRecord]) -> None:
    batch = build_batch(records)
    found = list(_records(memoryview(batch)[HEADER_SIZE:], len(records)))
    expected = list(read_records(batch, max_bytes=1 << 30))
    assert [(each.place, each.key, each.value_size, each.headers) for each in found] == [
        (each.offset, each.key, -1 if each.value is None else len(each.value), each.headers) for each in expected
    ]


class Topics:
    """A target with a bound on the size of batches."""

    patience_s = 0.0

    def __init__(self, most: int) -> None:
        target: Any = SimpleNamespace(partitions=(0,), configs={})
        self.state: Any = SimpleNamespace(topics={"target": target})
        self._most = most

    def settings_of(self, _topic: Any) -> LogConfig:
        return LogConfig(max_message_bytes=self._most)


def is_taken(record: NewRecord, topic: str, most: int) -> bool:
    check = ScheduleCheck(topic, "target", Topics(most), lambda: 0, asyncio.Semaphore(1))  # type: ignore[arg-type]
    try:
        asyncio.run(check.judge(memoryview(build_batch([record])), RULES, may_write_anywhere))
    except AppendError as error:
        if error.code is not ErrorCode.MESSAGE_TOO_LARGE:
            raise
        return False
    return True


def test_a_missing_right_on_the_target_is_told_with_the_record_and_not_as_one_on_the_topic() -> None:
    check = ScheduleCheck("later", "target", Topics(1000), lambda: 0, asyncio.Semaphore(1))  # type: ignore[arg-type]
    batch = build_batch([(0, b"k", b"v", (("x-delay", b"5"),))] * 2)
    with pytest.raises(AppendError) as refused:
        asyncio.run(check.judge(memoryview(batch), RULES, lambda _topic: False))
    assert refused.value.code is ErrorCode.INVALID_RECORD
    text = "the producer has no right to write to the target target"
    assert refused.value.record_errors == [(0, text), (1, text)]


@given(DATA, st.binary(max_size=300), OTHER_HEADERS, DATA, st.booleans(), st.text("abc", min_size=1, max_size=40))
def test_a_record_is_taken_if_its_delivery_surely_fits(
    key: bytes | None,
    value: bytes,
    others: list[tuple[str, bytes | None]],
    new_key: bytes | None,
    renamed: bool,
    topic: str,
) -> None:
    headers = (*others, ("x-delay", b"5"), *([("x-deliver-key", new_key)] if renamed else []))
    schedule = read_schedule(key, headers, 0, "target")
    assert schedule is not None
    largest = build_batch(
        [(0, schedule.key, value, fired_headers(headers, topic, 2**31 - 1, 2**63 - 1, LATEST_MS))]
    )  # fmt: skip
    record = (0, key, value, headers)
    assert is_taken(record, topic, len(largest) + 16)
    assert not is_taken(record, topic, len(largest) - 1)


@given(HEADERS, st.text("abc", min_size=1, max_size=200))
def test_our_headers_have_no_more_than_they_say(headers: list[tuple[str, bytes | None]], topic: str) -> None:
    before = build_batch([(0, None, None, headers)])
    kept = [each for each in headers if not each[0].startswith("x-")]
    after = build_batch([(0, None, None, fired_headers(kept, topic, 2**31 - 1, 2**63 - 1, LATEST_MS))])
    assert len(after) - len(before) <= size_of_fired_headers(topic)


def test_long_names_count_with_their_bytes() -> None:
    headers = [("é" * 256, b"v"), ("n" * 512, b"w" * 100_000), ("x-delay", b"5")]
    largest = build_batch([(0, b"k" * 5000, b"v", fired_headers(headers, "later", 2**31 - 1, 2**63 - 1, LATEST_MS))])
    record = (0, b"k" * 5000, b"v", headers)
    assert is_taken(record, "later", len(largest) + 16)
    assert not is_taken(record, "later", len(largest) - 1)


@pytest.mark.parametrize(
    ("headers", "most"),
    [
        ([("x-delay", b"5")], 40),
        ([("x-delay", b"5"), *[("h", b"1")] * 900], 1),
        ([("x-delay", b"5"), ("h", b"1" * 1_000_000)], 4),
        ([("x-schedule", b"0 0 29 2 *")], 1),
    ],
    ids=["small", "many headers", "large values", "cron"],
)
def test_costly_records_are_checked_in_small_pieces(
    headers: list[tuple[str, bytes]], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = ScheduleCheck("later", "target", Topics(1 << 30), lambda: 0, asyncio.Semaphore(1))  # type: ignore[arg-type]
    judged = 0
    judge = check._judge

    def counted(*args: Any) -> None:
        nonlocal judged
        judged += 1
        judge(*args)

    monkeypatch.setattr(check, "_judge", counted)
    batch = build_batch([(0, b"k", b"v", headers)] * 20)
    work = check.judge(memoryview(batch), RULES, may_write_anywhere)
    pieces: list[int] = []
    while not step(work):
        pieces.append(judged)
        judged = 0
    assert sum([*pieces, judged]) == 20
    assert max([*pieces, judged]) <= most
