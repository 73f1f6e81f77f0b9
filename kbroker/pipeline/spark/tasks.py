"""How rows are spread over Spark's tasks, and tasks that must not be done twice.

Owns two departures from what Spark does by itself. Its distribution by a hash of columns puts several partitions of a
topic into one task and leaves others empty: a third of the tasks, as a rule, and with few partitions it may be all but
one. And `spark.task.maxFailures=1` does not keep it from doing a task again that sends records: an attempt whose
executor was lost with its worker, was decommissioned, or had not told yet that it began, counts as no failure
(TaskSetManager.executorLost), and goes to another executor, which would send all of it from the start.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, Final

from kbroker.pipeline.ranges import Partition
from kbroker.pipeline.spark.small_frame import small_frame

DONE_AGAIN: Final = "KBROKER_TASK_DONE_AGAIN"
FIRST: Final = r"task [0-9]+\.0 in stage [0-9]+\.0 "
"""In the name of the thread in which an executor runs a task: its index and attempt, its stage's number and attempt."""
_SIGNS: Final = (DONE_AGAIN, "ExecutorLostFailure", "FetchFailed")


def first_attempt_only(frame: Any) -> Any:
    """Return rows that only the first attempt of a task can read; a later one fails at its first row.

    Nothing in SQL tells a task's attempt but its thread's name. `frame` has a column `partition`, of type int.
    """
    from pyspark.sql import functions as f

    first = f.expr("reflect('java.lang.Thread', 'currentThread')").rlike(FIRST)
    refused = f.raise_error(f.lit(DONE_AGAIN)).cast("int")
    return frame.withColumn("partition", f.when(first, f.col("partition")).otherwise(refused))


def lost_in(err: BaseException) -> bool:
    """Whether a job failed because an executor was lost, or a task of it was to be done again."""
    return any(sign in str(err) for sign in _SIGNS)


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
