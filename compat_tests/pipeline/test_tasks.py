"""How rows are distributed over Spark's tasks, and what a task knows about itself."""

from __future__ import annotations

import re
from typing import Any

import pytest

from compat_tests.spark.session import spark
from kbroker.pipeline.archive.record_columns import offsets_of, within
from kbroker.pipeline.ranges import Partition
from kbroker.pipeline.spark.tasks import DONE_AGAIN, FIRST, first_attempt_only, lost_in, one_task_each, small_frame

pytestmark = [
    pytest.mark.spark,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.mark.parametrize("number", [1, 2, 3, 7, 50])
def test_each_partition_has_a_task_of_its_own(number: int) -> None:
    partitions = [Partition(topic, n) for topic in ("a", "b") for n in range(number)]
    rows = [{"topic": p.topic, "partition": p.number, "offset": n} for p in partitions for n in range(3)]
    frame = small_frame(spark(), rows, "topic string, partition int, offset bigint")
    spread = one_task_each(frame, partitions).selectExpr("*", "spark_partition_id() as task").collect()
    assert sorted(row["task"] for row in spread) == sorted(3 * list(range(2 * number)))
    assert len({(row["topic"], row["partition"], row["task"]) for row in spread}) == 2 * number


def test_a_thousand_partitions_have_bounds() -> None:
    partitions = [Partition(f"t{n % 3}", n) for n in range(1000)]
    rows = [{"offset": n, "topic": p.topic, "partition": p.number} for p in partitions for n in range(4)]
    frame = small_frame(spark(), rows, "offset bigint, topic string, partition int")
    found = within(frame, {p: (1, 3) for p in partitions if p.number != 500})
    assert found.columns == frame.columns
    assert sorted(row["offset"] for row in found.collect()) == 999 * [1] + 999 * [2]
    assert within(frame, {}).collect() == []
    some = within(frame.where("offset <> 1"), {partitions[0]: (0, 4)})
    assert offsets_of(some) == [(0, 1), (2, 4)]


def test_rows_of_the_driver_need_no_python_of_the_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark().sparkContext, "pythonExec", "/nowhere")
    rows: list[dict[str, Any]] = [{"name": "a'\"\\", "number": 1 << 60}, {"name": None, "number": -1}]
    found = small_frame(spark(), rows, "name string, number bigint").collect()
    assert [row.asDict() for row in found] == rows
    assert small_frame(spark(), [], "day date, final boolean").collect() == []


def test_the_first_attempt_of_a_task_may_read_its_rows() -> None:
    frame = spark().range(100).repartition(3).selectExpr("id", "cast(id as int) partition")
    rows = first_attempt_only(frame).collect()
    assert sorted((row["id"], row["partition"]) for row in rows) == [(n, n) for n in range(100)]


@pytest.mark.parametrize(
    ("task", "first"),
    [
        ("task 3.0 in stage 12.0 (TID 4)", True),
        ("task 3.1 in stage 12.0 (TID 4)", False),
        ("task 10.10 in stage 2.0 (TID 4)", False),
        ("task 3.0 in stage 1.2 (TID 4)", False),
    ],
)
def test_a_later_attempt_is_known_by_its_name(task: str, first: bool) -> None:
    thread = f"Thread[Executor task launch worker for {task},5,main]"
    assert bool(re.search(FIRST, thread)) == first


def test_a_lost_executor_is_known_by_what_spark_says() -> None:
    assert lost_in(RuntimeError(f"Job aborted: [USER_RAISED_EXCEPTION] {DONE_AGAIN}"))
    assert not lost_in(RuntimeError("Job aborted: org.apache.kafka.common.errors.TimeoutException"))
