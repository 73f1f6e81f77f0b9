"""The definition of a visit, shared by the stream and the batch job: columns in, columns out.

Owns the rules; times in ms since the epoch. Never reads or writes.

- An event is a JSON object with `visitor`, `time` and, optionally, `id`; the fields may have other names. With a schema
  registry it is a record of Avro, JSON Schema or Protobuf with these fields, and is read by the schema that it names.
- Any other value is malformed. An event is malformed if a field is missing, or if its time is later than its record's
  timestamp by more than an hour: such an event would begin a day in the future.
- The clock of a partition is the largest timestamp of its records so far. An event is late when its time is before the
  clock by more than `lateness`. It counts only as late. Lateness depends only on the partition's records, not on a
  stream's batches, so a batch job finds the same late events.
- Events with the same visitor, id and time are one event.
- An event begins a visit if its visitor had no earlier event within `gap`. The visit belongs to the day, in UTC, on
  which it begins, and to the organisation of its visitor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from kbroker.pipeline.decoding.records import EventDecoder, with_fields
from kbroker.pipeline.decoding.registry import Registry
from kbroker.pipeline.spark.tasks import small_frame

FUTURE_MS: Final = 3_600_000
GAP_MS: Final = 1_800_000
LATENESS_MS: Final = 600_000
"""The defaults of the rules and of the commands: the maximum pause within a visit, and the maximum delay.

Both are whole minutes.
"""
DAY_MS: Final = 86_400_000
JSON: Final = "json"
BY_REGISTRY: Final = "registry"
"""The formats of events: plain JSON, or the formats of a schema registry, in Confluent's framing."""
_STRICT: Final = {"mode": "PERMISSIVE", "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_DATED: Final = r"^\s*[0-9]{4}-[0-9]{2}-[0-9]{2}"
"""Matches a time that begins with a date. Without a date, Spark would add the current day."""
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
    event_format: str = JSON

    def facts(self) -> dict[str, Any]:
        """Return the rules in the form that a state contains. The format JSON is omitted, as in older states."""
        found = asdict(self)
        if self.event_format == JSON:
            del found["event_format"]
        return found

    def final_before(self, slowest_ms: int | None) -> int:
        """Return the time in ms before which all results are final. `slowest_ms` is the slowest partition's clock."""
        return 0 if slowest_ms is None else slowest_ms - self.lateness_ms

    def kept_ms(self) -> int:
        """Return the time span in ms, before the slowest partition's clock, in which an event can still matter."""
        return self.gap_ms + self.lateness_ms


def events(records: Any, rules: VisitRules, registry: Registry | None = None) -> Any:
    """Return (partition, offset, clock, visitor, id, time, reason) of records. Malformed records have a `reason`.

    `clock` is the record's own timestamp; `with_clocks` replaces it with the partition's clock. Events in a format of a
    schema registry need `registry`.
    """
    from pyspark.sql import functions as f

    if rules.event_format == BY_REGISTRY:
        if registry is None:
            raise ValueError("events in the format of a registry need a registry")
        found = _by_registry(records, rules, registry)
    else:
        found = _of_json(records, rules)
    place = f.concat_ws("/", "partition", "offset")
    stamp = f.expr("unix_millis(try_cast(time as timestamp))")
    read = found.select(
        "partition",
        "offset",
        "clock",
        "empty",
        "unread",
        "visitor",
        f.coalesce("id", place).alias("id"),
        f.coalesce(f.expr("try_cast(time as bigint)"), f.when(f.col("time").rlike(_DATED), stamp)).alias("time"),
    )
    reason = (
        f.when(f.col("empty"), "no value")
        .when(f.isnotnull("unread"), f.col("unread"))
        .when(f.isnull("visitor") | (f.col("visitor") == ""), f"no {rules.visitor_field}")
        .when(f.isnull("time"), f"no {rules.time_field}")
        .when(f.col("time") > f.col("clock") + FUTURE_MS, f"{rules.time_field} lies in the future")
        .when(f.col("time") < 0, f"{rules.time_field} lies before 1970")
    )
    return read.withColumn("reason", reason).drop("empty", "unread")


def _of_json(records: Any, rules: VisitRules) -> Any:
    """Return (partition, offset, clock, empty, unread, visitor, time, id) of JSON. The last three are texts."""
    from pyspark.sql import functions as f

    names = (rules.visitor_field, rules.time_field, rules.id_field)
    fields = ", ".join(f"`{name}` string" for name in names)
    # Parse the value as the only element of an array, because the parser ignores text after a complete value.
    text = f.concat(f.lit("["), f.col("value").cast("string"), f.lit("]"))
    parsed = records.select(*_place(), f.from_json(text, f"array<struct<{fields}>>", _STRICT).alias("found"))
    parsed = parsed.withColumn("event", f.when(f.size("found") == 1, f.col("found")[0]))
    unread = f.when(f.isnull("event"), "not a JSON object").alias("unread")
    return parsed.select(
        "partition", "offset", "clock", "empty", unread, *_texts([f"event.`{name}`" for name in names])
    )


def _by_registry(records: Any, rules: VisitRules, registry: Registry) -> Any:
    """Return the columns of `_of_json`, decoded from values with the schemas that these values name."""
    from pyspark.sql import functions as f

    names = (rules.visitor_field, rules.time_field, rules.id_field)
    read = with_fields(records, EventDecoder(registry, names))
    unread = f.when(f.isnotnull("found.reason"), f.concat(f.lit("not decoded: "), "found.reason")).alias("unread")
    return read.select(*_place(), unread, *_texts([f"found.field{index}" for index in range(len(names))]))


def _place() -> list[Any]:
    from pyspark.sql import functions as f

    own = [f.col("partition"), f.col("offset"), f.unix_millis("timestamp").alias("clock")]
    return [*own, f.isnull("value").alias("empty")]


def _texts(columns: list[str]) -> list[Any]:
    from pyspark.sql import functions as f

    return [f.col(column).alias(name) for column, name in zip(columns, ("visitor", "time", "id"), strict=True)]


def with_clocks(found: Any, rules: VisitRules, clocks: Iterable[Clock] = ()) -> Any:
    """Set `clock` to the partition's clock at each event, and set `late`.

    `clocks` are the clocks set without a record.
    """
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
    """Add the column `begins` (whether an event begins a visit) to (visitor, id, time)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = f.lag("time").over(Window.partitionBy("visitor").orderBy("time", "id"))
    return found.withColumn("begins", before.isNull() | (f.col("time") - before > rules.gap_ms))


def day_of(time: str = "time") -> Any:
    """Return the day of a time in ms, in UTC."""
    from pyspark.sql import functions as f

    return f.to_date(f.timestamp_millis(f.col(time)))
