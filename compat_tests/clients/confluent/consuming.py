"""Scenarios: reading at positions, by time, paused, limited, and where there is nothing to read."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, Message, TopicPartition

from compat_tests.clients.common import T0, bulk, wait_for
from compat_tests.clients.confluent import scenarios
from compat_tests.clients.confluent.tools import (
    admin,
    answers,
    consumer,
    create,
    error_name,
    fill,
    producer,
    send,
    take,
    told,
)


def _where(messages: list[Message]) -> list[list[Any]]:
    return [[message.partition(), message.offset()] for message in messages]


def _offsets(partitions: list[TopicPartition]) -> list[list[Any]]:
    return [[each.partition, each.offset, error_name(each.error)] for each in partitions]


@scenarios.add
def seeking(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    fill(bootstrap, topic, bulk(20), 0)
    fill(bootstrap, topic, bulk(5), 1)
    found: dict[str, Any] = {}
    with consumer(bootstrap, unique) as client:
        client.assign([TopicPartition(topic, 0, 15), TopicPartition(topic, 1, OFFSET_END)])
        found["from 15"] = _where(take(client, 5))
        client.seek(TopicPartition(topic, 1, OFFSET_BEGINNING))
        found["from 0"] = _where(take(client, 5))
        found["positions"] = _offsets(client.position([TopicPartition(topic, 0), TopicPartition(topic, 1)]))
        found["watermarks"] = [list(client.get_watermark_offsets(TopicPartition(topic, p), timeout=10)) for p in (0, 1)]
        found["no such partition"] = told(
            lambda: list(client.get_watermark_offsets(TopicPartition(topic, 9), timeout=10))
        )
    return found


@scenarios.add
def offsets_by_time(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    with producer(bootstrap) as client:
        for moment in (0, 10, 10, 5, 20, 30):
            send(client, topic, b"v", partition=0, timestamp=T0 + moment)
    found = {}
    with consumer(bootstrap, unique) as reader:
        for moment in (-1000, 0, 1, 5, 10, 11, 20, 30, 31):
            asked = [TopicPartition(topic, p, T0 + moment) for p in (0, 1)]
            found[str(moment)] = _offsets(reader.offsets_for_times(asked, timeout=10))
        found["beginning and end"] = [
            _offsets(reader.offsets_for_times([TopicPartition(topic, 0, special)], timeout=10))
            for special in (OFFSET_BEGINNING, OFFSET_END)
        ]
    return found


@scenarios.add
def pausing(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    for partition in (0, 1):
        fill(bootstrap, topic, bulk(3), partition)
    one, two = TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)
    with consumer(bootstrap, unique) as client:
        client.assign([one, two])
        client.pause([two])
        first = _where(take(client, 3))
        quiet = client.poll(0.3) is None
        client.resume([two])
        second = _where(take(client, 3))
    return {"while paused": first, "nothing else": quiet, "after": second}


@scenarios.add
def committing(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    fill(bootstrap, topic, bulk(10))
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    found: dict[str, Any] = {}
    with consumer(bootstrap, unique) as client:
        client.assign([TopicPartition(topic, 0, 0), TopicPartition(topic, 1, 0)])
        found["nothing yet"] = _offsets(client.committed([one, two], timeout=10))
        take(client, 10)
        found["commit"] = _offsets(client.commit(asynchronous=False))
        found["after all"] = _offsets(client.committed([one, two], timeout=10))
        noted = TopicPartition(topic, 0, 4, metadata="a note")
        found["with a note"] = _offsets(client.commit(offsets=[noted], asynchronous=False))
        found["the note"] = [[each.offset, each.metadata] for each in client.committed([one], timeout=10)]
        too_long = TopicPartition(topic, 0, 4, metadata="x" * 5000)
        found["too long a note"] = told(lambda: _offsets(client.commit(offsets=[too_long], asynchronous=False)))
        nowhere = TopicPartition(topic, 9, 4)
        found["no such partition"] = told(lambda: _offsets(client.commit(offsets=[nowhere], asynchronous=False)))
    with consumer(bootstrap, unique) as client:
        client.assign([one])
        found["goes on at"] = _where(take(client, 6))
    return found


@scenarios.add
def where_to_start(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, bulk(8))
    found: dict[str, Any] = {}
    client = admin(bootstrap)
    answers(client.delete_records([TopicPartition(topic, 0, 3)]))
    for reset, offset in (("earliest", OFFSET_INVALID), ("earliest", 1), ("earliest", 99), ("error", 1), ("error", 99)):
        with consumer(bootstrap, f"{unique}-none", auto_offset_reset=reset) as reader:
            reader.assign([TopicPartition(topic, 0, offset)])
            wanted = 1 if reset == "error" else 5
            found[f"{reset} {offset}"] = [[error_name(m.error()), m.offset()] for m in take(reader, wanted)]
    return found


@scenarios.add
def the_end_of_a_partition(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, bulk(3))
    with consumer(bootstrap, unique, enable_partition_eof=True) as client:
        client.assign([TopicPartition(topic, 0, 0)])
        seen = [[error_name(message.error()), message.offset()] for message in take(client, 4)]
        begun = time.monotonic()
        with producer(bootstrap) as sender:
            send(sender, topic, b"wake up")
        woken = take(client, 1)[0].value()
        return {"seen": seen, "woken": woken, "at once": time.monotonic() - begun < 2}


@scenarios.add
def large_records_and_small_fetches(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, [b"x" * 1000] * 30 + [b"y" * 500_000] + [b"z"] * 5)
    with consumer(bootstrap, unique, max_partition_fetch_bytes=5000, fetch_max_bytes=1_000_000) as client:
        client.assign([TopicPartition(topic, 0, 0)])
        return [len(message.value() or b"") for message in take(client, 36)]


@scenarios.add
def topics_and_patterns(bootstrap: str, unique: str) -> object:
    for number in (1, 2, 3):
        fill(bootstrap, create(bootstrap, f"{unique}-{number}", number), [b"v"])
    create(bootstrap, f"other-{unique}")
    with consumer(bootstrap, unique) as client:
        client.subscribe([f"^{unique}-[12]$"])
        records = sorted(str(message.topic()) for message in take(client, 2))
        assigned = sorted((each.topic, each.partition) for each in client.assignment())
        listed = {
            name: [sorted(topic.partitions), [each.leader for each in topic.partitions.values()]]
            for name, topic in client.list_topics(timeout=10).topics.items()
            if unique in name
        }
    return {"records": records, "assigned": assigned, "listed": listed}


@scenarios.add
def a_topic_that_does_not_exist(bootstrap: str, unique: str) -> object:
    with consumer(bootstrap, unique, allow_auto_create_topics=False) as client:
        client.subscribe([unique])
        error = error_name(take(client, 1)[0].error())
        listed = error_name(client.list_topics(unique, timeout=10).topics[unique].error)
    return {"subscribe": error, "listed": listed}


@scenarios.add
def subscribing_may_create_a_topic(bootstrap: str, unique: str) -> object:
    with consumer(bootstrap, unique, allow_auto_create_topics=True, topic_metadata_refresh_interval_ms=200) as client:
        client.subscribe([unique])
        assigned = wait_for("an assignment", lambda: client.poll(0.1) is not None or client.assignment())
        return [] if assigned is True else [[each.topic == unique, each.partition] for each in assigned]


@scenarios.add
def both_isolation_levels(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, bulk(5))
    found = {}
    for level in ("read_uncommitted", "read_committed"):
        with consumer(bootstrap, unique, isolation_level=level) as client:
            client.assign([TopicPartition(topic, 0, 0)])
            found[level] = _where(take(client, 5))
    return found
