"""What an operator reads in the log: topics and groups that come and go; with DEBUG each request."""

from __future__ import annotations

import logging
import re

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
from kbroker.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)


def done(futures):
    for future in futures.values():
        future.result(20)


def test_topics_and_groups(caplog):
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
        r"group g: generation 1 is stable",
        r"group g: generation 2 is empty",
        r"topic t is deleted",
    ]
    told = [m for m in caplog.messages if any(re.fullmatch(each, m) for each in wanted)]
    assert len(told) == len(wanted), told
    for message, each in zip(told, wanted, strict=True):
        assert re.fullmatch(each, message)
    assert "DEBUG" not in [record.levelname for record in caplog.records]


def test_requests_with_debug(caplog):
    with caplog.at_level(logging.DEBUG, "kbroker"), Broker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "client.id": "who\nasks"})
        done(admin.create_topics([NewTopic("t", 1, 1)]))
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG]
    assert any(re.fullmatch(r"127\.0\.0\.1:\d+ connects to PLAINTEXT", line) for line in told)
    assert any(re.fullmatch(r"CreateTopics v\d from /127\.0\.0\.1, client who\nasks", line) for line in told)


def test_requests_are_logged_from_the_moment_in_which_a_client_asks_for_it(caplog):
    name = "kbroker.network.dispatch"
    with caplog.at_level(logging.INFO, name), Broker() as broker:
        caplog.handler.setLevel(logging.NOTSET)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.list_topics(timeout=20)
        with WireClient(broker.bootstrap_servers) as client:
            resource = AlterConfigsResource(8, "1", [AlterableConfig(name, 0, "DEBUG")])
            assert client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code == 0
        assert not any("Metadata v" in record.getMessage() for record in caplog.records)
        admin.list_topics(timeout=20)
        assert any("Metadata v" in record.getMessage() for record in caplog.records)
