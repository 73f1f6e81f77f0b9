"""Messages that failed: they are tried again when they are due, and set aside in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException, Message

from kbroker import Broker, ErrorCode, Faults
from kbroker.testing import assert_committed, assert_records
from orders.clients import header
from orders.model import BadMessage
from orders.retries import ATTEMPT, DUE_MS, ERROR, ORIGIN, Policy
from shop import Shop, Timepiece, until


class Handling:
    """Handles messages; `fails` says how often each value fails first, None for always."""

    def __init__(self, **fails: int | None) -> None:
        self.fails = fails
        self.tried: list[str] = []
        self.done: list[str] = []

    def was_tried(self, times: int) -> Callable[[], bool]:
        return lambda: len(self.tried) == times

    def __call__(self, message: Message) -> None:
        value = (message.value() or b"").decode()
        self.tried.append(value)
        left = self.fails.get(value, 0)
        if left is None or left > 0:
            self.fails[value] = None if left is None else left - 1
            raise RuntimeError(f"{value} is not to be had")
        self.done.append(value)


def test_a_failure_is_tried_again_later(shop: Shop, timepiece: Timepiece) -> None:
    handling = Handling(one=1)
    worker = shop.worker(handling, clock=timepiece, policy=Policy(first_wait_s=10))
    shop.send(shop.topics.orders, b"one")
    until(lambda: worker.step(0.1), lambda: handling.tried)
    (message,) = shop.read(shop.topics.retries)
    assert (message.key(), message.value()) == (b"0", b"one")
    assert header(message, ATTEMPT) == "1"
    assert header(message, DUE_MS) == str(round((timepiece.now + 10) * 1000))
    assert header(message, ERROR) == "RuntimeError: one is not to be had"
    assert header(message, ORIGIN) == f"{shop.topics.orders}-0@0"


def test_it_is_not_handled_before_it_is_due(shop: Shop, timepiece: Timepiece) -> None:
    handling = Handling(one=1)
    worker = shop.worker(
        handling, [shop.topics.orders, shop.topics.retries], clock=timepiece, policy=Policy(first_wait_s=10)
    )
    shop.send(shop.topics.orders, b"one")
    until(lambda: worker.step(0.1), lambda: handling.tried)
    shop.send(shop.topics.orders, b"two")
    until(lambda: worker.step(0.1), lambda: "two" in handling.done)
    assert handling.tried.count("one") == 1
    timepiece.now += 11
    until(lambda: worker.step(0.1), lambda: "one" in handling.done)
    assert handling.tried.count("one") == 2
    assert shop.read(shop.topics.dead) == []


def test_what_is_not_due_stays_where_it_is(shop: Shop, timepiece: Timepiece) -> None:
    handling = Handling()
    worker = shop.worker(handling, [shop.topics.retries], clock=timepiece)
    due = str(round((timepiece.now + 60) * 1000)).encode()
    shop.send(shop.topics.retries, b"late", headers=[(ATTEMPT, b"1"), (DUE_MS, due)])
    until(lambda: worker.step(0.1), lambda: worker.assigned)
    for _ in range(5):
        assert not worker.step(0.1)
    assert handling.tried == []
    assert shop.committed("work", shop.topics.retries) is None
    timepiece.now += 61
    until(lambda: worker.step(0.1), lambda: handling.done == ["late"])
    assert shop.committed("work", shop.topics.retries) == 1


def test_a_partition_that_waits_holds_up_no_other(wide_shop: Shop, timepiece: Timepiece) -> None:
    handling = Handling()
    worker = wide_shop.worker(handling, [wide_shop.topics.retries], clock=timepiece)
    due = str(round((timepiece.now + 60) * 1000)).encode()
    wide_shop.send(wide_shop.topics.retries, b"late", headers=[(DUE_MS, due)], partition=0)
    wide_shop.send(wide_shop.topics.retries, b"now", partition=1)
    until(lambda: worker.step(0.1), lambda: handling.done == ["now"])


def test_messages_behind_a_failure_are_handled_meanwhile(shop: Shop) -> None:
    handling = Handling(two=None)
    worker = shop.worker(handling)
    shop.send(shop.topics.orders, b"one", b"two", b"three")
    until(lambda: worker.step(0.1), lambda: len(handling.tried) == 3)
    assert handling.done == ["one", "three"]
    assert shop.committed("work", shop.topics.orders) == 3


def test_what_fails_too_often_is_laid_aside(shop: Shop, timepiece: Timepiece) -> None:
    handling = Handling(one=None)
    topics = [shop.topics.orders, shop.topics.retries]
    worker = shop.worker(handling, topics, clock=timepiece, policy=Policy(attempts=3, first_wait_s=10))
    shop.send(shop.topics.orders, b"one", headers=[("trace", b"7")])
    for attempt in range(1, 4):
        until(lambda: worker.step(0.1), handling.was_tried(attempt))
        timepiece.now += 100
    (dead,) = shop.read(shop.topics.dead)
    assert (dead.key(), dead.value()) == (b"0", b"one")
    assert [header(dead, name) for name in (ATTEMPT, ORIGIN, "trace", DUE_MS)] == [
        "3",
        f"{shop.topics.orders}-0@0",
        "7",
        None,
    ]
    assert len(shop.read(shop.topics.retries)) == 2


def test_each_wait_is_twice_as_long(shop: Shop, timepiece: Timepiece) -> None:
    handling = Handling(one=None)
    topics = [shop.topics.orders, shop.topics.retries]
    worker = shop.worker(handling, topics, clock=timepiece, policy=Policy(attempts=4, first_wait_s=10))
    begun = timepiece.now
    shop.send(shop.topics.orders, b"one")
    for attempt, wait in enumerate((0, 10, 20, 40), 1):
        timepiece.now += wait
        until(lambda: worker.step(0.1), handling.was_tried(attempt))
    due = [header(each, DUE_MS) for each in shop.read(shop.topics.retries)]
    assert due == [str(round((begun + wait) * 1000)) for wait in (10, 30, 70)]


def test_what_nobody_can_read_is_laid_aside_at_once(shop: Shop) -> None:
    def refuse(_: Message) -> None:
        raise BadMessage("not JSON")

    worker = shop.worker(refuse)
    shop.send(shop.topics.orders, b"nonsense")
    until(lambda: worker.step(0.1), lambda: shop.committed("work", shop.topics.orders) == 1)
    (dead,) = shop.read(shop.topics.dead)
    assert header(dead, ERROR) == "BadMessage: not JSON"
    assert shop.read(shop.topics.retries) == []


def test_nothing_is_lost_when_the_topic_of_retries_takes_nothing(
    shop: Shop, kafka: Broker, kafka_faults: Faults
) -> None:
    handling = Handling(one=2)
    worker = shop.worker(handling)
    shop.send(shop.topics.orders, b"one")
    with (
        kafka_faults.fail("Produce", ErrorCode.INVALID_RECORD, topic=shop.topics.retries) as fault,
        pytest.raises(KafkaException),
    ):
        until(lambda: worker.step(0.1), lambda: False)
    assert fault.hits
    group = kafka.groups[f"{shop.prefix}.work"]
    assert_committed(group, {(shop.topics.orders, 0): None})
    until(lambda: worker.step(0.1), lambda: len(handling.tried) == 2)
    assert_committed(group, {(shop.topics.orders, 0): 1})
    assert_records(kafka.topics[shop.topics.retries], [{"key": "0", "value": "one"}])


def test_a_retry_whose_answer_is_lost_is_written_once(shop: Shop, kafka: Broker, kafka_faults: Faults) -> None:
    handling = Handling(one=1)
    worker = shop.worker(handling)
    shop.send(shop.topics.orders, b"one")
    with kafka_faults.disconnect("Produce", "before", times=1, topic=shop.topics.retries):
        until(lambda: worker.step(0.1), lambda: handling.tried)
    assert_records(kafka.topics[shop.topics.retries], ["one"])
