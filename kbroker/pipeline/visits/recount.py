"""`recount` counts the visits of any day from an archive.

Owns the batch job, and the comparison of its result with the stream's result. The job applies the stream's rules
(rules.py) to all archived records. If the stream has read the same records, the job and the stream find the same visits
and late events.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.pipeline.archive.opening import open_place
from kbroker.pipeline.decoding.registry import Registry
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.spark.checkpoint import Checkpoint
from kbroker.pipeline.storage.files import Files
from kbroker.pipeline.visits.checkpointed_state import StateFiles, VisitsState
from kbroker.pipeline.visits.lookup import fingerprint, with_organisation
from kbroker.pipeline.visits.outputs import FILE, TABLE
from kbroker.pipeline.visits.rules import (
    JSON,
    Clock,
    VisitRules,
    day_of,
    events,
    on_time,
    with_begins,
    with_clocks,
)

Row = dict[str, Any]
_NUMBERS = ("visits", "events", "late")


def require_same(
    session: Any, root: str, topic: str, lookup: Any, rules: VisitRules, checkpoint: str, state: VisitsState
) -> None:
    """Refuse a checkpoint whose stream has another topic, other rules or another lookup. Raises PipelineError."""
    known = open_place(session, root).require().topics.get(topic)
    if known not in (None, state.topic_id):
        raise PipelineError(f"the checkpoint {checkpoint} is of another topic than the {topic} in {root}")
    if state.rules.get("event_format", JSON) != rules.event_format:
        raise PipelineError(f"the stream of {checkpoint} read events in the other format, with or without --registry")
    if state.rules != rules.facts():
        raise PipelineError(f"the stream of {checkpoint} counted by other rules (--gap, --lateness, fields)")
    if state.lookup != fingerprint(lookup):
        raise PipelineError(f"the stream of {checkpoint} counted with another lookup")


def recount(
    session: Any,
    root: str,
    topic: str,
    lookup: Any,
    rules: VisitRules,
    clocks: Iterable[Clock] = (),
    registry: Registry | None = None,
) -> Any:
    """Return (organisation, day, visits, events, late) of an archive's records. Raises PipelineError.

    `clocks` are the clocks that a stream has set without a record (stream.py).
    """
    from pyspark.sql import functions as f

    store = open_place(session, root)
    manifest = store.require()
    if topic not in {partition.topic for partition in manifest.ranges}:
        raise PipelineError(f"{topic} is not in {root}")
    records = store.frame(manifest).where(f.col("topic") == topic)
    clocked = with_clocks(events(records, rules, registry), rules, clocks)
    counted = with_organisation(with_begins(on_time(clocked), rules), lookup)
    found = counted.groupBy("organisation", day_of().alias("day")).agg(
        f.sum(f.col("begins").cast("bigint")).alias("visits"), f.count("*").alias("events")
    )
    late = with_organisation(clocked.where("late"), lookup)
    late = late.groupBy("organisation", day_of().alias("day")).agg(f.count("*").alias("late"))
    return found.join(late, ["organisation", "day"], "full_outer").fillna(0, list(_NUMBERS))


def recount_days(
    session: Any,
    root: str,
    topic: str,
    lookup: Any,
    rules: VisitRules,
    clocks: Iterable[Clock],
    day: str | None,
    registry: Registry | None = None,
) -> list[Row]:
    """Return the result as readable rows, one for each day and organisation; only the rows of `day` if it is given."""
    frame = recount(session, root, topic, lookup, rules, clocks, registry)
    return _rows(frame, day)


def state_of(session: Any, checkpoint: str) -> VisitsState:
    """Return the state of a checkpoint's stream. Raises PipelineError if there is no state."""
    state = StateFiles(session, f"{checkpoint}/state").load()
    if state.batch < 0:
        raise PipelineError(f"the checkpoint {checkpoint} does not belong to a stream of visits")
    return state


def notes(session: Any, root: str, topic: str, state: VisitsState | None) -> list[str]:
    """Return notes on a topic's offsets that the archive lacks: these are deleted, or only the stream counted them."""
    manifest = open_place(session, root).require()
    found = [
        f"{partition}: offsets {gap.start} to {gap.end - 1} were deleted before they were archived, and are not counted"
        for partition, gaps in sorted(manifest.gaps.items())
        for gap in gaps
        if partition.topic == topic
    ]
    for partition, end in _ends(session, root, topic).items():
        counted = state.ends.get(str(partition), 0) if state is not None else 0
        if counted > end:
            found.append(f"{topic}-{partition} is archived up to {end}, the stream has counted up to {counted}")
    return found


def published(session: Any, checkpoint: str, state: VisitsState) -> bool:
    """Whether the table matches a stream's state: no later batch is counted, and the last batch is published."""
    newest = StateFiles(session, f"{checkpoint}/state").load()
    return newest.batch == state.batch == Checkpoint(session, f"{checkpoint}/stream").committed()


def as_far(session: Any, root: str, topic: str, state: VisitsState) -> bool:
    """Whether an archive ends at the stream's position. The numbers of late events must be equal only in this case."""
    ends = _ends(session, root, topic)
    return all(ends.get(int(n), 0) == end for n, end in state.ends.items()) and len(ends) <= len(state.ends)


def _ends(session: Any, root: str, topic: str) -> dict[int, int]:
    return {p.number: end for p, end in sorted(open_place(session, root).require().ends().items()) if p.topic == topic}


def differences(counted: list[Row], streamed: list[Row], day: str | None, *, late: bool = True) -> list[str]:
    """Return one line for each difference between a recount and a stream's rows on final days.

    All days up to a final day are final. The number of `late` events of a final day still grows. This number is
    compared only if the recount and the stream have read the same records.
    """
    names = _NUMBERS if late else _NUMBERS[:2]
    last = max(final_days(streamed), default="")
    by_key = [{(r["organisation"], r["day"]): r for r in rows if r["day"] <= last} for rows in (streamed, counted)]
    found = []
    for key in sorted(key for key in by_key[0].keys() | by_key[1].keys() if day in (None, key[1])):
        one, other = ({name: rows.get(key, {}).get(name, 0) for name in names} for rows in by_key)
        if one != other:
            found.append(f"{key[0]}, {key[1]}: the stream has {_text(one)}, the archive {_text(other)}")
    return found


def final_days(streamed: list[Row]) -> list[str]:
    """Return the final days in a stream's rows, in order."""
    return sorted({row["day"] for row in streamed if row["final"]})


def table_rows(session: Any, table: str) -> list[Row]:
    """Return the rows of a stream's table, sorted by day and organisation, with the column `final`.

    Raises PipelineError.
    """
    if not any(each.name.startswith("day=") for each in Files(session, table).listing()):
        raise PipelineError(f"there is no table {table}")
    session.catalog.refreshByPath(table)
    frame = session.read.schema(TABLE).option("pathGlobFilter", FILE).parquet(table)
    return _rows(frame, None, "final")


def _rows(frame: Any, day: str | None, *more: str) -> list[Row]:
    from pyspark.sql import functions as f

    if day is not None:
        frame = frame.where(f.col("day") == f.lit(day).cast("date"))
    chosen = frame.select("organisation", f.col("day").cast("string").alias("day"), *_NUMBERS, *more)
    return [row.asDict() for row in chosen.orderBy("day", "organisation").collect()]


def _text(numbers: Row) -> str:
    return ", ".join(f"{number} {name}" for name, number in numbers.items())
