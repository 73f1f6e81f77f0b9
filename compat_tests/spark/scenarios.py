"""Spark jobs and what they saw: batches, streams with both triggers, restarts from a checkpoint, writes."""

from __future__ import annotations

import json
import tempfile
import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from compat_tests.harness.recorded import HOUR_AGO_MS
from compat_tests.harness.scenarios import Scenarios
from compat_tests.spark.session import spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

scenarios = Scenarios("spark")
WAIT_SECONDS = 90
BASE_MS = HOUR_AGO_MS
COLUMNS = ["key", "value", "partition", "offset", "timestampType", "headers"]


def create(bootstrap: str, *topics: str, partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(t, num_partitions=partitions) for t in topics]).values():
        future.result(30)


def put(bootstrap: str, topic: str, first: int, count: int, partitions: int = 2) -> None:
    """Produce the records with numbers from `first` to `first + count`, round robin, one second apart."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    for i in range(first, first + count):
        producer.produce(
            topic,
            value=f"value-{i}",
            key=f"key-{i}" if i % 3 else None,
            partition=i % partitions,
            timestamp=BASE_MS + i * 1000,
            headers=[("n", str(i).encode()), ("empty", None)] if i % 2 else [],
        )
    assert producer.flush(30) == 0


def text(raw: Any) -> str | None:
    return None if raw is None else bytes(raw).decode()


def rows(frame: DataFrame) -> list[list[Any]]:
    """Return a frame's rows ordered by partition and offset, with timestamps relative to BASE_MS."""
    found = []
    for row in frame.collect():
        headers = row["headers"] if "headers" in frame.columns else None
        stamp = int(row["timestamp"].timestamp() * 1000) - BASE_MS
        found.append(
            [
                row["partition"],
                row["offset"],
                text(row["key"]),
                text(row["value"]),
                stamp if 0 <= stamp < 3_000_000 else "now",
                row["timestampType"],
                None if headers is None else [[h["key"], text(h["value"])] for h in headers],
            ]
        )
    return sorted(found, key=lambda r: (r[0], r[1]))


def read(bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark().read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def stream(bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark().readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("startingOffsets", "earliest")
    if "subscribePattern" not in options:
        reader = reader.option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


@scenarios.add
def batch_read(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique)
    put(bootstrap, unique, 0, 20)
    return {
        "all": rows(read(bootstrap, unique, includeHeaders="true")),
        "without headers": rows(read(bootstrap, unique)),
        "schema": read(bootstrap, unique).dtypes,
        "minPartitions": read(bootstrap, unique, minPartitions="6").rdd.getNumPartitions(),
    }


@scenarios.add
def batch_offsets(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique)
    put(bootstrap, unique, 0, 20)
    starting = json.dumps({unique: {"0": 3, "1": -2}})
    ending = json.dumps({unique: {"0": 7, "1": -1}})
    by_time = json.dumps({unique: {"0": BASE_MS + 8500, "1": BASE_MS + 15_000}})
    late = json.dumps({unique: {"0": BASE_MS + 10_000_000, "1": BASE_MS + 10_000_000}})
    return {
        "by offset": rows(read(bootstrap, unique, startingOffsets=starting, endingOffsets=ending)),
        "by timestamp": rows(read(bootstrap, unique, startingOffsetsByTimestamp=by_time)),
        "until timestamp": rows(read(bootstrap, unique, endingOffsetsByTimestamp=by_time)),
        "one timestamp": rows(read(bootstrap, unique, startingTimestamp=str(BASE_MS + 12_000))),
        "after the end": rows(
            read(
                bootstrap,
                unique,
                startingOffsetsByTimestamp=late,
                startingOffsetsByTimestampStrategy="latest",
            )
        ),
    }


@scenarios.add
def assign_and_pattern(bootstrap: str, unique: str) -> object:
    create(bootstrap, f"{unique}-a", f"{unique}-b")
    put(bootstrap, f"{unique}-a", 0, 6)
    put(bootstrap, f"{unique}-b", 100, 6)
    base = spark().read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    assigned = base.option("assign", json.dumps({f"{unique}-a": [1]})).load()
    base = spark().read.format("kafka").option("kafka.bootstrap.servers", bootstrap)
    matched = base.option("subscribePattern", f"{unique}-.*").load()
    counts = {row["topic"]: row["count"] for row in matched.groupBy("topic").count().collect()}
    return {"assigned": rows(assigned), "matched": counts}


@scenarios.add
def batch_write(bootstrap: str, unique: str) -> object:
    from pyspark.sql import functions as f

    create(bootstrap, unique, partitions=3)
    frame = (
        spark()
        .range(30)
        .select(
            f.concat(f.lit("k"), f.col("id")).alias("key"),
            f.concat(f.lit("v"), f.col("id")).alias("value"),
            (f.col("id") % 3).cast("int").alias("partition"),
            f.array(f.struct(f.lit("h").alias("key"), f.lit("x").cast("binary").alias("value"))).alias("headers"),
        )
    )
    (
        frame.coalesce(1)
        .write.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", unique)
        .option("includeHeaders", "true")
        .save()
    )
    return rows(read(bootstrap, unique, includeHeaders="true"))


@scenarios.add
def write_to_a_missing_topic(bootstrap: str, unique: str) -> object:
    spark().createDataFrame([("a",), ("b",)], ["value"]).coalesce(1).write.format("kafka").option(
        "kafka.bootstrap.servers", bootstrap
    ).option("topic", unique).save()
    return rows(read(bootstrap, unique))


@scenarios.add
def available_now_and_restart(bootstrap: str, unique: str) -> object:
    """A stream that stops when it has read everything runs three times from one checkpoint."""
    create(bootstrap, unique)
    seen = []
    with tempfile.TemporaryDirectory(prefix="stream-") as directory:
        for first, count in [(0, 25), (25, 10), (35, 0)]:
            put(bootstrap, unique, first, count)
            query = (
                stream(bootstrap, unique, maxOffsetsPerTrigger="8", includeHeaders="true")
                .select(*COLUMNS, "timestamp", "topic")
                .writeStream.format("parquet")
                .option("path", f"{directory}/out")
                .option("checkpointLocation", f"{directory}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(WAIT_SECONDS)
            batches = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
            seen.append({"batches": batches, "rows": rows(spark().read.parquet(f"{directory}/out"))})
    return seen


@scenarios.add
def processing_time(bootstrap: str, unique: str) -> object:
    """A stream that runs while records, and then a partition, are added."""
    create(bootstrap, unique)
    with tempfile.TemporaryDirectory(prefix="stream-") as directory:
        query = (
            stream(bootstrap, unique, **{"kafka.metadata.max.age.ms": "500"})
            .select("key", "value", "partition", "offset", "timestamp", "timestampType")
            .writeStream.format("memory")
            .queryName(f"m_{abs(hash((bootstrap, unique)))}")
            .option("checkpointLocation", f"{directory}/checkpoint")
            .trigger(processingTime="200 milliseconds")
            .start()
        )
        try:
            table = query.name
            for first in (0, 10, 20):
                put(bootstrap, unique, first, 10)
                wait(lambda: spark().table(table).count() >= first + 10)  # noqa: B023
            return rows(spark().table(table))
        finally:
            query.stop()


def wait(happened: Any) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline, f"waited {WAIT_SECONDS} s"
        time.sleep(0.1)


@scenarios.add
def topic_to_topic(bootstrap: str, unique: str) -> object:
    """A stream from one topic to another is stopped and resumed."""
    source, target = f"{unique}-from", f"{unique}-to"
    create(bootstrap, source, target)
    with tempfile.TemporaryDirectory(prefix="stream-") as directory:
        for first in (0, 15):
            put(bootstrap, source, first, 15)
            query = (
                stream(bootstrap, source)
                .selectExpr("key", "upper(CAST(value AS STRING)) AS value", "partition")
                .writeStream.format("kafka")
                .option("kafka.bootstrap.servers", bootstrap)
                .option("topic", target)
                .option("checkpointLocation", f"{directory}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(WAIT_SECONDS)
    written = rows(read(bootstrap, target))
    return {"values": sorted(str(r[3]) for r in written), "partitions": [r[:2] for r in written]}


@scenarios.add
def data_loss_is_noticed(bootstrap: str, unique: str) -> object:
    """Records that a checkpoint refers to are deleted: the stream fails, or continues if its options allow it."""
    from confluent_kafka import TopicPartition

    create(bootstrap, unique, partitions=1)
    put(bootstrap, unique, 0, 10, partitions=1)
    outcome: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="stream-") as directory:

        def run(**options: str) -> Any:
            query = (
                stream(bootstrap, unique, **options)
                .select("key", "value", "partition", "offset", "timestamp", "timestampType")
                .writeStream.format("parquet")
                .option("path", f"{directory}/out")
                .option("checkpointLocation", f"{directory}/checkpoint")
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination(WAIT_SECONDS)
            except Exception as error:  # noqa: BLE001 - how it fails is the observation
                return f"failed: {'data was lost' if 'missed' in str(error) or 'lost' in str(error) else error}"
            return rows(spark().read.parquet(f"{directory}/out"))

        outcome["first"] = run()
        put(bootstrap, unique, 10, 10, partitions=1)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for future in admin.delete_records([TopicPartition(unique, 0, 15)]).values():
            future.result(30)
        outcome["lost"] = run()
        outcome["told to go on"] = run(failOnDataLoss="false")
    return outcome
