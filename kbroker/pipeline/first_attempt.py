"""Tasks that must not be done twice: they send records.

Owns how a task finds out that it is done again. `spark.task.maxFailures=1` does not keep Spark from that: an attempt
whose executor was lost with its worker, was decommissioned, or had not told yet that it began, counts as no failure
(TaskSetManager.executorLost), and goes to another executor, which would send all of it from the start.
"""

from __future__ import annotations

from typing import Any, Final

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
