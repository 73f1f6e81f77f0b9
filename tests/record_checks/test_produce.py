"""The answers to clients whose records are checked against the registry, and the topic's contents afterwards."""

from __future__ import annotations

import asyncio
import struct
import uuid
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    record_subject_name_strategy,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.timestamp_pb2 import Timestamp

from compat_tests.wire.client import WireClient
from kbroker import Broker, Cluster
from kbroker.log import record_walk
from kbroker.protocol.errors import ApiError
from kbroker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kbroker.protocol.records import build_batch
from tests.record_checks.conftest import BESIDE_A_BAD_RECORD, OF_A_BAD_RECORD, ORDER, Shop, as_json, named, order

OTHER = {"type": "record", "name": "Other", "namespace": "shop", "fields": [{"name": "id", "type": "string"}]}
STRATEGY = "io.confluent.kafka.serializers.subject."
JSON_SCHEMA = {"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def change(shop: Shop, topic: str, **configs: str) -> None:
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    shop.admin.incremental_alter_configs([resource])[resource].result(20)


@pytest.mark.parametrize(
    "settings", [{}, {"compression.type": "lz4"}, {"compression.type": "gzip"}, {"acks": 1}], ids=str
)
@pytest.mark.parametrize("level", ["id", "parse"])
def test_a_batch_with_a_bad_record_is_refused_and_nothing_is_appended(
    shop: Shop, level: str, settings: dict[str, Any]
) -> None:
    shop.checked("orders", kbroker_schema_validation_level=level)
    known = shop.register("orders-value")
    good = order(known)
    assert shop.send("orders", [good] * 3, **settings) == [0, 0, 0]
    bad = [b"", b"x", b"\0\0\0", b'{"id": 7}', order(known + 1), order(2**31 + 5), order(2**32 - 1)]
    for each in bad:
        codes = shop.send("orders", [good, each, good, each], **settings)
        assert codes == [BESIDE_A_BAD_RECORD, OF_A_BAD_RECORD] * 2, each
    assert shop.send("orders", [good, None, good], **settings) == [0, 0, 0]
    assert shop.values("orders") == [good] * 4 + [None, good]


@pytest.mark.parametrize("level", ["id", "parse"])
def test_the_same_without_compiled_code(shop: Shop, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("scan", "prefixes", "places"):
        monkeypatch.setattr(record_walk, name, None)
    shop.checked("orders", kbroker_schema_validation_level=level)
    good = order(shop.register("orders-value"))
    for _ in range(2):
        assert shop.send("orders", [good, None, good]) == [0, 0, 0]
        assert shop.send("orders", [good, b"x", b"y"]) == [BESIDE_A_BAD_RECORD, OF_A_BAD_RECORD, OF_A_BAD_RECORD]


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [{"compression_type": "zstd"}, {"message_timestamp_type": "LogAppendTime"}, {"record_validation": "header"}],
    ids=str,
)
@pytest.mark.parametrize("level", ["id", "parse"])
def test_beside_other_configs_of_the_topic(shop: Shop, level: str, config: dict[str, str]) -> None:
    shop.checked("orders", kbroker_schema_validation_level=level, **config)
    good = order(shop.register("orders-value"))
    for _ in range(2):
        assert shop.send("orders", [good, None, good], **{"compression.type": "lz4"}) == [0, 0, 0]
        assert shop.send("orders", [good, b"x", b"y"]) == [BESIDE_A_BAD_RECORD, OF_A_BAD_RECORD, OF_A_BAD_RECORD]
    assert shop.values("orders") == [good, None, good] * 2


def test_clients_that_leave_at_once_disturb_nobody(shop: Shop) -> None:
    shop.checked("orders", kbroker_schema_validation_level="parse")
    good = order(shop.register("orders-value"))
    records = [(0, None, good, ())] * 2_000
    data = [TopicProduceData("orders", partition_data=[PartitionProduceData(0, build_batch(records, codec=4))])]
    for number in range(60):
        with WireClient(shop.broker.bootstrap_servers) as client:
            client.start(ProduceRequest(None, -1 if number % 2 else 0, 20_000, data), 9)
    assert shop.send("orders", [good, good]) == [0, 0]


@pytest.mark.long
def test_a_cluster_without_registries_refuses_the_config() -> None:
    with Cluster(2) as cluster:
        alone = Shop(cluster, None)  # type: ignore[arg-type]
        with pytest.raises(KafkaException, match="brokers 1, 2 have no schema registry"):
            alone.checked("orders")
        alone.topic("orders")
        with pytest.raises(KafkaException, match="brokers 1, 2 have no schema registry"):
            change(alone, "orders", confluent_value_schema_validation="true")


def test_topics_without_the_config_take_anything(shop: Shop) -> None:
    shop.topic("free", kbroker_schema_validation_level="parse")
    assert shop.send("free", [b"x"]) == [0]


def test_a_schema_of_another_subject_is_refused(shop: Shop) -> None:
    shop.checked("orders")
    shop.register("orders-value")
    other = shop.register("others-value", OTHER)
    assert shop.send("orders", [order(other)]) == [OF_A_BAD_RECORD]


def test_what_is_registered_and_deleted_counts_at_once(shop: Shop) -> None:
    shop.checked("orders")
    assert shop.send("orders", [order(1)]) == [OF_A_BAD_RECORD]
    known = shop.register("orders-value")
    for _ in range(2):
        assert shop.send("orders", [order(known)]) == [0]
    shop.registry.ok("DELETE", "/subjects/orders-value/versions/1")
    assert shop.send("orders", [order(known)]) == [OF_A_BAD_RECORD]
    assert shop.register("orders-value") == known
    assert shop.send("orders", [order(known)]) == [0]
    shop.registry.ok("DELETE", "/subjects/orders-value")
    shop.registry.ok("DELETE", "/subjects/orders-value?permanent=true")
    assert shop.send("orders", [order(known)]) == [OF_A_BAD_RECORD]


def test_a_changed_config_counts_at_once(shop: Shop) -> None:
    shop.topic("orders")
    known = shop.register("orders-value")
    broken = named(known, b"\x80")
    assert shop.send("orders", [b"x"]) == [0]
    change(shop, "orders", confluent_value_schema_validation="true")
    assert shop.send("orders", [b"x"]) == [OF_A_BAD_RECORD]
    assert shop.send("orders", [broken]) == [0]
    change(shop, "orders", kbroker_schema_validation_level="parse")
    assert shop.send("orders", [broken]) == [OF_A_BAD_RECORD]
    change(shop, "orders", confluent_value_schema_validation="false")
    assert shop.send("orders", [b"x"]) == [0]


def test_keys_are_checked_by_their_own_subject(shop: Shop) -> None:
    shop.topic("orders", confluent_key_schema_validation="true", kbroker_schema_validation_level="parse")
    known = shop.register("orders-key", '"string"')
    key = named(known, b"\x04ab")
    assert shop.send("orders", [(key, b"anything", None), (None, b"no key", None)]) == [0, 0]
    assert shop.send("orders", [(b"ab", b"anything", None)]) == [OF_A_BAD_RECORD]
    assert shop.send("orders", [(key + b"x", b"anything", None)]) == [OF_A_BAD_RECORD]
    change(shop, "orders", confluent_value_schema_validation="true")
    value = order(shop.register("orders-value"))
    assert shop.send("orders", [(key, value, [("trace", b"1")])]) == [0]
    assert shop.send("orders", [(key, b"anything", None)]) == [OF_A_BAD_RECORD]


@pytest.mark.parametrize("level", ["id", "parse"])
@pytest.mark.parametrize("strategy", ["RecordNameStrategy", "TopicRecordNameStrategy"])
def test_subjects_by_the_names_of_records(shop: Shop, strategy: str, level: str) -> None:
    shop.checked(
        "orders", confluent_value_subject_name_strategy=STRATEGY + strategy, kbroker_schema_validation_level=level
    )
    before = "" if strategy == "RecordNameStrategy" else "orders-"
    elsewhere = shop.register("orders-value")
    assert shop.send("orders", [order(elsewhere)]) == [OF_A_BAD_RECORD]
    known = shop.register(f"{before}shop.Order")
    assert shop.send("orders", [order(known)]) == [0]
    nameless = shop.register("orders-string", '"string"')
    assert shop.send("orders", [named(nameless, b"\x02a")]) == [OF_A_BAD_RECORD]


def test_a_guid_in_a_header_counts_before_the_value(shop: Shop) -> None:
    shop.checked("orders", kbroker_schema_validation_level="parse")
    answer = shop.registry.register("orders-value", ORDER)
    guid, known = uuid.UUID(answer["guid"]).bytes, answer["id"]
    data = order(known)[5:]
    name = "__value_schema_id"
    for header in (b"\1" + guid, named(known, b"")):
        assert shop.send("orders", [(None, data, [("other", b"x"), (name, header)])]) == [0]
    for header in (b"", b"\1", b"\1" + guid[:-1], b"\1" + bytes(16), b"\2" + guid, named(known + 1, b"")):
        assert shop.send("orders", [(None, order(known), [(name, header)])]) == [OF_A_BAD_RECORD], header
    assert shop.send("orders", [(None, data + b"x", [(name, b"\1" + guid)])]) == [OF_A_BAD_RECORD]


def serializers(client: SchemaRegistryClient) -> dict[str, tuple[Any, Any]]:
    """Return the serializers of the client library, with a value for each."""
    return {
        "avro": (AvroSerializer(client, as_json(ORDER)), {"id": 7}),
        "json": (JSONSerializer(as_json(JSON_SCHEMA), client), {"id": 7}),
        "protobuf": (ProtobufSerializer(Timestamp, client, {"skip.known.types": False}), Timestamp(seconds=7)),
        "header": (
            AvroSerializer(client, as_json(ORDER), conf={"schema.id.serializer": header_schema_id_serializer}),
            {"id": 7},
        ),
        "record": (
            AvroSerializer(client, as_json(ORDER), conf={"subject.name.strategy": record_subject_name_strategy}),
            {"id": 7},
        ),
    }


@pytest.mark.parametrize("level", ["id", "parse"])
@pytest.mark.parametrize("form", ["avro", "json", "protobuf", "header", "record"])
def test_what_confluents_serializers_make_is_taken(shop: Shop, form: str, level: str) -> None:
    more = {"confluent_value_subject_name_strategy": STRATEGY + "RecordNameStrategy"} if form == "record" else {}
    shop.checked("orders", kbroker_schema_validation_level=level, **more)
    headers: list[tuple[str, bytes]] = []
    with SchemaRegistryClient({"url": shop.registry.url}) as client:
        to_bytes, value = serializers(client)[form]
        data = to_bytes(value, SerializationContext("orders", MessageField.VALUE, headers))
    assert bool(headers) == (form == "header")
    assert shop.send("orders", [(None, data, headers)] * 3) == [0, 0, 0]
    broken = data + b"\xff" if form != "json" else data.replace(b"7", b'"7"')
    codes = shop.send("orders", [(None, data, headers), *[(None, broken, headers)] * 2])
    assert codes == ([0] * 3 if level == "id" else [BESIDE_A_BAD_RECORD, *[OF_A_BAD_RECORD] * 2])


def test_kafka_python_gets_the_error(shop: Shop) -> None:
    from kafka import KafkaProducer
    from kafka.errors import InvalidRecordError

    shop.checked("orders")
    known = shop.register("orders-value")
    producer = KafkaProducer(bootstrap_servers=shop.broker.bootstrap_servers)
    try:
        assert producer.send("orders", order(known)).get(20).offset == 0
        with pytest.raises(InvalidRecordError):
            producer.send("orders", b"x").get(20)
    finally:
        producer.close()


def test_aiokafka_gets_the_error(shop: Shop) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    shop.checked("orders")
    known = shop.register("orders-value")

    async def sent() -> None:
        async with AIOKafkaProducer(bootstrap_servers=shop.broker.bootstrap_servers) as producer:
            assert (await producer.send_and_wait("orders", order(known))).offset == 0
            with pytest.raises(KafkaError):  # aiokafka has no name for INVALID_RECORD
                await producer.send_and_wait("orders", b"x")

    asyncio.run(asyncio.wait_for(sent(), 30))


def test_a_broker_without_a_registry_refuses_the_config(tmp_path: Path) -> None:
    with Broker() as broker:
        alone = Shop(broker, None)  # type: ignore[arg-type]
        with pytest.raises(KafkaException, match="has no schema registry") as caught:
            alone.checked("orders")
        assert caught.value.args[0].name() == "INVALID_CONFIG"
        alone.topic("orders", confluent_value_schema_validation="false")
        with pytest.raises(KafkaException, match="has no schema registry"):
            change(alone, "orders", confluent_key_schema_validation="true")


def test_bad_configs_are_refused(shop: Shop) -> None:
    for name, value in (
        ("confluent_value_schema_validation", "maybe"),
        ("confluent_value_subject_name_strategy", "TopicNameStrategy"),
        ("kbroker_schema_validation_level", "all"),
        ("kbroker_schema_validation_deadletter_topic", "__consumer_offsets"),
        ("kbroker_schema_validation_deadletter_topic", "orders"),
    ):
        with pytest.raises(KafkaException) as caught:
            shop.topic("orders", **{name: value})
        assert caught.value.args[0].name() == "INVALID_CONFIG", name


@pytest.mark.long
def test_a_topic_takes_nothing_once_the_registry_is_gone(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "data")
    with Broker(data_dir=data_dir, registry=True) as broker:
        from tests.registry_api.conftest import Http

        shop = Shop(broker, Http(broker.registry_url))
        shop.checked("orders")
        known = shop.register("orders-value")
        assert shop.send("orders", [order(known)]) == [0]
    with Broker(data_dir=data_dir, registry=True) as broker:
        again = Shop(broker, Http(broker.registry_url))
        assert again.send("orders", [order(known)]) == [0]
    with Broker(data_dir=data_dir) as broker:
        alone = Shop(broker, None)  # type: ignore[arg-type]
        assert alone.send("orders", [order(known), None]) == [OF_A_BAD_RECORD] * 2
        change(alone, "orders", retention_ms="1000000")
        change(alone, "orders", confluent_value_schema_validation="false")
        assert alone.send("orders", [b"x"]) == [0]
        assert len(alone.values("orders")) == 3


@pytest.mark.long
def test_large_batches_of_many_schemas_pass(shop: Shop) -> None:
    shop.checked("orders", max_message_bytes="3000000")
    known = []
    for number in range(40):
        fields = [{"name": "id", "type": "long", "default": 0}, {"name": f"f{number}", "type": "long", "default": 0}]
        known.append(shop.register("orders-value", {**ORDER, "fields": fields}))
    values = [named(known[number % 40], b"x" * (number % 300)) for number in range(20_000)]
    settings = {"batch.num.messages": 20_000, "batch.size": 3_000_000, "message.max.bytes": 3_000_000}
    assert set(shop.send("orders", values, **settings)) == {0}
    bad = [*values[:15_000], struct.pack(">bI", 0, 10**9), *values[15_000:]]
    assert shop.send("orders", bad, **settings)[15_000] == OF_A_BAD_RECORD


@pytest.mark.parametrize("level", ["id", "parse"])
def test_the_kit_for_tests_is_told_why(shop: Shop, level: str) -> None:
    config = {"confluent.value.schema.validation": "true", "kbroker.schema.validation.level": level}
    orders = shop.broker.topics.create("orders", config=config)
    known = shop.register("orders-value")
    for _ in range(2):
        orders.produce(order(known))
        with pytest.raises(ApiError, match="The value begins with the byte 110, not with the id of a schema"):
            orders.produce(b"no schema")
        shop.broker.restore(shop.broker.snapshot())
    assert len(shop.values("orders")) == 2
