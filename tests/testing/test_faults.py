"""The effects of faults on confluent-kafka: which requests fail, which are still executed, and which count as hits."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.clients import AlterClientQuotasRequest, AlteredEntity, AlteredEntry, OpData
from kbroker.protocol.messages.cluster import MetadataRequest
from kbroker.protocol.messages.transactions import InitProducerIdRequest
from kbroker.testing.filters import Seen, When

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as made:
        yield made


@pytest.fixture(autouse=True)
def none_left(broker: Broker) -> Iterator[None]:
    yield
    broker.faults.clear()


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(PATIENCE_S)
    return name


def producer(broker: Broker, **settings: Any) -> Producer:
    own = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "linger.ms": 0, "retry.backoff.ms": 10}
    return Producer({**own, **settings})


def produce(client: Producer, topic: str, value: str, partition: int = 0) -> tuple[KafkaError | None, int | None]:
    """Produce one record; return its error and its offset."""
    told: list[tuple[KafkaError | None, int | None]] = []
    client.produce(topic, value, partition=partition, on_delivery=lambda err, msg: told.append((err, msg.offset())))
    assert client.flush(PATIENCE_S) == 0
    return told[0]


def values(broker: Broker, topic: str, partition: int = 0) -> list[str]:
    """Return the values of all records of a partition."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found, deadline = [], time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF
            consumer.close()
            return found
        found.append(message.value().decode())
    raise AssertionError("the end is not reached")


def test_a_retriable_error_is_retried(broker: Broker, topic: str) -> None:
    with broker.faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2, topic=topic) as fault:
        assert produce(producer(broker), topic, "one")[0] is None
    assert fault.hits == 2
    assert values(broker, topic) == ["one"]


def test_a_fatal_error_is_told_and_nothing_is_written(broker: Broker, topic: str) -> None:
    with broker.faults.fail("Produce", ErrorCode.MESSAGE_TOO_LARGE):
        error, _ = produce(producer(broker), topic, "large")
    assert error is not None
    assert error.code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert values(broker, topic) == []


def test_only_the_partition_that_is_meant_fails(broker: Broker, topic: str) -> None:
    client = producer(broker, **{"linger.ms": 100})
    told: dict[int, KafkaError | None] = {}
    with broker.faults.fail("Produce", ErrorCode.INVALID_RECORD, topic=topic, partition=1) as fault:
        for partition in (0, 1):
            client.produce(
                topic, "v", partition=partition, on_delivery=lambda err, msg: told.update({msg.partition(): err})
            )
        assert client.flush(PATIENCE_S) == 0
    assert fault.hits == 1
    assert told[0] is None
    assert told[1] is not None
    assert (values(broker, topic, 0), values(broker, topic, 1)) == (["v"], [])


@pytest.mark.long
def test_a_lost_answer_has_done_its_work(broker: Broker, topic: str) -> None:
    client = producer(broker, **{"socket.timeout.ms": 1000, "message.timeout.ms": 15000, "enable.idempotence": True})
    produce(client, topic, "before")
    with broker.faults.drop("Produce", times=1) as fault:
        error, offset = produce(client, topic, "once")
    assert (error, offset, fault.hits) == (None, 1, 1)
    assert values(broker, topic) == ["before", "once"], "a retry finds what was written"


@pytest.mark.long
@pytest.mark.parametrize("when", list(When))
def test_a_connection_breaks(broker: Broker, topic: str, when: When) -> None:
    client = producer(broker, **{"enable.idempotence": True})
    produce(client, topic, "before")
    with broker.faults.disconnect("Produce", when, times=1) as fault:
        assert produce(client, topic, "once") == (None, 1)
    assert fault.hits == 1
    assert values(broker, topic) == ["before", "once"]


def test_without_idempotence_a_lost_answer_is_written_twice(broker: Broker, topic: str) -> None:
    client = producer(broker, **{"enable.idempotence": False, "acks": 1})
    produce(client, topic, "before")
    with broker.faults.disconnect("Produce", "before", times=1):
        assert produce(client, topic, "twice") == (None, 2)
    assert values(broker, topic) == ["before", "twice", "twice"]


def test_a_delay(broker: Broker, topic: str) -> None:
    client = producer(broker)
    produce(client, topic, "before")
    with broker.faults.delay("Produce", 0.5):
        started = time.monotonic()
        assert produce(client, topic, "late")[0] is None
    assert time.monotonic() - started >= 0.5


def test_a_full_disk_and_then_room(broker: Broker, topic: str) -> None:
    client = producer(broker, **{"message.timeout.ms": 15000})
    with broker.faults.full_disk() as fault:
        client.produce(topic, "kept", partition=0)
        client.poll(0)
        fault.wait(2)
    assert client.flush(PATIENCE_S) == 0
    assert values(broker, topic) == ["kept"]


@pytest.mark.long
def test_fetches_fail_and_go_on(broker: Broker, topic: str) -> None:
    produce(producer(broker), topic, "one")
    with broker.faults.fail("Fetch", ErrorCode.NOT_LEADER_OR_FOLLOWER, topic=topic, times=3) as fault:
        assert values(broker, topic) == ["one"]
    assert fault.hits == 3


def test_a_fetch_that_waits_in_a_session_fails_at_once(broker: Broker, topic: str) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "waits",
            "fetch.wait.max.ms": 100,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.5) is None
    with broker.faults.fail("Fetch", ErrorCode.OFFSET_OUT_OF_RANGE, topic=topic, partition=0) as fault:
        fault.wait()
        message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    assert message.error() is not None
    assert message.error().code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)


def test_a_commit_fails_for_its_group_alone(broker: Broker, topic: str) -> None:
    def committing(group: str) -> Consumer:
        return Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "log_level": 0})

    wanted = [TopicPartition(topic, 0, 5)]
    with broker.faults.fail("OffsetCommit", ErrorCode.INVALID_COMMIT_OFFSET_SIZE, group="billing"):
        with pytest.raises(KafkaException) as failed:
            committing("billing").commit(offsets=wanted, asynchronous=False)
        committing("shipping").commit(offsets=wanted, asynchronous=False)
    assert failed.value.args[0].code() == KafkaError.INVALID_COMMIT_OFFSET_SIZE
    told = {group: committing(group).committed(wanted, PATIENCE_S)[0].offset for group in ("billing", "shipping")}
    assert told == {"billing": -1001, "shipping": 5}


def test_filters(broker: Broker, topic: str) -> None:
    mine = broker.faults.fail("Produce", ErrorCode.INVALID_RECORD, client_id="mine")
    looked = broker.faults.fail("Produce", ErrorCode.INVALID_RECORD, where=lambda seen: seen.request.acks == 1)
    assert produce(producer(broker, **{"client.id": "other"}), topic, "taken")[0] is None
    assert produce(producer(broker, **{"client.id": "mine"}), topic, "refused")[0] is not None
    assert produce(producer(broker, acks=1), topic, "looked at")[0] is not None
    assert (mine.hits, looked.hits) == (1, 1)


def test_a_share_of_requests_is_the_same_for_the_same_seed(broker: Broker, topic: str) -> None:
    def run() -> list[bool]:
        client = producer(broker)
        with broker.faults.fail("Produce", ErrorCode.INVALID_RECORD, rate=0.5, seed=7):
            return [produce(client, topic, str(number))[0] is None for number in range(20)]

    first = run()
    assert 4 < sum(first) < 16
    assert run() == first


def test_a_throttled_client_waits(broker: Broker, topic: str) -> None:
    seen: list[int] = []
    client = producer(broker, throttle_cb=lambda event: seen.append(round(event.throttle_time * 1000)))
    with broker.faults.throttle(300, "Produce"):
        produce(client, topic, "one")
        client.poll(0.2)
    assert seen == [300]


def test_connections_are_refused(broker: Broker, topic: str) -> None:
    with broker.faults.refuse_connections(), pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}).list_topics(timeout=1)
    assert topic in AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics


def test_what_never_met_a_request_can_be_asserted(broker: Broker) -> None:
    with broker.faults.drop("EndTxn") as fault:
        assert fault.hits == 0
        with pytest.raises(AssertionError, match="was met 0 times"):
            fault.wait(timeout=0.01)


def test_a_filter_that_asks_the_broker_itself_is_told_so(broker: Broker, topic: str) -> None:
    told: list[str] = []

    def asks(_seen: Any) -> bool:
        try:
            return bool(broker.topics[topic].records())
        except RuntimeError as error:
            told.append(str(error))
        return False

    before = time.monotonic()
    with broker.faults.drop("Metadata", where=asks), WireClient(broker.bootstrap_servers) as client:
        assert client.ask(MetadataRequest(), 12).brokers
    assert time.monotonic() - before < 5.0
    assert len(told) == 1
    assert "own thread" in told[0]


def test_a_full_disk_gives_out_producer_ids(broker: Broker) -> None:
    with broker.faults.full_disk() as fault, WireClient(broker.bootstrap_servers) as client:
        assert client.ask(InitProducerIdRequest(None, 60_000), 1).error_code == ErrorCode.NONE
        assert fault.hits == 0
        assert client.ask(InitProducerIdRequest("x", 60_000), 1).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_behind_a_dropped_answer_there_is_none(broker: Broker) -> None:
    with broker.faults.drop("Metadata", times=1) as fault, WireClient(broker.bootstrap_servers) as client:
        client.start(MetadataRequest(), 12)
        fault.wait()
        client.start(MetadataRequest(), 12)
        client._sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client._sock.recv(1)
    with WireClient(broker.bootstrap_servers) as client:
        assert client.ask(MetadataRequest(), 12).brokers


def test_what_is_not_there_is_refused(broker: Broker) -> None:
    with pytest.raises(ValueError, match="no API 'Prodce'"):
        broker.faults.fail("Prodce", ErrorCode.INVALID_RECORD)
    with pytest.raises(ValueError, match="did you mean 'Produce'"):
        broker.faults.drop("Prodce")
    with pytest.raises(ValueError, match="NONE is no error"):
        broker.faults.fail("Produce", ErrorCode.NONE)
    for api, about, said in (
        ("Heartbeat", {"topic": "t"}, "no request of Heartbeat names a topic"),
        (("Produce", "Fetch"), {"group": "g"}, "no request of Fetch, Produce names a group"),
        ("Metadata", {"partition": 0}, "no request of Metadata names a partition"),
        ("OffsetCommit", {"transactional_id": "t"}, "no request of OffsetCommit names a transactional id"),
    ):
        with pytest.raises(ValueError, match=said):
            broker.faults.drop(api, **about)
    assert not broker.faults.active
    with pytest.raises(ValueError, match="no request of Produce names a group"):
        broker.requests.of("Produce", group="g")
    with pytest.raises(ValueError, match="there is no API 'Commit'"):
        broker.requests.of("Commit")
    with broker.faults.full_disk(topic="t"), broker.faults.drop(("Produce", "Heartbeat"), topic="t"):
        pass  # some of these APIs name topics
    with pytest.raises(TypeError, match="no filter topics"):
        broker.faults.fail("Produce", ErrorCode.INVALID_RECORD, topics="x")  # type: ignore[call-arg]
    for wrong in ({"times": 0}, {"skip": -1}):
        with pytest.raises(ValueError, match="at least"):
            broker.faults.drop("Produce", **wrong)
    assert broker.faults.active == ()


@pytest.mark.parametrize(
    ("set_fault", "said"),
    [
        (lambda faults: faults.drop("Produce", rate=5), "rate is at most 1, not 5"),
        (lambda faults: faults.drop("Produce", rate=-0.1), "rate is at least 0, not -0.1"),
        (lambda faults: faults.drop("Produce", rate=math.nan), "rate must be a finite number, not nan"),
        (lambda faults: faults.drop("Produce", rate="0.5"), "rate must be a number, not '0.5'"),
        (lambda faults: faults.storm(seed=7, rate=50), "rate is at most 1, not 50"),
        (lambda faults: faults.storm(seed="seven"), "seed must be a whole number, not 'seven'"),
        (lambda faults: faults.drop("Produce", seconds=-1), "seconds is at least 0, not -1"),
        (lambda faults: faults.drop("Produce", times=1.5), "times must be a whole number, not 1.5"),
        (lambda faults: faults.drop("Produce", times=True), "times must be a whole number, not True"),
        (lambda faults: faults.drop("Produce", skip="1"), "skip must be a whole number, not '1'"),
        (lambda faults: faults.drop("Produce", topic=7), "topic must be a str, not 7"),
        (lambda faults: faults.drop("Produce", topic=["a", "b"]), "topic must be a str, not ['a', 'b']"),
        (lambda faults: faults.drop("Produce", topic=""), "topic is empty: no request names it"),
        (lambda faults: faults.drop("Produce", topic="t", partition=-1), "partition is at least 0, not -1"),
        (lambda faults: faults.drop("Produce", partition="0"), "partition must be a whole number, not '0'"),
        (lambda faults: faults.drop("Produce", client_id=b"me"), "client_id must be a str, not b'me'"),
        (lambda faults: faults.drop("Heartbeat", group=None), "group must be a str, not None"),
        (
            lambda faults: faults.drop("Produce", principal="alice"),
            "principal must be like \"User:alice\", not 'alice'",
        ),
        (lambda faults: faults.drop("Produce", broker=2), "there is no broker 2; there is 1"),
        (lambda faults: faults.drop("Produce", where="acks"), "where must be a function of a request, not 'acks'"),
        (lambda faults: faults.full_disk(where="acks"), "where must be a function of a request, not 'acks'"),
        (lambda faults: faults.drop([]), 'no API is named: "*" is all of them'),
        (lambda faults: faults.drop(None), 'an API is named as "Produce", not None'),
        (lambda faults: faults.drop([0]), 'an API is named as "Produce", not 0'),
        (lambda faults: faults.delay("Produce", -0.5), "seconds is at least 0, not -0.5"),
        (lambda faults: faults.delay("Produce", math.inf), "seconds must be a finite number, not inf"),
        (lambda faults: faults.delay("Produce", "1s"), "seconds must be a number, not '1s'"),
        (lambda faults: faults.delay("Produce", 1e9), "seconds is at most 86400, not 1000000000.0"),
        (lambda faults: faults.throttle(-1), "ms is at least 0, not -1"),
        (lambda faults: faults.throttle(2**31), "ms is at most 2147483647, not 2147483648"),
        (lambda faults: faults.throttle(0.5), "ms must be a whole number, not 0.5"),
        (lambda faults: faults.slow_disk(-1), "ms is at least 0, not -1"),
        (
            lambda faults: faults.disconnect("Produce", "during"),
            "when is one of request, before, middle, after, not 'during'",
        ),
        (
            lambda faults: faults.fail("Produce", "NOT_LEADER"),
            "there is no error 'NOT_LEADER'; did you mean 'NOT_LEADER_OR_FOLLOWER'?",
        ),
        (lambda faults: faults.fail("Produce", 9999), "there is no error 9999"),
        (
            lambda faults: faults.fail("Produce", None),
            'an error is an ErrorCode, or its name, like "NOT_LEADER_OR_FOLLOWER", not None',
        ),
        (lambda faults: faults.fail("Produce", 6, 7), "message must be a str, not 7"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(broker: Broker, set_fault: Callable[[Any], Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError)) as told:
        set_fault(broker.faults)
    assert str(told.value) == said
    assert broker.faults.active == ()


def test_an_error_may_be_told_by_its_name(broker: Broker) -> None:
    with broker.faults.fail("Produce", "ILLEGAL_GENERATION") as fault:
        assert fault.value == (ErrorCode.ILLEGAL_GENERATION, None)


def test_a_recorded_request_tells_which_fault_it_met(broker: Broker, topic: str) -> None:
    broker.requests.clear()
    with broker.faults.fail("Produce", ErrorCode.INVALID_RECORD), broker.faults.delay("Produce", 0.01):
        produce(producer(broker), topic, "refused")
    (request,) = broker.requests.wait_for("Produce", topic=topic)
    assert request.fault == "delay 10 ms, fail INVALID_RECORD"
    assert repr(request).endswith(" ms, fault: delay 10 ms, fail INVALID_RECORD>")


def test_requests_are_recorded(broker: Broker, topic: str) -> None:
    requests = broker.requests
    requests.clear()
    produce(producer(broker, **{"client.id": "recorded"}), topic, "one")
    (request,) = requests.wait_for("Produce", topic=topic, timeout=PATIENCE_S)
    assert (request.client_id, request.answer.responses[0].partition_responses[0].base_offset) == ("recorded", 0)
    assert request.duration_ms is not None
    assert {each.api for each in requests.of(client_id="recorded")} >= {"ApiVersions", "Metadata", "Produce"}
    requests.clear()
    assert not requests.of(client_id="recorded")
    with pytest.raises(AssertionError, match="0 of 1 Produce"):
        requests.wait_for("Produce", timeout=0.01)


def test_quotas_hold_where_requests_are_seen() -> None:
    """A client that a quota throttles gets its throttle time also while a fault observes the requests."""
    with (
        Broker({"auto.create.topics.enable": "true"}) as broker,
        WireClient(broker.bootstrap_servers, "admin") as admin,
    ):
        entry = AlteredEntry([AlteredEntity("client-id", "app")], [OpData("request_percentage", 1e-9)])
        assert admin.ask(AlterClientQuotasRequest(entries=[entry]), 1).entries[0].error_code == 0
        with broker.faults.delay("Metadata", 0.001), WireClient(broker.bootstrap_servers, "app") as client:
            before = time.monotonic()
            assert client.ask(MetadataRequest(), 12).throttle_time_ms == 1000
            assert client.ask(MetadataRequest(), 12).throttle_time_ms == 1000
            assert time.monotonic() - before >= 0.9


def test_what_where_raises_is_told(broker: Broker) -> None:
    def where(seen: Seen) -> bool:
        raise KeyError("mine")

    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    fault = broker.faults.drop("Metadata", where=where)
    admin.list_topics(timeout=PATIENCE_S)
    with pytest.raises(KeyError, match="mine"):
        fault.wait()
    admin.list_topics(timeout=PATIENCE_S)
    with pytest.raises(KeyError, match="mine"):
        fault.remove()
    with pytest.raises(KeyError, match="mine"), broker.faults.drop("Metadata", where=where):
        admin.list_topics(timeout=PATIENCE_S)
