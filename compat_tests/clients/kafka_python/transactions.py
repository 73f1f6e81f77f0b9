"""Scenarios: transactions, and what they commit, abort and fence."""

from __future__ import annotations

from kafka import KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition

from compat_tests.clients.common import outcome
from compat_tests.clients.kafka_python import scenarios
from compat_tests.clients.kafka_python.tools import consumer, create, read


def transactional(bootstrap: str, name: str) -> KafkaProducer:
    client = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=name, max_block_ms=30_000)
    client.init_transactions()
    return client


@scenarios.add
def transactions_are_committed_and_aborted(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    client = transactional(bootstrap, unique)
    try:
        for word, commit in ((b"a", True), (b"b", False), (b"c", True)):
            client.begin_transaction()
            for number in range(4):
                client.send(topic, word + b"%d" % number, partition=number % 2)
                client.flush(timeout=30)  # one batch a record, so that offsets do not depend on batching
            if commit:
                client.commit_transaction()
            else:
                client.abort_transaction()
    finally:
        client.close(timeout=10)
    seen = {}
    for isolation, count in (("read_committed", 8), ("read_uncommitted", 12)):
        records = read(bootstrap, topic, count, 2, isolation_level=isolation)
        seen[isolation] = [[each.partition, each.offset, each.value] for each in records]
    return seen


@scenarios.add
def a_second_instance_fences_the_first(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    first = transactional(bootstrap, unique)
    first.begin_transaction()
    first.send(topic, b"zombie").get(timeout=30)
    second = transactional(bootstrap, unique)
    try:
        told = outcome(first.commit_transaction)
        second.begin_transaction()
        second.send(topic, b"mine")
        second.commit_transaction()
    finally:
        first.close(timeout=5)
        second.close(timeout=10)
    records = read(bootstrap, topic, 1, isolation_level="read_committed")
    return {"told": told, "log": [[each.offset, each.value] for each in records]}


@scenarios.add
def offsets_go_with_their_transaction(bootstrap: str, unique: str) -> object:
    topic, group = create(bootstrap, unique), f"{unique}-g"
    held = []
    client = transactional(bootstrap, unique)
    try:
        for offset, commit in ((3, True), (5, False)):
            client.begin_transaction()
            client.send(topic, b"%d" % offset)
            client.send_offsets_to_transaction({TopicPartition(topic, 0): OffsetAndMetadata(offset, "m", -1)}, group)
            client.flush(timeout=30)
            if commit:
                client.commit_transaction()
            else:
                client.abort_transaction()
            with consumer(bootstrap, group_id=group) as reader:
                held.append(reader.committed(TopicPartition(topic, 0)))
    finally:
        client.close(timeout=10)
    return {"held": held}
