"""The page of a schedule topic: what is pending and what was refused, and cancelling one record."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from kbroker.console.pages import schedules
from tests.console.visitor import Visitor

PAGE = "/schedules?topic=reminders"
PATIENCE_S = 40.0


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_is_pending_is_shown_as_it_is_due(web: Visitor) -> None:
    page = web.page(PAGE)
    assert "Schedules" in web.page("/topics/reminders").words
    assert "/schedules?topic=reminders" in web.page("/topics/reminders").text
    assert "/schedules" not in web.page("/topics/orders").text
    assert "0:1 2200-01-01 00:00:00.000 pending order-17 audit-log" in page.words
    assert "0 0 9 * * mon-fri Europe/Vienna" in page.words
    assert "<script>document" not in page.text


def test_what_its_target_refused_is_shown_with_the_error(web: Visitor) -> None:
    until(lambda: all(text in web.page(f"{PAGE}&failed=1").words for text in ("MESSAGE_TOO_LARGE", "lost-1")))
    words = web.page(f"{PAGE}&failed=1").words
    assert "late the target closed does not exist lost-1" in words
    assert "failed MESSAGE_TOO_LARGE from narrow-0 large" in words
    assert "order-17" not in words


def test_one_record_is_cancelled(web: Visitor) -> None:
    web.do("topic-create", name="later", configs="schedule.enable=true\nmessage.timestamp.type=LogAppendTime")
    for key in ("a", "b", "c"):
        web.do("produce", topic="later", key=key, value="v", headers="x-deliver-at=7258118400000\nx-deliver-to=orders")
    web.do("produce", topic="later", value="v", headers="x-deliver-at=7258118400000\nx-deliver-to=orders")
    page = web.page("/schedules/cancel?topic=later&partition=0&offset=1")
    assert "2200-01-01 00:00:00.000 UTC" in page.words
    fields = {"topic": "later", "partition": "0", "offset": "1"}
    assert "type later to confirm" in web.refused("schedule-cancel", **fields, confirm="")
    done = web.do("schedule-cancel", **fields, confirm="later")
    assert "The record at offset 1 of partition 0 is cancelled." in done.words
    assert "is not pending any more" in web.refused("schedule-cancel", **fields, confirm="later")
    assert web.get("/schedules/cancel?topic=later&partition=0&offset=1").status == 404
    rest = web.page("/schedules?topic=later")
    assert "Pending 3" in rest.words
    assert "A record without a key cannot be cancelled" in web.page(
        "/schedules/cancel?topic=later&partition=0&offset=4"
    ).words  # fmt: skip
    assert "cannot be cancelled" in web.refused("schedule-cancel", **{**fields, "offset": "4"}, confirm="later")


def test_a_page_that_takes_too_long_says_so(web: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_MOST_SECONDS", 0.0)
    assert "could not read the topic to its end in time" in web.page(PAGE).words
    fields = {"topic": "reminders", "partition": "0", "offset": "1", "confirm": "reminders"}
    assert "use kbroker schedule cancel" in web.refused("schedule-cancel", **fields)


@pytest.mark.parametrize(
    ("topic", "why"), [("orders", "topic orders is no schedule topic"), ("nosuch", "there is no topic nosuch")]
)
def test_other_topics_are_no_schedule_topics(web: Visitor, topic: str, why: str) -> None:
    found = web.get(f"/schedules?topic={topic}")
    assert found.status == 404
    assert "<h1>Not found</h1>" in found.text
    assert why in found.words
