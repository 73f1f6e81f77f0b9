"""Storms: equal for equal seeds, with legal errors for every API, and survived by clients that retry."""

from __future__ import annotations

import random
import time

import pytest
from confluent_kafka import Consumer, Producer

from kbroker import Broker, handlers
from kbroker.handlers.registry import APIS
from kbroker.testing.refusals import refusal
from kbroker.testing.storm import ERRORS, squall

PATIENCE_S = 60.0
handlers.load_all()


def test_the_same_seed_brings_the_same() -> None:
    def run(seed: int) -> list[object]:
        chance = random.Random(seed)
        return [squall(api, 9, chance) for api in sorted(ERRORS) * 5]

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_its_errors_are_those_of_apis_that_there_are() -> None:
    by_name = {api.name: api for api in APIS.values()}
    for name, errors in ERRORS.items():
        api = by_name[name]
        for error in errors:
            assert refusal(api, api.request(acks=1) if name == "Produce" else api.request(), error, None) is not None


def test_it_has_a_seed() -> None:
    with Broker() as broker, pytest.raises(TypeError, match="needs a seed"):
        broker.faults.storm()


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2])
def test_clients_that_try_again_come_through(seed: int) -> None:
    with Broker() as broker:
        broker.topics.create("orders", 1)
        servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0, "retry.backoff.ms": 20}
        with broker.faults.storm(seed=seed, rate=0.2) as storm:
            producer = Producer({**servers, "enable.idempotence": True, "linger.ms": 0})
            failed: list[object] = []
            for number in range(100):
                producer.produce("orders", str(number), on_delivery=lambda err, _: failed.append(err) if err else None)
                if number % 5 == 0:
                    assert producer.flush(PATIENCE_S) == 0
            assert producer.flush(PATIENCE_S) == 0
            own = {"group.id": "billing", "auto.offset.reset": "earliest", "topic.metadata.refresh.interval.ms": 1000}
            consumer = Consumer({**servers, **own})
            consumer.subscribe(["orders"])
            seen: list[int] = []
            deadline = time.monotonic() + PATIENCE_S
            while len(set(seen)) < 100:
                assert time.monotonic() < deadline, f"{len(seen)} read, storm met {storm.hits} requests"
                message = consumer.poll(0.5)
                if message is not None and message.error() is None:
                    seen.append(int(message.value()))
            consumer.close()
        assert (failed, storm.hits > 3) == ([], True)
        assert [int(each.text) for each in broker.topics["orders"].records()] == list(range(100)), "once, and in order"
