"""Rows of a topic's partitions, each partition's in a Spark task of its own.

Owns the distribution. Spark's own, by a hash of the columns, puts several partitions into one task and leaves others
empty: a third of the tasks, as a rule, and with few partitions it may be all but one.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any

from kbroker.pipeline.manifest import Partition
from kbroker.pipeline.small_frame import small_frame


def one_task_each(frame: Any, partitions: Collection[Partition]) -> Any:
    """Return the rows of those partitions (columns `topic` and `partition`), in as many tasks as there are of them."""
    from pyspark.sql import functions as f

    number = len(partitions)
    session = frame.sparkSession
    numbers = _numbers(session, number)
    places = [
        {"topic": each.topic, "partition": each.number, "place": place}
        for each, place in zip(sorted(partitions), numbers, strict=True)
    ]
    known = f.broadcast(small_frame(session, places, "topic string, partition int, place bigint"))
    return frame.join(known, ["topic", "partition"]).repartition(number, "place").drop("place")


@functools.lru_cache(maxsize=4)
def _numbers(session: Any, tasks: int) -> list[int]:
    """Return the least number that Spark sends to each of so many tasks, when it spreads by a column of numbers."""
    from pyspark.sql import functions as f

    # Drawn are more than enough: that one of 100,000 tasks gets none of them has a chance of 1 in 10^12.
    drawn = session.range(0, 40 * tasks, 1, 1).groupBy(f.expr(f"pmod(hash(id), {tasks})").alias("task"))
    return [int(row["least"]) for row in drawn.agg(f.min("id").alias("least")).orderBy("task").collect()]
