"""The log lines for an operator: created and deleted topics, and nothing about clients; with DEBUG each request."""

from __future__ import annotations

import logging
import re
import time

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from compat_tests.wire.client import WireClient
from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalConfig,
    IncrementalResource,
)
from kbroker.protocol.messages.groups import JoinGroupRequest, JoinGroupRequestProtocol


def done(futures):
    for future in futures.values():
        future.result(20)


def test_topics(caplog):
    with caplog.at_level(logging.INFO, "kbroker"), Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        done(admin.create_topics([NewTopic("t", 1, 1)]))
        done(admin.create_partitions([NewPartitions("t", 3)]))
        entry = ConfigEntry("retention.ms", "54321", incremental_operation=AlterConfigOpType.SET)
        done(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])]))
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("t", b"x")
        assert producer.flush(20) == 0
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
        )
        consumer.subscribe(["t"])
        assert consumer.poll(20).value() == b"x"
        consumer.close()
        done(admin.delete_topics(["t"]))
    wanted = [
        r"topic t is created with 1 partition\(s\), id [\w-]{22}",
        r"topic t has 3 partitions now, had 1",
        r"configs set on topics t: retention\.ms",
        r"topic __consumer_offsets is created with 4 partition\(s\), id [\w-]{22}",
        r"topic t is deleted",
    ]
    told = [m for m in caplog.messages if any(re.fullmatch(each, m) for each in wanted)]
    assert len(told) == len(wanted), told
    for message, each in zip(told, wanted, strict=True):
        assert re.fullmatch(each, message)
    assert "DEBUG" not in [record.levelname for record in caplog.records]


LIVES = 2
QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "50",
    "group.consumer.min.heartbeat.interval.ms": "50",
}


def live(broker, name):
    """Do what clients do in their lives: write, also in a transaction, read in groups of both protocols, and vanish."""
    address = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
    producer = Producer({**address, "transactional.id": name})
    producer.init_transactions(20)
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce("t", name.encode())
        assert producer.flush(20) == 0
        end(20)
    producer.close()
    for protocol in ("classic", "consumer"):
        settings = {**address, "group.id": f"{name}-{protocol}", "group.protocol": protocol}
        if protocol == "classic":
            settings["heartbeat.interval.ms"] = 50
        consumers = [Consumer({**settings, "auto.offset.reset": "earliest"}) for _ in range(2)]
        for each in consumers:
            each.subscribe(["t"])
        read_by(consumers)
        for each in consumers:
            each.close()
    vanish(broker, name)


def read_by(consumers, seconds=40):
    """Read until all consumers have partitions, and one has received a record."""
    deadline = time.monotonic() + seconds
    read = 0
    while not (read and all(each.assignment() for each in consumers)):
        assert time.monotonic() < deadline
        for each in consumers:
            message = each.poll(0.02)
            read += message is not None and not message.error()


def vanish(broker, name):
    """Join a group and vanish; the broker's clock advances until its sessions have expired."""
    with WireClient(broker.bootstrap_servers) as client:
        subscription = bytes(10)  # to nothing
        protocols = [JoinGroupRequestProtocol("range", subscription)]
        join = JoinGroupRequest(name, 10_000, 10_000, protocol_type="consumer", protocols=protocols)
        assert client.ask(join, 4).error_code == ErrorCode.MEMBER_ID_REQUIRED  # this member id never returns
        join.member_id = client.ask(join, 4).member_id
        assert client.ask(join, 4).error_code == 0
    broker.clock.advance(minutes=2)


@pytest.mark.long
def test_a_clients_life_is_nothing_to_tell_of(caplog):
    with Broker(QUICK) as broker:
        broker.topics.create("t", partitions=4)
        live(broker, "first")  # creates the internal topics
        with caplog.at_level(logging.DEBUG):
            caplog.clear()
            for number in range(LIVES):
                live(broker, f"another-{number}")
    records = [record for record in caplog.records if record.name.partition(".")[0] in ("kbroker", "kafka")]
    told = [record.getMessage() for record in records if record.levelno >= logging.INFO]
    told = told[: next((i for i, each in enumerate(told) if "stopp" in each), len(told))]
    assert told == []
    assert sum("session of member" in record.getMessage() for record in records) >= LIVES


def test_requests_with_debug(caplog):
    caplog.set_level(logging.DEBUG, "kbroker.network.server")  # other tests may have changed the level
    with caplog.at_level(logging.DEBUG), Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "client.id": "who\nasks"})
        done(admin.create_topics([NewTopic("t", 1, 1)]))
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "client.id": "writes"})
        producer.produce("t", b"never to be told")
        assert producer.flush(20) == 0
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert any(re.fullmatch(r"127\.0\.0\.1:\d+ connects to PLAINTEXT", line) for line in told)
    requests = [record for record in caplog.records if record.name == "kafka.request.logger"]
    who = r"client who\\nasks from 127\.0\.0\.1 on PLAINTEXT as User:ANONYMOUS"
    times = r"in \d+\.\d{3} ms, of which \d+\.\d{3} at work, throttled for 0 ms"
    line = rf"Completed request: CreateTopics v\d, correlation id \d+, {who}: \d+ bytes, answered with \d+, {times}"
    [created] = [each for each in requests if each.api == "CreateTopics"]
    assert re.fullmatch(line, created.getMessage())
    assert (created.client_id, created.client_host, created.principal) == ("who\\nasks", "127.0.0.1", "User:ANONYMOUS")
    assert created.request_bytes > 10
    assert created.response_bytes > 10
    assert 0 < created.local_ms <= created.total_ms
    produced = [each for each in requests if each.api == "Produce"]
    assert [each.client_id for each in produced] == ["writes"]
    assert not any("never to be told" in str(vars(each)) for each in requests)


def test_requests_are_logged_from_the_moment_in_which_a_client_asks_for_it(caplog):
    name = "kafka.request.logger"
    with caplog.at_level(logging.INFO, name), Broker() as broker:
        caplog.handler.setLevel(logging.NOTSET)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.list_topics(timeout=20)
        with WireClient(broker.bootstrap_servers) as client:
            resource = IncrementalResource(8, "1", [IncrementalConfig(name, 0, "DEBUG")])
            assert client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code == 0
        assert not any("request: Metadata v" in record.getMessage() for record in caplog.records)
        admin.list_topics(timeout=20)
        assert any("request: Metadata v" in record.getMessage() for record in caplog.records)
