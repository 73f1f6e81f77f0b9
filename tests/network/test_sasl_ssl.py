"""A listener with SASL over TLS: passwords are checked, and certificates name nobody."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from kbroker import Broker
from tests.network.test_tls import principals, until
from tests.security.tls.conftest import Files

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


def settings(files: Files, **more: str) -> dict[str, str]:
    return {
        "listeners": "SASL_SSL://127.0.0.1:0",
        **files.listener(**more),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{MODULE} user_alice="secret";',
    }


def client(broker: Broker, files: Files, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": password,
        "ssl.ca.location": files.ca,
        "log_level": "0",
    }


def test_a_client_logs_in_over_tls(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    # As in Kafka, the certificate settings for all listeners do not apply to a listener where clients log in.
    caplog.set_level(logging.WARNING)
    with Broker(settings(files, client_auth="required")) as broker:
        assert "ssl.client.auth has no effect on SASL_SSL" in caplog.text
        config = client(broker, files, "secret")
        producer = Producer(config)
        producer.produce("orders", bytes(500_000))
        assert producer.flush(20) == 0
        until("only alice is there", lambda: set(principals(broker)) == {"User:alice"})
        consumer = Consumer({**config, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        found = consumer.poll(20)
        consumer.close()
        assert found is not None
        assert len(found.value()) == 500_000


@pytest.mark.long
def test_a_wrong_password_is_refused_over_tls(files: Files) -> None:
    with Broker(settings(files)) as broker:
        with pytest.raises(KafkaException):
            Producer(client(broker, files, "wrong")).list_topics(timeout=3)
        until("it is gone", lambda: "User:alice" not in principals(broker))


@pytest.mark.long
def test_a_listener_may_want_certificates_as_well_which_do_not_name_clients(files: Files) -> None:
    own = {"listener.name.sasl_ssl.ssl.client.auth": "required"}
    with Broker({**settings(files), **own}) as broker:
        config = client(broker, files, "secret")
        with pytest.raises(KafkaException):
            Producer(config).list_topics(timeout=3)
        shown = {"ssl.certificate.location": files.client, "ssl.key.location": files.client}
        producer = Producer({**config, **shown})
        producer.produce("orders", b"one")
        assert producer.flush(20) == 0
        until("only alice is there", lambda: set(principals(broker)) == {"User:alice"})
