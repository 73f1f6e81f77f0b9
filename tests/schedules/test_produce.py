"""What a broker refuses when it is produced to a schedule topic, and what it tells the producer."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.wire.client import CLOSED, WireClient
from kbroker import Acl, Broker
from kbroker.protocol.compression import GZIP, ZSTD
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from kbroker.protocol.records import CRC_START, NewRecord, build_batch, compute_crc
from kbroker.schedules.produce_check import MOST_HEADERS

SCHEDULED = {"schedule.enable": "true", "message.timestamp.type": "LogAppendTime"}
PATIENCE_S = 20.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"message.max.bytes": "20000000"}) as running:
        running.topics.create("target", partitions=2)
        running.topics.create("small", config={"max.message.bytes": "2000"})
        running.topics.create("other", config=SCHEDULED)
        running.topics.create("later", config=SCHEDULED)
        running.topics.create("later.target", config={**SCHEDULED, "schedule.target.topic": "target"})
        yield running


@pytest.fixture
def wire(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap_servers) as client:
        yield client


def record(value: bytes | None = b"v", key: bytes | None = b"k", **headers: str | bytes | None) -> NewRecord:
    named = tuple(
        (name.replace("_", "-"), text.encode() if isinstance(text, str) else text) for name, text in headers.items()
    )
    return 0, key, value, named


def produce(
    wire: WireClient, topic: str, *records: NewRecord, acks: int = 1, codec: int = 0, version: int = 9
) -> PartitionProduceResponse:
    return produce_batch(wire, topic, build_batch(records, codec=codec), acks, version)


def produce_batch(
    wire: WireClient, topic: str, batch: bytes | bytearray, acks: int = 1, version: int = 9
) -> PartitionProduceResponse:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(0, batch)])
    answer = wire.ask(ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[data]), version)
    return answer if answer is CLOSED else answer.responses[0].partition_responses[0]


def errors(answer: PartitionProduceResponse) -> Sequence[tuple[int, str]]:
    return [(each.batch_index, each.batch_index_error_message) for each in answer.record_errors]


GOOD = record(x_delay="60000", x_deliver_to="target")


def test_good_records_and_cancellations_are_appended(wire: WireClient) -> None:
    assert produce(wire, "later", GOOD, record(None), record(None, b"")).error_code == ErrorCode.NONE
    assert produce(wire, "later.target", record(x_delay="5"), record(None)).error_code == ErrorCode.NONE


@pytest.mark.parametrize("codec", [0, GZIP, ZSTD])
def test_each_bad_record_is_named_with_its_reason(wire: WireClient, codec: int) -> None:
    answer = produce(
        wire, "later",
        GOOD,
        record(x_delay="60000"),
        record(),
        GOOD,
        record(x_delay="soon", x_deliver_to="target"),
        record(x_delay="5", x_deliver_to="missing"),
        record(x_delay="5", x_deliver_to="later"),
        record(x_delay="5", x_deliver_to="other"),
        record(x_delay="5", x_deliver_to="__consumer_offsets"),
        record(x_delay="5", x_deliver_to="target", x_deliver_partition="2"),
        record(None, None),
        record(None, x_delay="5", x_deliver_to="target"),
        record(key=None, x_schedule="@daily", x_deliver_to="target"),
        record(x_deliver_at="5", x_delay="5", x_deliver_to="target"),
        codec=codec,
    )  # fmt: skip
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert errors(answer) == [
        (1, "no target: neither x-deliver-to nor the topic's schedule.target.topic names one"),
        (2, "no time: a record of a schedule topic needs one of x-deliver-at, x-deliver-after, x-schedule"),
        (4, "x-delay is no duration: 'soon'. Use ms, ISO 8601 like PT5M or P1DT12H, or a short form like 1h30m"),
        (5, "the target missing does not exist"),
        (6, "later cannot be its own target"),
        (7, "other is a schedule topic, and no target"),
        (8, "__consumer_offsets is an internal topic, and no target"),
        (9, "target has 2 partitions, and none with number 2"),
        (10, "a record without value cancels its key, but it has no key"),
        (11, "a record without value cancels its key; it has no headers of a schedule"),
        (12, "x-schedule repeats, so the record needs a key: a record with the same key cancels it"),
        (13, "x-delay and x-deliver-at contradict each other: a record has one time"),
    ]
    assert "12 record errors" in (answer.error_message or "")


@pytest.mark.parametrize("codec", [GZIP, ZSTD])
def test_a_batch_that_unpacks_to_much_is_checked_too(wire: WireClient, codec: int) -> None:
    headers = {"x_delay": "60000", "x_deliver_to": "target"}
    large = [record(b"x" * 100_000, **headers) for _ in range(20)]  # type: ignore[arg-type]
    assert produce(wire, "later", *large, codec=codec).error_code == ErrorCode.NONE
    assert errors(produce(wire, "later", *large, record(None, None), codec=codec)) == [
        (20, "a record without value cancels its key, but it has no key")
    ]


def test_a_refused_batch_leaves_nothing_behind(broker: Broker, wire: WireClient) -> None:
    broker.topics.create("clean", config=SCHEDULED)
    assert produce(wire, "clean", GOOD, record()).error_code == ErrorCode.INVALID_RECORD
    assert produce(wire, "clean", GOOD).base_offset == 1  # after the mark that schedules begin


def test_a_producer_that_wants_no_answer_is_disconnected(wire: WireClient) -> None:
    batch = build_batch([record()])
    data = TopicProduceData(name="later", partition_data=[PartitionProduceData(0, batch)])
    wire.start(ProduceRequest(acks=0, timeout_ms=5000, topic_data=[data]), 9)
    assert wire.finish() is CLOSED


def test_a_record_that_would_be_too_large_with_our_headers_is_refused(wire: WireClient) -> None:
    headers = {"x_delay": "60000", "x_deliver_to": "small"}
    sizes = [
        produce(wire, "later", record(b"x" * size, **headers)).error_code == ErrorCode.NONE  # type: ignore[arg-type]
        for size in range(1750, 1950)
    ]
    largest = 1750 + sizes.index(False) - 1
    assert sizes == sorted(sizes, reverse=True)
    refused = produce(wire, "later", record(b"x" * (largest + 1), **headers))  # type: ignore[arg-type]
    assert refused.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert errors(refused) == [(0, refused.error_message.removeprefix("record 0: "))]  # type: ignore[union-attr]
    assert "small takes 2000 (max.message.bytes)" in refused.error_message  # type: ignore[operator]
    key = produce(wire, "later", record(b"x" * 1000, x_deliver_key=b"y" * 1000, **headers))  # type: ignore[arg-type]
    assert key.error_code == ErrorCode.MESSAGE_TOO_LARGE
    delivered: list[tuple[str, bytes | None]] = [
        ("__schedule.topic", b"later"), ("__schedule.partition", b"0"), ("__schedule.offset", b"12345"),
        ("__schedule.at", b"%d" % int(time.time() * 1000)),
    ]  # fmt: skip
    assert 1900 < len(build_batch([(0, b"k", b"x" * largest, delivered)])) <= 2000


def test_names_of_headers_that_would_grow_at_the_delivery_are_refused(broker: Broker, wire: WireClient) -> None:
    """A record of such names could be too large for its target, and would wait alone."""
    broker.topics.create("names", config=SCHEDULED)
    named = [
        bytearray(build_batch([(0, b"k", b"v", [("x-delay", b"5"), ("x-deliver-to", b"target"), (name, b"")])]))
        for name in ("é" * 256, "é" * 256 + "a", "latin-1 e")
    ]
    named[2] = named[2].replace(b"latin-1 e", b"latin-1 \xe9")
    named[2][CRC_START - 4 : CRC_START] = compute_crc(named[2]).to_bytes(4, "big")
    assert [errors(produce_batch(wire, "names", each)) for each in named] == [
        [],
        [(0, "a header's name has 513 bytes; a schedule topic takes 512")],
        [(0, "a header's name is not in UTF-8")],
    ]


def test_ten_megabytes_of_headers_hold_nobody_up(broker: Broker, wire: WireClient) -> None:
    broker.topics.create("huge", config={**SCHEDULED, "max.message.bytes": "20000000"})
    many = ((0, b"k", b"v", (("x-delay", b"5"), *((("h", b"1234567"),) * 900_000))),)
    answer = produce(wire, "huge", *many)
    assert errors(answer) == [(0, f"a record of a schedule topic has at most {MOST_HEADERS} headers")]
    large = produce(wire, "huge", (0, b"k", b"v", (("x-delay", b"5"), ("x-deliver-to", b"t" * 10_000_000))))
    assert errors(large) == [(0, "x-deliver-to is longer than 512 bytes")]
    other = produce(
        wire, "huge", (0, b"k", b"v", (("x-delay", b"5"), ("x-deliver-to", b"target"), ("h", b"1" * 10**7)))
    )
    assert other.error_code == ErrorCode.NONE  # the target takes it, too


def test_rights_on_the_target_are_those_of_the_producer() -> None:
    acls = [Acl(allow_principal="User:alice", producer=True, topic=["later", "mine"])]
    with Broker({"super.users": "User:admin"}, users={"admin": "a", "alice": "b"}, acls=acls) as broker:
        for name in ("mine", "theirs"):
            broker.topics.create(name)
        broker.topics.create("later", config=SCHEDULED)
        settings = {**broker.client_settings("alice").confluent_kafka, "linger.ms": 0}
        producer = Producer(settings)
        assert put(producer, "mine") is None
        assert put(producer, "theirs") == "INVALID_RECORD"
        assert put(producer, "missing") == "INVALID_RECORD"  # whether it exists is not told
        assert put(producer, "mine") is None, "the producer goes on with the schedule topic"
        producer.close()


def put(producer: Producer, target: str) -> str | None:
    """Return the name of the error of a record that goes to a target later."""
    found: list[str | None] = []
    producer.produce(
        "later", b"v", b"k", headers=[("x-delay", b"5"), ("x-deliver-to", target.encode())],
        on_delivery=lambda error, _: found.append(None if error is None else error.name()),
    )  # fmt: skip
    assert producer.flush(PATIENCE_S) == 0
    return found[0]


@pytest.mark.parametrize(
    ("configs", "why"),
    [
        ({"schedule.enable": "true"}, "needs message.timestamp.type=LogAppendTime"),
        ({**SCHEDULED, "cleanup.policy": "compact"}, "cleanup.policy=compact exclude each other"),
        ({**SCHEDULED, "cleanup.policy": "compact,delete"}, "cleanup.policy=compact exclude each other"),
        ({**SCHEDULED, "delivery.delay.ms": "5"}, "delivery.delay.ms exclude each other"),
        ({"schedule.target.topic": "target"}, "only with schedule.enable"),
        ({**SCHEDULED, "schedule.target.topic": "refused"}, "its own target"),
        ({**SCHEDULED, "schedule.target.topic": "__transaction_state"}, "internal topic"),
        ({**SCHEDULED, "schedule.target.topic": "no topic"}, "no name of a topic"),
        ({**SCHEDULED, "schedule.enable": "perhaps"}, "schedule.enable"),
    ],
)
def test_configs_that_contradict_each_other_are_refused(broker: Broker, configs: dict[str, str], why: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("refused", 1, 1, config=configs)])["refused"].result(PATIENCE_S)
    assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert why in refused.value.args[0].str()
