"""A record's columns: as Spark's Kafka source names them, as an archive's files hold them, and what sums them up.

Owns the names, the types, the folders' columns, and the hash of a record. Never reads or writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final

from kbroker.pipeline.manifest import Partition, Sums

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
SCHEMA: Final = (
    "key binary, value binary, partition int, offset bigint, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>"
)
"""What a file holds; `topic`, `date` and `hour` are in the names of its folders."""
FOLDERS: Final = {"date": "topic string, date date", "date,hour": "topic string, date date, hour int"}
"""The columns of the folders, by `--partition-by`."""


def with_folders(frame: Any, partition_by: str) -> Any:
    """Add the columns of the folders to records; dates and hours are of the record's timestamp, in UTC."""
    from pyspark.sql import functions as f

    frame = frame.withColumn("date", f.to_date("timestamp"))
    return frame.withColumn("hour", f.hour("timestamp")) if partition_by == "date,hour" else frame


def record_hash() -> Any:
    """Return a record's 64-bit hash: every field counts, and null is not the same as empty."""
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
    """Return rows of (keys, records, checksum, first, last) for each of the keys; `sums_of` reads a row."""
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
    """Return what a row of `sums` says."""
    return Sums(row["records"], int(row["checksum"]) % (1 << 64))


def partition_of(row: Any) -> Partition:
    """Return which partition a row of `sums` is about."""
    return Partition(row["topic"], row["partition"])


def within(frame: Any, bounds: Mapping[Partition, tuple[int, int]]) -> Any:
    """Return the records whose offsets lie in their partition's bounds, [start, end)."""
    from pyspark.sql import functions as f

    condition = f.lit(False)
    by_topic: defaultdict[str, dict[Partition, tuple[int, int]]] = defaultdict(dict)
    for partition, pair in bounds.items():
        by_topic[partition.topic][partition] = pair
    for topic, found in by_topic.items():
        places = f.lit(False)
        for partition, (start, end) in found.items():
            places |= (f.col("partition") == partition.number) & (f.col("offset") >= start) & (f.col("offset") < end)
        condition |= (f.col("topic") == topic) & places
    return frame.where(condition)
