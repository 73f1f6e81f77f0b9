"""A year of schedules in virtual time: when each record must fire, by a calendar that is looked at quarter by quarter.

Owns the records that are written, the moments at which leaders die, the outages, and the comparison. The times that are
expected come from the clock on the wall of a time zone in each quarter of an hour, and know nothing of cron: a kind of
schedule is an expression, and a function that says whether it matches what the clock shows.

All moments are whole seconds of the year, except those of faults, so that no fault coincides with a time of a plan
unless it is meant to.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final
from zoneinfo import ZoneInfo

from kbroker.partition import Partition
from kbroker.scheduling.index import remove_index
from tests.replica_manager.virtual_time import START_MS
from tests.scheduling.world import TARGETS, World

START_S: Final = START_MS // 1000
QUARTER_S: Final = 900
YEAR_S: Final = 366 * 86_400
"""It has a 29 February, and each zone's two changes of clocks."""
ZONES: Final = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Africa/Cairo",
    "Australia/Lord_Howe",  # half an hour
)
LATE_S: Final = 4.0
"""How late a record may be when its leader has just died."""
_FIRST_S: Final = START_S - START_S % QUARTER_S

Matches = Callable[[datetime], bool]


@cache
def walls(zone: str) -> list[datetime]:
    """Return what the clock of a zone shows in each quarter of an hour of the year."""
    tz = ZoneInfo(zone)
    moments = range(_FIRST_S, START_S + YEAR_S, QUARTER_S)
    return [datetime.fromtimestamp(each, tz).replace(tzinfo=None, fold=0) for each in moments]


def plan(matches: Matches, zone: str, *, follows_wall: bool) -> list[int]:
    """Return the seconds of the year at which a kind of schedule fires, by the rules of docs/schedules.md."""
    found = []
    quarter = timedelta(seconds=QUARTER_S)
    passed = before = walls(zone)[0]
    """The latest time that the clock has shown so far, and the time that it showed last."""
    for number, wall in enumerate(walls(zone)):
        fires = matches(wall)
        if not follows_wall and wall - before != quarter and number:
            left_out = range(1, (wall - before) // quarter)
            fires = fires or any(matches(wall - each * quarter) for each in left_out)
        if fires and (follows_wall or wall > passed):
            found.append(_FIRST_S + number * QUARTER_S)
        before = wall
        passed = max(passed, wall)
    return found


def last_of_month(wall: datetime) -> bool:
    return (wall + timedelta(days=1)).month != wall.month


def any_kind(rng: random.Random) -> tuple[str, Matches, bool]:
    """Return a cron expression, whether it matches a time, and whether it follows the clock on the wall."""
    h, m = rng.choice((0, 1, 2, 2, 2, 3, 9, 23)), rng.choice((0, 15, 30, 45))

    def at(day: Matches) -> Matches:
        return lambda wall: (wall.hour, wall.minute) == (h, m) and day(wall)

    fixed: dict[str, Matches] = {
        f"{m} {h} * * *": at(lambda _: True),
        f"0 {m} {h} * * mon-fri": at(lambda wall: wall.weekday() < 5),
        f"{m} {h} * * sun": at(lambda wall: wall.weekday() == 6),
        f"{m} {h} 1,15 * *": at(lambda wall: wall.day in (1, 15)),
        f"{m} {h} L * *": at(last_of_month),
        f"{m} {h} * * 5L": at(lambda wall: wall.weekday() == 4 and (wall + timedelta(7)).month != wall.month),
        f"{m} {h} * * 1#2": at(lambda wall: wall.weekday() == 0 and 8 <= wall.day <= 14),
        f"{m} {h} 13 * fri": at(lambda wall: wall.day == 13 or wall.weekday() == 4),
        f"{m} {h} 29 feb *": at(lambda wall: (wall.month, wall.day) == (2, 29)),
        f"{m} {h} */10 * *": at(lambda wall: wall.day % 10 == 1),
        f"0,30 1-3 * 3-4,10-11 {rng.choice(('sat', 'sun'))},fri": lambda _: False,
        "@daily": lambda wall: (wall.hour, wall.minute) == (0, 0),
        "@weekly": lambda wall: (wall.hour, wall.minute, wall.weekday()) == (0, 0, 6),
        "@monthly": lambda wall: (wall.hour, wall.minute, wall.day) == (0, 0, 1),
        "@yearly": lambda wall: (wall.hour, wall.minute, wall.day, wall.month) == (0, 0, 1, 1),
    }
    expression = rng.choice(list(fixed))
    if expression.startswith("0,30 1-3"):  # the hours of changes, also as a schedule that follows the clock
        weekday = 5 if "sat" in expression else 6
        follows_wall = rng.random() < 0.5
        return (
            expression.replace("0,30", "*/30") if follows_wall else expression,
            lambda wall: (
                wall.minute in (0, 30) and wall.hour in (1, 2, 3) and wall.month in (3, 4, 10, 11)
                and wall.weekday() in (4, weekday)
            ),
            follows_wall,
        )  # fmt: skip
    if rng.random() < 0.1:
        return f"{m} * {h + 1} * *", lambda wall: (wall.minute, wall.day) == (m, h + 1), True
    return expression, fixed[expression], False


@dataclass(frozen=True)
class Written:
    """A record of the schedule topic, and the times of its plan."""

    at_s: int
    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    times_ms: tuple[int, ...]


@dataclass(frozen=True)
class Fault:
    """The death of a leader, and how long there is none after it."""

    at_s: float
    outage_s: float
    is_fail_over: bool


class Followed(Partition):
    """A partition whose followers have each append some ms after it."""

    follow: Callable[[], object]

    def append(self, *args: Any) -> Any:
        result = super().append(*args)
        self.follow()
        return result


class Year(World):
    """One year of one partition."""

    kind_of_partition = Followed

    def __init__(self, directory: Path, seed: int, records: int, faults: int) -> None:
        super().__init__(directory, seed)
        self.targets.is_faulty = False
        self.counts: Counter[str] = Counter()
        self._most_faults = faults
        self._outages = self._plan_outages(faults // 2)
        self.written = [self._plan(number) for number in range(records)]
        self.ends_ms = self._plan_ends()

    def _new_leader(self) -> Partition:
        partition = super()._new_leader()
        assert isinstance(partition, Followed)
        loop = asyncio.get_running_loop()
        partition.follow = lambda: loop.call_later(self._rng.random() * 0.02, self._commit)
        return partition

    # -- what happens in the year

    def _plan_outages(self, number: int) -> list[tuple[float, float]]:
        starts = sorted(self._rng.sample(range(10_000, YEAR_S - 100_000, 100_000), number))
        lengths = (0.5, 10, 3600, 20_000, 80_000)
        return [(start + 0.5, start + 0.5 + int(self._rng.random() * self._rng.choice(lengths))) for start in starts]

    def _moment(self, low: int, high: int, phase: int) -> int:
        """Return a second at which a client can write; `phase` separates the moments of plans from those of changes."""
        while True:
            found = self._rng.randrange(low, high) // QUARTER_S * QUARTER_S + phase + self._rng.randrange(200)
            if not any(begin - 10 < found < end + 10 for begin, end in self._outages):
                return found

    def _plan(self, number: int) -> Written:
        rng = self._rng
        at_s = self._moment(1, 86_400 if rng.random() < 0.5 else YEAR_S - 90_000, 100)
        stamp = START_S + at_s
        key = value = b"%d" % number
        kind = rng.choice(("cron", "cron", "cron", "every", "at", "once"))
        target = ("x-deliver-to", rng.choice(TARGETS).encode())
        if kind == "cron":
            expression, matches, follows_wall = any_kind(rng)
            zone = rng.choice(ZONES)
            times = plan(matches, zone, follows_wall=follows_wall)
            headers = (("x-schedule", expression.encode()), ("x-schedule-timezone", zone.encode()), target)
        elif kind == "every":
            hours = rng.choice((7, 24, 36, 24 * 11, 24 * 30))
            times = list(range(stamp + 3600 * hours, START_S + YEAR_S, 3600 * hours))
            headers = (("x-schedule", rng.choice((b"@every %dh", b"@every PT%dH")) % hours), target)
        else:
            days = rng.randrange(1, 400)
            times = [stamp + days * 86_400]
            text = datetime.fromtimestamp(times[0], UTC).isoformat().encode()
            forms = (("x-deliver-at", text), ("x-deliver-after", b"P%dD" % days), ("x-delay", b"%dd" % days))
            headers = (("x-schedule", b"@at " + text) if kind == "at" else rng.choice(forms), target)
        self.counts[kind] += 1
        times_ms = tuple(1000 * each for each in times if each > stamp)
        return Written(at_s, key, value, headers, times_ms)

    def _plan_ends(self) -> dict[bytes, int]:
        """Return the second of the year at which some of the records are cancelled, or replaced by one for later."""
        some = self._rng.sample(self.written, len(self.written) // 4)
        return {each.key: self._moment(each.at_s + 1000, YEAR_S, 500) for each in some if each.at_s + 2000 < YEAR_S}

    def _plan_faults(self) -> list[Fault]:
        """Return the faults: outages at any moment, and deaths while something is being delivered."""
        rng = self._rng
        found = [Fault(begin, end - begin, rng.random() < 0.5) for begin, end in self._outages]
        moments = sorted({ms for each in self.written for ms in each.times_ms if ms < START_MS + 1000 * YEAR_S})
        for ms in rng.sample(moments, min(self._most_faults - len(found), len(moments))):
            at_s = ms / 1000 - START_S + rng.random() * 0.1
            if not any(begin - 10 < at_s < end + 10 for begin, end in self._outages):
                found.append(Fault(at_s, 0.0, rng.random() < 0.5))
        return found

    async def live(self) -> None:
        """Let the year pass, and judge."""
        events: list[tuple[float, Callable[[], Any]]] = [
            (each.at_s, lambda each=each: self._append([(each.key, each.value, each.headers)]))  # type: ignore[misc]
            for each in self.written
        ]
        for key, at_s in self.ends_ms.items():
            never = (("x-deliver-after", b"P3650D"), ("x-deliver-to", b"a"))
            record = (key, None, ()) if self._rng.random() < 0.5 else (key, b"never", never)
            events.append((at_s, lambda record=record: self._append([record])))  # type: ignore[misc]
        faults = self._plan_faults()
        events += [(each.at_s, lambda each=each: self._die(each)) for each in faults]  # type: ignore[misc]
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for at_s, act in sorted(events, key=lambda event: event[0]):
            await asyncio.sleep(max(begin + at_s - loop.time(), 0))
            done = act()
            if done is not None:
                await done
        await asyncio.sleep(begin + YEAR_S - loop.time())
        self.counts["faults"] = len(faults)
        await self._followed.close(clean=True)
        self._judge_intents()
        self._log.close()
        self.judge_year()

    async def _die(self, fault: Fault) -> None:
        if fault.is_fail_over and not fault.outage_s:
            self._fail_over()
            return
        self._partition.leading = False
        await self._followed.close(clean=self._rng.random() < 0.3)
        if self._rng.random() < 0.2:
            remove_index(str(self._directory))
        await asyncio.sleep(fault.outage_s)
        self._lead_anew()

    # -- the judgement

    def _led_from(self, ms: int) -> float:
        """Return the first moment, in ms, at which there is a leader from a moment on."""
        for begin, end in self._outages:
            if START_MS + 1000 * begin <= ms < START_MS + 1000 * end:
                return START_MS + 1000 * end
        return ms

    def expected(self, record: Written) -> list[tuple[int, float]]:
        """Return for which times a record fires, and when: once for all times that are missed while nobody leads."""
        end_ms = START_MS + 1000 * self.ends_ms.get(record.key, YEAR_S)
        found = []
        number = 0
        while number < len(record.times_ms):
            ms = record.times_ms[number]
            fires_ms = self._led_from(ms)
            if fires_ms >= end_ms:
                break
            found.append((ms, fires_ms))
            number = bisect_right(record.times_ms, fires_ms)
        return found

    def judge_year(self) -> None:
        """Compare what has arrived with the calendar."""
        arrived: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for ms, record in self.targets.records:
            assert record.value is not None
            arrived[record.value].append((int(dict(record.headers)["__schedule.at"] or b""), ms))
        assert b"never" not in arrived
        for each in self.written:
            expected = self.expected(each)
            found = arrived[each.value]
            assert [at for at, _ in found] == [at for at, _ in expected], (each.headers, _differ(found, expected))
            for (at, ms), (_, fires_ms) in zip(found, expected, strict=True):
                assert at <= ms, f"{each.headers} fired early"
                assert fires_ms <= ms <= fires_ms + 1000 * LATE_S, f"{each.headers} fired late: {ms - fires_ms} ms"
        self.counts["fired"] = len(self.targets.records)


def _differ(found: list[tuple[int, int]], expected: list[tuple[int, float]]) -> str:
    """Return the times that are only on one side, as text."""
    sides = [{at for at, _ in side} for side in (found, expected)]
    texts = [
        [datetime.fromtimestamp(ms / 1000, UTC).isoformat() for ms in sorted(only)][:10]
        for only in (sides[0] - sides[1], sides[1] - sides[0])
    ]
    return f"only fired: {texts[0]}; only expected: {texts[1]}; {len(found)} fired of {len(expected)}"
