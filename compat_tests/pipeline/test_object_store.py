"""Archives at s3://, on an S3 for tests: the lock, a killed driver, all verbs, and readers that know only S3."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import dataset
from pyarrow.fs import S3FileSystem

from compat_tests.pipeline.processes import ended, start_verb
from compat_tests.pipeline.topics import create, put, records
from kbroker.embed import Broker
from kbroker.failpoints import VARIABLE
from tests.tries import FORM

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(FORM != "long", reason="minutes, in drivers of their own: only with KBROKER_TESTS=long"),
    # py4j leaves it to the garbage collector to close the sockets of its threads.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
BUCKET, REGION = "bucket", "us-east-1"


@pytest.fixture(scope="module")
def store() -> Iterator[str]:
    """Yield the endpoint of an S3 with a bucket."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    client = boto3.client(
        "s3", endpoint_url=endpoint, region_name=REGION, aws_access_key_id="a", aws_secret_access_key="b"
    )
    client.create_bucket(Bucket=BUCKET)
    yield endpoint
    server.stop()


class Verbs:
    """The verbs of the command line, each in a driver of its own."""

    def __init__(self, bootstrap: str, endpoint: str) -> None:
        self._bootstrap = bootstrap
        settings = {"endpoint": endpoint, "endpoint.region": REGION, "path.style.access": "true"}
        settings |= {"connection.ssl.enabled": "false", "access.key": "a", "secret.key": "b"}
        self._conf = [
            part for key, value in settings.items() for part in ("--conf", f"spark.hadoop.fs.s3a.{key}={value}")
        ]

    def run(self, *arguments: str, failpoint: str = "") -> tuple[int, str]:
        brokers = () if arguments[0] == "optimize" else ("--bootstrap", self._bootstrap)
        process = start_verb(
            *arguments,
            *brokers,
            *self._conf,
            stderr=subprocess.PIPE,
            environment={VARIABLE: failpoint},
            tables=True,
            s3=True,
        )
        return ended(process)

    def succeed(self, *arguments: str) -> str:
        status, said = self.run(*arguments)
        assert status == 0, said
        return said


def rows(endpoint: str, path: str) -> list[tuple[int, int]]:
    """Return (partition, offset) of an archive's records, as pyarrow finds them on S3."""
    store = S3FileSystem(access_key="a", secret_key="b", endpoint_override=endpoint, region=REGION)
    table = dataset.dataset(f"{BUCKET}/{path}", filesystem=store, partitioning="hive").to_table()
    return sorted(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))


def test_an_archive_on_s3(store: str) -> None:
    with Broker() as broker:
        bootstrap = broker.bootstrap_servers
        verbs = Verbs(bootstrap, store)
        create(bootstrap, "t")
        put(bootstrap, "t", 0, 300)
        whole = [(partition, offset) for partition in range(2) for offset in range(200)]
        archive = ("archive", "--topics", "t", "--to", f"s3://{BUCKET}/a", "--checkpoint", f"s3://{BUCKET}/c")
        status, said = verbs.run(*archive, "--batch-records", "100", failpoint="archive.moved:3")
        assert status < 0, said
        put(bootstrap, "t", 300, 100)
        verbs.succeed(*archive)
        assert rows(store, "a") == whole
        verbs.succeed("verify", "--from", f"s3://{BUCKET}/a")
        verbs.succeed("optimize", "--at", f"s3://{BUCKET}/a")
        verbs.succeed("verify", "--from", f"s3://{BUCKET}/a")
        assert rows(store, "a") == whole
        verbs.succeed("replay", "--from", f"s3://{BUCKET}/a", "--to-topic", "again", "--exactly-once")
        assert records(bootstrap, "again", timestamps=False) == records(bootstrap, "t", timestamps=False)
