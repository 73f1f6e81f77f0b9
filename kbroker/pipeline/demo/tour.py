"""The tour: events, a stream that counts visits, an archive, a recount from the archive, and both results side by side.

Owns the order of the jobs and the comparison. The tour runs the same jobs as the commands. The caller provides the
broker.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kbroker.pipeline.archive.archive import Archive, ArchiveOptions
from kbroker.pipeline.archive.verify import Verification
from kbroker.pipeline.demo import chart
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.events.generator import Arrival, EventOptions, EventSource, visitor_name
from kbroker.pipeline.events.organisations import write_lookup
from kbroker.pipeline.events.sender import Sender
from kbroker.pipeline.kafka.cluster import Clients, Cluster
from kbroker.pipeline.progress import Progress
from kbroker.pipeline.visits.lookup import read_lookup
from kbroker.pipeline.visits.recount import Row, differences, recount_days, state_of, table_rows
from kbroker.pipeline.visits.rules import DAY_MS, VisitRules
from kbroker.pipeline.visits.stream import Visits, VisitsOptions

_PARTITIONS: Final = 4
_PAUSE_S: Final = 0.05
_CHECK_S: Final = 0.2
_WAIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class TourOptions:
    """The size of the tour."""

    days: int = 3
    """The number of days with events. The last day is the day before yesterday."""
    records: int = 60_000
    """The approximate number of records."""
    topic: str = "events"
    feed_s: float = 20.0
    """The number of seconds over which the records are sent."""


@dataclass(frozen=True, slots=True)
class Tour:
    """The result of the tour."""

    rows: list[Row]
    """The numbers by day and organisation, counted from the archive."""
    streamed: list[Row]
    """The numbers by day and organisation, counted by the stream."""
    faults: list[str]
    records: int
    picture: Path
    page: Path


def tour(session: Any, clients: Clients, folder: Path, options: TourOptions, report: Callable[[str], None]) -> Tour:
    """Run the tour against a broker that does not have the topic. Raises PipelineError."""
    cluster = Cluster(clients)
    topic, days = options.topic, options.days
    lookup = folder / "organisations.csv"
    source = _events(days, options.records)
    folder.mkdir(parents=True, exist_ok=True)
    with open(lookup, "w", encoding="utf-8", newline="") as file:
        write_lookup(file, (visitor_name(rank) for rank in range(1, source.visitors + 1)))
    cluster.ensure_topic(topic, _PARTITIONS, {"retention.ms": "-1"})
    report(f"events of {days} days go into the topic {topic}, and visits are counted as they come")
    stream = _stream(session, cluster, folder, lookup, topic)
    _feed(clients, source, options, stream, cluster)
    counts = source.counts
    report(
        f"{counts.records:,} records: {counts.late:,} late, {counts.duplicates:,} twice, {counts.malformed:,} malformed"
    )
    report("archiving the topic, and checking the archive")
    _archive(session, cluster, folder, topic)
    report("counting the visits anew, from the archive")
    clocks = state_of(session, str(folder / "checkpoint-visits")).set_clocks
    known = read_lookup(session, str(lookup))
    rows = recount_days(session, str(folder / "archive"), topic, known, VisitRules(), clocks, None)
    streamed = table_rows(session, str(folder / "visits"))
    faults = differences(rows, streamed, None)
    note = f"{counts.records:,} events, counted as they came and again from the archive."
    picture, page = chart.save(rows, folder, "Visits by organisation and day", note)
    return Tour(rows, streamed, faults, counts.records, picture, page)


def _events(days: int, records: int) -> EventSource:
    today = datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    # Late events arrive hours after their day, and a broker refuses a record from the future.
    start = int(today.timestamp() * 1000) - (days + 1) * DAY_MS
    return EventSource(EventOptions(start, seed=1, rate=records / (days * 86_400), days=days))


def _stream(session: Any, cluster: Cluster, folder: Path, lookup: Path, topic: str) -> Visits:
    options = VisitsOptions(
        topic,
        str(lookup),
        str(folder / "visits"),
        f"{topic}-visits",
        str(folder / "checkpoint-visits"),
        f"{topic}-malformed",
        every="1 seconds",
        group="kbroker-visits",
    )
    return Visits(session, cluster, options, _Silent())


def _feed(clients: Clients, source: EventSource, options: TourOptions, stream: Visits, cluster: Cluster) -> None:
    """Send the events within some seconds while the stream runs. Return when the stream has counted all of them."""
    failures: list[BaseException] = []
    ended = threading.Event()
    begun, span_ms = time.monotonic(), options.days * DAY_MS

    def paced() -> Iterator[Arrival]:
        first = None
        for arrival in source:
            first = arrival[0] if first is None else first
            wait = min((arrival[0] - first) / span_ms, 1) * options.feed_s - (time.monotonic() - begun)
            if wait > _PAUSE_S:
                ended.wait(wait)
            yield arrival

    def send() -> None:
        try:
            Sender(clients, options.topic).send_all(paced(), ended.is_set)
            deadline = time.monotonic() + _WAIT_S
            while stream.counted() < sum(cluster.ends(options.topic).values()) and not ended.wait(_CHECK_S):
                if time.monotonic() > deadline:
                    raise PipelineError(f"the stream did not count all events within {_WAIT_S:.0f} s")
        except BaseException as err:  # noqa: BLE001 - raised below
            failures.append(err)
        finally:
            stream.stop()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        stream.run()
    finally:
        ended.set()
        thread.join()
    if failures:
        raise failures[0]


def _archive(session: Any, cluster: Cluster, folder: Path, topic: str) -> None:
    options = ArchiveOptions((topic,), None, str(folder / "archive"), str(folder / "checkpoint-archive"))
    Archive(session, cluster, options, _Silent()).run()
    if faults := Verification(session, cluster, str(folder / "archive"), ()).run().faults:
        raise PipelineError(f"the archive is not what the topic holds: {faults[0]}")


class _Silent(Progress):
    def step(self, records: int, left: int | None, **facts: Any) -> None:
        del records, left, facts


def by_day(found: Tour) -> list[tuple[str, int, int, int, int, str]]:
    """Return (day, visits as streamed, visits as recounted, events, late, whether the day is final), by day."""
    days: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for row in found.rows:
        numbers = days[row["day"]]
        numbers[1] += row["visits"]
        numbers[2] += row["events"]
        numbers[3] += row["late"]
    final = set()
    for row in found.streamed:
        days[row["day"]][0] += row["visits"]
        if row["final"]:
            final.add(row["day"])
    return [(day, n[0], n[1], n[2], n[3], "yes" if day in final else "no") for day, n in sorted(days.items())]
