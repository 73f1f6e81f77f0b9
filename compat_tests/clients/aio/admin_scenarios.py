"""Scenarios: topics, configs, records and the cluster, as an admin sees and changes them."""

from __future__ import annotations

from typing import Any

from aiokafka import TopicPartition
from aiokafka.admin import NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from compat_tests.clients.aio.tools import admin, answer, create, eventually, fill, outcome, read, scenario
from compat_tests.clients.common import bulk
from compat_tests.harness.brokers import PRIVATE


async def _answer(awaitable: Any) -> Any:
    return answer(await awaitable)


@scenario
async def creating_topics(bootstrap: str, unique: str) -> object:
    seen: dict[str, Any] = {}
    async with admin(bootstrap) as client:
        for label, topic in {
            "sized": NewTopic(f"{unique}-b", 3, 1),
            "configured": NewTopic(f"{unique}-c", 1, 1, topic_configs={"retention.ms": "1000"}),
            "assigned": NewTopic(f"{unique}-d", -1, -1, replica_assignments={0: [1], 1: [1]}),
            "again": NewTopic(f"{unique}-b", 3, 1),
            "no partitions": NewTopic(f"{unique}-x", 0, 1),
            "too many replicas": NewTopic(f"{unique}-x", 1, 3),
            "unknown config": NewTopic(f"{unique}-x", 1, 1, topic_configs={"no.such": "1"}),
            "bad name": NewTopic("a b", 1, 1),
        }.items():
            seen[label] = await outcome(_answer(client.create_topics([topic])))
        asked = client.create_topics([NewTopic(f"{unique}-e", 1, 1)], validate_only=True)
        seen["only asked"] = await outcome(_answer(asked))

        async def listed() -> list[str]:
            names = sorted(name for name in await client.list_topics() if name.startswith(unique))
            return names if f"{unique}-d" in names else []

        seen["listed"] = await eventually("the topics", listed)
        names = [f"{unique}-b", f"{unique}-e"]
        seen["described"] = sorted(await client.describe_topics(names), key=lambda each: str(each["topic"]))
    return seen


@scenario
async def deleting_topics(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    async with admin(bootstrap) as client:
        seen = {
            label: await outcome(_answer(client.delete_topics([name])))
            for label, name in (("delete", topic), ("again", topic), ("unknown", f"{unique}-none"))
        }

        async def gone() -> bool:
            return topic not in await client.list_topics()

        return {**seen, "gone": await eventually("the topic to go", gone)}


@scenario
async def adding_partitions(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 2)
    async with admin(bootstrap) as client:
        return {
            label: await outcome(_answer(client.create_partitions({name: NewPartitions(total_count=count)})))
            for label, name, count in (
                ("same", topic, 2),
                ("fewer", topic, 1),
                ("more", topic, 3),
                ("unknown", f"{unique}-none", 3),
            )
        }


def _configs(responses: list[Any]) -> list[Any]:
    found = []
    for response in responses:
        for resource in answer(response)["resources"]:
            entries = {each.pop("config_names"): each for each in resource.pop("config_entries")}
            found.append([resource, {name: entry for name, entry in entries.items() if name not in PRIVATE}])
    return found


@scenario
async def describing_configs(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, retention_ms="12345")
    seen = {}
    async with admin(bootstrap) as client:
        for kind, name in (("TOPIC", topic), ("TOPIC", f"{unique}-none"), ("BROKER", "1")):
            asked = [ConfigResource(ConfigResourceType[kind], name)]
            seen[f"{kind} {name}"] = _configs(await client.describe_configs(asked, include_synonyms=True))
    return seen


@scenario
async def altering_configs(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, retention_ms="1000")
    seen: dict[str, Any] = {}

    async def alter(configs: dict[str, str], name: str = topic) -> Any:
        asked = [ConfigResource(ConfigResourceType.TOPIC, name, configs=configs)]
        return [answer(each) for each in await client.alter_configs(asked)]

    async def now() -> dict[str, str]:
        asked = [ConfigResource(ConfigResourceType.TOPIC, topic)]
        ((_, entries),) = _configs(await client.describe_configs(asked))
        own = {name: entry["config_value"] for name, entry in entries.items() if entry["config_source"] == 1}
        return own if "retention.ms" not in own else {}

    async with admin(bootstrap) as client:
        seen["bad value"] = await outcome(alter({"retention.ms": "soon"}))
        seen["bad key"] = await outcome(alter({"no.such": "1"}))
        seen["unknown topic"] = await outcome(alter({"segment.ms": "70000"}, f"{unique}-none"))
        seen["whole"] = await outcome(alter({"segment.ms": "70000"}))
        seen["after"] = await eventually("the change", now)
    return seen


@scenario
async def deleting_records(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    await fill(bootstrap, topic, bulk(10))
    one = TopicPartition(topic, 0)
    seen = {}
    async with admin(bootstrap) as client:
        for offset in (4, 2, 11):
            found = await outcome(client.delete_records({one: RecordsToDelete(before_offset=offset)}))
            seen[str(offset)] = found.get(one, found)
    return {**seen, "left": [record.offset for record in await read(bootstrap, topic, 6)]}


@scenario
async def the_cluster(bootstrap: str, unique: str) -> object:
    async with admin(bootstrap) as client:
        found = await client.describe_cluster()
    found.pop("topics", None)
    found["cluster_id"] = len(found["cluster_id"])
    return found
