"""Scenarios: reading at positions, by time, paused, limited, and where there is nothing to read."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from aiokafka import OffsetAndMetadata, TopicPartition

from compat_tests.clients.aio.tools import admin, consumer, create, fill, outcome, producer, scenario, take
from compat_tests.clients.common import T0, bulk


def _where(records: list[Any]) -> list[list[int]]:
    return [[record.partition, record.offset] for record in records]


@scenario
async def seeking(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 2)
    await fill(bootstrap, topic, bulk(20), 0)
    await fill(bootstrap, topic, bulk(5), 1)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    found: dict[str, Any] = {}
    async with consumer(bootstrap) as client:
        client.assign([one, two])
        found["start"] = [await client.position(one), await client.position(two)]
        client.seek(one, 15)
        await client.seek_to_end(two)
        found["from 15"] = _where(await take(client, 5))
        await client.seek_to_beginning(two)
        found["from 0"] = _where(await take(client, 5))
        found["end"] = [await client.position(one), await client.position(two)]
        found["marks"] = [client.highwater(one), client.highwater(two), client.last_stable_offset(one)]
    return found


@scenario
async def offsets_by_time(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 2)
    async with producer(bootstrap) as client:
        for moment in (0, 10, 10, 5, 20, 30):
            await client.send_and_wait(topic, b"v", partition=0, timestamp_ms=T0 + moment)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    found: dict[str, Any] = {}
    async with consumer(bootstrap) as reader:
        for moment in (-1000, 0, 1, 5, 10, 11, 20, 30, 31):
            times = await reader.offsets_for_times({one: T0 + moment, two: T0 + moment})
            found[str(moment)] = [list(times[tp]) if times[tp] else None for tp in (one, two)]
        for label, offsets in (
            ("beginning", await reader.beginning_offsets([one, two])),
            ("end", await reader.end_offsets([one, two])),
        ):
            found[label] = [offsets[one], offsets[two]]
    return found


@scenario
async def pausing(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 2)
    for partition in (0, 1):
        await fill(bootstrap, topic, bulk(3), partition)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    async with consumer(bootstrap) as client:
        client.assign([one, two])
        client.pause(two)
        first = _where(await take(client, 3))
        quiet = await client.getmany(timeout_ms=300)
        client.resume(two)
        second = _where(await take(client, 3))
    return {"while paused": first, "nothing else": len(quiet), "after": second}


@scenario
async def committing(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 2)
    await fill(bootstrap, topic, bulk(10))
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    found: dict[str, Any] = {}
    async with consumer(bootstrap, group_id=unique) as client:
        client.assign([one, two])
        found["nothing yet"] = [await client.committed(one), await client.committed(two)]
        await take(client, 10)
        await client.commit()
        found["after all"] = [await client.committed(one), await client.committed(two)]
        await client.commit({one: OffsetAndMetadata(4, "a note")})
        found["at 4"] = await client.committed(one)
        found["too long a note"] = await outcome(client.commit({one: (4, "x" * 5000)}))
    async with consumer(bootstrap, group_id=unique) as client:
        client.assign([one])
        found["goes on at"] = _where(await take(client, 6))
    async with admin(bootstrap) as other:
        offsets = await other.list_consumer_group_offsets(unique)
        found["listed"] = sorted([tp.partition, *offset] for tp, offset in offsets.items())
    return found


@scenario
async def where_to_start(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    await fill(bootstrap, topic, bulk(8))
    one = TopicPartition(topic, 0)
    found: dict[str, Any] = {}
    for reset in ("earliest", "latest"):
        async with consumer(bootstrap, auto_offset_reset=reset) as client:
            client.assign([one])
            found[reset] = await client.position(one)
            client.seek(one, 99)
            fetched = asyncio.ensure_future(client.getmany(timeout_ms=1000))
            records = [record for each in (await fetched).values() for record in each]
            found[f"{reset} from 99"] = [len(records), await client.position(one)]
    async with consumer(bootstrap, auto_offset_reset="none", group_id=unique) as client:
        client.assign([one])
        found["none"] = await outcome(client.getone())
        client.seek(one, 99)
        found["none from 99"] = await outcome(client.getone())
    return found


@scenario
async def limits_of_a_fetch(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    await fill(bootstrap, topic, [b"x" * 1000] * 30, max_batch_size=2000)
    one = TopicPartition(topic, 0)
    sizes: list[int] = []
    async with consumer(bootstrap, max_partition_fetch_bytes=5000, max_poll_records=7) as client:
        client.assign([one])
        deadline = time.monotonic() + 20
        while sum(sizes) < 30 and time.monotonic() < deadline:
            sizes.append(sum(len(each) for each in (await client.getmany(timeout_ms=500)).values()))
    return {"never more than 7": max(sizes) <= 7, "all came": sum(sizes)}


@scenario
async def a_record_too_large_to_fetch_in_part(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    await fill(bootstrap, topic, [b"y" * 300_000, b"z"], max_request_size=1_000_000)
    async with consumer(bootstrap, max_partition_fetch_bytes=5000) as client:
        client.assign([TopicPartition(topic, 0)])
        return [len(record.value) for record in await take(client, 2)]


@scenario
async def topics_and_patterns(bootstrap: str, unique: str) -> object:
    for number in (1, 2, 3):
        await fill(bootstrap, await create(bootstrap, f"{unique}-{number}", number), [b"v"])
    async with consumer(bootstrap, group_id=unique) as client:
        client.subscribe(pattern=f"^{unique}-[12]$")
        records = await take(client, 2)
        return {
            "read": [record.topic for record in records],
            "assigned": sorted([tp.topic, tp.partition] for tp in client.assignment()),
            "topics": sorted(name for name in await client.topics() if unique in name),
        }


@scenario
async def long_poll_returns_when_records_come(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    async with consumer(bootstrap, fetch_max_wait_ms=5000) as client, producer(bootstrap) as sender:
        client.assign([TopicPartition(topic, 0)])
        waiting = asyncio.ensure_future(client.getone())
        await asyncio.sleep(0.3)
        begun = time.monotonic()
        await sender.send_and_wait(topic, b"wake up")
        record = await asyncio.wait_for(waiting, 20)
        return {"value": record.value, "at once": time.monotonic() - begun < 2}


@scenario
async def both_isolation_levels(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    await fill(bootstrap, topic, bulk(5))
    found = {}
    for level in ("read_uncommitted", "read_committed"):
        async with consumer(bootstrap, isolation_level=level) as client:
            client.assign([TopicPartition(topic, 0)])
            found[level] = _where(await take(client, 5))
    return found
