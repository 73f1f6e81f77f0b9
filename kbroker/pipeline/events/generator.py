"""The events of a simulated website, in order of arrival: test data for the pipeline's jobs.

Owns the simulation. The simulation uses no clock and no I/O, so the options determine every byte. The memory contains
current visits, visitors who are absent for a while, and records that have not arrived, but never all events.

    key    v000123
    value  {"id": "1f2e3d4c-2a-0", "visitor": "v000123", "time": "2026-11-21T10:00:00.123Z",
            "type": "page_view"|"search"|"add_to_cart"|"purchase", "url": "/...", "referrer": "https://..."|null}

An id consists of the run, the number of the visit, and the number of the event within the visit, in hex. So a job's
results can be compared with the simulation.

Visits begin as a Poisson process that follows the course of a day. After each event a visitor continues, leaves, or
returns just after the break, independently of earlier events. The run begins in the steady state, with visits already
in progress, so that there is no slow start.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice
from random import Random
from typing import Final
from zlib import crc32

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.events import tables

Arrival = tuple[int, bytes | None, bytes]
"""A record's arrival (ms since the epoch), its key, and its value."""

_ON_TIME, _LATE, _DUPLICATE, _MALFORMED = range(4)
_FULLEST: Final = 0.7  # largest share of busy visitors at the busiest time: above it, free visitors are hard to find
_FEWEST_VISITORS: Final = 1000
_ROOM: Final = 20  # visitors per busy visitor at the busiest time, if `visitors` is None
_TRIES_BY_RANK: Final = 8
_TRIES: Final = 64
_BUSY: Final = math.inf
_LOWEST_RATE: Final = 1e-6
_LAST_MS: Final = 253_402_300_800_000 - 400 * tables.DAY_MS  # years have four digits
_MOST_VISITORS: Final = 10**9
_QUICK_RESENDS: Final = 0.8
_NO_TIMES: Final = ('"yesterday"', '"2026-13-45T25:61:00.000Z"', '""', "null", '"21/Nov/2026:10:00:00 +0000"')
_NO_OBJECTS: Final = (
    b"",
    b"null",
    b"[]",
    b"\xff\xfe\x00\x01",
    b"<html><body>502 Bad Gateway</body></html>",
    b"{'id': 1}",
)


@dataclass(frozen=True, slots=True)
class EventOptions:
    """The options of a simulation. The shares are relative to all records, and their sum is below 1."""

    start_ms: int
    """The start, in ms since the epoch."""
    seed: int = 0
    rate: float = 10.0
    """The records per second of simulated time, averaged over a complete day."""
    visitors: int | None = None
    """The number of different visitors. If None, there are as many visitors as the rate needs."""
    days: float | None = None
    """The number of days with events; None for no end. Late events also arrive after these days."""
    count: int | None = None
    """The maximum number of records to generate."""
    late: float = 0.02
    duplicates: float = 0.01
    malformed: float = 0.002
    daily: bool = True
    """Whether nights are quiet (UTC); otherwise the rate is constant."""
    ongoing: bool = False
    """Whether events from before the start also arrive late."""


@dataclass(slots=True)
class Counts:
    """Counts of the yielded records, by kind. Late events are also counted as events."""

    events: int = 0
    late: int = 0
    duplicates: int = 0
    malformed: int = 0

    @property
    def records(self) -> int:
        return self.events + self.duplicates + self.malformed


@dataclass(slots=True)
class _Visit:
    """A visit that is in progress."""

    rank: int
    visitor: str
    key: bytes
    number: int
    referrer: str
    events: int = 0
    state: int = tables.LANDING


def visitor_name(rank: int) -> str:
    """Return the name of the visitor with the `rank`-th most visits. Ranks start at 1."""
    return f"v{rank:06d}"


class EventSource:
    """An iterator over the records in order of arrival. It works only once. Raises PipelineError for bad options."""

    def __init__(self, options: EventOptions) -> None:
        _check(options)
        self.counts = Counts()
        self._options = options
        self._rng = Random(options.seed)
        self._random = self._rng.random
        self._tag = f"{crc32(repr(replace(options, count=None)).encode()):08x}"
        self._pages = tables.page_tables(self._rng)
        self._steps = tables.step_table(self._rng)
        self._delays = tables.delay_table(self._rng)
        self._elsewhere = tables.elsewhere()
        own = 1 - options.duplicates - options.malformed
        self._late, self._duplicates = options.late / own, options.duplicates / own
        self._malformed = options.malformed / own
        self._events_a_ms = options.rate * own / 1000
        self._starts_a_ms = self._events_a_ms * self._steps.count(0) / len(self._steps)
        busy = self._busiest()
        self.visitors = self._enough_visitors(busy)
        self._shift = _shift(busy, self.visitors)
        self._log_ranks = math.log((self.visitors + 1 + self._shift) / (1 + self._shift))
        self._free_at: dict[int, float] = {}
        self._forget_at = _FEWEST_VISITORS
        self._numbers = 0
        self._second = -1
        self._second_text = ""
        self._sequence = 0
        self._visits: list[tuple[int, int, _Visit]] = []
        self._arrivals: list[tuple[int, int, bytes | None, bytes, int]] = []
        self._records = islice(self._simulate(), options.count)

    def __iter__(self) -> Iterator[Arrival]:
        return self._records

    @property
    def waiting(self) -> int:
        """The number of current visits plus the number of records that have not arrived."""
        return len(self._visits) + len(self._arrivals)

    def _busiest(self) -> float:
        """Return the number of visitors who are on a visit, or absent after a visit, at the busiest time."""
        steps, rest = self._steps, sum(tables.REST_MS) / 2
        peak = tables.BUSIEST if self._options.daily else 1.0
        busy = peak * (self._events_a_ms * sum(steps) / len(steps) + self._starts_a_ms * rest)
        if self._options.ongoing:
            busy += self._events_a_ms * self._late * (_mean_lateness() + rest)
        return busy

    def _enough_visitors(self, busy: float) -> int:
        given, rate = self._options.visitors, self._options.rate
        if given is None:
            given = max(math.ceil(busy * _ROOM), _FEWEST_VISITORS)
            if given > _MOST_VISITORS:
                raise PipelineError(f"{rate:g} events a second are too many")
        elif busy > given * _FULLEST:
            least = math.ceil(busy / _FULLEST)
            raise PipelineError(
                f"{given:,} visitors who rest between visits cannot make {rate:g} events a second; "
                f"at least {least:,} are needed"
            )
        return given

    def _simulate(self) -> Iterator[Arrival]:
        options, visits, arrivals = self._options, self._visits, self._arrivals
        end = _LAST_MS if options.days is None else options.start_ms + round(options.days * tables.DAY_MS)
        self._begin_in_the_middle()
        start = self._next_start(options.start_ms)
        while True:
            now = int(start)
            if visits and visits[0][0] < now:
                now = visits[0][0]
            ended = now >= end
            # Records that are simulated later cannot arrive before these records.
            while arrivals and (ended or arrivals[0][0] <= now):
                arrival, _, key, value, kind = heappop(arrivals)
                self._count(kind)
                yield arrival, key, value
            if ended:
                return
            if visits and visits[0][0] == now:
                self._go_on(now, heappop(visits)[2])
                continue
            visit = self._new_visit(now)
            if visit is not None:
                self._go_on(now, visit)
            start = self._next_start(start)

    def _count(self, kind: int) -> None:
        counts = self.counts
        if kind == _DUPLICATE:
            counts.duplicates += 1
        elif kind == _MALFORMED:
            counts.malformed += 1
        else:
            counts.events += 1
            counts.late += kind == _LATE

    def _begin_in_the_middle(self) -> None:
        """Add the visits that are in progress at the start, in the steady state of a memoryless process."""
        rng, start = self._rng, self._options.start_ms
        events_a_ms = self._events_a_ms * (tables.busyness(start) if self._options.daily else 1.0)
        steps = self._steps
        pauses = int(events_a_ms * sum(steps) / len(steps) + self._random())
        # A random moment is more often in a long pause than in a short pause, and is at a random position in the pause.
        for pause in rng.choices(steps, steps, k=pauses):
            visit = self._new_visit(start)
            if visit is not None:
                self._schedule(start + int(pause * self._random()), visit)
        if self._options.ongoing:
            means = [tables.log_uniform_mean(bounds) for bounds in tables.LATE_MS]
            number = int(events_a_ms * self._late * _mean_lateness() + self._random())
            for low, high in rng.choices(tables.LATE_MS, means, k=number):
                self._arrive_from_before(int(rng.uniform(low, high)))

    def _arrive_from_before(self, delay: int) -> None:
        arrival = self._options.start_ms + int(delay * self._random())
        visit = self._new_visit(self._options.start_ms)
        if visit is not None:
            happened = arrival - delay
            self._push(arrival, visit.key, self._event(happened, visit), _LATE)
            self._leave(self._options.start_ms, visit)

    def _next_start(self, after: float) -> float:
        """Return the start of the next visit.

        The starts are a Poisson process at the busiest time's rate. At quieter times, random starts are dropped.
        """
        daily, rate, random = self._options.daily, self._starts_a_ms, self._random
        if not daily:
            return after - math.log(1 - random()) / rate
        rate *= tables.BUSIEST
        while True:
            after -= math.log(1 - random()) / rate
            if random() * tables.BUSIEST < tables.busyness(after):
                return after

    def _new_visit(self, now: int) -> _Visit | None:
        """Return a visit of a free visitor. In rare cases no free visitor is found; then return None."""
        free_at, random = self._free_at, self._random
        for attempt in range(_TRIES):
            if attempt < _TRIES_BY_RANK:
                rank = self._draw_rank()
            else:
                rank = 1 + int(random() * self.visitors)
            if free_at.get(rank, 0) <= now:
                break
        else:
            return None
        if len(free_at) >= self._forget_at:
            self._free_at = free_at = {visitor: when for visitor, when in free_at.items() if when > now}
            self._forget_at = max(2 * len(free_at), _FEWEST_VISITORS)
        free_at[rank] = _BUSY
        name = visitor_name(rank)
        return _Visit(rank, name, name.encode(), self._next_number(), self._from_elsewhere())

    def _draw_rank(self) -> int:
        """Draw from a Zipf-Mandelbrot law without a table: P(rank) is nearly proportional to 1 / (rank + shift)."""
        rank = int((1 + self._shift) * math.exp(self._random() * self._log_ranks) - self._shift)
        return min(max(rank, 1), self.visitors)

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _from_elsewhere(self) -> str:
        return self._elsewhere[int(self._random() * len(self._elsewhere))]

    def _go_on(self, now: int, visit: _Visit) -> None:
        """Create a visit's next event with its faults, and schedule the following event."""
        random, key = self._random, visit.key
        value = self._event(now, visit)
        if random() < self._late:
            kind, delay = _LATE, self._lateness()
        else:
            kind, delay = _ON_TIME, self._delays[int(random() * tables.DELAYS)]
        self._push(now + delay, key, value, kind)
        # There may be several such records for each event, so repeat.
        for _ in range(int(self._duplicates + random())):
            self._push(now + delay + self._resent_after(), key, value, _DUPLICATE)
        for _ in range(int(self._malformed + random())):
            self._push(now + delay, *self._broken(now, delay, visit, value), _MALFORMED)
        pause = self._steps[int(random() * tables.STEPS)]
        if not pause:
            self._leave(now, visit)
            return
        if pause > tables.BREAK_MS:
            visit.number, visit.events, visit.state = self._next_number(), 0, tables.LANDING
            visit.referrer = self._from_elsewhere()
        self._schedule(now + pause, visit)

    def _event(self, now: int, visit: _Visit) -> bytes:
        fragment, referrer, state = self._pages[visit.state][int(self._random() * tables.PAGES)]
        text = (
            f'{{"id": "{self._tag}-{visit.number:x}-{visit.events:x}", "visitor": "{visit.visitor}", '
            f'"time": "{self._stamp(now)}", {fragment}{visit.referrer}}}'
        )
        visit.events += 1
        visit.referrer, visit.state = referrer, state
        return text.encode()

    def _stamp(self, ms: int) -> str:
        second, rest = divmod(ms, 1000)
        if second != self._second:
            self._second = second
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{rest:03d}Z"

    def _leave(self, now: int, visit: _Visit) -> None:
        self._free_at[visit.rank] = now + self._rng.uniform(*tables.REST_MS)

    def _schedule(self, ms: int, visit: _Visit) -> None:
        self._sequence += 1
        heappush(self._visits, (ms, self._sequence, visit))

    def _push(self, ms: int, key: bytes | None, value: bytes, kind: int) -> None:
        self._sequence += 1
        heappush(self._arrivals, (ms, self._sequence, key, value, kind))

    def _lateness(self) -> int:
        return tables.log_uniform(self._rng, tables.LATE_MS[int(self._random() * len(tables.LATE_MS))])

    def _resent_after(self) -> int:
        return tables.log_uniform(self._rng, tables.RESEND_MS[self._random() >= _QUICK_RESENDS])

    def _broken(self, now: int, delay: int, visit: _Visit, value: bytes) -> tuple[bytes | None, bytes]:
        """Return the key and value of a malformed record, which is sent in addition to the valid record."""
        rng = self._rng
        text = value.decode().replace(f'"{self._tag}-', f'"{self._tag}-broken-', 1)
        form = rng.randrange(5)
        if form == 0:
            return visit.key, text[: rng.randrange(1, len(text))].encode()
        if form == 1:
            return visit.key, rng.choice(_NO_OBJECTS)
        if form == 2:
            named = f'"visitor": "{visit.visitor}", '
            return None, text.replace(named, rng.choice(("", '"visitor": null, ')), 1).encode()
        stamp = rng.choice(_NO_TIMES)
        if form == 3:
            # A time that is more than an hour after the arrival, as if the clock was wrong.
            ahead = tables.HOUR_MS + tables.log_uniform(rng, (1, 3 * tables.DAY_MS))
            stamp = f'"{self._stamp(now + delay + ahead)}"'
        return visit.key, text.replace(f'"{self._stamp(now)}"', stamp, 1).encode()


def _shift(busy: float, visitors: int) -> float:
    """Return the smallest shift of the ranks with which each visitor has time for all visits and absences.

    By Zipf's law alone, the first of a million visitors would make every fifteenth visit.
    """
    shift = busy
    for _ in range(20):
        shift = busy / max(math.log((visitors + 1 + shift) / (1 + shift)), 0.1)
    return shift


def _mean_lateness() -> float:
    return sum(map(tables.log_uniform_mean, tables.LATE_MS)) / len(tables.LATE_MS)


def _check(options: EventOptions) -> None:
    shares = {"late": options.late, "duplicates": options.duplicates, "malformed": options.malformed}
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise PipelineError(f"the share of {name} must be at least 0 and below 1, not {share:g}")
    if sum(shares.values()) >= 1:
        raise PipelineError("the shares of late, duplicates and malformed come to 1 or more")
    if not _LOWEST_RATE <= options.rate < math.inf:
        raise PipelineError(f"the rate is {_LOWEST_RATE:g} or more events a second, not {options.rate:g}")
    if options.visitors is not None and not 0 < options.visitors <= _MOST_VISITORS:
        raise PipelineError(f"there are from 1 to {_MOST_VISITORS:,} visitors, not {options.visitors:,}")
    if options.days is not None and not 0 < options.days < math.inf:
        raise PipelineError(f"the days must be above 0, not {options.days:g}")
    if options.count is not None and options.count < 0:
        raise PipelineError(f"the count must be at least 0, not {options.count}")
    end = options.start_ms + (options.days or 0) * tables.DAY_MS
    if options.start_ms < tables.DAY_MS or end > _LAST_MS:
        raise PipelineError("the events must be after 1970-01-01 and before the year 9999")
