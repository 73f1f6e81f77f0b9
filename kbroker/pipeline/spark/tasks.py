"""The distribution of rows over Spark's tasks, and tasks that must not be repeated.

Changes Spark's behaviour in two ways. First, Spark distributes rows by a hash of columns. This puts several partitions
of a topic into one task and leaves other tasks empty. Usually a third of the tasks are empty; if a topic has few
partitions, perhaps all tasks except one. Second, Spark may repeat a task that sends records, even with
`spark.task.maxFailures=1`. An attempt does not count as failed if its executor was lost with its worker, was
decommissioned, or had not reported its start yet (TaskSetManager.executorLost). Another executor then repeats the task
and sends all its records again.

A DataFrame of a few rows from the driver is created without `createDataFrame`, which would need Python on the
executors.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from kbroker.pipeline.ranges import Partition


def small_frame(session: Any, rows: Sequence[Mapping[str, Any]], schema: str) -> Any:
    """Return rows with JSON types as a DataFrame. The schema is a text such as `name string, number bigint`."""
    from pyspark.sql import functions as f

    found = f.from_json(f.lit(json.dumps(list(rows))), f"array<struct<{schema}>>")
    return session.range(1).select(f.explode(found).alias("row")).select("row.*")


DONE_AGAIN: Final = "KBROKER_TASK_DONE_AGAIN"
FIRST: Final = r"task [0-9]+\.0 in stage [0-9]+\.0 "
"""Matches the thread name of an executor: the task's index and attempt, and its stage's number and attempt."""
_SIGNS: Final = (DONE_AGAIN, "ExecutorLostFailure", "FetchFailed")


def first_attempt_only(frame: Any) -> Any:
    """Return rows that only the first attempt of a task can read. A later attempt fails at its first row.

    In SQL, only the thread's name contains the number of a task's attempt. `frame` has a column `partition`, of type
    int.
    """
    from pyspark.sql import functions as f

    first = f.expr("reflect('java.lang.Thread', 'currentThread')").rlike(FIRST)
    refused = f.raise_error(f.lit(DONE_AGAIN)).cast("int")
    return frame.withColumn("partition", f.when(first, f.col("partition")).otherwise(refused))


def lost_in(err: BaseException) -> bool:
    """Whether a job failed because an executor was lost, or because a task would have been repeated."""
    return any(sign in str(err) for sign in _SIGNS)


def one_task_each(frame: Any, partitions: Collection[Partition]) -> Any:
    """Return the rows of the given partitions (columns `topic` and `partition`), with one task for each partition."""
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
    """Return a number for each task: Spark's hash distribution sends rows with this number to this task."""
    from pyspark.sql import functions as f

    # This many numbers are enough: the chance that one of 100,000 tasks gets no number is 1 in 10^12.
    drawn = session.range(0, 40 * tasks, 1, 1).groupBy(f.expr(f"pmod(hash(id), {tasks})").alias("task"))
    return [int(row["least"]) for row in drawn.agg(f.min("id").alias("least")).orderBy("task").collect()]
