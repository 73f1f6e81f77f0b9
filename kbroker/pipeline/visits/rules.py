"""The definition of a visit, shared by the stream and the batch job: columns in, columns out.

Owns the rules; times in ms since the epoch. Never reads or writes.

- An event is a JSON object with `visitor`, `time` and, optionally, `id`; the fields may have other names.
- Any other value is malformed. An event is malformed if a field is missing, or if its time is later than its record's
  timestamp by more than an hour: such an event would begin a day in the future.
- The clock of a partition is the largest timestamp of its records so far. An event is late when its time is before the
  clock by more than `lateness`. It is counted as late, and as nothing else. Lateness depends only on the partition's
  records, not on a stream's batches, so a batch job finds the same late events.
- Events with the same visitor, id and time are one event.
- An event begins a visit if its visitor had no earlier event within `gap`. The visit belongs to the day, in UTC, on
  which it begins, and to the organisation of its visitor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from kbroker.pipeline.spark.tasks import small_frame

FUTURE_MS: Final = 3_600_000
GAP_MS: Final = 1_800_000
LATENESS_MS: Final = 600_000
"""Defaults, also of the commands: the longest pause within a visit, and the longest delay. Both are whole minutes."""
DAY_MS: Final = 86_400_000
_STRICT: Final = {"mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_DATED: Final = r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}"
"""Matches a time that begins with a date: without one, Spark would add the current day."""
Clock = tuple[int, int, int]
"""(partition, offset, ms): from this offset on, the partition's clock is at least this time."""


@dataclass(frozen=True, slots=True)
class VisitRules:
    """The rules' settings."""

    gap_ms: int = GAP_MS
    lateness_ms: int = LATENESS_MS
    visitor_field: str = "visitor"
    time_field: str = "time"
    id_field: str = "id"

    def final_before(self, slowest_ms: int | None) -> int:
        """Return the time before which all results are final, in ms, by the slowest partition's clock."""
        return 0 if slowest_ms is None else slowest_ms - self.lateness_ms

    def kept_ms(self) -> int:
        """Return how long before the slowest partition's clock an event can still matter."""
        return self.gap_ms + self.lateness_ms


def events(records: Any, rules: VisitRules) -> Any:
    """Return (partition, offset, clock, visitor, id, time, reason) of records; `reason` says why one is malformed.

    `clock` is the record's own timestamp; `with_clocks` replaces it with the partition's.
    """
    from pyspark.sql import functions as f

    fields = ", ".join(f"`{name}` string" for name in (rules.visitor_field, rules.time_field, rules.id_field))
    # Parse the value as the only element of an array: after a complete value the parser would ignore further text.
    text = f.concat(f.lit("["), f.col("value").cast("string"), f.lit("]"))
    parsed = records.select(
        "partition",
        "offset",
        f.unix_millis("timestamp").alias("clock"),
        f.isnull("value").alias("empty"),
        f.from_json(text, f"array<struct<{fields}>>", _STRICT).alias("found"),
    )
    event = f.when(f.size("found") == 1, f.col("found")[0])
    parsed = parsed.select("partition", "offset", "clock", "empty", event.alias("event"))
    place = f.concat_ws("/", "partition", "offset")
    visitor, time = f.col(f"event.`{rules.visitor_field}`"), f"event.`{rules.time_field}`"
    stamp = f.expr(f"unix_millis(try_cast({time} as timestamp))")
    read = parsed.select(
        "partition",
        "offset",
        "clock",
        "empty",
        "event",
        visitor.alias("visitor"),
        f.coalesce(f"event.`{rules.id_field}`", place).alias("id"),
        f.coalesce(f.expr(f"try_cast({time} as bigint)"), f.when(f.col(time).rlike(_DATED), stamp)).alias("time"),
    )
    reason = (
        f.when(f.col("empty"), "no value")
        .when(f.isnull("event"), "not a JSON object")
        .when(f.isnull("visitor") | (f.col("visitor") == ""), f"no {rules.visitor_field}")
        .when(f.isnull("time"), f"no {rules.time_field}")
        .when(f.col("time") > f.col("clock") + FUTURE_MS, f"{rules.time_field} lies in the future")
        .when(f.col("time") < 0, f"{rules.time_field} lies before 1970")
    )
    return read.withColumn("reason", reason).drop("empty", "event")


def with_clocks(found: Any, rules: VisitRules, clocks: Iterable[Clock] = ()) -> Any:
    """Set `clock` to the partition's clock at each event, and set `late`. `clocks` were set without a record."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    marks = list(clocks)
    everything = found.withColumn("order", f.lit(1))
    if marks:
        session = found.sparkSession
        rows = [{"partition": partition, "offset": offset, "clock": clock} for partition, offset, clock in marks]
        known = small_frame(session, rows, "partition int, offset bigint, clock bigint").withColumn("order", f.lit(0))
        everything = everything.unionByName(known, allowMissingColumns=True)
    window = Window.partitionBy("partition").orderBy("offset", "order").rowsBetween(Window.unboundedPreceding, 0)
    clocked = everything.withColumn("clock", f.max("clock").over(window)).where("order = 1").drop("order")
    late = f.isnull("reason") & (f.col("time") < f.col("clock") - rules.lateness_ms)
    return clocked.withColumn("late", late)


def on_time(clocked: Any) -> Any:
    """Return the distinct events that count: (visitor, id, time)."""
    return clocked.where("reason is null and not late").select("visitor", "id", "time").distinct()


def with_begins(found: Any, rules: VisitRules) -> Any:
    """Add `begins`, whether an event begins a visit, to (visitor, id, time)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = f.lag("time").over(Window.partitionBy("visitor").orderBy("time", "id"))
    return found.withColumn("begins", before.isNull() | (f.col("time") - before > rules.gap_ms))


def day_of(time: str = "time") -> Any:
    """Return the day of a time in ms, in UTC."""
    from pyspark.sql import functions as f

    return f.to_date(f.timestamp_millis(f.col(time)))
