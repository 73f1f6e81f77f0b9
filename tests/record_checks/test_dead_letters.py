"""Records that fail the check go to a dead letter topic, with producers that rely on offsets and sequences."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.records import build_batch
from tests.record_checks.conftest import OF_A_BAD_RECORD, Shop, named, order, texts
from tests.registry_api.conftest import Http

BAD = b"not of a schema"


@pytest.fixture
def known(shop: Shop) -> int:
    """Return the id of the schema of `orders`, whose bad records go to `bad-orders`."""
    shop.topic("bad-orders", partitions=2)
    shop.checked(
        "orders",
        partitions=3,
        kbroker_schema_validation_level="parse",
        kbroker_schema_validation_deadletter_topic="bad-orders",
    )
    return shop.register("orders-value")


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"compression.type": "zstd"},
        {"enable.idempotence": True},
        {"enable.idempotence": True, "acks": -1},
    ],
    ids=str,
)
def test_good_records_keep_their_places_and_bad_ones_tell_why(shop: Shop, known: int, settings: dict[str, Any]) -> None:
    good, broken = [order(known, number) for number in range(4)], named(known, b"\x02\x02")
    records: list[Any] = [good[0], (b"k", BAD, [("trace", b"1")]), good[1], None, broken, good[2], good[3]]
    assert shop.send("orders", records, **settings) == [0] * 7
    found = shop.read("orders")
    assert [(each.offset(), each.value()) for each in found] == [
        (0, good[0]), (2, good[1]), (3, None), (5, good[2]), (6, good[3])
    ]  # fmt: skip
    letters = shop.read("bad-orders")
    assert [(each.key(), each.value()) for each in letters] == [(b"k", BAD), (None, broken)]
    assert texts(letters[0].headers()) == {
        "trace": "1",
        "__dlq.errors.topic": "orders",
        "__dlq.errors.partition": "0",
        "__dlq.errors.message": "The value begins with the byte 110, not with the id of a schema.",
    }
    assert texts(letters[1].headers())["__dlq.errors.message"] == (
        "The value does not match the Avro schema: bytes remain."
    )


def test_without_acks_the_same_happens(shop: Shop, known: int) -> None:
    producer = Producer({"bootstrap.servers": shop.broker.bootstrap_servers, "acks": 0})
    for value in (BAD, order(known)):
        producer.produce("orders", value, partition=0)
    producer.flush(20)
    # While the connection is open: a check in progress ends with it.
    assert shop.broker.wait_for(lambda _: [each.offset() for each in shop.read("orders")] == [1], timeout=20)
    assert shop.values("bad-orders") == [BAD]
    del producer


def test_an_idempotent_producer_goes_on_after_batches_without_good_records(shop: Shop, known: int) -> None:
    producer = Producer({"bootstrap.servers": shop.broker.bootstrap_servers, "enable.idempotence": True})
    told: list[tuple[Any, Any]] = []
    for value in [BAD, order(known), BAD, BAD, order(known), BAD]:
        producer.produce("orders", value, partition=0, on_delivery=lambda error, at: told.append((error, at.offset())))
        assert producer.flush(20) == 0
    assert told == [(None, offset) for offset in range(6)]
    assert [each.offset() for each in shop.read("orders")] == [1, 4]
    assert shop.values("bad-orders") == [BAD] * 4


def test_a_transaction_is_refused_and_has_no_letters(shop: Shop, known: int) -> None:
    settings = {"bootstrap.servers": shop.broker.bootstrap_servers, "transactional.id": "t", "linger.ms": 100}
    told: list[int] = []

    def begun(values: list[bytes]) -> Producer:
        told.clear()
        producer = Producer(settings)
        producer.init_transactions(20)
        producer.begin_transaction()
        for value in values:
            producer.produce("orders", value, partition=0, on_delivery=lambda error, _: told.append(bool(error)))
        producer.flush(20)
        return producer

    producer = begun([order(known), BAD, BAD])
    with pytest.raises(KafkaException):
        producer.commit_transaction(20)
    producer.abort_transaction(20)
    assert True in told
    begun([order(known), order(known)]).commit_transaction(20)
    assert told == [False, False]
    assert shop.values("orders") == [order(known)] * 2
    assert shop.values("bad-orders") == []


@pytest.mark.parametrize("letters_to", ["missing", "itself-checked", "small"])
def test_without_a_topic_that_takes_letters_the_batch_is_refused(shop: Shop, letters_to: str) -> None:
    if letters_to == "itself-checked":
        shop.checked("itself-checked", kbroker_schema_validation_deadletter_topic="orders")
    if letters_to == "small":
        shop.topic("small", max_message_bytes="200")
    shop.checked("orders", kbroker_schema_validation_deadletter_topic=letters_to)
    known = shop.register("orders-value")
    assert shop.send("orders", [order(known), b"x" * 500]) == [OF_A_BAD_RECORD] * 2
    assert shop.send("orders", [order(known)]) == [0]
    assert shop.values("orders") == [order(known)]


def test_a_batch_sent_again_is_not_judged_again(shop: Shop, known: int) -> None:
    """The response was lost, and then the schema was deleted: the producer must learn that its batch was appended."""
    now = int(time.time() * 1000)
    records = [(now, None, order(known), ()), (now, None, BAD, ())]
    batch = build_batch(records, producer_id=77, producer_epoch=0, base_sequence=0)
    data = TopicProduceData("orders", partition_data=[PartitionProduceData(0, batch)])
    with WireClient(shop.broker.bootstrap_servers) as client:
        for _ in range(2):
            answer = client.ask(ProduceRequest(None, -1, 20_000, [data]), 9)
            told = answer.responses[0].partition_responses[0]
            assert (told.error_code, told.base_offset) == (0, 0)
            shop.registry.raw("DELETE", "/subjects/orders-value")
    assert shop.values("bad-orders") == [BAD]


@pytest.mark.long
def test_what_is_left_of_batches_is_there_after_a_restart(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "data")
    for first in (0, 4):
        with Broker(data_dir=data_dir, registry=True) as broker:
            shop = Shop(broker, Http(broker.registry_url))
            if not first:
                shop.topic("bad-orders")
                shop.checked("orders", kbroker_schema_validation_deadletter_topic="bad-orders")
            known = shop.register("orders-value")
            for records in ([BAD], [order(known), BAD], [BAD]):
                assert set(shop.send("orders", records, **{"enable.idempotence": True})) == {0}
            found = [each.offset() for each in shop.read("orders")]
            assert found == ([1] if not first else [1, 5])
            assert len(shop.values("bad-orders")) == 3 + 3 * bool(first)
