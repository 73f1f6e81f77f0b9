"""Archives with columns typed by a schema registry, and visits counted from framed events."""

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
from compat_tests.pipeline.topics import BASE_MS, create, records
from kbroker.admin.registry_schemas import RegistryPlace
from kbroker.embed import Broker
from kbroker.pipeline.decoding.topics import DecodedTopics
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.visits.rules import BY_REGISTRY, VisitRules
from kbroker.schema_registry.formats.parsing import parse

pytestmark = [
    pytest.mark.spark,
    # py4j leaves it to the garbage collector to close the sockets of its threads.
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
    """Schemas in a broker's registry, and values framed with them."""

    def __init__(self, url: str) -> None:
        self.url = url

    def add(self, subject: str, schema: str, kind: str = "AVRO") -> int:
        body = json.dumps({"schema": schema, "schemaType": kind}).encode()
        request = urllib.request.Request(f"{self.url}/subjects/{subject}/versions", body)
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return int(json.load(answer)["id"])

    def compatible(self, subject: str, level: str) -> None:
        body = json.dumps({"compatibility": level}).encode()
        request = urllib.request.Request(f"{self.url}/config/{subject}", body, method="PUT")
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=30):
            pass

    @staticmethod
    def framed(number: int, schema: str, value: Any, kind: str = "AVRO") -> bytes:
        return b"\0" + number.to_bytes(4, "big") + parse(kind, schema).data_of(json.dumps(value))

    def decoding(self, *parts: str, said: list[str] | None = None) -> DecodedTopics:
        return DecodedTopics(
            RegistryPlace(self.url), parts or ("value",), ([] if said is None else said).append, patience_s=0.0
        )


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(registry=True) as found:
        yield found


@pytest.fixture
def job(broker: Broker) -> Iterator[Jobs]:
    with jobs(broker.bootstrap_servers) as found:
        yield found


def put(bootstrap: str, topic: str, *values: bytes | None, headers: Any = None, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number, value in enumerate(values):
        produced = {"partition": 0, "timestamp": BASE_MS + number, "headers": headers, **more}
        producer.produce(topic, value, **produced)
    assert producer.flush(30) == 0


def files(job: Jobs, to: str, topic: str) -> list[Path]:
    return sorted(Path(job.at(to)).glob(f"topic={topic}/*/*.parquet"))


def rows_of(job: Jobs, to: str, topic: str) -> list[dict[str, Any]]:
    """Return the records of an archive's files, as pyarrow reads them."""
    found = [row for path in files(job, to, topic) for row in pyarrow.parquet.read_table(path).to_pylist()]
    return sorted(found, key=lambda row: (row["partition"], row["offset"]))


def test_versions_in_one_batch_and_broken_values(broker: Broker, job: Jobs) -> None:
    registered = Registered(broker.registry_url)
    old, new = json.dumps(OLD), json.dumps(NEW)
    first = registered.add("orders-value", old)
    second = registered.add("orders-value", new)
    create(broker.bootstrap_servers, "orders", partitions=2)
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
    header = [("__value_schema_id", framed[:5])]
    put(broker.bootstrap_servers, "orders", framed[5:], headers=header, partition=1)
    assert job.archive("orders", "archive", decoding=registered.decoding()) == [7]

    rows = rows_of(job, "archive", "orders")
    day = datetime.date(1970, 1, 4)
    assert rows[0]["value_decoded"] == {"n": 5, "price": Decimal("-0.01"), "at": None, "day": day, "tags": []}
    at = datetime.datetime.fromtimestamp(BASE_MS / 1000, datetime.UTC) + datetime.timedelta(microseconds=7)
    whole = {"n": 1 << 40, "price": Decimal("2.56"), "at": at, "day": datetime.date(2024, 10, 4), "tags": ["a"]}
    assert rows[1]["value_decoded"] == rows[6]["value_decoded"] == whole
    assert rows[1]["value"] == framed
    errors = [row["value_decode_error"] for row in rows]
    assert [error is None for error in errors] == [True, True, False, True, False, False, True]
    assert [row["value_decoded"] for row in rows[2:6]] == [None] * 4
    assert "begins with the byte 110" in errors[4]
    assert "id 65535" in errors[5]
    parquet = f"read_parquet('{job.at('archive')}/topic=*/*/*.parquet')"
    found = duckdb.connect().execute(f"select value_decoded.price from {parquet} where value_decoded.n > 5")
    assert found.fetchall() == [(Decimal("2.56"),)] * 2

    # The next version has another type: its files are not merged with the older ones.
    third = json.dumps({**NEW, "fields": NEW["fields"][:2]})
    number = registered.add("orders-value", third)
    for partition in range(2):
        value = registered.framed(number, third, {"n": 6, "price": ""})
        put(broker.bootstrap_servers, "orders", value, framed, partition=partition)
    assert job.archive("orders", "archive", decoding=registered.decoding()) == [4]
    before = rows_of(job, "archive", "orders")
    assert before[-1]["value_decoded"] == {"n": 1 << 40, "price": Decimal("2.56")}
    assert job.optimize("archive") == (4, 2)
    assert rows_of(job, "archive", "orders") == before
    assert job.verify("archive")["faults"] == []
    assert job.replay("archive", "again") == 11


def test_a_registry_that_is_gone_ends_the_job_in_one_line(broker: Broker, job: Jobs) -> None:
    create(broker.bootstrap_servers, "gone", partitions=1)
    put(broker.bootstrap_servers, "gone", b"\0\0\0\0\1")
    decoding = DecodedTopics(RegistryPlace("http://127.0.0.1:1"), ("value",), print, patience_s=0.0)
    with pytest.raises(PipelineError, match=r"no registry answers at http://127\.0\.0\.1:1"):
        job.archive("gone", "archive", decoding=decoding)
    with Broker(registry=True) as other:
        registered = Registered(other.registry_url)
        registered.add("gone-value", '"string"')
        decoding = registered.decoding()
        decoding.prepare(["gone"])
    line = rf"^the schema registry: no registry answers at {registered.url}: [^\n]*$"
    with pytest.raises(PipelineError, match=line):
        job.archive("gone", "archive", decoding=decoding)


PROTO = 'syntax = "proto3"; message Paid { string visitor = 1; int64 time = 2; map<string, double> shares = 3; }'
JSON = json.dumps({"type": "object", "properties": {"visitor": {"type": "string"}, "time": {"type": "string"}}})


def test_topics_of_all_formats_in_one_archive(broker: Broker, job: Jobs) -> None:
    registered, said = Registered(broker.registry_url), list[str]()
    create(broker.bootstrap_servers, "mixed-a", "mixed-b", "mixed-c", partitions=1)
    number = registered.add("mixed-a-value", PROTO, "PROTOBUF")
    put(
        broker.bootstrap_servers,
        "mixed-a",
        registered.framed(number, PROTO, {"visitor": "v", "shares": {"x": 0.5}}, "PROTOBUF"),
        key=b"\0" + registered.add("mixed-a-key", '"string"').to_bytes(4, "big") + b"\2k",
    )
    number = registered.add("mixed-b-value", JSON, "JSON")
    put(broker.bootstrap_servers, "mixed-b", registered.framed(number, JSON, {"visitor": "é"}, "JSON"), b"{}")
    put(broker.bootstrap_servers, "mixed-c", b"plain")
    decoding = registered.decoding("key", "value", said=said)
    assert job.archive(None, "archive", pattern="mixed-.", decoding=decoding) == [4]

    tables = {name: pyarrow.parquet.read_table(files(job, "archive", f"mixed-{name}")[0]) for name in "abc"}
    assert tables["a"].column("key_decoded").to_pylist() == ["k"]
    paid = {"visitor": "v", "time": 0, "shares": [("x", 0.5)]}
    assert tables["a"].column("value_decoded").to_pylist() == [paid]
    assert tables["b"].column("value_decoded").to_pylist() == [{"visitor": "é", "time": None}, None]
    assert "value_decoded" not in tables["c"].column_names
    assert "mixed-c has no value_decoded: the registry has no subject mixed-c-value" in said


def test_visits_of_framed_events(broker: Broker, job: Jobs) -> None:
    registered = Registered(broker.registry_url)
    fields = [{"name": "visitor", "type": "string"}, {"name": "time", "type": AT}]
    avro = json.dumps({"type": "record", "name": "Event", "fields": fields})
    numbers = [registered.add("framed-value", avro), registered.add("f-j", JSON, "JSON")]
    numbers.append(registered.add("f-p", PROTO, "PROTOBUF"))
    create(broker.bootstrap_servers, "framed", partitions=1)
    put(
        broker.bootstrap_servers,
        "framed",
        registered.framed(numbers[0], avro, {"visitor": "v", "time": BASE_MS * 1000}),
        registered.framed(numbers[1], JSON, {"visitor": "v", "time": "2026-11-25T00:10:00Z"}, "JSON"),
        registered.framed(numbers[2], PROTO, {"visitor": "v", "time": BASE_MS + 3_000_000}, "PROTOBUF"),
        b'{"visitor": "v", "time": 0}',
        registered.framed(numbers[1], JSON, {"visitor": "v"}, "JSON"),
    )
    Path(job.at("lookup.csv")).write_text("visitor,organisation\nv,one\n")
    rules, place = VisitRules(event_format=BY_REGISTRY), RegistryPlace(broker.registry_url)
    done = job.visits("framed", rules=rules, registry=place)
    assert done.state.counts == {"records": 5, "malformed": 2, "late": 0}
    assert [(row["visits"], row["events"]) for row in job.table()] == [(2, 3)]
    letters = records(broker.bootstrap_servers, "framed-malformed", partitions=1)[0]
    assert "not decoded: begins with the byte 123" in letters[0][3]
    assert "no time" in letters[1][3]

    assert job.archive("framed", "archive") == [5]
    assert job.differences(job.recount("archive", "framed", rules, registry=place)) == []
    with pytest.raises(PipelineError, match="counted by other rules"):
        job.visits("framed")
    with pytest.raises(PipelineError, match="the other format, with or without --registry"):
        job.recount("archive", "framed", VisitRules())
