"""Archives as Iceberg and Delta tables: each record once, as engines see it that know nothing of the pipeline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat_tests.pipeline.jobs import Jobs, jobs, refused, without
from compat_tests.pipeline.kills import killed
from compat_tests.pipeline.processes import WAIT_S, ended, start_verb
from compat_tests.pipeline.table_readers import by_duckdb, of_topic, rows
from compat_tests.pipeline.test_decoding import NEW, Registered
from compat_tests.pipeline.test_decoding import put as put_values
from compat_tests.pipeline.topics import BASE_MS, create, put, put_transaction, records
from kbroker.embed import Broker
from tests.tries import FORM

pytestmark = [
    pytest.mark.spark,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KINDS = ("iceberg", "delta")
long = pytest.mark.skipif(FORM != "long", reason="half a minute each: only with KBROKER_TESTS=long")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(registry=True) as found:
        yield found


@pytest.fixture
def job(broker: Broker) -> Iterator[Jobs]:
    with jobs(broker.bootstrap_servers) as found:
        yield found


@pytest.mark.parametrize("kind", KINDS)
def test_each_record_is_in_the_table_once(broker: Broker, job: Jobs, kind: str) -> None:
    topic, bootstrap = f"{kind}-once", broker.bootstrap_servers
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 900)
    assert job.archive(topic, "table", format=kind) == [900]
    assert job.archive(topic, "table", format=kind) == []
    put(bootstrap, topic, 900, 100)
    assert job.archive(topic, "table", "other", format=kind) == [100]
    assert by_duckdb(kind, job.at("table")) == of_topic(bootstrap, topic)
    assert refused(job.optimize, "table").startswith(f"{job.at('table')} is in the format {kind}, ")
    assert f"archive with --format {kind}" in refused(job.archive, topic, "table", "third")


@long
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_verified_and_replayed(broker: Broker, job: Jobs, kind: str) -> None:
    topic, bootstrap = f"{kind}-verified", broker.bootstrap_servers
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 600)
    put_transaction(bootstrap, topic, commit=False)
    put_transaction(bootstrap, topic, commit=True)
    job.archive(topic, "table", format=kind, batch_records=200, partition_by="date,hour")
    assert "partitioned by date,hour" in refused(job.archive, topic, "table", format=kind)
    report = job.verify("table")
    assert report["faults"] == []
    assert [state["compared"] for state in report["partitions"]] == [301, 301]
    job.archive(topic, "files", "other")
    same = ("records", "checksum", "start", "end")
    files = job.verify("files")["partitions"]
    assert [[state[name] for name in same] for state in report["partitions"]] == [
        [state[name] for name in same] for state in files
    ]
    sent = job.replay("table", f"{topic}-again", exactly_once=True, where="date = '2026-11-25' and hour < 3")
    again = records(bootstrap, f"{topic}-again")
    assert sent == sum(map(len, again)) == 540
    assert by_duckdb(kind, job.at("table")) == of_topic(bootstrap, topic)


@long
@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_records_is_committed_too(broker: Broker, job: Jobs, kind: str) -> None:
    topic, bootstrap = f"{kind}-empty", broker.bootstrap_servers
    create(bootstrap, topic)
    put_transaction(bootstrap, topic, commit=False)
    assert job.archive(topic, "table", format=kind) == [0]
    put_transaction(bootstrap, topic, commit=False)
    assert job.archive(topic, "table", format=kind) == [0]
    assert job.archive(topic, "table", "other", format=kind) == [0]
    put(bootstrap, topic, 0, 10)
    assert job.archive(topic, "table", "other", format=kind) == [10]
    assert by_duckdb(kind, job.at("table")) == of_topic(bootstrap, topic)


def data_files(folder: str) -> set[Path]:
    """Return a table's data files, whether a commit names them or not."""
    return {each for each in Path(folder).rglob("*.parquet") if "topic=" in str(each)}


def killed_while_writing(job: Jobs, folder: str, *arguments: str) -> None:
    """Kill a verb as soon as its first data file appears, which is before the table's commit names it."""
    before = data_files(folder)
    verb = start_verb(*arguments, "--bootstrap", job.bootstrap, stderr=subprocess.PIPE, environment={}, tables=True)
    try:
        deadline = time.monotonic() + WAIT_S
        while data_files(folder) == before:
            assert verb.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        os.killpg(verb.pid, signal.SIGKILL)
    ended(verb)


@long
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_driver_doubles_nothing(broker: Broker, job: Jobs, kind: str) -> None:
    topic, bootstrap, table = f"{kind}-killed", broker.bootstrap_servers, job.at("table")
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 900)
    verb: tuple[str, ...] = ("archive", "--topics", topic, "--to", table, "--checkpoint", job.at("checkpoint"))
    verb += ("--batch-records", "300", "--format", kind)
    killed_while_writing(job, table, *verb)
    written = data_files(table)
    assert written
    assert rows(kind, table).num_rows == 0
    killed(job, "archive.committed:2", *verb, tables=True)
    assert rows(kind, table).num_rows == 600
    killed(job, "archive.staged:1", *verb, tables=True)
    assert rows(kind, table).num_rows == 600
    put(bootstrap, topic, 900, 50)
    assert sum(job.archive(topic, "table", format=kind)) == 350
    assert by_duckdb(kind, table) == of_topic(bootstrap, topic)
    assert job.verify("table")["faults"] == []


def frame_of(job: Jobs, kind: str) -> Any:
    return job.session.read.format(kind).load(job.at("table"))


def append_rows(job: Jobs, kind: str, frame: Any) -> None:
    """Append rows as somebody else would do."""
    frame.write.format(kind).mode("append").option("mergeSchema", "true").save(job.at("table"))


def iceberg_table(job: Jobs) -> Any:
    tables = job.session._jvm.org.apache.iceberg.hadoop.HadoopTables(job.session._jsc.hadoopConfiguration())
    return tables.load(f"file:{job.at('table')}")


@long
@pytest.mark.parametrize("kind", KINDS)
def test_commits_of_others_are_left_alone(broker: Broker, job: Jobs, kind: str) -> None:
    topic, bootstrap = f"{kind}-others", broker.bootstrap_servers
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 100)
    job.archive(topic, "table", format=kind)
    job.archive(topic, "table", format=kind)
    if kind == "iceberg":
        types = job.session._jvm.org.apache.iceberg.types.Types
        iceberg_table(job).updateSchema().addColumn("note", types.StringType.get()).commit()
        iceberg_table(job).updateSchema().updateColumn("partition", types.LongType.get()).commit()
    foreign = frame_of(job, kind).limit(5).withColumn("note", _lit("x")).withColumn("topic", _lit("not a topic"))
    append_rows(job, kind, foreign)
    put(bootstrap, topic, 100, 50)
    assert job.archive(topic, "table", format=kind) == [50]
    put(bootstrap, topic, 150, 50)
    append_rows(job, kind, foreign)
    assert job.archive(topic, "table", "new", format=kind) == [50]
    found = rows(kind, job.at("table"))
    assert found.num_rows == 210
    assert found.column("note").null_count == 200
    report = job.verify("table")
    assert report["faults"] == []
    assert [state["compared"] for state in report["partitions"]] == [100, 100]
    if kind == "delta":
        job.session.sql(f"optimize delta.`{job.at('table')}`").collect()
        put(bootstrap, topic, 200, 10)
        assert job.archive(topic, "table", "new", format=kind) == [10]
        assert job.verify("table")["faults"] == []


def _lit(value: str) -> Any:
    from pyspark.sql import functions as f

    return f.lit(value)


@long
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_went_back_is_filled_again(broker: Broker, job: Jobs, kind: str) -> None:
    topic, bootstrap = f"{kind}-back", broker.bootstrap_servers
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 100)
    job.archive(topic, "table", format=kind)
    if kind == "iceberg":
        before = iceberg_table(job).currentSnapshot().snapshotId()
    put(bootstrap, topic, 100, 50)
    job.archive(topic, "table", format=kind)
    if kind == "iceberg":
        iceberg_table(job).manageSnapshots().rollbackTo(before).commit()
    else:
        job.session.sql(f"restore table delta.`{job.at('table')}` to version as of 1").collect()
    assert rows(kind, job.at("table")).num_rows == 100
    assert "take a new checkpoint" in refused(job.archive, topic, "table", format=kind)
    assert job.archive(topic, "table", "new", format=kind) == [50]
    assert by_duckdb(kind, job.at("table")) == of_topic(bootstrap, topic)


@long
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_that_is_not_the_archives_is_refused(broker: Broker, job: Jobs, kind: str) -> None:
    topic, bootstrap = f"{kind}-refused", broker.bootstrap_servers
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 100)
    job.archive(topic, "table", format=kind)
    if kind == "iceberg":
        iceberg_table(job).updateSchema().deleteColumn("value").commit()
    else:
        frame_of(job, kind).drop("value").write.format(kind).mode("overwrite").option("overwriteSchema", "true").save(
            job.at("table")
        )
    put(bootstrap, topic, 100, 10)
    lines = [refused(job.archive, topic, "table", format=kind), refused(job.verify, "table")]
    lines.append(refused(job.replay, "table", f"{topic}-again"))
    changed = "FOLDER/table has no column value any more: somebody else changed the table; archive to another place"
    assert [without(line, job) for line in lines] == [changed] * 3
    if kind == "iceberg":
        table, new = iceberg_table(job), job.session._jvm.org.apache.iceberg.types.Types.StringType.get()
        table.updateSchema().addColumn("value", new).commit()
        assert "another type, value: binary in place of string" in refused(job.archive, topic, "table", format=kind)
        table = iceberg_table(job)
        tables = job.session._jvm.org.apache.iceberg.hadoop.HadoopTables(job.session._jsc.hadoopConfiguration())
        tables.create(table.schema(), table.spec(), {}, f"file:{job.at('others')}")
    else:
        job.session.range(3).write.format("delta").save(job.at("others"))
    line = refused(job.archive, topic, "others", "c2", format=kind)
    assert without(line, job) == "FOLDER/others is a table that no archive has created: use another place"


@long
@pytest.mark.parametrize("kind", KINDS)
def test_a_table_whose_history_is_gone(broker: Broker, job: Jobs, kind: str) -> None:
    topic, bootstrap = f"{kind}-expired", broker.bootstrap_servers
    create(bootstrap, topic)
    put(bootstrap, topic, 0, 100)
    job.archive(topic, "table", format=kind, batch_records=50)
    foreign = frame_of(job, kind).limit(1).withColumn("topic", _lit("not a topic"))
    append_rows(job, kind, foreign)
    if kind == "iceberg":
        newest = iceberg_table(job).currentSnapshot().timestampMillis()
        iceberg_table(job).expireSnapshots().expireOlderThan(newest + 1).commit()
    else:
        for _ in range(8):
            append_rows(job, kind, foreign)
        log = Path(job.at("table")) / "_delta_log"
        assert list(log.glob("*.checkpoint*.parquet"))
        newest = max(int(each.name[:20]) for each in log.glob("*.checkpoint*.parquet"))
        for each in log.glob("*.json"):
            if each.name[:20].isdecimal() and int(each.name[:20]) < newest:
                each.unlink()
    line = refused(job.archive, topic, "table", format=kind)
    assert "does not say what was archived" in line
    assert "\n" not in line


@long
@pytest.mark.parametrize("kind", KINDS)
def test_typed_columns_follow_the_schema(broker: Broker, job: Jobs, kind: str) -> None:
    registered, bootstrap, topic = Registered(broker.registry_url), broker.bootstrap_servers, f"{kind}-typed"
    new = json.dumps(NEW)
    fewer = json.dumps({**NEW, "fields": NEW["fields"][:2]})
    create(bootstrap, topic, f"{topic}-plain", partitions=1)
    put_values(bootstrap, f"{topic}-plain", b"plain")
    number = registered.add(f"{topic}-value", fewer)
    put_values(bootstrap, topic, registered.framed(number, fewer, {"n": 5, "price": "ÿ"}), b"no frame")
    options: dict[str, Any] = {"format": kind, "pattern": f"{topic}.*", "decoding": registered.decoding()}
    assert job.archive(None, "table", **options) == [3]
    number = registered.add(f"{topic}-value", new)
    full = {"n": 1 << 40, "price": "\u0001\u0000", "at": {"long": BASE_MS * 1000 + 7}, "day": 20000, "tags": ["a"]}
    put_values(bootstrap, topic, registered.framed(number, new, full))
    assert job.archive(None, "table", **{**options, "decoding": registered.decoding()}) == [1]
    registered.add(f"{topic}-value", json.dumps({**NEW, "fields": NEW["fields"][:2], "doc": "fewer again"}))
    put_values(bootstrap, topic, registered.framed(number, new, full))
    assert job.archive(None, "table", **{**options, "decoding": registered.decoding()}) == [1]
    found = sorted(rows(kind, job.at("table")).to_pylist(), key=lambda row: (row["topic"], row["offset"]))
    typed = [row["value_decoded"] for row in found]
    assert [typed[0]["n"], typed[0]["at"], typed[0]["tags"], typed[1], typed[4]] == [5, None, None, None, None]
    assert [typed[2]["n"], typed[2]["tags"], typed[2]["day"].year] == [1 << 40, ["a"], 2024]
    assert [typed[3]["n"], typed[3]["tags"]] == [1 << 40, None]
    assert [row["value_decode_error"] is None for row in found] == [True, False, True, True, True]
    assert job.verify("table")["faults"] == []
    other = json.dumps({**NEW, "fields": [{"name": "n", "type": "string"}]})
    registered.compatible(f"{topic}-value", "NONE")
    registered.add(f"{topic}-value", other)
    put_values(bootstrap, topic, b"more")
    line = refused(job.archive, None, "table", **{**options, "decoding": registered.decoding()})
    assert "has another type, value_decoded: n: string in place of bigint" in line
