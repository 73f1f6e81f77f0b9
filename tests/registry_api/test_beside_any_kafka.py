"""A registry beside any Kafka: unknown outcomes, writers other than registries, a Kafka that does not answer."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from kbroker import Acl, Broker, Cluster
from kbroker.admin.errors import AdminError
from kbroker.admin.transactional_partition import TransactionalPartition
from kbroker.protocol.errors import ErrorCode
from tests.registry_api.beside import Beside, Clients, record
from tests.tries import FORM

PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(kafka: Broker) -> Broker:
    kafka.reset()
    return kafka


@pytest.fixture
def beside(broker: Broker) -> Iterator[Beside]:
    with Beside(broker.bootstrap_servers) as made:
        yield made


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def committed(broker: Broker) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return the keys and values of the topic, as a read_committed consumer sees them."""
    settings = {"group.id": "a", "isolation.level": "read_committed", "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    consumer.assign([TopicPartition("_schemas", 0, 0)])
    found = []
    try:
        while (message := consumer.poll(PATIENCE_S)) is not None and message.error() is None:
            value = message.value()
            found.append((json.loads(message.key() or b""), None if value is None else json.loads(value)))
    finally:
        consumer.close()
    return found


def written(broker: Broker, key: bytes | None, value: bytes | None) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    producer.produce("_schemas", value, key)
    assert producer.flush(PATIENCE_S) == 0


def version_of(subject: str, number: int, schema_id: int, name: str) -> tuple[bytes, bytes]:
    key = {"keytype": "SCHEMA", "subject": subject, "version": number, "magic": 1}
    value = {"subject": subject, "version": number, "id": schema_id, "schema": record(name), "deleted": False}
    return json.dumps(key, separators=(",", ":")).encode(), json.dumps(value).encode()


def test_the_topic_is_made_as_confluents(broker: Broker, beside: Beside) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert len(admin.list_topics(timeout=PATIENCE_S).topics["_schemas"].partitions) == 1
    (configs,) = admin.describe_configs([ConfigResource("topic", "_schemas")]).values()
    assert configs.result()["cleanup.policy"].value == "compact"
    beside.http.register("a", record("A"))
    ((key, value),) = committed(broker)
    assert key == {"keytype": "SCHEMA", "subject": "a", "version": 1, "magic": 1}
    assert value is not None
    assert value["id"] == 1


@pytest.mark.parametrize(
    ("partitions", "policy", "text"),
    [
        (2, "compact", "topic _schemas has 2 partitions; a registry needs one, which orders all changes"),
        (1, "delete", "topic _schemas has cleanup.policy=delete, and would lose schemas"),
        (1, "compact,delete", "topic _schemas has cleanup.policy=compact,delete, and would lose schemas"),
    ],
)
def test_a_topic_that_would_lose_schemas_is_refused(broker: Broker, partitions: int, policy: str, text: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    new = NewTopic("_schemas", partitions, 1, config={"cleanup.policy": policy})
    admin.create_topics([new])["_schemas"].result()
    with pytest.raises(AdminError, match=text):
        Beside(broker.bootstrap_servers)


@pytest.mark.long
@pytest.mark.parametrize("api", ["EndTxn", "Produce", "AddPartitionsToTxn", "InitProducerId"])
@pytest.mark.parametrize("when", ["request", "before"])
def test_a_change_whose_outcome_is_unknown_is_made_once(broker: Broker, beside: Beside, api: str, when: str) -> None:
    beside.http.register("a", record("A"))
    with Beside(broker.bootstrap_servers) as other:
        other.http.register("b", record("B"))  # so that all begins with InitProducerId
    with broker.faults.disconnect(api, when, times=1) as fault:
        assert beside.http.register("c", record("C"))["id"] == 3
    assert fault.hits == 1
    with broker.faults.disconnect(api, when, times=1):  # if it were decided twice, a deletion would be refused
        assert beside.http.ok("DELETE", "/subjects/c/versions/1") == 1
    assert beside.http.ok("DELETE", "/subjects/c/versions/1?permanent=true") == 1
    keys = [(key["subject"], None if value is None else value["deleted"]) for key, value in committed(broker)]
    assert keys == [("a", False), ("b", False), ("c", False), ("c", True), ("c", None)]


def test_a_commit_that_is_known_only_from_the_log(broker: Broker, beside: Beside) -> None:
    """The answers to EndTxn are lost; the change is in the log, and is confirmed, not repeated."""
    beside.http.register("a", record("A"))
    with broker.faults.disconnect("EndTxn", "before") as fault:
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(beside.http.ok("DELETE", "/subjects/a/versions/1")))
        asking.start()
        until(lambda: fault.hits >= 3)
        # Another registry takes over: what the first one asks for again is refused, though its change was made.
        with Beside(broker.bootstrap_servers) as other:
            fault.remove()
            other.http.register("b", record("B"))
            asking.join(PATIENCE_S)
            assert answers == [1]
            assert other.http.refused("GET", "/subjects/a/versions/1")[0] == 40401
    assert len(committed(broker)) == 3


def test_a_commit_that_leaves_no_marker_is_not_acknowledged(
    broker: Broker, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EndTxn is answered, but the transaction stays open, as after a crash of Apache Kafka 4.4.0."""
    beside.http.register("a", record("A"))
    end, lost = TransactionalPartition.end, []

    def end_once_without_marker(partition: TransactionalPartition, *, commit: bool) -> None:
        if commit and not lost:
            lost.append(commit)
        else:
            end(partition, commit=commit)

    monkeypatch.setattr(TransactionalPartition, "end", end_once_without_marker)
    assert beside.http.register("b", record("B"))["id"] == 2
    assert lost
    assert [value["id"] for _, value in committed(broker) if value is not None] == [1, 2]
    with Beside(broker.bootstrap_servers) as other:  # its first change aborts a transaction that is still open
        assert other.http.register("c", record("C"))["id"] == 3
    assert [value["id"] for _, value in committed(broker) if value is not None] == [1, 2, 3]


@pytest.mark.parametrize("code", ["NOT_ENOUGH_REPLICAS", "NOT_LEADER_OR_FOLLOWER", "REQUEST_TIMED_OUT"])
def test_a_write_is_tried_again(broker: Broker, beside: Beside, code: str) -> None:
    with broker.faults.fail("Produce", ErrorCode[code], times=2) as fault:
        assert beside.http.register("a", record("A"))["id"] == 1
    assert fault.hits == 2


def test_a_right_that_is_missing_is_named(broker: Broker, beside: Beside) -> None:
    with broker.faults.fail("Produce", ErrorCode.TOPIC_AUTHORIZATION_FAILED, times=1):
        code, text = beside.http.refused("POST", "/subjects/a/versions", {"schema": record("A")})
    assert code == 50001
    assert "TOPIC_AUTHORIZATION_FAILED" in text
    with broker.faults.fail("Produce", ErrorCode.MESSAGE_TOO_LARGE, times=1):
        assert beside.http.refused("POST", "/subjects/a/versions", {"schema": record("A")})[0] == 42209
    assert beside.http.register("a", record("A"))["id"] == 1


def test_what_others_write_counts_at_once(broker: Broker, beside: Beside) -> None:
    """A registry that fences nobody, like Confluent's, or a mirror, writes between two changes."""
    beside.http.register("a", record("A"))
    written(broker, *version_of("b", 1, 7, "B"))
    assert beside.http.register("c", record("C"))["id"] == 8
    assert beside.http.ok("GET", "/schemas/ids/7")["schema"] == record("B")


def test_a_record_that_comes_between_decision_and_write(broker: Broker, beside: Beside) -> None:
    beside.http.register("a", record("A"))
    with broker.faults.delay("Produce", 0.5, times=1) as fault:  # the decision is taken: the id would be 2
        found: list[int] = []
        asking = threading.Thread(target=lambda: found.append(beside.http.register("c", record("C"))["id"]))
        asking.start()
        fault.wait()
        written(broker, *version_of("b", 1, 2, "B"))
        asking.join(PATIENCE_S)
    assert found == [3]
    assert [value["id"] for _, value in committed(broker) if value is not None] == [1, 2, 3]


def test_records_that_no_registry_wrote_are_skipped(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with Beside(broker.bootstrap_servers) as first:
        first.http.register("a", record("A"))
    for key, value in ((None, b"a"), (b"\xff", b"a"), (b"{}", None), (b'{"keytype":"NEW"}', b"1"), (b"[" * 9_999, b"")):
        written(broker, key, value)
    written(broker, version_of("b", 1, 2, "B")[0], b"{}")
    caplog.clear()
    with Beside(broker.bootstrap_servers) as beside:
        assert beside.http.ok("GET", "/subjects") == ["a"]
        assert beside.http.register("c", record("C"))["id"] == 2
    assert len([each for each in caplog.records if "is skipped" in each.message and each.levelname == "WARNING"]) == 1


def test_another_instance_sees_what_is_acknowledged(broker: Broker, beside: Beside) -> None:
    with Beside(broker.bootstrap_servers) as other:
        for number in range(20):
            schema_id = beside.http.register(f"a{number}", record(f"A{number}"))["id"]
            assert other.http.ok("GET", f"/schemas/ids/{schema_id}")  # at once: it looks before it says no
        until(lambda: len(other.http.ok("GET", "/subjects")) == 20)
        began = time.monotonic()
        beside.http.register("b", record("B"))
        until(lambda: "b" in other.http.ok("GET", "/subjects"))
        assert time.monotonic() - began < 5


def test_an_incompatible_schema_is_refused_by_what_others_have_registered(broker: Broker, beside: Beside) -> None:
    with Beside(broker.bootstrap_servers) as other:
        other.http.ok("PUT", "/config/a", {"compatibility": "NONE"})
        assert beside.http.ok("GET", "/config/a")["compatibilityLevel"] == "NONE"
        beside.http.register("a", {"type": "record", "name": "A", "fields": [{"name": "a", "type": "int"}]})
        other.http.register("a", {"type": "record", "name": "A", "fields": [{"name": "b", "type": "string"}]})


def test_a_topic_that_is_deleted_is_made_anew(broker: Broker, beside: Beside) -> None:
    beside.http.register("a", record("A"))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.delete_topics(["_schemas"])["_schemas"].result()
    until(lambda: beside.http.ok("GET", "/subjects") == [])
    assert beside.http.register("b", record("B"))["id"] == 1


@pytest.mark.long
def test_a_transaction_that_somebody_leaves_open(broker: Broker) -> None:
    """Nothing after its beginning is committed for readers: requests fail after a while, changes wait for its end."""
    with Beside(broker.bootstrap_servers, patience_s=3) as beside:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "other"})
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce("_schemas", *reversed(version_of("b", 1, 1, "B")))
        assert producer.flush(PATIENCE_S) == 0
        began = time.monotonic()
        assert beside.http.refused("GET", "/schemas/ids/1")[0] == 40403
        assert time.monotonic() - began < 5
        code, text = beside.http.refused("POST", "/subjects/a/versions", {"schema": record("A")})
        assert (code, "open transaction" in text) == (50002, True), text
        producer.commit_transaction(PATIENCE_S)
        assert beside.http.register("a", record("A"))["id"] == 2


@pytest.mark.long
def test_a_kafka_that_does_not_answer(tmp_path: Any) -> None:
    """Reads continue; requests that need Kafka fail in bounded time; nothing is left behind."""
    threads = threading.active_count()
    with Broker(data_dir=str(tmp_path)) as broker:
        files = len(os.listdir("/dev/fd"))
        short = {"request_timeout_ms": 1_000, "bootstrap_timeout_ms": 1_000}
        with Beside(broker.bootstrap_servers, patience_s=4, **short) as beside:
            beside.http.register("a", record("A"))
            with broker.faults.drop("*"):
                began = time.monotonic()
                assert beside.http.ok("GET", "/schemas/ids/1")
                assert beside.http.register("a", record("A"))["id"] == 1
                assert time.monotonic() - began < 3.5
                code, _ = beside.http.refused("POST", "/subjects/b/versions", {"schema": record("B")})
                assert code == 50002
                assert beside.http.refused("GET", "/schemas/ids/9")[0] == 50002
                assert time.monotonic() - began < 15
            assert beside.http.register("b", record("B"))["id"] == 2
            broker.stop()
            assert beside.http.refused("POST", "/subjects/c/versions", {"schema": record("C")})[0] == 50002
        until(lambda: threading.active_count() <= threads + 1)
    until(lambda: len(os.listdir("/dev/fd")) <= files)


def test_requests_end_with_the_store(broker: Broker, beside: Beside) -> None:
    """Requests that wait for Kafka, and later ones, fail immediately."""
    answers: list[tuple[int, str]] = []

    def ask(method: str, path: str, body: Any = None) -> None:
        answers.append(beside.http.refused(method, path, body))

    with broker.faults.delay("AddPartitionsToTxn", 10) as fault:
        asking = threading.Thread(target=ask, args=("POST", "/subjects/a/versions", {"schema": record("A")}))
        asking.start()
        fault.wait()
        began = time.monotonic()

        async def ended() -> None:
            beside.store.close()

        beside.run(ended())
        asking.join(PATIENCE_S)
        ask("POST", "/subjects/b/versions", {"schema": record("B")})
        ask("GET", "/schemas/ids/1")
        assert time.monotonic() - began < 8
    assert [code for code, _ in answers] == [50002] * 3


@pytest.mark.long
@pytest.mark.parametrize(
    ("seed", "rate", "count"), [(1, 0.1, 40), *((seed, 0.2, 100) for seed in range(2, 7) if FORM == "long")]
)
def test_a_storm_of_faults(broker: Broker, seed: int, rate: float, count: int) -> None:
    """Responses are late, lost and refused, for every API: each schema is written once, and ids have no gap."""
    with Beside(broker.bootstrap_servers) as one, Beside(broker.bootstrap_servers) as other:
        urls = [one.server.url, other.server.url]
        with Clients(urls, 4) as clients, broker.faults.storm(seed=seed, rate=rate):
            clients.wait_for(count)
        clients.judge(urls)
    written_once = [(key["subject"], value["id"]) for key, value in committed(broker) if value is not None]
    assert len(written_once) == len(clients.acknowledged)
    assert dict(written_once) == clients.acknowledged


def test_one_after_the_other_does_not_lose_the_beginning(broker: Broker) -> None:
    for number in range(1, 4):
        with Beside(broker.bootstrap_servers) as beside:
            assert beside.http.register(f"a{number}", record(f"A{number}"))["id"] == number


def test_it_logs_in_and_needs_few_rights() -> None:
    rights = [
        Acl(
            allow_principal="User:registry",
            operation=("Read", "Write", "Describe", "DescribeConfigs", "Create"),
            topic="_schemas",
        ),
        Acl(
            allow_principal="User:registry",
            operation=("Write", "Describe"),
            transactional_id="kbroker-schema-registry",
        ),
    ]
    with Broker(users={"registry": "secret", "other": "secret"}, tls=True, acls=rights) as broker:
        settings = dict(broker.client_settings("registry").kafka_python)
        bootstrap = str(settings.pop("bootstrap_servers"))
        with Beside(bootstrap, **settings) as beside:
            assert beside.http.register("a", record("A"))["id"] == 1
        other = dict(broker.client_settings("other").kafka_python)
        del other["bootstrap_servers"]
        with pytest.raises(AdminError, match="TOPIC_AUTHORIZATION_FAILED"):
            Beside(bootstrap, **other)


@pytest.mark.long
def test_beside_a_cluster_whose_leaders_are_killed() -> None:
    """The leader of `_schemas` and the coordinator of the transactions move, each to another broker."""
    with Cluster() as cluster:
        bootstrap = cluster.bootstrap_servers
        with Beside(bootstrap) as one, Beside(bootstrap) as other:
            urls = [one.server.url, other.server.url]
            with Clients(urls, 4) as clients:
                clients.wait_for(10)
                for number in (1, 2, 3):
                    cluster.brokers[number].kill()
                    clients.wait_for(10)
                    cluster.brokers[number].start()
                    until(lambda: _is_whole(cluster))
            clients.judge(urls)


def _is_whole(cluster: Cluster) -> bool:
    """Whether all brokers report all replicas as in sync: the next killed broker is not the last one."""
    states = [each.node.member.state for each in cluster.brokers.values()]
    return all(
        len(partition.isr) == len(partition.replicas)
        for state in states
        for topic in state.topics.values()
        for partition in topic.partitions
    )
