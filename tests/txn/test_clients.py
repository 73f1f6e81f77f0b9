"""Transactions of real producers, read by real consumers with isolation.level=read_committed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from kafka import KafkaProducer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaTopicPartition

PATIENCE_S = 60


def fresh(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


def read(address: str, topic: str, until: bytes, isolation: str = "read_committed") -> list[bytes]:
    """Return the values that a consumer reads, up to the value `until`."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": fresh("reader"),
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    try:
        while until not in values:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"only {values} arrived"
            if message.error() is None:
                values.append(message.value() or b"")
    finally:
        consumer.close()
    return values


def confluent(address: str, transactional_id: str) -> Producer:
    producer = Producer({"bootstrap.servers": address, "transactional.id": transactional_id, "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    return producer


def write_with_confluent(address: str, topic: str) -> None:
    producer = confluent(address, fresh("c"))
    for word, commit in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, word + b"%d" % number)
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)


def write_with_kafka_python(address: str, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, transactional_id=fresh("k"), max_block_ms=PATIENCE_S * 1000)
    try:
        producer.init_transactions()
        for word, commit in ((b"a", True), (b"b", False), (b"c", True)):
            producer.begin_transaction()
            for number in range(3):
                producer.send(topic, word + b"%d" % number)
            if commit:
                producer.commit_transaction()
            else:
                producer.flush(PATIENCE_S)
                producer.abort_transaction()
    finally:
        producer.close(timeout=10)


def write_with_aiokafka(address: str, topic: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, transactional_id=fresh("a"))
        await producer.start()
        try:
            for word, commit in ((b"a", True), (b"b", False), (b"c", True)):
                await producer.begin_transaction()
                for number in range(3):
                    await producer.send_and_wait(topic, word + b"%d" % number)
                await (producer.commit_transaction() if commit else producer.abort_transaction())
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(run(), PATIENCE_S))


@pytest.mark.parametrize(
    "write", [write_with_confluent, write_with_kafka_python, write_with_aiokafka], ids=["confluent", "python", "aio"]
)
def test_what_is_aborted_is_not_seen(txn_broker, write: Callable[[str, str], None]) -> None:
    address, topic = txn_broker.bootstrap_servers, fresh("topic")
    write(address, topic)
    committed = [b"a0", b"a1", b"a2", b"c0", b"c1", b"c2"]
    assert read(address, topic, b"c2") == committed
    every = read(address, topic, b"c2", "read_uncommitted")
    assert [value for value in every if not value.startswith(b"b")] == committed
    assert sum(value.startswith(b"b") for value in every) == 3


def consume(address: str, topic: str, group: str, count: int) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    for _ in range(count):
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
    return consumer


@pytest.mark.parametrize("commit", [True, False])
def test_confluents_read_process_write(txn_broker, commit: bool) -> None:
    """The offsets are committed together with the records that were made from them."""
    address, source, target, group = txn_broker.bootstrap_servers, fresh("in"), fresh("out"), fresh("g")
    plain = Producer({"bootstrap.servers": address, "log_level": 0})
    for number in range(5):
        plain.produce(source, b"%d" % number)
    assert plain.flush(PATIENCE_S) == 0
    consumer = consume(address, source, group, 5)
    producer = confluent(address, fresh("rpw"))
    producer.begin_transaction()
    producer.produce(target, b"sum")
    positions = consumer.position(consumer.assignment())
    assert [p.offset for p in positions] == [5]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), PATIENCE_S)
    if commit:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.flush(PATIENCE_S)
        producer.abort_transaction(PATIENCE_S)
    (held,) = consumer.committed([TopicPartition(source, 0)], PATIENCE_S)
    assert held.offset == (5 if commit else -1001)
    consumer.close()
    plain.produce(target, b"after")
    assert plain.flush(PATIENCE_S) == 0
    assert read(address, target, b"after") == ([b"sum", b"after"] if commit else [b"after"])


def test_kafka_pythons_offsets_in_a_transaction(txn_broker) -> None:
    address, source, group = txn_broker.bootstrap_servers, fresh("in"), fresh("g")
    plain = Producer({"bootstrap.servers": address, "log_level": 0})
    plain.produce(source, b"0")
    assert plain.flush(PATIENCE_S) == 0
    consumer = consume(address, source, group, 1)
    consumer.close()
    producer = KafkaProducer(bootstrap_servers=address, transactional_id=fresh("k"), max_block_ms=PATIENCE_S * 1000)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({KafkaTopicPartition(source, 0): OffsetAndMetadata(1, "", -1)}, group)
        producer.commit_transaction()
    finally:
        producer.close(timeout=10)
    looker = Consumer({"bootstrap.servers": address, "group.id": group})
    (held,) = looker.committed([TopicPartition(source, 0)], PATIENCE_S)
    looker.close()
    assert held.offset == 1


@pytest.mark.long
def test_t8_a_second_instance_fences_the_first(txn_broker) -> None:
    address, topic, name = txn_broker.bootstrap_servers, fresh("topic"), fresh("id")
    first = confluent(address, name)
    first.begin_transaction()
    first.produce(topic, b"zombie")
    assert first.flush(PATIENCE_S) == 0
    second = confluent(address, name)
    with pytest.raises(KafkaException) as caught:
        first.commit_transaction(PATIENCE_S)
    assert caught.value.args[0].fatal()
    assert caught.value.args[0].code() == KafkaError._FENCED
    second.begin_transaction()
    second.produce(topic, b"mine")
    second.commit_transaction(PATIENCE_S)
    assert read(address, topic, b"mine") == [b"mine"]
