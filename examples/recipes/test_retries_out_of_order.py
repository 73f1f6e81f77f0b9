"""Retries out of order: without idempotence, a retried message is written after its successors."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer

from kbroker import Broker, ErrorCode, Faults


@pytest.mark.parametrize("idempotent", [False, True])
def test_the_first_of_three_is_tried_again(kafka: Broker, kafka_faults: Faults, idempotent: bool) -> None:
    topic = kafka.topics.create("orders")
    client = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "enable.idempotence": idempotent,
            "batch.num.messages": 1,  # one message per request
            "linger.ms": 0,
            "retry.backoff.ms": 1000,  # "two" and "three" leave before the retry, even on a busy machine
            "log_level": 0,
        }
    )
    client.produce("orders", "zero")
    assert client.flush(20) == 0
    with kafka_faults.fail("Produce", ErrorCode.NOT_ENOUGH_REPLICAS, times=1) as fault:
        for value in ("one", "two", "three"):
            client.produce("orders", value)
        assert client.flush(20) == 0
    assert fault.hits == 1
    values = topic.values()
    assert sorted(map(str, values)) == sorted(map(str, [b"zero", b"one", b"two", b"three"]))
    in_order = values == [b"zero", b"one", b"two", b"three"]
    assert in_order is idempotent
    client.close()
