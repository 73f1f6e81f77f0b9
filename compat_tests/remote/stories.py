"""What each kind of store must do: the verbs of `Store`, and a topic in both tiers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.clients.common import wait_for
from kbroker.embed import Broker
from kbroker.remote.object_client import Piece
from kbroker.remote.store import Store, open_store
from kbroker.remote.store_errors import ObjectExistsError, ObjectNotFoundError, WrongLengthError

PATIENCE_S = 60.0
RECORDS = 20_000


async def names(store: Store, prefix: str = "") -> list[str]:
    return sorted([each.name async for each in store.list(prefix)])


async def verbs(store: Store) -> None:
    """Use all verbs. The store is empty before and afterwards."""
    assert await names(store) == []
    for size in (3_000_000, 20_000_000):
        await _write_and_read(store, os.urandom(size))
    await store.put("t/0/b", [b"b"], 1)
    await store.put("t/1/a", [b"a"], 1)
    assert await names(store) == ["t/0/a", "t/0/b", "t/1/a"]
    assert await names(store, "t/0") == ["t/0/a", "t/0/b"]
    assert await names(store, "none") == []
    for name in ("t/0/none", "t/0", "none/0/a"):
        with pytest.raises(ObjectNotFoundError, match="no such object"):
            await store.head(name)
    with pytest.raises(ObjectNotFoundError):
        await store.get("t/0/none", 0, 1)
    for name in ("t/0/a", "t/0/none", "t/0/b", "t/1/a"):
        await store.delete(name)
    assert await names(store) == []
    with pytest.raises(WrongLengthError):
        await store.put("t/0/a", [b"abc"], 2)
    with pytest.raises(ValueError, match="no object can have this name"):
        await store.put("../a", [b"abc"], 3)
    assert await names(store) == []


async def _write_and_read(store: Store, data: bytes) -> None:
    await store.delete("t/0/a")
    pieces: list[Piece] = [data[:1_000_000], bytearray(data[1_000_000:2_000_000]), memoryview(data)[2_000_000:]]
    await store.put("t/0/a", pieces, len(data))
    assert bytes(await store.get("t/0/a", 1_999_990, 20)) == data[1_999_990:2_000_010]
    found = await store.head("t/0/a")
    assert found.size == len(data)
    assert abs(found.modified_ms - time.time() * 1000) < 60_000
    with pytest.raises(ObjectExistsError, match=r"put of t/0/a in .*: the object exists already"):
        await store.put("t/0/a", [b"x"], 1)
    for start, size in ((len(data) - 5, 10), (len(data), 1), (len(data) + 5, 1)):
        with pytest.raises(WrongLengthError):
            await store.get("t/0/a", start, size)


def keep_topic(
    directory: Path, url: str, options: Mapping[str, str], *, disturb: Sequence[Callable[[], None]] = ()
) -> None:
    """Write a topic, read it from both tiers, and delete it. Call each of `disturb` while records are copied."""
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.storage.url": url,
        "remote.storage.options": ",".join(f"{name}={value}" for name, value in options.items()),
        "remote.log.manager.task.interval.ms": "100",
        "log.initial.task.delay.ms": "100",
        "log.retention.check.interval.ms": "200",
        "log.segment.delete.delay.ms": "100",
        "remote.log.manager.task.retry.backoff.ms": "50",
        "remote.log.manager.task.retry.backoff.max.ms": "500",
    }

    async def listed() -> list[str]:
        store = open_store(url, options)
        return [each for each in await names(store) if not each.startswith("broker-state/")]

    def stored() -> list[str]:
        return asyncio.run(listed())

    with Broker(settings, data_dir=directory / "data") as broker:
        address = broker.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": address})
        config = {
            "remote.storage.enable": "true",
            "internal.segment.bytes": "100000",
            "local.retention.bytes": "200000",
        }
        admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(PATIENCE_S)
        producer = Producer({"bootstrap.servers": address, "batch.size": 10_000})
        calls = {RECORDS * (number + 1) // (len(disturb) + 2): call for number, call in enumerate(disturb)}
        for number in range(RECORDS):
            producer.produce("t", b"%d" % number * 20)
            if number in calls:
                producer.flush(PATIENCE_S)
                calls[number]()
        producer.flush(PATIENCE_S)
        partition = broker.node.replicas.get(("t", 0))
        assert partition is not None
        log = partition.log
        wait_for("only the last segments on the disk", lambda: log.log_start_offset > RECORDS * 2 // 3, PATIENCE_S)
        assert stored()
        assert _read(address) == [b"%d" % number * 20 for number in range(RECORDS)]
        admin.delete_topics(["t"])["t"].result(PATIENCE_S)
        wait_for("an empty store", lambda: not stored(), PATIENCE_S)


def _read(address: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "error"})
    consumer.assign([TopicPartition("t", 0, 0)])
    values: list[bytes] = []
    end = time.monotonic() + PATIENCE_S
    while len(values) < RECORDS and time.monotonic() < end:
        values += [each.value() for each in consumer.consume(1000, 1.0) if each.error() is None]
    consumer.close()
    return values
