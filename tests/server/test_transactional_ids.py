"""A transactional producer must learn at once that there are no transactions, whichever client it is."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from kafka import KafkaProducer
from kafka.errors import TransactionalIdAuthorizationFailedError

from kbroker import Broker

PATIENCE_S = 30


@pytest.fixture
def fresh():
    with Broker() as running:
        yield running.bootstrap_servers


def test_confluent_kafka_fails_for_good_and_is_told_why(fresh):
    producer = Producer({"bootstrap.servers": fresh, "transactional.id": "t", "log_level": 0})
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(PATIENCE_S)
    error = caught.value.args[0]
    assert error.fatal()
    assert error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "Transactions are not served by this broker" in error.str()


def test_kafka_python_fails_for_good(fresh):
    producer = KafkaProducer(bootstrap_servers=fresh, transactional_id="t", max_block_ms=PATIENCE_S * 1000)
    with pytest.raises(TransactionalIdAuthorizationFailedError):
        producer.init_transactions()
    producer.close(timeout=5)


def test_a_start_warns_once_and_names_the_id(fresh, caplog):
    with caplog.at_level(logging.WARNING, "kbroker"):
        for name in ("first-id", "second-id"):
            producer = Producer({"bootstrap.servers": fresh, "transactional.id": name, "log_level": 0})
            with pytest.raises(KafkaException):
                producer.init_transactions(PATIENCE_S)
    (line,) = [r.getMessage() for r in caplog.records if "transactions are not served" in r.getMessage()]
    assert "first-id" in line
