"""`recount`: the visits of any day, counted from an archive.

Owns the batch job. It uses the stream's own rules (visit_rules.py) on all that was archived, so it finds what the
stream found once the stream has come as far: the same events late, the same visits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.files import Files
from kbroker.pipeline.store import Store
from kbroker.pipeline.visit_rules import (
    Clock,
    VisitRules,
    day_of,
    events,
    on_time,
    with_begins,
    with_clocks,
    with_organisation,
)
from kbroker.pipeline.visits import TABLE, StateFiles

Row = dict[str, Any]
_NUMBERS = ("visits", "events", "late")


def recount(session: Any, root: str, topic: str, lookup: Any, rules: VisitRules, clocks: Iterable[Clock] = ()) -> Any:
    """Return (organisation, day, visits, events, late) by an archive's records; raises PipelineError.

    `clocks` are those that a stream set by itself where a partition stood still (visits.py).
    """
    from pyspark.sql import functions as f

    store = Store(session, root)
    manifest = store.require()
    if topic not in {partition.topic for partition in manifest.ranges}:
        raise PipelineError(f"{topic} is not in {root}")
    records = store.frame(manifest).where(f.col("topic") == topic)
    clocked = with_clocks(events(records, rules), rules, clocks)
    counted = with_organisation(with_begins(on_time(clocked), rules), lookup)
    found = counted.groupBy("organisation", day_of().alias("day")).agg(
        f.sum(f.col("begins").cast("bigint")).alias("visits"), f.count("*").alias("events")
    )
    late = with_organisation(clocked.where("late"), lookup)
    late = late.groupBy("organisation", day_of().alias("day")).agg(f.count("*").alias("late"))
    return found.join(late, ["organisation", "day"], "full_outer").fillna(0, list(_NUMBERS))


def recount_days(
    session: Any, root: str, topic: str, lookup: Any, rules: VisitRules, clocks: Iterable[Clock], day: str | None
) -> list[Row]:
    """Return the same as rows for people, of all days or one, by day and organisation."""
    frame = recount(session, root, topic, lookup, rules, clocks)
    return _rows(frame, day)


def set_clocks(session: Any, checkpoint: str | None) -> list[Clock]:
    """Return the clocks that the stream of a checkpoint set; raises PipelineError when it has no state."""
    if checkpoint is None:
        return []
    state = StateFiles(session, f"{checkpoint}/state").load()
    if state.batch < 0:
        raise PipelineError(f"the checkpoint {checkpoint} is of no stream of visits")
    return state.set_clocks


def differences(session: Any, counted: list[Row], table: str, day: str | None) -> list[str]:
    """Return what a stream's table says otherwise, of the days that are final in it; one line each."""
    rows = table_rows(session, table)
    streamed = {(row["organisation"], row["day"]): row for row in rows if row["final"] and day in (None, row["day"])}
    recounted = {(row["organisation"], row["day"]): row for row in counted}
    days = {day for _, day in streamed}
    found = []
    for key in sorted(streamed.keys() | {key for key in recounted if key[1] in days}):
        one, other = ({name: rows.get(key, {}).get(name, 0) for name in _NUMBERS} for rows in (streamed, recounted))
        if one != other:
            organisation, day = key
            found.append(f"{organisation}, {day}: the stream has {_text(one)}, the archive {_text(other)}")
    return found


def table_rows(session: Any, table: str) -> list[Row]:
    """Return what a stream's table holds, by day and organisation, with `final`; raises PipelineError."""
    if not Files(session, table).exists(""):
        raise PipelineError(f"there is no table {table}")
    frame = session.read.schema(TABLE).option("pathGlobFilter", "visits.parquet").parquet(table)
    return _rows(frame, None, "final")


def _rows(frame: Any, day: str | None, *more: str) -> list[Row]:
    from pyspark.sql import functions as f

    if day is not None:
        frame = frame.where(f.col("day") == f.lit(day).cast("date"))
    chosen = frame.select("organisation", f.col("day").cast("string").alias("day"), *_NUMBERS, *more)
    return [row.asDict() for row in chosen.orderBy("day", "organisation").collect()]


def _text(numbers: Row) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())
