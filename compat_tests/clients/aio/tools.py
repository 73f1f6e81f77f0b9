"""Short forms for aiokafka: scenarios as coroutines, clients that close, records and responses as plain values."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from compat_tests.clients.aio import scenarios
from compat_tests.clients.common import T0, WAIT_S

Story = Callable[[str, str], Awaitable[object]]


def scenario(story: Story) -> Story:
    """Register a coroutine as a scenario; each run has an event loop of its own."""

    def run(bootstrap: str, unique: str) -> object:
        async def whole() -> object:
            return await story(bootstrap, unique)

        return asyncio.run(whole())

    run.__name__ = getattr(story, "__name__", "")
    scenarios.add(run)
    return story


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """Return the result of `awaitable`, or the kind of the error that it raises."""
    try:
        return await asyncio.wait_for(awaitable, WAIT_S)
    except Exception as error:  # noqa: BLE001 - every error is an observation
        return {"error": type(error).__name__}


async def eventually(what: str, condition: Callable[[], Awaitable[Any]]) -> Any:
    """Await `condition` until it returns something true, and return that; fail after `WAIT_S` seconds."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = await condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what} did not happen within {WAIT_S} s; last seen: {found!r}"
        await asyncio.sleep(0.05)


@asynccontextmanager
async def admin(bootstrap: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """Yield an admin client."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def producer(bootstrap: str, **config: Any) -> AsyncIterator[AIOKafkaProducer]:
    """Yield a producer; it is flushed at the end."""
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, **config)
    await client.start()
    try:
        yield client
        await asyncio.wait_for(client.flush(), WAIT_S)
    finally:
        await client.stop()


@asynccontextmanager
async def consumer(bootstrap: str, *topics: str, **config: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """Yield a consumer that starts at the beginning and does not commit by itself."""
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **config}
    client = AIOKafkaConsumer(*topics, bootstrap_servers=bootstrap, **settings)
    await client.start()
    try:
        yield client
    finally:
        await client.stop()


async def create(bootstrap: str, name: str, partitions: int = 1, **configs: str) -> str:
    """Create a topic, wait for its leaders and return its name; config keys are written with "_" for "."."""
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    async with admin(bootstrap) as client:
        await client.create_topics([NewTopic(name, partitions, 1, topic_configs=settings)])

        async def led() -> bool:
            (topic,) = await client.describe_topics([name])
            found = topic["partitions"]
            return len(found) == partitions and all(each["leader"] >= 0 for each in found)

        await eventually("leaders", led)
    return name


async def fill(bootstrap: str, topic: str, values: Iterable[bytes], partition: int = 0, **config: Any) -> None:
    """Append values to a partition, with increasing keys k0, k1, ... and times from T0 on."""
    async with producer(bootstrap, **config) as client:
        for number, value in enumerate(values):
            key = f"k{number}".encode()
            await client.send(topic, value, key=key, partition=partition, timestamp_ms=T0 + number)


async def take(client: AIOKafkaConsumer, count: int) -> list[ConsumerRecord[Any, Any]]:
    """Fetch until `count` records have arrived; return them ordered by partition and offset."""
    taken: list[ConsumerRecord[Any, Any]] = []
    deadline = time.monotonic() + WAIT_S
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} records came within {WAIT_S} s"
        for records in (await client.getmany(timeout_ms=200)).values():
            taken += records
    return sorted(taken, key=lambda record: (record.topic, record.partition, record.offset))


async def read(bootstrap: str, topic: str, count: int, partitions: int = 1, **config: Any) -> list[Any]:
    """Read `count` records of a topic from its beginning."""
    async with consumer(bootstrap, **config) as client:
        client.assign([TopicPartition(topic, partition) for partition in range(partitions)])
        return await take(client, count)


def plain(record: ConsumerRecord[Any, Any]) -> dict[str, Any]:
    """Return a record as plain values."""
    return {
        "partition": record.partition,
        "offset": record.offset,
        "key": record.key,
        "value": record.value,
        "headers": [list(header) for header in record.headers],
        "timestamp": record.timestamp,
        "timestamp type": record.timestamp_type,
    }


def answer(response: Any) -> Any:
    """Return an admin response as plain values, without its throttle time."""
    found = response.to_object()
    found.pop("throttle_time_ms", None)
    return found
