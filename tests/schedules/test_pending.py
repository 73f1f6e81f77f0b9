"""The replay of a log for verbs and the console: what replaces, cancels, delivers and brings back."""

from __future__ import annotations

from kbroker.schedules.marks import Begin, Done, Due, Intent, Pause
from kbroker.schedules.pending import Failure, PendingRecords

NOW = 1_750_000_000_000


def put(pending: PendingRecords, offset: int, key: bytes | None = None, ms: int = 1000, **headers: str) -> None:
    named = tuple((name.replace("_", "-"), value.encode()) for name, value in headers.items())
    pending.take(offset, NOW, key, b"v", named or (("x-delay", b"%d" % ms),))


def cancel(pending: PendingRecords, offset: int, key: bytes) -> None:
    pending.take(offset, NOW, key, None, ())


def intend(pending: PendingRecords, offset: int, *records: int) -> None:
    dues = tuple(Due(each, pending.due.get(each, 0)) for each in records)
    pending.mark(offset, Intent(7, 0, 0, b"\0" * 16, "target", 0, dues))


def begun() -> PendingRecords:
    pending = PendingRecords("elsewhere")
    pending.mark(0, Begin("target", is_change=True))
    return pending


def test_a_delivered_record_is_gone() -> None:
    pending = begun()
    put(pending, 1, b"a")
    put(pending, 2, None)
    assert pending.due == {1: NOW + 1000, 2: NOW + 1000}
    intend(pending, 3, 1, 2)
    assert (pending.due, pending.delivering) == ({}, {1: NOW + 1000, 2: NOW + 1000})
    pending.mark(4, Done(3))
    assert (pending.due, pending.delivering, pending.delivered, pending.find(b"a")) == ({}, {}, 2, None)


def test_a_newer_record_replaces_and_a_tombstone_cancels() -> None:
    pending = begun()
    put(pending, 1, b"a")
    put(pending, 2, b"a", 5)
    put(pending, 3, b"b")
    cancel(pending, 4, b"b")
    cancel(pending, 5, b"unknown")
    assert pending.due == {2: NOW + 5}
    assert (pending.find(b"a"), pending.find(b"b")) == (2, None)


def test_what_repeats_comes_back_unless_it_was_replaced() -> None:
    pending = begun()
    put(pending, 1, b"a", x_schedule="@every 5s")
    intend(pending, 2, 1)
    pending.mark(3, Done(2, following=(Due(1, NOW + 10_000),)))
    assert (pending.due, pending.find(b"a")) == ({1: NOW + 10_000}, 1)
    intend(pending, 4, 1)
    assert pending.find(b"a") == 1  # it can be cancelled now
    put(pending, 5, b"a")
    pending.mark(6, Done(4, following=(Due(1, NOW + 15_000),)))
    assert (pending.due, pending.delivering, pending.find(b"a")) == ({5: NOW + 1000}, {}, 5)
    intend(pending, 7, 5)
    cancel(pending, 8, b"a")
    pending.mark(9, Done(7, error_code=10, retry_ms=NOW + 5, message="too large"))
    assert (pending.due, pending.failures, pending.find(b"a")) == ({}, {}, None)


def test_what_its_target_refused_stays_with_the_error() -> None:
    pending = begun()
    put(pending, 1, b"a")
    intend(pending, 2, 1)
    pending.mark(3, Done(2, error_code=3, retry_ms=NOW + 2000, message="gone"))
    assert pending.due == {1: NOW + 1000}
    assert pending.failures == {1: Failure(3, "gone", NOW + 2000)}
    intend(pending, 4, 1)
    assert not pending.failures
    pending.mark(5, Done(4))
    assert (pending.due, pending.delivered) == ({}, 1)


def test_a_batch_that_is_tried_again_in_parts_has_not_failed() -> None:
    pending = begun()
    put(pending, 1, b"a")
    put(pending, 2, b"b")
    intend(pending, 3, 1, 2)
    pending.mark(4, Done(3, error_code=10, message="too large"))
    assert (sorted(pending.due), pending.failures) == ([1, 2], {})


def test_records_count_while_the_topic_is_a_schedule_topic() -> None:
    pending = PendingRecords("elsewhere")
    put(pending, 0, b"before")
    pending.mark(1, Begin("target", is_change=True))
    put(pending, 2, b"a")
    pending.mark(3, Pause())
    put(pending, 4, b"while it was off")
    cancel(pending, 5, b"a")
    pending.mark(6, Begin("other", is_change=True))
    put(pending, 7, b"b")
    assert pending.due == {2: NOW + 1000, 7: NOW + 1000}
    assert [pending.target_of(each) for each in (0, 2, 4, 7)] == ["elsewhere", "target", "target", "other"]


def test_a_log_whose_beginning_was_deleted() -> None:
    pending = PendingRecords("target")
    put(pending, 10, b"a")
    pending.mark(11, Done(5))  # its intent is gone
    pending.mark(12, Begin("target"))
    intend(pending, 13, 7, 10)
    pending.mark(14, Done(13, following=(Due(7, NOW),)))
    assert (pending.due, pending.delivering) == ({}, {})


def test_wrong_records_are_counted() -> None:
    pending = begun()
    pending.take(1, NOW, b"a", b"v", ())
    pending.take(2, NOW, b"a", b"v", (("x-delay", b"soon"),))
    assert (pending.wrong, pending.due) == (2, {})
