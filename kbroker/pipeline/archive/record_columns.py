"""The columns of a record, in Spark's Kafka source and in an archive's files, and sums over records.

Owns the names, the types, the folders' columns, and the hash of a record. Never reads or writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from kbroker.pipeline.ranges import Partition, Sums
from kbroker.pipeline.spark.tasks import small_frame

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
SCHEMA: Final = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
"""The columns of a file. The columns `topic`, `date` and `hour` are in the names of the file's folders."""
DECODED: Final = tuple(f"{part}_{what}" for part in ("key", "value") for what in ("decoded", "decode_error"))
"""Further columns of files that were archived with `--decode`; their types follow from the topic's schemas."""
FOLDERS: Final = {"date": "topic string, date date", "date,hour": "topic string, date date, hour int"}
"""The columns of the folders, by `--partition-by`."""


def with_folders(frame: Any, partition_by: str) -> Any:
    """Add the columns of the folders to records. Dates and hours are those of the record's timestamp, in UTC."""
    from pyspark.sql import functions as f

    frame = frame.withColumn("date", f.to_date("timestamp"))
    return frame.withColumn("hour", f.hour("timestamp")) if partition_by == "date,hour" else frame


def record_hash() -> Any:
    """Return a record's 64-bit hash. It includes every field, and null differs from empty."""
    from pyspark.sql import functions as f

    return f.xxhash64(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "timestampType",
        f.isnull("key"),
        "key",
        f.isnull("value"),
        "value",
        f.isnull("headers"),
        "headers",
        f.transform("headers", lambda header: f.isnull(header["value"])),
    )


def sums(frame: Any, *keys: Any) -> list[Any]:
    """Return a row (keys, records, checksum, first, last) for each combination of the keys. `sums_of` reads a row."""
    from pyspark.sql import functions as f

    return list(
        frame.groupBy(*keys)
        .agg(
            f.count("*").alias("records"),
            f.sum(record_hash().cast("decimal(20,0)")).alias("checksum"),
            f.min("offset").alias("first"),
            f.max("offset").alias("last"),
        )
        .collect()
    )


def sums_of(row: Any) -> Sums:
    """Return the sums in a row of `sums`."""
    return Sums(row["records"], int(row["checksum"]) % (1 << 64))


def partition_of(row: Any) -> Partition:
    """Return the partition of a row of `sums`."""
    return Partition(row["topic"], row["partition"])


def within(frame: Any, bounds: Mapping[Partition, tuple[int, int]]) -> Any:
    """Return the records with offsets in their partition's bounds, [start, end).

    The function joins the records with the bounds, because Spark's parser and planner cannot handle conditions for a
    thousand partitions.
    """
    from pyspark.sql import functions as f

    if not bounds:
        return frame.where("false")
    rows = [
        {"topic": p.topic, "partition": p.number, "_start": start, "_end": end} for p, (start, end) in bounds.items()
    ]
    limits = small_frame(frame.sparkSession, rows, "topic string, partition int, _start bigint, _end bigint")
    least, most = min(start for start, _ in bounds.values()), max(end for _, end in bounds.values())
    near = frame.where((f.col("offset") >= least) & (f.col("offset") < most))  # file statistics can exclude these
    near = near.where(f.col("topic").isin(*{partition.topic for partition in bounds}))
    joined = near.join(f.broadcast(limits), ["topic", "partition"])
    return joined.where("offset >= _start and offset < _end").select(*frame.columns)


def offsets_of(frame: Any) -> list[tuple[int, int]]:
    """Return the offsets of one partition's records as ranges without gaps, [start, end), in order."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    # For consecutive offsets, the difference between an offset and its row number is constant.
    run = f.col("offset") - f.row_number().over(Window.partitionBy("topic", "partition").orderBy("offset"))
    runs = frame.select("offset", run.alias("run")).groupBy("run")
    rows = runs.agg(f.min("offset").alias("first"), f.max("offset").alias("last")).orderBy("first").collect()
    return [(row["first"], row["last"] + 1) for row in rows]


def holes(runs: Iterable[tuple[int, int]], bounds: tuple[int, int]) -> list[tuple[int, int]]:
    """Return, in order, the gaps between ranges of offsets, within the bounds [start, end)."""
    place, last = bounds
    found = []
    for start, end in [*runs, (last, last)]:
        if start > place:
            found.append((place, start))
        place = end
    return found
