"""Archives at s3://, on an S3 for tests: the lock, a killed driver, all verbs, and readers that know only S3."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from deltalake import DeltaTable
from moto.server import ThreadedMotoServer
from pyarrow import dataset
from pyarrow.fs import S3FileSystem
from pyiceberg.table import StaticTable

from compat_tests.pipeline.processes import ended, start_verb
from compat_tests.pipeline.topics import create, put, records
from compat_tests.spark.session import spark
from kbroker.embed import Broker
from kbroker.failpoints import VARIABLE
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.files import Files
from kbroker.pipeline.storage.lock import NAME
from kbroker.pipeline.storage.swap_lock import writer_lock
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
    client(endpoint).create_bucket(Bucket=BUCKET)
    yield endpoint
    server.stop()


def client(endpoint: str) -> Any:
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    return boto3.client("s3", endpoint_url=endpoint, region_name=REGION, **keys)


def settings_of(endpoint: str) -> dict[str, str]:
    """Return S3A's settings, without `fs.s3a.`."""
    settings = {"endpoint": endpoint, "endpoint.region": REGION, "path.style.access": "true"}
    return settings | {"connection.ssl.enabled": "false", "access.key": "a", "secret.key": "b"}


class Verbs:
    """The verbs of the command line, each in a driver of its own."""

    def __init__(self, bootstrap: str, endpoint: str) -> None:
        self._bootstrap = bootstrap
        settings = settings_of(endpoint)
        self._conf = [
            part for key, value in settings.items() for part in ("--conf", f"spark.hadoop.fs.s3a.{key}={value}")
        ]

    def run(self, *arguments: str, failpoint: str = "", tables: bool = True) -> tuple[int, str]:
        brokers = () if arguments[0] == "optimize" else ("--bootstrap", self._bootstrap)
        options: Any = {"environment": {VARIABLE: failpoint}, "tables": tables, "s3": True}
        return ended(start_verb(*arguments, *brokers, *self._conf, stderr=subprocess.PIPE, **options))

    def succeed(self, *arguments: str) -> str:
        status, said = self.run(*arguments)
        assert status == 0, said
        return said


def rows(endpoint: str, path: str, file_format: str = "parquet") -> list[tuple[int, int]]:
    """Return (partition, offset) of an archive's records, as readers find them on S3 that know only S3."""
    if file_format == "iceberg":
        table = iceberg(endpoint, path)
    elif file_format == "delta":
        options = {"aws_endpoint": endpoint, "aws_allow_http": "true", "aws_region": REGION}
        options |= {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
        table = DeltaTable(f"s3://{BUCKET}/{path}", storage_options=options).to_pyarrow_table()
    else:
        store = S3FileSystem(access_key="a", secret_key="b", endpoint_override=endpoint, region=REGION)
        table = dataset.dataset(f"{BUCKET}/{path}", filesystem=store, partitioning="hive").to_table()
    return sorted(zip(table.column("partition").to_pylist(), table.column("offset").to_pylist(), strict=True))


def iceberg(endpoint: str, path: str) -> Any:
    metadata = f"{path}/metadata"
    hint = client(endpoint).get_object(Bucket=BUCKET, Key=f"{metadata}/version-hint.text")["Body"].read().decode()
    options = {"s3.endpoint": endpoint, "s3.region": REGION, "s3.access-key-id": "a", "s3.secret-access-key": "b"}
    place = f"s3://{BUCKET}/{metadata}/v{hint.strip()}.metadata.json"
    return StaticTable.from_metadata(place, options).scan().to_arrow()


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


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_table_on_s3(store: str, kind: str) -> None:
    with Broker() as broker:
        bootstrap = broker.bootstrap_servers
        verbs = Verbs(bootstrap, store)
        create(bootstrap, "t")
        put(bootstrap, "t", 0, 200)
        place = ("--to", f"s3://{BUCKET}/{kind}", "--checkpoint", f"s3://{BUCKET}/c-{kind}", "--format", kind)
        status, said = verbs.run("archive", "--topics", "t", *place, failpoint="archive.committed:1")
        assert status < 0, said
        put(bootstrap, "t", 200, 100)
        verbs.succeed("archive", "--topics", "t", *place)
        assert rows(store, kind, kind) == [(partition, offset) for partition in range(2) for offset in range(150)]
        verbs.succeed("verify", "--from", f"s3://{BUCKET}/{kind}", "--format", kind)
        assert "give --format" in verbs.run("verify", "--from", f"s3://{BUCKET}/{kind}", tables=False)[1]


@pytest.fixture
def files(store: str) -> Files:
    conf = spark()._jsc.hadoopConfiguration()
    for key, value in settings_of(store).items():
        conf.set(f"fs.s3a.{key}", value)
    return Files(spark(), f"s3://{BUCKET}/files")


def test_files_and_their_lock(files: Files) -> None:
    assert files.url("a/b") == f"s3a://{BUCKET}/files/a/b"
    assert (files.exists("a/b"), files.listing(), files.tagged("a/b")) == (False, [], None)
    files.write("a/b", "first")
    with pytest.raises(PipelineError, match="written by somebody else"):
        files.write("a/b", "second")
    assert files.claim("a/c", "first")
    assert not files.claim("a/c", "second")
    files.move("a/c", "d/c")
    files.write("a/c", "first")  # as a kill between the copy and the deletion leaves it
    files.move("a/c", "d/c")
    files.write("a/c", "another")
    with pytest.raises(PipelineError, match="there is another file"):
        files.move("a/c", "d/c")
    files.replace("a/c", "a/b")
    files.delete("d")
    assert [each.name for each in files.walk("")] == ["a/b"]
    assert files.read("a/b") == "another"
    with pytest.raises(PipelineError, match="cannot read"):
        files.read("a/x")
    files.delete("a")


def test_lock_is_had_by_one(files: Files) -> None:
    for _ in range(2):
        with writer_lock(files, renewed_s=0.01) as lock:
            for _ in range(20):
                lock.check()
                with pytest.raises(PipelineError, match=rf"another job writes to s3://{BUCKET}/files \(process "):
                    writer_lock(files).__enter__()
    text, tag = files.tagged(NAME) or ("", "")
    assert text == json.dumps({"released": True}) + "\n"
    assert files.swap(NAME, "x", tag) is not None
    assert files.swap(NAME, "y", tag) is None
    assert files.swap(NAME, "y", None) is None
    files.delete(NAME)
    assert files.swap(NAME, "y", tag) is None
