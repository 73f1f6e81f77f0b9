"""Scenarios: what the broker answers to a producer, and what the log contains afterwards."""

from __future__ import annotations

import hashlib
import time

from compat_tests.clients.common import CODECS, T0, bulk
from compat_tests.clients.confluent import scenarios
from compat_tests.clients.confluent.tools import admin, create, fill, plain, producer, read, send


@scenarios.add
def records_keep_keys_headers_and_times(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    headers = [("a", b"1"), ("a", b"2"), ("empty", b""), ("none", None)]
    with producer(bootstrap) as client:
        told = [
            send(client, topic, b"plain", timestamp=T0),
            send(client, topic, b"value", key=b"key", timestamp=T0 + 1),
            send(client, topic, None, key=b"tombstone", timestamp=T0 + 2),
            send(client, topic, b"", key=b"", timestamp=T0 + 3),
            send(client, topic, b"h", headers=headers, timestamp=T0 - 5),
            send(client, topic, None, timestamp=T0),
        ]
    return {"told": told, "log": [plain(message) for message in read(bootstrap, topic, 6)]}


@scenarios.add
def keys_choose_partitions(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 6)
    found = {}
    for name in ("consistent_random", "murmur2_random", "fnv1a"):
        with producer(bootstrap, partitioner=name) as client:
            found[name] = [send(client, topic, b"v", key=b"user-%d" % n)[1] for n in range(20)]
    return found


def _codec(codec: str) -> None:
    def compressed(bootstrap: str, unique: str) -> object:
        topic = create(bootstrap, unique)
        fill(bootstrap, topic, bulk(500), compression_type=codec, linger_ms=100)
        records = read(bootstrap, topic, 500)
        return {
            "offsets": [record.offset() for record in records] == list(range(500)),
            "digest": hashlib.sha256(b"".join(record.value() or b"" for record in records)).hexdigest(),
        }

    compressed.__name__ = f"batches_with_codec_{codec}"
    scenarios.add(compressed)


for _name in CODECS:
    _codec(_name)


@scenarios.add
def acks(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    told = {}
    for level in (1, -1, 0):
        with producer(bootstrap, acks=level) as client:
            answers = [send(client, topic, b"%d" % n, timestamp=T0) for n in range(3)]
            told[str(level)] = answers if level else [answer[0] for answer in answers]
    return {"told": told, "log": [record.value() for record in read(bootstrap, topic, 9)]}


@scenarios.add
def idempotent_producers(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    told = []
    for _ in range(2):
        with producer(bootstrap, enable_idempotence=True) as client:
            for number in range(20):
                client.produce(topic, b"%d" % number, partition=number % 2)
            client.flush(30)
            told.append(send(client, topic, b"last", partition=0)[:3])
    records = read(bootstrap, topic, 42, 2)
    return {"told": told, "log": [[record.partition(), record.offset(), record.value()] for record in records]}


@scenarios.add
def the_broker_stamps_the_time(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 2
    with producer(bootstrap) as client:
        told = [send(client, topic, b"v%d" % n, timestamp=T0 + n) for n in range(3)]
    after = int(time.time() * 1000) + 2
    log = [plain(record) for record in read(bootstrap, topic, 3)]
    kinds, moments = zip(*(each.pop("timestamp") for each in log), strict=True)
    return {
        "kinds": kinds,
        "of now": [before <= moment <= after for moment in moments],
        "told": [each[3][1] for each in told] == list(moments),
        "log": log,
    }


@scenarios.add
def refused_records(bootstrap: str, unique: str) -> object:
    small = create(bootstrap, f"{unique}-small", max_message_bytes="2000")
    compacted = create(bootstrap, f"{unique}-compacted", cleanup_policy="compact")
    bounded = create(bootstrap, f"{unique}-bounded", message_timestamp_before_max_ms="1000")
    found = {}
    with producer(bootstrap, message_max_bytes=10_000_000) as client:
        found["fits"] = send(client, small, b"x" * 1900, timestamp=T0)
        found["too large"] = send(client, small, b"x" * 2000, timestamp=T0)
        found["keyless"] = send(client, compacted, b"v", timestamp=T0)
        found["keyed"] = send(client, compacted, b"v", key=b"k", timestamp=T0)
        found["too old"] = send(client, bounded, b"v", timestamp=T0)[:3]
    return found


@scenarios.add
def producing_creates_a_topic(bootstrap: str, unique: str) -> object:
    with producer(bootstrap) as client:
        told = send(client, unique, b"first", timestamp=T0)
    topic = admin(bootstrap).list_topics(unique, timeout=30).topics[unique]
    return {"told": told, "partitions": sorted(topic.partitions)}


@scenarios.add
def topics_that_cannot_be_produced_to(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    with producer(bootstrap, message_timeout_ms=3000) as client:
        return {
            "bad name": send(client, "sp ace", b"v")[0],
            "no such partition": send(client, topic, b"v", partition=7)[0],
        }


@scenarios.add
def many_records_in_order(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 3)
    with producer(bootstrap, linger_ms=5, batch_num_messages=50) as client:
        for number in range(20_000):
            client.produce(topic, b"%06d" % number, partition=number % 3)
    records = read(bootstrap, topic, 20_000, 3)
    return {
        "in order": all(
            [record.value() for record in records if record.partition() == p]
            == [b"%06d" % n for n in range(p, 20_000, 3)]
            for p in range(3)
        ),
    }
