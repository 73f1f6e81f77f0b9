"""Scenarios: transactions, and what they commit, abort and fence."""

from __future__ import annotations

from aiokafka import AIOKafkaProducer, TopicPartition

from compat_tests.clients.aio.tools import consumer, create, outcome, read, scenario


async def transactional(bootstrap: str, name: str) -> AIOKafkaProducer:
    client = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    await client.start()
    return client


@scenario
async def transactions_are_committed_and_aborted(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique, 2)
    client = await transactional(bootstrap, unique)
    try:
        for word, commit in ((b"a", True), (b"b", False), (b"c", True)):
            await client.begin_transaction()
            for number in range(4):
                await client.send_and_wait(topic, word + b"%d" % number, partition=number % 2)
            await (client.commit_transaction() if commit else client.abort_transaction())
    finally:
        await client.stop()
    seen = {}
    for isolation, count in (("read_committed", 8), ("read_uncommitted", 12)):
        records = await read(bootstrap, topic, count, 2, isolation_level=isolation)
        seen[isolation] = [[each.partition, each.offset, each.value] for each in records]
    return seen


@scenario
async def a_second_instance_fences_the_first(bootstrap: str, unique: str) -> object:
    topic = await create(bootstrap, unique)
    first = await transactional(bootstrap, unique)
    await first.begin_transaction()
    await first.send_and_wait(topic, b"zombie")
    second = await transactional(bootstrap, unique)
    try:
        told = await outcome(first.commit_transaction())
        await second.begin_transaction()
        await second.send_and_wait(topic, b"mine")
        await second.commit_transaction()
    finally:
        await outcome(first.stop())
        await second.stop()
    records = await read(bootstrap, topic, 1, isolation_level="read_committed")
    return {"told": told, "log": [[each.offset, each.value] for each in records]}


@scenario
async def offsets_go_with_their_transaction(bootstrap: str, unique: str) -> object:
    topic, group = await create(bootstrap, unique), f"{unique}-g"
    held = []
    client = await transactional(bootstrap, unique)
    try:
        for offset, commit in ((3, True), (5, False)):
            await client.begin_transaction()
            await client.send_and_wait(topic, b"%d" % offset)
            await client.send_offsets_to_transaction({TopicPartition(topic, 0): offset}, group)
            await (client.commit_transaction() if commit else client.abort_transaction())
            async with consumer(bootstrap, group_id=group) as reader:
                held.append(await reader.committed(TopicPartition(topic, 0)))
    finally:
        await client.stop()
    return {"held": held}
