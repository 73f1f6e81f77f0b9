"""Scenarios: transactions, what they commit, abort and fence, and the offsets that are committed with them."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaException, Producer, TopicPartition

from compat_tests.clients.common import WAIT_S
from compat_tests.clients.confluent import scenarios
from compat_tests.clients.confluent.tools import QUIET, consumer, create, error_name, fill, read, take


def transactional(bootstrap: str, name: str) -> Producer:
    client = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, **QUIET})
    client.init_transactions(WAIT_S)
    return client


def failure(call: Any, *arguments: Any) -> Any:
    """Return what an error of a transaction says about how to continue."""
    try:
        call(*arguments)
    except KafkaException as caught:
        error = caught.args[0]
        return [error_name(error), error.fatal(), error.retriable(), error.txn_requires_abort()]
    return None


@scenarios.add
def transactions_are_committed_and_aborted(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique, 2)
    client = transactional(bootstrap, unique)
    for word, commit in ((b"a", True), (b"b", False), (b"c", True), (b"d", False)):
        client.begin_transaction()
        for number in range(4):
            client.produce(topic, word + b"%d" % number, partition=number % 2)
        client.flush(WAIT_S)
        if commit:
            client.commit_transaction(WAIT_S)
        else:
            client.abort_transaction(WAIT_S)
    seen = {}
    for isolation, count in (("read_committed", 8), ("read_uncommitted", 16)):
        records = read(bootstrap, topic, count, 2, isolation_level=isolation)
        seen[isolation] = [[each.partition(), each.offset(), each.value()] for each in records]
    return seen


@scenarios.add
def a_second_instance_fences_the_first(bootstrap: str, unique: str) -> object:
    topic = create(bootstrap, unique)
    first = transactional(bootstrap, unique)
    first.begin_transaction()
    first.produce(topic, b"zombie")
    first.flush(WAIT_S)
    second = transactional(bootstrap, unique)
    told = [failure(first.commit_transaction, WAIT_S), failure(first.begin_transaction)]
    second.begin_transaction()
    second.produce(topic, b"mine")
    second.commit_transaction(WAIT_S)
    records = read(bootstrap, topic, 1, isolation_level="read_committed")
    return {"told": told, "log": [[each.offset(), each.value()] for each in records]}


@scenarios.add
def offsets_go_with_their_transaction(bootstrap: str, unique: str) -> object:
    source, target = create(bootstrap, f"{unique}-in"), create(bootstrap, f"{unique}-out")
    fill(bootstrap, source, [b"%d" % number for number in range(6)])
    client = transactional(bootstrap, unique)
    held = []
    for commit in (False, True):
        with consumer(bootstrap, f"{unique}-g", isolation_level="read_committed") as reader:
            reader.subscribe([source])
            taken = take(reader, 6)
            client.begin_transaction()
            for message in taken:
                client.produce(target, message.value())
            client.send_offsets_to_transaction(
                reader.position(reader.assignment()), reader.consumer_group_metadata(), WAIT_S
            )
            client.flush(WAIT_S)
            if commit:
                client.commit_transaction(WAIT_S)
            else:
                client.abort_transaction(WAIT_S)
            held += [each.offset for each in reader.committed([TopicPartition(source, 0)], WAIT_S)]
    records = read(bootstrap, target, 6, isolation_level="read_committed")
    return {"held": held, "log": [[each.offset(), each.value()] for each in records]}
