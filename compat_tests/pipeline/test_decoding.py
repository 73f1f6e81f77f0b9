"""Archives with typed columns by a schema registry, and visits counted of framed events."""

from __future__ import annotations

import datetime
import json
import urllib.request
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet
import pytest
from confluent_kafka import Producer

from compat_tests.pipeline.jobs import Jobs, jobs
from compat_tests.pipeline.topics import BASE_MS, create
from kbroker.admin.registry_schemas import RegistryPlace
from kbroker.embed import Broker
from kbroker.pipeline.decoding.topics import DecodedTopics
from kbroker.pipeline.errors import PipelineError
from kbroker.schema_registry.formats.parsing import parse

pytestmark = [
    pytest.mark.spark,
    # py4j leaves the sockets of its threads to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DAY = {"type": "int", "logicalType": "date"}
AT = {"type": "long", "logicalType": "timestamp-micros"}
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
OLD = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "int"}, {"name": "price", "type": PRICE}]}
NEW = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "price", "type": PRICE},
        {"name": "at", "type": ["null", AT], "default": None},
        {"name": "day", "type": DAY, "default": 3},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
    ],
}


class Registered:
    """Schemas of a broker's registry, and values framed by them."""

    def __init__(self, url: str) -> None:
        self.url = url

    def add(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        body = json.dumps({"schema": schema, "schemaType": kind}).encode()
        request = urllib.request.Request(f"{self.url}/subjects/{subject}/versions", body)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])

    @staticmethod
    def framed(number: int, schema: str, value: Any, kind: str = "AVRO") -> bytes:
        return b"\0" + number.to_bytes(4, "big") + parse(kind, schema).data_of(json.dumps(value))

    def decoding(self, *parts: str, said: list[str] | None = None) -> DecodedTopics:
        return DecodedTopics(RegistryPlace(self.url), parts or ("value",), (said or []).append, patience_s=0.0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(registry=True) as found:
        yield found


@pytest.fixture
def job(broker: Broker) -> Iterator[Jobs]:
    with jobs(broker.bootstrap_servers) as found:
        yield found


def put(bootstrap: str, topic: str, *values: bytes | None, headers: Any = None, key: bytes | None = None) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number, value in enumerate(values):
        producer.produce(topic, value, key, partition=0, timestamp=BASE_MS + number, headers=headers)
    assert producer.flush(30) == 0


def files(job: Jobs, to: str, topic: str) -> list[Path]:
    return sorted(Path(job.at(to)).glob(f"topic={topic}/*/*.parquet"))


def test_versions_in_one_batch_and_a_broken_value(broker: Broker, job: Jobs) -> None:
    registered = Registered(broker.registry_url)
    old, new = json.dumps(OLD), json.dumps(NEW)
    first = registered.add("orders-value", old)
    second = registered.add("orders-value", new)
    create(broker.bootstrap_servers, "orders", partitions=1)
    full = {"n": 1 << 40, "price": "\u0001\u0000", "at": {"long": BASE_MS * 1000 + 7}, "day": 20000, "tags": ["a"]}
    framed = registered.framed(second, new, full)
    put(
        broker.bootstrap_servers,
        "orders",
        registered.framed(first, old, {"n": 5, "price": "\u00ff"}),
        framed,
        framed[:-1],
        None,
        b"no frame",
        b"\0\0\0\xff\xffx",
    )
    put(broker.bootstrap_servers, "orders", framed[5:], headers=[("__value_schema_id", framed[:5])])
    assert job.archive("orders", "archive", decoding=registered.decoding()) == [7]

    rows = [row for path in files(job, "archive", "orders") for row in pyarrow.parquet.read_table(path).to_pylist()]
    rows.sort(key=lambda row: int(row["offset"]))
    day = datetime.date(1970, 1, 1) + datetime.timedelta(days=3)
    assert rows[0]["value_decoded"] == {"n": 5, "price": Decimal("-0.01"), "at": None, "day": day, "tags": []}
    at = datetime.datetime.fromtimestamp(BASE_MS / 1000, datetime.UTC) + datetime.timedelta(microseconds=7)
    assert rows[1]["value_decoded"] == {
        "n": 1 << 40,
        "price": Decimal("2.56"),
        "at": at,
        "day": datetime.date(2024, 10, 4),
        "tags": ["a"],
    }
    assert rows[6]["value_decoded"] == rows[1]["value_decoded"]
    assert rows[1]["value"] == framed
    errors = [row["value_decode_error"] for row in rows]
    assert [error is None for error in errors] == [True, True, False, True, False, False, True]
    assert [row["value_decoded"] for row in rows[2:6]] == [None] * 4
    assert "begins with the byte 110" in errors[4]
    assert "id 65535" in errors[5]

    parquet = f"read_parquet('{job.at('archive')}/topic=*/*/*.parquet')"
    found = duckdb.sql(f"select value_decoded.price from {parquet} where value_decoded.n > 5")
    assert found.fetchall() == [(Decimal("2.56"),)] * 2

    assert job.verify("archive")["faults"] == []
    put(broker.bootstrap_servers, "orders", framed)
    assert job.archive("orders", "archive", decoding=registered.decoding()) == [1]
    assert len(files(job, "archive", "orders")) == 2
    assert job.optimize("archive") == (2, 1)
    assert job.verify("archive")["faults"] == []
    (one,) = files(job, "archive", "orders")
    table = pyarrow.parquet.read_table(one)
    assert [row["value_decoded"] for row in table.to_pylist()] == [
        *(row["value_decoded"] for row in rows),
        rows[1]["value_decoded"],
    ]
    assert job.replay("archive", "again") == 8
    sent = [row["value"] for row in table.to_pylist()]
    assert sent[:2] == [rows[0]["value"], framed]


def test_a_registry_that_is_gone_ends_the_job_in_one_line(broker: Broker, job: Jobs) -> None:
    create(broker.bootstrap_servers, "gone", partitions=1)
    put(broker.bootstrap_servers, "gone", b"\0\0\0\0\1")
    decoding = DecodedTopics(RegistryPlace("http://127.0.0.1:1"), ("value",), print, patience_s=0.0)
    with pytest.raises(PipelineError, match=r"no registry answers at http://127\.0\.0\.1:1"):
        job.archive("gone", "archive", decoding=decoding)
