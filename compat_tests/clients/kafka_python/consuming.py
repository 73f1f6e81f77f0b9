"""Scenarios: reading at positions, by time, paused, limited, and where there is nothing to read."""

from __future__ import annotations

import time

from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition

from compat_tests.clients.common import T0, bulk, outcome
from compat_tests.clients.kafka_python import scenarios
from compat_tests.clients.kafka_python.tools import admin, consumer, create, fill, know, producer, take


def _offsets(found: dict[TopicPartition, int]) -> list[list[object]]:
    return sorted([tp.partition, offset] for tp, offset in found.items())


def _poll_often(client: KafkaConsumer) -> list[int]:
    return [len(client.poll(timeout_ms=500)) for _ in range(8)]


@scenarios.add
def seeking(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    fill(bootstrap, topic, bulk(20), 0)
    fill(bootstrap, topic, bulk(5), 1)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    found: dict[str, object] = {}
    with consumer(bootstrap) as client:
        client.assign([one, two])
        found["start"] = [client.position(one), client.position(two)]
        client.seek(one, 15)
        client.seek_to_end(two)
        found["sought"] = [client.position(one), client.position(two)]
        found["from 15"] = [[record.partition, record.offset] for record in take(client, 5)]
        client.seek_to_beginning(two)
        found["from 0"] = [[record.partition, record.offset] for record in take(client, 5)]
        found["end"] = [client.position(one), client.position(two)]
        found["highwater"] = [client.highwater(one), client.highwater(two)]
        found["assignment"] = sorted(tp.partition for tp in client.assignment())
    return found


@scenarios.add
def offsets_by_time(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    with producer(bootstrap) as client:
        # Timestamps need not increase: the answer is the first record that is late enough.
        for moment in (0, 10, 10, 5, 20, 30):
            client.send(topic, b"v", partition=0, timestamp_ms=T0 + moment).get(timeout=30)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    found: dict[str, object] = {}
    with consumer(bootstrap) as reader:
        for moment in (-1000, 0, 1, 5, 10, 11, 20, 30, 31):
            answer = reader.offsets_for_times({one: T0 + moment, two: T0 + moment})
            found[str(moment)] = [
                None if answer[tp] is None else [answer[tp].offset, answer[tp].timestamp, answer[tp].leader_epoch]
                for tp in (one, two)
            ]
        found["beginning"] = _offsets(reader.beginning_offsets([one, two]))
        found["end"] = _offsets(reader.end_offsets([one, two]))
        reader.assign([one])
        reader.seek(one, reader.offsets_for_times({one: T0 + 20})[one].offset)
        found["read from there"] = [[record.offset, record.timestamp] for record in take(reader, 2)]
    return found


@scenarios.add
def pausing(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    for partition in (0, 1):
        fill(bootstrap, topic, bulk(3), partition)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with consumer(bootstrap) as client:
        client.assign([one, two])
        client.pause(two)
        first = [[record.partition, record.offset] for record in take(client, 3)]
        quiet = client.poll(timeout_ms=300)
        paused = [tp.partition for tp in client.paused()]
        client.resume(two)
        second = [[record.partition, record.offset] for record in take(client, 3)]
    return {"while paused": first, "nothing else": len(quiet), "paused": paused, "after": second}


@scenarios.add
def committing(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    fill(bootstrap, topic, bulk(10), 0)
    one, two = TopicPartition(topic, 0), TopicPartition(topic, 1)
    found: dict[str, object] = {}
    with consumer(bootstrap, group_id=unique) as client:
        client.assign([one, two])
        found["nothing yet"] = [client.committed(one), client.committed(two)]
        take(client, 10)
        client.commit()
        found["after all"] = [client.committed(one), client.committed(two)]
        client.commit({one: OffsetAndMetadata(4, "a note", 0)})
        found["with a note"] = list(client.committed(one, metadata=True))
        found["no such partition"] = outcome(
            lambda: client.commit({TopicPartition(topic, 9): OffsetAndMetadata(1, "", -1)}, timeout_ms=2000)
        )
        found["too long a note"] = outcome(
            lambda: client.commit({one: OffsetAndMetadata(4, "x" * 5000, -1)}, timeout_ms=5000)
        )
    with consumer(bootstrap, group_id=unique) as client:
        client.assign([one])
        found["goes on at"] = [client.position(one), [record.offset for record in take(client, 6)]]
    return found


@scenarios.add
def where_to_start(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, bulk(8))
    one = TopicPartition(topic, 0)
    found: dict[str, object] = {}
    for reset in ("earliest", "latest"):
        with consumer(bootstrap, auto_offset_reset=reset) as client:
            client.assign([one])
            found[reset] = client.position(one)
    with consumer(bootstrap, auto_offset_reset="none", group_id=unique) as client:
        client.assign([one])
        found["none"] = outcome(lambda: client.position(one))
    with admin(bootstrap) as deleter:
        deleter.delete_records({one: 3})
    for reset in ("earliest", "latest", "none"):
        with consumer(bootstrap, auto_offset_reset=reset) as client:
            client.assign([one])
            client.seek(one, 1)
            if reset == "earliest":
                found["below the log"] = [record.offset for record in take(client, 5)]
            elif reset == "latest":
                client.poll(timeout_ms=1000)
                found["below, latest"] = client.position(one)
            else:
                found["below, none"] = outcome(_poll_often, client)
            client.seek(one, 99)
            if reset == "earliest":
                found["above the log"] = [record.offset for record in take(client, 5)]
    return found


@scenarios.add
def limits_of_a_poll(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, [b"x" * 1000] * 30, linger_ms=0)
    fill(bootstrap, topic, [b"y" * 100_000])
    one = TopicPartition(topic, 0)
    sizes: list[int] = []
    with consumer(bootstrap, max_poll_records=7, max_partition_fetch_bytes=5000, fetch_max_bytes=9000) as client:
        client.assign([one])
        deadline = time.monotonic() + 20
        while sum(sizes) < 31 and time.monotonic() < deadline:
            polled = client.poll(timeout_ms=500)
            sizes.append(sum(len(records) for records in polled.values()))
        end = client.position(one)
    return {"never more than 7": max(sizes) <= 7, "all came": sum(sizes), "end": end}


@scenarios.add
def topics_and_partitions(bootstrap: str, unique: str) -> object:
    for number in (1, 2, 3):
        create(bootstrap, f"{unique}-{number}", number)
    create(bootstrap, f"other-{unique}")
    with consumer(bootstrap, group_id=unique) as client:
        client.subscribe(pattern=f"^{unique}-[12]$")
        know(client, f"{unique}-1", f"{unique}-2")
        for number in (1, 2, 3):
            fill(bootstrap, f"{unique}-{number}", [b"v"])
        records = take(client, 2)
        return {
            "topics": sorted(name for name in client.topics() if unique in name),
            "partitions": {str(n): sorted(client.partitions_for_topic(f"{unique}-{n}")) for n in (1, 2, 3)},
            "subscribed by pattern": sorted(client.subscription()),
            "read": [record.topic for record in records],
        }


@scenarios.add
def a_topic_that_does_not_exist(bootstrap: str, unique: str) -> object:
    one = TopicPartition(unique, 0)
    with consumer(bootstrap, allow_auto_create_topics=False) as client:
        found = {
            "partitions": client.partitions_for_topic(unique),
            "end": outcome(lambda: client.end_offsets([one], timeout_ms=1500)),
        }
        client.assign([one])
        found["poll"] = len(client.poll(timeout_ms=500))
        return found


@scenarios.add
def long_poll_returns_when_records_come(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    one = TopicPartition(topic, 0)
    with consumer(bootstrap, fetch_max_wait_ms=5000) as client, producer(bootstrap) as sender:
        client.assign([one])
        client.seek_to_beginning(one)
        client.poll(timeout_ms=200)
        begun = time.monotonic()
        sender.send(topic, b"wake up").get(timeout=30)
        (record,) = take(client, 1)
        return {"value": record.value, "at once": time.monotonic() - begun < 2}


@scenarios.add
def read_committed_sees_plain_records(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    fill(bootstrap, topic, bulk(5))
    one = TopicPartition(topic, 0)
    with consumer(bootstrap, isolation_level="read_committed") as client:
        client.assign([one])
        records = [record.offset for record in take(client, 5)]
        return {"read": records, "end": client.end_offsets([one])[one]}
