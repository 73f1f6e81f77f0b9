"""Archives as Iceberg and Delta tables: each record once, as engines see it that know nothing of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compat_tests.pipeline.jobs import Jobs, jobs
from compat_tests.pipeline.table_readers import rows, summed
from compat_tests.pipeline.topics import create, put, records
from kbroker.embed import Broker

pytestmark = [
    pytest.mark.spark,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KINDS = ("iceberg", "delta")


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as found:
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
    import time
    t=time.monotonic()
    assert sum(job.archive(topic, "table", format=kind, batch_records=500)) == 900
    print('A', time.monotonic()-t); t=time.monotonic()
    assert job.archive(topic, "table", format=kind) == []
    print('B', time.monotonic()-t); t=time.monotonic()
    put(bootstrap, topic, 900, 100)
    assert job.archive(topic, "table", "other", format=kind) == [100]
    print('C', time.monotonic()-t); t=time.monotonic()
    print(summed(kind, job.at("table")))
    print(rows(kind, job.at("table")).schema)
    print('D', time.monotonic()-t); t=time.monotonic()
    print(job.verify("table"))
    print('E', time.monotonic()-t); t=time.monotonic()
    assert job.replay("table", f"{topic}-again") == 1000
    print('F', time.monotonic()-t); t=time.monotonic()
    import subprocess
    print(subprocess.run(['find', job.at('table')], capture_output=True, text=True).stdout)
    assert records(bootstrap, topic, timestamps=False) == records(bootstrap, f"{topic}-again", timestamps=False)
