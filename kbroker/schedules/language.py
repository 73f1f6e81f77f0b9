"""The headers of a schedule topic's records: the time, the repetition and the target of a record.

Owns the names of the headers, their meaning, the contradictions between them, and the headers of the delivered record.
Never reads a clock, and never knows which topics exist. All times are in ms since 1970 (UTC).

    x-deliver-at         a time: ms, or RFC 3339
    x-deliver-after      a duration from the append: ms, ISO 8601 (PT5M), or a short form (1h30m); also named x-delay
    x-schedule           @at TIME, @every DURATION, or a cron expression of 6 or 5 fields
    x-schedule-timezone  the time zone of the cron expression; UTC if absent
    x-deliver-to         the target topic; the topic's `schedule.target.topic` if absent
    x-deliver-partition  the partition of the target
    x-deliver-key        the key of the delivered record; the record's own key if absent
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kbroker.protocol.records import Headers
from kbroker.schedules.cron import Cron, ZoneFault, cron
from kbroker.schedules.times import LATEST_MS, TimeFault, read_duration, read_time, shown
from kbroker.topic_names import topic_name_fault

AT: Final = "x-deliver-at"
AFTER: Final = "x-deliver-after"
DELAY: Final = "x-delay"
SCHEDULE: Final = "x-schedule"
TIMEZONE: Final = "x-schedule-timezone"
TO: Final = "x-deliver-to"
PARTITION: Final = "x-deliver-partition"
KEY: Final = "x-deliver-key"
TIMES: Final = frozenset({AT, AFTER, DELAY, SCHEDULE})
"""The headers that name a time; a record has exactly one."""
_OURS: Final = TIMES | {TIMEZONE, TO, PARTITION, KEY}
_RESERVED: Final = ("x-deliver-", "x-schedule-")
"""The prefixes of names that only schedule topics use. An unknown name with such a prefix is most likely misspelt."""
FIRED_PREFIX: Final = "__schedule."
"""The prefix of the headers that only the broker adds."""
_REMOVED: Final = (*_RESERVED, FIRED_PREFIX)

SHORTEST_REPEAT_MS: Final = 1000
_MOST_PARTITION: Final = 2**31 - 1
_LONGEST_VALUE: Final = 512


class ScheduleError(Exception):
    """The headers of a record are wrong; the message names the header."""


class Every(NamedTuple):
    """Fires at `first_ms`, and then every `interval_ms`."""

    first_ms: int
    interval_ms: int

    def next_after(self, ms: int) -> int | None:
        """Return the first time after `ms` at which the schedule fires; None after the year 9999."""
        if ms < self.first_ms:
            return self.first_ms
        found = ms + self.interval_ms - (ms - self.first_ms) % self.interval_ms
        return found if found <= LATEST_MS else None


Repeat = Every | Cron
"""The repetition of a record. `next_after(ms)` returns the next time after `ms`, or None."""


class Schedule(NamedTuple):
    """The time at which a record fires, its repetition, and its target."""

    due_ms: int
    """The first time at which the record fires; at least the time of the record's append."""
    repeat: Repeat | None
    topic: str
    """The target."""
    partition: int | None
    """The target's partition; None if the key decides."""
    key: bytes | None
    """The key of the delivered record."""


def is_ours(name: str) -> bool:
    """Whether a header has a meaning for schedule topics."""
    return name in _OURS or name.startswith(_RESERVED)


def read_schedule(key: bytes | None, headers: Headers, stamp_ms: int, default_target: str) -> Schedule | None:
    """Return the schedule in a record's headers; None if the record has no header of a schedule.

    Raises ScheduleError. `stamp_ms` is the time of the record's append; `default_target` is the topic's
    `schedule.target.topic`, or "". A record without a value cancels the schedule with its key; this function does not
    decide that.
    """
    found: dict[str, bytes | None] = {}
    for name, value in headers:
        if name in _OURS:
            if name in found:
                raise ScheduleError(f"{name} is given twice")
            found[name] = value
        elif name.startswith(_RESERVED):
            raise ScheduleError(f"{shown(name)} is no header of schedule topics")
    if not found:
        return None
    named = TIMES & found.keys()
    if len(named) != 1:
        raise ScheduleError(_not_one_time(named))
    (name,) = named
    try:
        due_ms, repeat = _when(name, _text(name, found[name]), found, stamp_ms)
    except TimeFault as fault:
        raise ScheduleError(f"{name} {fault}") from None
    if repeat is not None and key is None:
        raise ScheduleError(f"{name} repeats, so the record needs a key: a record with the same key cancels it")
    topic = _target(found, default_target)
    partition = _partition(_text(PARTITION, found[PARTITION])) if PARTITION in found else None
    return Schedule(max(due_ms, stamp_ms), repeat, topic, partition, found.get(KEY, key))


def _not_one_time(named: frozenset[str]) -> str:
    if not named:
        return f"no time: a record of a schedule topic needs one of {AT}, {AFTER}, {SCHEDULE}"
    return f"{' and '.join(sorted(named))} contradict each other: a record has one time"


def _when(name: str, text: str, found: dict[str, bytes | None], stamp_ms: int) -> tuple[int, Repeat | None]:
    """Return the time at which a record fires, and its repetition. Raises TimeFault, ScheduleError."""
    command, _, rest = text.partition(" ")
    if name == SCHEDULE and command not in ("@at", "@every"):
        zone = _text(TIMEZONE, found[TIMEZONE]) if TIMEZONE in found else "UTC"
        return next_of_cron(text, zone, stamp_ms)
    if TIMEZONE in found:
        raise ScheduleError(f"{TIMEZONE} has a meaning only with a cron expression in {SCHEDULE}")
    if name == AT:
        return read_time(text), None
    if name == SCHEDULE and command == "@at":
        return read_time(rest.strip()), None
    ms = read_duration(rest.strip() if name == SCHEDULE else text)
    if stamp_ms + ms > LATEST_MS:
        raise TimeFault(f"is after the year 9999: {shown(text)}")
    if name != SCHEDULE:
        return stamp_ms + ms, None
    if ms < SHORTEST_REPEAT_MS:
        raise TimeFault(f"repeats more often than once a second: {shown(text)}")
    return stamp_ms + ms, Every(stamp_ms + ms, ms)


def next_of_cron(expression: str, timezone: str, after_ms: int) -> tuple[int, Cron]:
    """Return the first time after `after_ms` at which an expression fires, and the expression.

    Raises TimeFault, ScheduleError.
    """
    try:
        repeat = cron(expression, timezone)
    except ZoneFault as fault:
        raise ScheduleError(f"{TIMEZONE} {fault}") from None
    due_ms = repeat.next_after(after_ms)
    if due_ms is None:
        raise TimeFault(f"never fires: {shown(expression)}")
    return due_ms, repeat


def _text(name: str, value: bytes | None) -> str:
    """Return a header's value as text, without blanks around it."""
    if value is None:
        raise ScheduleError(f"{name} has no value")
    if len(value) > _LONGEST_VALUE:
        raise ScheduleError(f"{name} is longer than {_LONGEST_VALUE} bytes")
    try:
        text = value.decode().strip()
    except UnicodeDecodeError:
        raise ScheduleError(f"{name} is no text in UTF-8; write times and numbers as text") from None
    if not text:
        raise ScheduleError(f"{name} is empty")
    return text


def _target(found: dict[str, bytes | None], default: str) -> str:
    if TO not in found:
        if not default:
            raise ScheduleError(f"no target: neither {TO} nor the topic's schedule.target.topic names one")
        return default
    topic = _text(TO, found[TO])
    fault = topic_name_fault(topic)
    if fault is not None:
        raise ScheduleError(f"{TO} names no topic: {shown(topic)}")
    return topic


def _partition(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= len(str(_MOST_PARTITION)):
        number = int(text)
        if number <= _MOST_PARTITION:
            return number
    raise ScheduleError(f"{PARTITION} is not the number of a partition: {shown(text)}")


def fired_headers(
    headers: Iterable[tuple[str, bytes | None]], topic: str, partition: int, offset: int, at_ms: int
) -> Headers:
    """Return the headers of the delivered record: some of the record's headers, and new headers about the schedule.

    The new headers are the topic, the partition and the offset of the schedule, and `at_ms`, at which the record was
    due. Headers of schedules are removed, and so are headers that look like headers of the broker.
    """
    return (
        *((name, value) for name, value in headers if not (name.startswith(_REMOVED) or name in _OURS)),
        (f"{FIRED_PREFIX}topic", topic.encode()),
        (f"{FIRED_PREFIX}partition", b"%d" % partition),
        (f"{FIRED_PREFIX}offset", b"%d" % offset),
        (f"{FIRED_PREFIX}at", b"%d" % at_ms),
    )


def size_of_fired_headers(topic: str) -> int:
    """Return the maximum number of bytes by which `fired_headers` makes a record larger."""
    names = sum(len(FIRED_PREFIX) + len(name) for name in ("topic", "partition", "offset", "at"))
    return names + len(topic) + len(str(_MOST_PARTITION)) + len(str(2**63)) + len(str(LATEST_MS)) + 4 * 2 * 2 + 4
