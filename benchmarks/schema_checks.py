"""What it costs to check records against a schema registry before they are appended.

    python -m benchmarks.schema_checks [--batches N] [--rounds N]

One broker with its registry receives batches of 100 records of about 100 bytes: into a topic that checks nothing, into
one that checks the schema's id, and into one for each format whose values are read. The output is: the records per
second; the CPU time for each record, of the broker and of its process that reads values, in addition to that of the
topic without a check; and how long a client with small requests waits beside this load. Asserts nothing about time.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.raw import PRODUCE_VERSION, connect, frame, percentile, pump
from compat_tests.harness.brokers import KBroker, free_port
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.records import build_batch
from tests.fair.__main__ import Quiet

RECORDS = 100
IN_FLIGHT = 5
MORE = 10
"""Topics whose values are not read get this many times as many batches: CPU time is reported in steps of 10 ms."""
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "currency", "type": {"type": "enum", "name": "Currency", "symbols": ["EUR", "USD"]}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "string"},
        "amount": {"type": "number"},
        "currency": {"enum": ["EUR", "USD"]},
        "note": {"type": "string"},
    },
    "required": ["id", "customer", "amount"],
}
PROTOBUF = """syntax = "proto3";
message Order { int64 id = 1; string customer = 2; double amount = 3; Currency currency = 4; string note = 5; }
enum Currency { EUR = 0; USD = 1; }
"""


class WithRegistry(KBroker):
    """kbroker with its registry."""

    def _command(self) -> list[str]:
        self.registry = f"127.0.0.1:{free_port()}"
        return [*super()._command(), "--registry", self.registry]


def _avro(number: int) -> bytes:
    from fastavro import parse_schema, schemaless_writer

    out = io.BytesIO()
    schemaless_writer(out, parse_schema(AVRO), _order(number))
    return out.getvalue()


def _order(number: int) -> dict[str, object]:
    return {"id": number, "customer": "c" * 20, "amount": number / 7, "currency": "EUR", "note": "n" * 50}


def _protobuf(number: int) -> bytes:
    """Return the message indexes of the first message, and the message, encoded by hand."""
    import struct

    body = b"\x08" + bytes([number & 0x7F]) + b"\x12\x14" + b"c" * 20 + b"\x19" + struct.pack("<d", number / 7)
    return b"\0" + body + b"\x2a\x32" + b"n" * 50


FORMS: dict[str, tuple[str, str, Callable[[int], bytes]]] = {
    "AVRO": ("AVRO", json.dumps(AVRO), _avro),
    "JSON": ("JSON", json.dumps(JSON), lambda number: json.dumps(_order(number)).encode()),
    "PROTOBUF": ("PROTOBUF", PROTOBUF, _protobuf),
}
TOPICS = [("off", "AVRO", "id"), ("id", "AVRO", "id"), *((f"parse {form}", form, "parse") for form in FORMS)]


def _register(registry: str, subject: str, schema_type: str, text: str) -> int:
    body = json.dumps({"schemaType": schema_type, "schema": text}).encode()
    address = f"http://{registry}/subjects/{subject}/versions"
    request = urllib.request.Request(address, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return int(json.load(answer)["id"])


def _request(topic: str, schema_id: int, make: Callable[[int], bytes]) -> bytes:
    now, prefix = int(time.time() * 1000), b"\0" + schema_id.to_bytes(4)
    batch = build_batch([(now, None, prefix + make(number), ()) for number in range(RECORDS)])
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    return frame(0, PRODUCE_VERSION, True, encode(ProduceRequest(None, -1, 30_000, [data]), PRODUCE_VERSION))


def _create(address: str) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    topics = []
    for name, _, level in TOPICS:
        configs = {"confluent.value.schema.validation": "true", "kbroker.schema.validation.level": level}
        topics.append(NewTopic(name.replace(" ", "-"), 1, 1, topic_configs={} if name == "off" else configs))
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics(topics)
    admin.close()


def _cpu(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of the broker and of its child processes."""
    process = psutil.Process(pid)
    children = sum(sum(each.cpu_times()[:2]) for each in process.children())
    return sum(process.cpu_times()[:2]), children


def measure(batches: int, rounds: int) -> list[list[str]]:
    """Return the table's lines."""
    found: dict[str, list[tuple[float, float, float, float, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        broker = WithRegistry(Path(directory), {})
        with broker:
            _create(broker.bootstrap)
            requests = {}
            for name, form, _ in TOPICS:
                topic = name.replace(" ", "-")
                schema_type, text, make = FORMS[form]
                known = _register(broker.registry, f"{topic}-value", schema_type, text)
                requests[name] = _request(topic, known, make)
            quiet = Quiet(broker.bootstrap)
            with connect(broker.bootstrap) as sock:
                for name, _, level in TOPICS * rounds:
                    count = batches if level == "parse" else MORE * batches
                    pump(sock, [requests[name]], max(count // 20, 10), IN_FLIGHT)
                    before = _cpu(broker.pid)
                    quiet.begin()
                    seconds, latencies, _ = pump(sock, [requests[name]], count, IN_FLIGHT)
                    waits = quiet.end()
                    own, others = (after - start for after, start in zip(_cpu(broker.pid), before, strict=True))
                    each = count * RECORDS / 1e6
                    found[name].append(
                        (
                            count * RECORDS / seconds,
                            own / each,
                            others / each,
                            percentile(latencies, 0.99) * 1e3,
                            waits.get("longest", 0.0) * 1e3,
                        )
                    )
            quiet.close()
    lines, base = [], 0.0
    for name, samples in found.items():
        rate, own, others, p99, longest = (statistics.median(column) for column in zip(*samples, strict=True))
        base = base or own
        cells = [f"{rate:,.0f}", f"{own - base:.3f}", f"{others:.2f}", f"{p99:.1f}", f"{longest:.1f}"]
        lines.append([name, *cells])
    return lines


HEADINGS = [
    "check",
    "records/s",
    "broker, us a record",
    "values' process, us",
    "p99 of a batch, ms",
    "longest wait, ms",
]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schema_checks", description=__doc__)
    parser.add_argument("--batches", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sys.stdout.write(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}\n")
    for line in measure(args.batches, args.rounds):
        sys.stdout.write(f"| {' | '.join(line)} |\n")


if __name__ == "__main__":
    main()
