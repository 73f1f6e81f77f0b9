"""Expressions of cron in a time zone, and the next time at which they fire.

Owns the forms (6 fields with seconds as in NATS, 5 fields as in cron, and names like @daily), the bounds of the search,
and the rules for clocks that are put forward or back. The library `cronsim` parses the fields and searches the calendar
without a time zone. Never reads a clock. All times are in ms since 1970 (UTC). When clocks are put forward, some times
of the day are skipped. When clocks are put back, some times occur twice. An expression for a fixed time of the day
fires at the change if its time is skipped, and fires only at the first of two equal times. An expression whose minutes
or hours begin with `*` follows the local clock: it does not fire at a skipped time, and fires twice at a time that
occurs twice. Debian's cron has the same rules.
"""

from __future__ import annotations

import re
from calendar import isleap
from copy import copy
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from kbroker.schedules.times import LATEST_MS, TimeFault, shown

LONGEST: Final = 256
"""The maximum number of characters of an expression."""
_NAMES: Final = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}
_FIELDS: Final = re.compile(r"[0-9A-Za-z*/,#\-]+", re.ASCII)
_ZONE: Final = re.compile(r"[A-Za-z0-9_+\-]{1,32}(?:/[A-Za-z0-9_+\-]{1,32}){0,2}", re.ASCII)
_NO_ZONES: Final = ("posix/", "right/", "localtime", "posixrules")
"""Files in a system's time zone folder that are not time zones of IANA. The files in `right/` count leap seconds."""
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the calendar is searched without a time zone
_SECOND: Final = timedelta(seconds=1)
_LAST_SECOND: Final = LATEST_MS // 1000
_SAMPLE_YEARS: Final = (2001, 2002, 2003, 2009, 2010, 2011, 2017, 2004, 2008, 2012, 2016, 2020, 2024, 2028)
"""Years that begin with each day of the week, with and without 29 February. No other calendar exists."""
_DAYS: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_FEBRUARY: Final = 2
_MOST_YEARS: Final = 50
_KEPT: Final = 512
"""The number of expressions that are kept; each takes some 10 kB."""


class ZoneFault(TimeFault):
    """A text is not a time zone."""


class Cron:
    """An expression in a time zone. Instances are immutable."""

    __slots__ = ("_is_fixed", "_sim", "_zone", "expression", "timezone")

    def __init__(self, expression: str, timezone: str = "UTC") -> None:
        """Raise TimeFault if the expression is wrong or never fires."""
        self.expression, self.timezone = expression, timezone
        text = _NAMES.get(expression.lower(), expression)
        parts = text.split()
        if len(expression) > LONGEST or not all(map(_FIELDS.fullmatch, parts)) or len(parts) not in (5, 6):
            raise TimeFault(
                f"is no schedule: {shown(expression)}. Use @at TIME, @every DURATION, or a cron expression "
                "of 6 fields (second minute hour day month weekday) or 5 (without the second)"
            )
        if len(parts) == 5:
            parts.insert(0, "0")
        self._is_fixed = not parts[1].startswith("*") and not parts[2].startswith("*")
        self._zone = _zone(timezone)
        try:
            self._sim = CronSim(" ".join(parts), _EPOCH)
        except CronSimError as error:
            if _is_legal([*parts[:4], "*", *parts[5:]]):
                raise TimeFault(f"never fires: {shown(expression)}. No month has such a day") from None
            raise TimeFault(f"is no cron expression: {shown(expression)} ({error})") from None
        if not _has_a_day(self._sim):
            raise TimeFault(f"never fires: {shown(expression)}. No month has such a day")

    def next_after(self, ms: int) -> int | None:
        """Return the first firing time after `ms`, in whole seconds; None if there is none in 50 years."""
        second = max(ms // 1000, 0)
        if second >= _LAST_SECOND - 86_400:
            return None
        try:
            found = self._next(second)
        except (StopIteration, OverflowError):
            return None
        return None if found >= _LAST_SECOND else found * 1000

    def _next(self, second: int) -> int:
        """Return the first second after `second` at which the expression fires. Raises StopIteration, OverflowError."""
        if self._zone is None:
            return _seconds(self._search(_EPOCH + timedelta(seconds=second)))
        wall, offset = self._at(second)
        earlier, later = self._offsets(wall)
        if earlier > later:  # the clock shows this time twice
            now = _seconds(wall)
            change = self._change(now - earlier, now - later)
            if offset == later and self._is_fixed:  # all times up to the change have fired
                wall = self._at(change - 1)[0]
            elif offset == earlier and not self._is_fixed:
                moment = _seconds(self._search(wall)) - earlier
                if moment < change:
                    return moment
                second, wall = change - 1, self._at(change)[0] - _SECOND
        last_year = wall.year + _MOST_YEARS
        while True:
            found = self._search(wall)
            earlier, later = self._offsets(found)
            at = _seconds(found)
            if earlier >= later:
                return at - earlier if at - earlier > second else at - later
            change = self._change(at - later, at - earlier)  # the clock never shows this time
            if self._is_fixed:
                return change
            wall = self._at(change)[0] - _SECOND
            if wall.year > last_year:
                raise StopIteration

    def _search(self, wall: datetime) -> datetime:
        """Return the first matching time of the calendar after `wall`."""
        sim = copy(self._sim)
        sim.dt = wall
        return next(sim)

    def _at(self, second: int) -> tuple[datetime, int]:
        """Return the local time of the zone at a second since 1970, and the zone's offset from UTC in s."""
        local = datetime.fromtimestamp(second, self._zone)
        offset = local.utcoffset()
        assert offset is not None
        return local.replace(tzinfo=None, fold=0), offset // _SECOND

    def _offsets(self, wall: datetime) -> tuple[int, int]:
        """Return the offsets in s before and after the change of the clock at which `wall` occurs twice or never.

        For any other time, both offsets are equal.
        """
        first = wall.replace(tzinfo=self._zone, fold=0).utcoffset()
        second = wall.replace(tzinfo=self._zone, fold=1).utcoffset()
        assert first is not None
        assert second is not None
        return first // _SECOND, second // _SECOND

    def _change(self, low: int, high: int) -> int:
        """Return the first second in (low, high] with the same UTC offset as `high`."""
        offset = self._at(high)[1]
        while high - low > 1:
            middle = (low + high) // 2
            if self._at(middle)[1] == offset:
                high = middle
            else:
                low = middle
        return high

    def __repr__(self) -> str:
        return f"Cron({self.expression!r}, {self.timezone!r})"


@lru_cache(maxsize=_KEPT)
def cron(expression: str, timezone: str) -> Cron:
    """Return one object for all equal expressions, because many records share an expression. Raises TimeFault."""
    return Cron(expression, timezone)


def _zone(name: str) -> ZoneInfo | None:
    """Return a time zone; None for UTC. Raises TimeFault."""
    if name == "UTC":
        return None
    if not _ZONE.fullmatch(name) or name.startswith(_NO_ZONES):
        raise ZoneFault(f"is no time zone of IANA: {shown(name)}. Use a name like Europe/Berlin")
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # the name belongs to no file, or to a file of another kind
        raise ZoneFault(
            f"is no time zone that this system knows: {shown(name)}. Use a name like Europe/Berlin"
        ) from None


def _is_legal(parts: list[str]) -> bool:
    try:
        CronSim(" ".join(parts), _EPOCH)
    except CronSimError:
        return False
    return True


def _seconds(wall: datetime) -> int:
    return (wall - _EPOCH) // _SECOND


def _has_a_day(sim: CronSim) -> bool:
    """Whether any day of the calendar matches. Without this check, the library would search 50 years."""
    alike = {_DAYS[month]: month for month in sim.months}
    for most, month in alike.items():
        for year in _SAMPLE_YEARS:
            days = most - 1 if month == _FEBRUARY and not isleap(year) else most
            if any(sim.match_day(date(year, month, day)) for day in range(1, days + 1)):
                return True
    return False
