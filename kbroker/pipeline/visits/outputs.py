"""The outputs of a stream: a table of Parquet files, one per day, and a compacted topic.

Owns both outputs, and publishes the state's numbers to them. The first update of a run compares the numbers with the
current content of the outputs. So this update corrects changes that this stream did not make (another count, a deleted
folder or topic). Later updates compare the numbers with the last batch. A repeated update changes nothing. Never
counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kbroker.failpoints import passed
from kbroker.pipeline.kafka.cluster import Cluster
from kbroker.pipeline.spark.tasks import small_frame
from kbroker.pipeline.storage.files import Files

TABLE: Final = "organisation string, visits bigint, events bigint, late bigint, final boolean, day date"
"""The columns of the table. The day is in the names of the folders."""
KEY: Final = ("organisation", "day")
_VALUES: Final = ("visits", "events", "late", "final")
FILE: Final = "visits.parquet"
"""The name of the file of each day."""


class Outputs:
    """The places of the results: a table in a folder, and a topic."""

    def __init__(self, session: Any, cluster: Cluster, table: str, topic: str) -> None:
        self._session = session
        self._cluster = cluster
        self._topic = topic
        self.table = Files(session, table)

    def bring_up(self, now: Any, before: Any | None) -> None:
        """Publish the counts in `now` that differ from those in `before`.

        If `before` is None, compare with the published content.
        """
        from pyspark.sql import functions as f

        if before is not None:
            changed = now.join(before, now.columns, "left_anti").persist()
            try:
                if days := _days(changed):
                    self._write(now, days, _messages(changed))
            finally:
                changed.unpersist()
            return
        known = self._there()
        numbers = f.struct(*_VALUES)
        counted, there = now.select(*KEY, numbers.alias("now")), known.select(*KEY, numbers.alias("there"))
        rows = counted.join(there, list(KEY), "full_outer")
        messages = _messages(now).alias("now").join(self._newest().alias("there"), "key", "full_outer")
        messages = messages.where("not now.value <=> there.value").selectExpr("key", "now.value")
        self._write(now, _days(rows.where("not now <=> there")), messages)

    def _there(self) -> Any:
        """Return the content of the table."""
        if not any(each.name.startswith("day=") for each in self.table.listing()):
            return small_frame(self._session, [], TABLE)
        self._session.catalog.refreshByPath(self.table.url())
        return self._session.read.schema(TABLE).option("pathGlobFilter", FILE).parquet(self.table.url())

    def _newest(self) -> Any:
        """Return the newest value of each key in the topic."""
        from pyspark.sql import functions as f

        options = {**self._cluster.spark_options(), "kafka.isolation.level": "read_committed"}
        records = self._session.read.format("kafka").options(**options).option("subscribe", self._topic).load()
        place = f.struct("partition", "offset")
        newest = records.groupBy(f.col("key").cast("string").alias("key")).agg(
            f.max_by(f.col("value").cast("string"), place).alias("value")
        )
        return newest.where("key is not null")

    def _write(self, now: Any, days: list[str], messages: Any) -> None:
        from pyspark.sql import functions as f

        if days:
            written = self._replace(now.where(f.col("day").cast("string").isin(days)))
            for day in set(days) - written:
                self.table.delete(f"day={day}/{FILE}")
        passed("visits.published")
        options = {**self._cluster.spark_options(), "topic": self._topic, "kafka.acks": "all"}
        messages.coalesce(1).write.format("kafka").options(**options).save()

    def _replace(self, rows: Any) -> set[str]:
        """Replace the file of each day atomically. Return the days."""
        self.table.delete("_new")
        sorted_rows = rows.repartition("day").sortWithinPartitions(*KEY)
        # Write only one file per day, even if a setting limits the records in a file.
        sorted_rows.write.option("maxRecordsPerFile", 0).partitionBy("day").parquet(self.table.url("_new"))
        days = set()
        for found in self.table.walk("_new"):
            if found.name.endswith(".parquet"):
                folder = found.name.split("/")[1]
                self.table.replace(found.name, f"{folder}/{FILE}")
                days.add(folder.removeprefix("day="))
        self.table.delete("_new")
        return days


def _messages(rows: Any) -> Any:
    """Return rows as (key, value) pairs for the topic."""
    from pyspark.sql import functions as f

    key, value = f.to_json(f.struct(*KEY)), f.to_json(f.struct(*KEY, *_VALUES))
    return rows.select(key.alias("key"), value.alias("value"))


def _days(rows: Any) -> list[str]:
    from pyspark.sql import functions as f

    found: Iterable[Any] = rows.select(f.col("day").cast("string").alias("day")).distinct().collect()
    return [row["day"] for row in found]
