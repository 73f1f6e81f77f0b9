"""The pipeline on a Spark standalone cluster, on both brokers: it does the same as on one machine."""

from __future__ import annotations

import contextlib
import datetime
import time
from typing import Any

import duckdb
import pytest

from compat_tests.harness.brokers import free_port
from compat_tests.harness.fixtures import SideBySide
from compat_tests.harness.scenarios import Scenario, Scenarios
from compat_tests.pipeline.cluster import EXECUTOR_MEMORY, StandaloneCluster, standalone
from compat_tests.pipeline.jobs import Jobs, jobs
from compat_tests.pipeline.processes import WAIT_S, Driver
from compat_tests.pipeline.scenarios import put_events
from compat_tests.pipeline.topics import BASE_MS, create, records, values
from compat_tests.pipeline.visit_model import counted, lookup_text, some_events
from compat_tests.spark.session import INTERPRETED, connector_jars
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.visits.rules import VisitRules
from tests.tries import FORM

pytestmark = [
    pytest.mark.spark,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
scenarios = Scenarios("cluster")
PARTITIONS = 2
BATCH = 400
LONG = {"jobs_on_a_cluster_do_what_local_ones_do", "other_jobs_on_a_cluster"}
"""Scenarios for `make torture`: the jobs themselves are tested on one machine."""
CONF = (f"spark.executor.memory={EXECUTOR_MEMORY}", "spark.driver.memory=700m", "spark.sql.shuffle.partitions=2")


@scenarios.add
def an_archive_on_a_cluster_outlives_a_worker(bootstrap: str, unique: str) -> object:
    """The first half of the next scenario, for `make test`."""
    some_events_in(bootstrap, unique)
    with standalone() as cluster, jobs(bootstrap) as near, jobs(bootstrap) as far:
        archived = archive_while_a_worker_dies(cluster, far, unique)
        assert near.archive(unique, "archive", batch_records=BATCH) == archived
        assert contents(far) == contents(near)
        assert list(cluster.applications().values()) == ["kbroker archive"]
        return archived


@scenarios.add
def jobs_on_a_cluster_do_what_local_ones_do(bootstrap: str, unique: str) -> object:
    found_events = some_events_in(bootstrap, unique)
    with standalone() as cluster, jobs(bootstrap) as near, jobs(bootstrap) as far:
        for job in (near, far):
            (job.folder / "lookup.csv").write_text(lookup_text())
        archived = archive_while_a_worker_dies(cluster, far, unique)
        with verb(cluster.url, far, "visits", *visits_of(far, unique)) as driver:
            status, visited, said = driver.wait()
        assert status == 0, said
        assert near.archive(unique, "archive", batch_records=BATCH) == archived
        near.visits(unique)
        assert contents(far) == contents(near)
        assert table(far) == table(near) == expected(found_events)
        assert list(cluster.applications().values()) == ["kbroker archive", "kbroker visits"]
        for topic in (newest, bad):
            assert topic(bootstrap, f"{unique}-far") == topic(bootstrap, unique)
        return [archived, [step["records"] for step in visited], len(table(far))]


@scenarios.add
def other_jobs_on_a_cluster(bootstrap: str, unique: str) -> object:
    some_events_in(bootstrap, unique)
    with standalone() as cluster, jobs(bootstrap) as job:
        (job.folder / "lookup.csv").write_text(lookup_text())
        job.archive(unique, "archive", batch_records=BATCH)
        job.visits(unique)
        return jobs_in_one_driver(cluster, job, unique)


def some_events_in(bootstrap: str, topic: str) -> list[Any]:
    """Create a topic with events; return them."""
    create(bootstrap, topic, partitions=PARTITIONS)
    found = some_events(seed=20261121, number=3000, begin_ms=BASE_MS, partitions=PARTITIONS)
    put_events(bootstrap, topic, found)
    return found


def archive_while_a_worker_dies(cluster: StandaloneCluster, far: Jobs, topic: str) -> list[int]:
    """Archive on the cluster and kill a worker after the first batch; return the records of the batches."""
    places = ("--to", far.at("archive"), "--checkpoint", far.at("checkpoint"), "--batch-records", str(BATCH))
    with verb(cluster.url, far, "archive", "--topics", topic, *places) as driver:
        driver.line(0)
        (application,) = cluster.applications()
        working = next(number for number in range(2) if cluster.stages_of(number, application))
        cluster.kill_worker(working)
        assert driver.running, "the worker was killed too late"
        cluster.launch_worker(2)
        status, steps, said = driver.wait()
    assert status == 0, said
    cluster.await_worker(2)
    return [step["records"] for step in steps]


def visits_of(job: Jobs, topic: str) -> tuple[str, ...]:
    topics = ("--topic", topic, "--out-topic", f"{topic}-far-visits", "--dead-letters", f"{topic}-far-malformed")
    return (*topics, "--lookup", job.at("lookup.csv"), "--to", job.at("table"), "--checkpoint", job.at("visits"))


def jobs_in_one_driver(cluster: StandaloneCluster, job: Jobs, topic: str) -> object:
    """Run the other jobs on the cluster, and kill a worker that sends a replay's records."""
    archived, counted_again, verified = (
        contents(job),
        job.recount("archive", topic, VisitRules()),
        job.verify("archive"),
    )
    module, places = "compat_tests.pipeline.cluster_driver", (cluster.url, job.bootstrap, str(job.folder), topic)
    with Driver(module, *places, cwd=job.folder) as driver:
        application = driver.line(6)[1]
        await_sending(driver, job, f"{topic}-again")
        cluster.kill_worker(sender_without_its_input(cluster, application))
        status, found, said = driver.wait()
    assert status == 0, said
    told = dict(found)
    assert told["recount"] == counted_again
    assert told["differences"] == []
    assert told["verify"] == verified
    assert contents(job) == archived
    plain = records(job.bootstrap, topic, PARTITIONS)
    assert records(job.bootstrap, f"{topic}-kept", PARTITIONS) == plain
    again = records(job.bootstrap, f"{topic}-again", PARTITIONS, timestamps=False)
    whole = records(job.bootstrap, topic, PARTITIONS, timestamps=False)
    assert [sorted(map(str, part)) for part in again] == [sorted(map(str, part)) for part in whole]
    total = sum(len(part) for part in plain)
    assert told["kept"] == total
    assert told["lost"].startswith("Spark lost an executor that was sending")
    assert 0 < told["again"] < total
    return [told["lost"], told["not shared"].replace(str(job.folder), "FOLDER"), told["optimize"][1]]


def await_sending(driver: Driver, job: Jobs, target: str) -> None:
    """Wait until records arrive in all partitions of a topic, which need not exist yet."""
    deadline = time.monotonic() + WAIT_S
    while True:
        assert driver.running, driver.said()
        assert time.monotonic() < deadline, "nobody sends"
        with contextlib.suppress(PipelineError):
            if min(job.cluster.high_watermarks(target).values()) > BATCH // 20:
                return
        time.sleep(0.1)


def sender_without_its_input(cluster: StandaloneCluster, application: str) -> int:
    """Return the worker that sends but did not read the records, so that killing it does not lose them."""
    stages = {number: cluster.stages_of(number, application) for number in range(2)}
    sending = max(set.intersection(*stages.values()))
    reading = max(stage for begun in stages.values() for stage in begun if stage < sending)
    (found,) = [number for number, begun in stages.items() if reading not in begun]
    return found


@scenarios.add
def master_that_is_not_there_ends_in_a_line(bootstrap: str, unique: str) -> object:
    create(bootstrap, unique)
    with jobs(bootstrap) as job:
        master = f"spark://127.0.0.1:{free_port()}"
        places = ("--to", job.at("archive"), "--checkpoint", job.at("checkpoint"))
        with verb(master, job, "archive", "--topics", unique, *places) as driver:
            status, steps, said = driver.wait()
        assert said == f"kbroker: no Spark master answers at {master.removeprefix('spark://')}: connection refused\n"
        assert status == 1
        return steps


def verb(master: str, job: Jobs, name: str, *arguments: str) -> Driver:
    """Start a verb of the command line that runs its job on a cluster."""
    command = ["kbroker", "pipeline", name, *arguments, "--bootstrap", job.bootstrap, "--master", master]
    command += ["--jars", ",".join(connector_jars())]
    for each in (*CONF, *(f"{key}={value}" for key, value in INTERPRETED.items())):
        command += ["--conf", each]
    return Driver(*command, cwd=job.folder)


def contents(job: Jobs) -> list[Any]:
    """Return an archive's records with all their columns, as DuckDB reads them from the folders."""
    columns = "* replace (epoch_us(timestamp) as timestamp)"
    order = 'order by topic, "partition", "offset"'
    query = f"select {columns} from read_parquet(?, hive_partitioning = true) {order}"
    with duckdb.connect() as database:
        return database.execute(query, [f"{job.at('archive')}/topic=*/*/*.parquet"]).fetchall()


def table(job: Jobs) -> dict[Any, list[int]]:
    """Return the numbers of a table of visits by (organisation, day)."""
    query = (
        "select organisation, cast(day as varchar), visits, events, late from read_parquet(?, hive_partitioning = true)"
    )
    with duckdb.connect() as database:
        rows = database.execute(query, [f"{job.at('table')}/day=*/visits.parquet"]).fetchall()
    return {(name, day): numbers for name, day, *numbers in rows}


def expected(found: list[Any]) -> dict[Any, list[int]]:
    """Return the numbers that the model counts."""
    first = datetime.date(1970, 1, 1)
    numbers = counted(found, VisitRules()).items()
    return {(name, str(first + datetime.timedelta(day))): each for (name, day), each in numbers}


def newest(bootstrap: str, prefix: str) -> dict[str | None, str | None]:
    """Return the newest numbers in the compacted topic, by key."""
    (part,) = values(bootstrap, f"{prefix}-visits", 1)
    return dict(part)


def bad(bootstrap: str, prefix: str) -> list[Any]:
    """Return the malformed events."""
    (part,) = values(bootstrap, f"{prefix}-malformed", 1)
    return sorted(part, key=str)


slow = pytest.mark.skipif(FORM != "long", reason="jobs of a minute: only with KBROKER_TESTS=long")
CASES = [pytest.param(each, id=each.name, marks=[slow] if each.name in LONG else []) for each in scenarios]


@pytest.mark.parametrize("scenario", CASES)
def test_cluster(scenario: Scenario, side_by_side: SideBySide) -> None:
    side_by_side(scenario)
