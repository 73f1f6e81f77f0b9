"""Scenarios: what the broker answers to a producer, and what the log contains afterwards."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from kafka import KafkaProducer

from compat_tests.clients.common import CODECS, T0, bulk, outcome, wait_for
from compat_tests.clients.kafka_python import scenarios
from compat_tests.clients.kafka_python.tools import admin, create, fill, plain, producer, read


def _offset(future: Any) -> int:
    return int(future.get(timeout=30).offset)


def _send(client: KafkaProducer, topic: str, value: bytes) -> int:
    return _offset(client.send(topic, value))


@scenarios.add
def records_keep_keys_headers_and_times(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    with producer(bootstrap) as client:
        sent = [
            client.send(topic, b"plain", timestamp_ms=T0),
            client.send(topic, b"value", key=b"key", timestamp_ms=T0 + 1),
            client.send(topic, None, key=b"tombstone", timestamp_ms=T0 + 2),
            client.send(topic, b"", key=b"", timestamp_ms=T0 + 3),
            client.send(topic, b"h", timestamp_ms=T0 - 5, headers=[("a", b"1"), ("a", b"2"), ("empty", b"")]),
            client.send(topic, bytes(range(256)), key=bytes(8), timestamp_ms=T0),
        ]
        told = [future.get(timeout=30) for future in sent]
    return {
        "told": [[each.topic, each.partition, each.offset, each.timestamp] for each in told],
        "log": [plain(each) for each in read(bootstrap, topic, 6)],
    }


@scenarios.add
def keys_choose_partitions(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 6)
    with producer(bootstrap) as client:
        chosen = [client.send(topic, b"v", key=f"user-{n}".encode()).get(timeout=30).partition for n in range(40)]
        forced = [client.send(topic, b"v", key=b"user-0", partition=p).get(timeout=30).offset for p in range(6)]
        partitions = sorted(client.partitions_for(topic))
    return {"by key": chosen, "forced": forced, "partitions": partitions}


def _codec(codec: str) -> None:
    def compressed(bootstrap: str, unique: str) -> object:
        topic = create(bootstrap, unique)
        kind = None if codec == "none" else codec
        fill(bootstrap, topic, bulk(500), compression_type=kind, linger_ms=50)
        records = read(bootstrap, topic, 500)
        with admin(bootstrap) as client:
            (found,) = client.describe_log_dirs({topic: [0]})
        size = found["log_dirs"][0]["topics"][0]["partitions"][0]["partition_size"]
        return {
            "offsets": [record.offset for record in records] == list(range(500)),
            "digest": hashlib.sha256(b"".join(record.value for record in records)).hexdigest(),
            "smaller": size < 30_000,
        }

    compressed.__name__ = f"batches_with_codec_{codec}"
    scenarios.add(compressed)


for _name in CODECS:
    _codec(_name)


@scenarios.add
def broker_changes_the_codec(bootstrap: str, unique: str) -> object:
    found = {}
    for codec in ("gzip", "zstd", "lz4", "snappy", "uncompressed"):
        topic = create(bootstrap, f"{unique}-{codec}", compression_type=codec)
        fill(bootstrap, topic, bulk(50), compression_type="gzip", linger_ms=50)
        found[codec] = [[record.offset, record.timestamp, record.value] for record in read(bootstrap, topic, 50)]
    return found


@scenarios.add
def acks(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    told = {}
    for level in (1, "all", 0):
        with producer(bootstrap, acks=level, enable_idempotence=False) as client:
            futures = [client.send(topic, b"%d" % n, timestamp_ms=T0) for n in range(3)]
            answers = [future.get(timeout=30) for future in futures]
            # Without an answer (acks=0), the client invents an offset.
            told[str(level)] = [[each.offset if level else None, each.timestamp] for each in answers]
    return {"told": told, "log": [record.value for record in read(bootstrap, topic, 9)]}


@scenarios.add
def idempotent_producers(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    offsets = []
    for _ in range(2):
        with producer(bootstrap, enable_idempotence=True, acks="all") as client:
            for number in range(20):
                client.send(topic, b"%d" % number, partition=number % 2)
            client.flush(timeout=30)
            offsets.append(client.send(topic, b"last", partition=0).get(timeout=30).offset)
    records = read(bootstrap, topic, 42, 2)
    return {"offsets": offsets, "log": [[record.partition, record.offset, record.value] for record in records]}


@scenarios.add
def the_broker_stamps_the_time(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 2
    with producer(bootstrap) as client:
        told = [client.send(topic, b"v%d" % n, timestamp_ms=T0 + n).get(timeout=30) for n in range(3)]
    after = int(time.time() * 1000) + 2
    records = read(bootstrap, topic, 3)
    return {
        "told a time of now": [before <= each.timestamp <= after for each in told],
        "told is kept": [each.timestamp for each in told] == [record.timestamp for record in records],
        "log": [plain(record, timestamp=False) for record in records],
    }


@scenarios.add
def times_out_of_bounds(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, message_timestamp_before_max_ms="3600000", message_timestamp_after_max_ms="60000")
    now = int(time.time() * 1000)
    found = {}
    with producer(bootstrap) as client:
        for label, moment in {"now": 0, "old": -3_700_000, "early": 90_000, "late enough": -3_000_000}.items():
            future = client.send(topic, b"v", timestamp_ms=now + moment)
            found[label] = outcome(_offset, future)
    return found


@scenarios.add
def messages_too_large(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, max_message_bytes="2000")
    with producer(bootstrap, max_request_size=10_000_000) as client:
        found = {str(size): outcome(_send, client, topic, b"x" * size) for size in (100, 1900, 2000, 100_000)}
    return {"told": found, "log": [len(record.value) for record in read(bootstrap, topic, 2)]}


@scenarios.add
def compacted_topics_need_keys(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, cleanup_policy="compact")
    with producer(bootstrap) as client:
        keyless = outcome(lambda: client.send(topic, b"v").get(timeout=30).offset)
    with producer(bootstrap) as client:
        keyed = client.send(topic, b"v", key=b"k").get(timeout=30).offset
    return {"without key": keyless, "with key": keyed}


@scenarios.add
def producing_creates_a_topic(bootstrap: str, unique: str) -> object:
    with producer(bootstrap) as client:
        told = client.send(unique, b"first", timestamp_ms=T0).get(timeout=30)
    with admin(bootstrap) as client:
        (topic,) = wait_for("the topic", lambda: client.describe_topics([unique]))
    return {"told": [told.partition, told.offset], "topic": topic}


@scenarios.add
def topic_names_that_cannot_be(bootstrap: str, unique: str) -> object:
    found = {}
    with producer(bootstrap, max_block_ms=3000) as client:
        for name in ("sp ace", "x" * 250, "ok..", ".."):
            found[name[:6]] = outcome(_send, client, name, b"v")
    return found


@scenarios.add
def many_records_in_order(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 3)
    with producer(bootstrap, linger_ms=5, batch_size=4000) as client:
        for number in range(3000):
            client.send(topic, b"%06d" % number, partition=number % 3)
    records = read(bootstrap, topic, 3000, 3)
    return {
        "count": len(records),
        "in order": all(
            [record.value for record in records if record.partition == p] == [b"%06d" % n for n in range(p, 3000, 3)]
            for p in range(3)
        ),
    }
