"""A group's lag: the test waits until a consumer is behind by a given number of messages, instead of sleeping."""

from __future__ import annotations

import threading

from confluent_kafka import Consumer

from kbroker import Broker
from kbroker.testing import assert_committed


def test_a_consumer_catches_up(kafka: Broker) -> None:
    topic = kafka.topics.create("orders", partitions=2)
    for number in range(10):
        topic.produce(str(number), partition=number % 2)
    group = kafka.groups["billing"]
    assert group.lag("orders") == 10

    stop = threading.Event()
    worker = threading.Thread(target=work, args=(kafka.bootstrap_servers, stop))
    worker.start()
    try:
        kafka.wait_for(lambda _: group.lag() == 0 and group.offsets, timeout=20)
        assert_committed(group, {("orders", 0): 5, ("orders", 1): 5})
        topic.produce("one more")
        kafka.wait_for(lambda _: group.lag() == 0, timeout=20)
    finally:
        stop.set()
        worker.join()
    assert group.members == []
    topic.produce("nobody is there for it")
    assert group.lag() == 1


def work(bootstrap_servers: str, stop: threading.Event) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    while not stop.is_set():
        if consumer.poll(0.1) is not None:
            consumer.commit(asynchronous=False)
    consumer.close()
