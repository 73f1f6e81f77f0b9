"""Scenarios: what the broker answers to a producer, and what the log contains afterwards."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from aiokafka import AIOKafkaProducer

from compat_tests.clients.aio.tools import admin, create, fill, outcome, plain, producer, read, scenario
from compat_tests.clients.common import CODECS, T0, bulk


async def _send(client: AIOKafkaProducer, topic: str, value: bytes | None, **options: Any) -> list[Any]:
    told = await client.send_and_wait(topic, value, **options)
    return [told.partition, told.offset, told.timestamp, told.timestamp_type, told.log_start_offset]


@scenario
async def records_keep_keys_headers_and_times(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    async with producer(bootstrap) as client:
        told = [
            await _send(client, topic, b"plain", timestamp_ms=T0),
            await _send(client, topic, b"value", key=b"key", timestamp_ms=T0 + 1),
            await _send(client, topic, None, key=b"tombstone", timestamp_ms=T0 + 2),
            await _send(client, topic, b"", key=b"", timestamp_ms=T0 + 3),
            await _send(client, topic, b"h", headers=[("a", b"1"), ("a", b"2"), ("empty", b"")], timestamp_ms=T0 - 5),
        ]
    return {"told": told, "log": [plain(record) for record in await read(bootstrap, topic, 5)]}


@scenario
async def keys_choose_partitions(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 6)
    async with producer(bootstrap) as client:
        chosen = [(await _send(client, topic, b"v", key=b"user-%d" % n))[0] for n in range(40)]
        return {"by key": chosen, "partitions": sorted(await client.partitions_for(topic))}


def _codec(codec: str) -> None:
    async def compressed(bootstrap: str, unique: str) -> object:
        topic = await create(bootstrap, unique)
        kind = None if codec == "none" else codec
        await fill(bootstrap, topic, bulk(500), compression_type=kind, linger_ms=50)
        records = await read(bootstrap, topic, 500)
        return {
            "offsets": [record.offset for record in records] == list(range(500)),
            "digest": hashlib.sha256(b"".join(record.value for record in records)).hexdigest(),
        }

    compressed.__name__ = f"batches_with_codec_{codec}"
    scenario(compressed)


for _name in CODECS:
    _codec(_name)


@scenario
async def acks(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    told = {}
    for level in (1, "all", 0):
        async with producer(bootstrap, acks=level) as client:
            answers = [await client.send_and_wait(topic, b"%d" % n, timestamp_ms=T0) for n in range(3)]
            told[str(level)] = [[each.offset, each.timestamp] for each in answers] if level else len(answers)
    return {"told": told, "log": [record.value for record in await read(bootstrap, topic, 9)]}


@scenario
async def idempotent_producers(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 2)
    told = []
    for _ in range(2):
        async with producer(bootstrap, enable_idempotence=True) as client:
            for number in range(20):
                await client.send(topic, b"%d" % number, partition=number % 2)
            await client.flush()
            told.append((await _send(client, topic, b"last", partition=0))[:2])
    records = await read(bootstrap, topic, 42, 2)
    return {"told": told, "log": [[record.partition, record.offset, record.value] for record in records]}


@scenario
async def batches_made_by_hand(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    async with producer(bootstrap) as client:
        batch = client.create_batch()
        for number in range(50):
            batch.append(key=b"k%d" % number, value=b"v%d" % number, timestamp=T0 + number)
        future = await client.send_batch(batch, topic, partition=0)
        told = await future
    return {"told": told.offset, "log": [[r.offset, r.key, r.timestamp] for r in await read(bootstrap, topic, 50)]}


@scenario
async def the_broker_stamps_the_time(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000) - 2
    async with producer(bootstrap) as client:
        told = [await _send(client, topic, b"v%d" % n, timestamp_ms=T0) for n in range(3)]
    after = int(time.time() * 1000) + 2
    records = await read(bootstrap, topic, 3)
    return {
        "of now": [before <= each[2] <= after for each in told],
        "kept": [each[2] for each in told] == [record.timestamp for record in records],
        "kinds": [[each[3] for each in told], [record.timestamp_type for record in records]],
    }


@scenario
async def refused_records(bootstrap: str, unique: str) -> object:
    small = await create(bootstrap, f"{unique}-small", max_message_bytes="2000")
    compacted = await create(bootstrap, f"{unique}-compacted", cleanup_policy="compact")
    found = {}
    async with producer(bootstrap, max_request_size=10_000_000) as client:
        found["fits"] = await outcome(_send(client, small, b"x" * 1900, timestamp_ms=T0))
        found["too large"] = await outcome(_send(client, small, b"x" * 2000, timestamp_ms=T0))
    async with producer(bootstrap) as client:
        found["keyless"] = await outcome(_send(client, compacted, b"v", timestamp_ms=T0))
    async with producer(bootstrap) as client:
        found["keyed"] = await outcome(_send(client, compacted, b"v", key=b"k", timestamp_ms=T0))
    return found


@scenario
async def producing_creates_a_topic(bootstrap: str, unique: str) -> object:
    async with producer(bootstrap) as client:
        told = await _send(client, unique, b"first", timestamp_ms=T0)
    async with admin(bootstrap) as client:
        (topic,) = await client.describe_topics([unique])
    return {"told": told, "partitions": [each["partition"] for each in topic["partitions"]]}


@scenario
async def many_records_in_order(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 3)
    async with producer(bootstrap, linger_ms=5, max_batch_size=4000) as client:
        for number in range(5000):
            await client.send(topic, b"%06d" % number, partition=number % 3)
    records = await read(bootstrap, topic, 5000, 3)
    return {
        "in order": all(
            [record.value for record in records if record.partition == p] == [b"%06d" % n for n in range(p, 5000, 3)]
            for p in range(3)
        ),
    }
