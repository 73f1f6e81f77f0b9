"""The ledger: an invoice that is read more than once is booked once."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from confluent_kafka import Message

from kbroker import Broker, ErrorCode, Faults, SteeredClock
from kbroker.testing import assert_committed
from orders.ledger import Ledger
from orders.model import Invoice
from orders.retries import Policy
from orders.worker import Worker
from shop import Shop, until


@pytest.fixture
def ledger(database: sqlite3.Connection) -> Ledger:
    return Ledger(database)


def invoices(shop: Shop, *numbers: int, cents: int = 100, partition: int = -1) -> None:
    found = [Invoice(f"order-{number}", "ann", cents) for number in numbers]
    shop.send(shop.topics.invoices, *(each.to_bytes() for each in found), partition=partition)


def booking(shop: Shop, ledger: Ledger, **settings: Any) -> Worker:
    return shop.worker(ledger.handle, [shop.topics.invoices], **settings)


def test_an_invoice_is_booked(shop: Shop, ledger: Ledger) -> None:
    worker = booking(shop, ledger)
    invoices(shop, 1, cents=250)
    until(lambda: worker.step(0.1), ledger.count)
    assert ledger.balance("ann") == 250
    assert ledger.balance("bob") == 0
    assert shop.committed("work", shop.topics.invoices) == 1


def test_one_that_comes_twice_is_booked_once(shop: Shop, ledger: Ledger) -> None:
    worker = booking(shop, ledger)
    invoices(shop, 1, 1, 2, 1)
    until(lambda: worker.step(0.1), lambda: shop.committed("work", shop.topics.invoices) == 4)
    assert (ledger.count(), ledger.balance("ann")) == (2, 200)


def test_one_that_is_none_is_laid_aside(shop: Shop, ledger: Ledger) -> None:
    worker = booking(shop, ledger)
    shop.send(shop.topics.invoices, b'{"order_id": 1}')
    invoices(shop, 1)
    until(lambda: worker.step(0.1), ledger.count)
    assert len(shop.read(shop.topics.dead)) == 1


def test_a_crash_between_booking_and_committing(shop: Shop, ledger: Ledger) -> None:
    class Crashed(BaseException):
        pass

    def crash(message: Message) -> None:
        ledger.handle(message)
        raise Crashed

    invoices(shop, 1)
    first = shop.worker(crash, [shop.topics.invoices])
    with pytest.raises(Crashed):
        until(lambda: first.step(0.1), lambda: False)
    first.close()
    assert shop.committed("work", shop.topics.invoices) is None
    second = booking(shop, ledger)
    until(lambda: second.step(0.1), lambda: shop.committed("work", shop.topics.invoices) == 1)
    assert ledger.balance("ann") == 100


def test_a_rebalance_in_between(wide_shop: Shop, ledger: Ledger) -> None:
    first = booking(wide_shop, ledger)
    for number in range(6):
        invoices(wide_shop, number, partition=number % 2)
    until(lambda: first.step(0.1), lambda: ledger.count() >= 2)
    second = booking(wide_shop, ledger)

    def step() -> None:
        first.step(0.1)
        second.step(0.1)

    until(step, lambda: len(first.assigned) == len(second.assigned) == 1)
    for number in range(6, 10):
        invoices(wide_shop, number, partition=number % 2)
    until(step, lambda: ledger.count() == 10)
    assert ledger.balance("ann") == 1000


def test_who_leaves_gives_its_partitions_to_the_others(wide_shop: Shop, ledger: Ledger) -> None:
    first, second = booking(wide_shop, ledger), booking(wide_shop, ledger)

    def step() -> None:
        first.step(0.1)
        second.step(0.1)

    until(step, lambda: len(first.assigned) == len(second.assigned) == 1)
    first.close()
    until(lambda: second.step(0.1), lambda: len(second.assigned) == 2)
    invoices(wide_shop, 1, partition=0)
    invoices(wide_shop, 2, partition=1)
    until(lambda: second.step(0.1), lambda: ledger.count() == 2)


def test_a_database_that_is_locked_costs_a_retry(shop: Shop, ledger: Ledger, database: sqlite3.Connection) -> None:
    left = [sqlite3.OperationalError("database is locked")]

    def handle(message: Message) -> None:
        if left:
            raise left.pop()
        ledger.handle(message)

    worker = shop.worker(handle, [shop.topics.invoices, shop.topics.retries], Policy(first_wait_s=0))
    invoices(shop, 1)
    until(lambda: worker.step(0.1), ledger.count)
    assert database.execute("select * from balances").fetchall() == [("ann", 100)]


def test_a_commit_that_is_lost(shop: Shop, ledger: Ledger, kafka: Broker, kafka_faults: Faults) -> None:
    group = kafka.groups[f"{shop.prefix}.work"]
    first = booking(shop, ledger)
    invoices(shop, 1)
    with kafka_faults.fail("OffsetCommit", ErrorCode.ILLEGAL_GENERATION) as fault:
        until(lambda: first.step(0.1), lambda: fault.hits)
        first.close()
    assert ledger.count() == 1
    assert_committed(group, {(shop.topics.invoices, 0): None})
    second = booking(shop, ledger)
    until(lambda: second.step(0.1), lambda: group.offsets)
    assert_committed(group, {(shop.topics.invoices, 0): 1})
    assert ledger.balance("ann") == 100


def test_a_worker_whose_session_expires(shop: Shop, ledger: Ledger, kafka: Broker, kafka_clock: SteeredClock) -> None:
    group = kafka.groups[f"{shop.prefix}.work"]
    first = booking(
        shop, ledger, **{"client.id": "first", "session.timeout.ms": 60_000, "heartbeat.interval.ms": 20_000}
    )
    invoices(shop, 1)
    until(lambda: first.step(0.1), ledger.count)
    second = booking(shop, ledger, **{"client.id": "second"})
    kafka_clock.advance(minutes=2)  # the group's coordinator does not know that the first is gone
    kafka.wait_for(lambda _: "first" not in [each.client_id for each in group.members])
    until(lambda: second.step(0.1), lambda: second.assigned)
    invoices(shop, 2)
    until(lambda: second.step(0.1), lambda: ledger.count() == 2)
    assert ledger.balance("ann") == 200


def test_nothing_is_left_to_do(shop: Shop, ledger: Ledger, kafka: Broker) -> None:
    worker = booking(shop, ledger)
    invoices(shop, *range(50))
    group = kafka.groups[f"{shop.prefix}.work"]
    assert group.lag(shop.topics.invoices) == 50
    until(lambda: worker.step(0.1), lambda: group.lag(shop.topics.invoices) == 0)
    assert ledger.count() == 50


def test_a_slow_broker_only_makes_it_slow(shop: Shop, ledger: Ledger, kafka_faults: Faults) -> None:
    worker = booking(shop, ledger)
    with kafka_faults.delay("Fetch", 0.2, times=3), kafka_faults.slow_disk(50, times=3):
        invoices(shop, 1)
        until(lambda: worker.step(0.1), ledger.count)
    assert ledger.balance("ann") == 100
