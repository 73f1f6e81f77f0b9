"""Billing: each order once, whatever goes wrong in between."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException

from kbroker import Broker, ErrorCode, Faults, SteeredClock
from kbroker.testing import assert_committed, assert_records, assert_requested
from orders.billing import Billing, Fenced, bill
from orders.clients import header
from orders.model import Invoice, Order
from orders.retries import ERROR
from shop import Shop, order, until


def billed(shop: Shop, partitions: int = 1) -> list[str]:
    """Return the orders that have an invoice."""
    return [Invoice.from_bytes(each).order_id for each in shop.values(shop.topics.invoices, partitions=partitions)]


def all_of(billing: Billing, count: int) -> None:
    """Bill this number of messages."""
    done = 0

    def step() -> None:
        nonlocal done
        done += billing.step(0.1)

    until(step, lambda: done >= count)
    assert done == count


def failing(times: int) -> Callable[[Order], Invoice]:
    """Return a billing function that fails this number of times first."""
    left = times

    def attempt(given: Order) -> Invoice:
        nonlocal left
        left -= 1
        if left >= 0:
            raise RuntimeError("the price list does not answer")
        return bill(given)

    return attempt


def test_an_order_becomes_an_invoice(shop: Shop) -> None:
    shop.order(order(1, cents=250))
    all_of(shop.billing(), 1)
    (value,) = shop.values(shop.topics.invoices)
    assert Invoice.from_bytes(value) == Invoice("order-1", "ann", 250)


def test_many_orders(shop: Shop) -> None:
    shop.order(*(order(number) for number in range(250)))
    all_of(shop.billing(), 250)
    assert billed(shop) == [f"order-{number}" for number in range(250)]


def test_how_far_it_was_read_is_committed_with_the_invoices(shop: Shop) -> None:
    shop.order(order(1), order(2))
    billing = shop.billing()
    assert shop.committed("billing", shop.topics.orders) is None
    all_of(billing, 2)
    assert shop.committed("billing", shop.topics.orders) == 2


def test_what_is_no_order_is_laid_aside_and_the_others_go_on(shop: Shop) -> None:
    shop.send(shop.topics.orders, order(1).to_bytes(), b"nonsense", order(2).to_bytes())
    all_of(shop.billing(), 3)
    assert billed(shop) == ["order-1", "order-2"]
    (dead,) = shop.read(shop.topics.dead)
    assert dead.value() == b"nonsense"
    assert str(header(dead, ERROR)).startswith("not JSON")


def test_a_failure_undoes_all_and_the_orders_come_again(shop: Shop) -> None:
    shop.order(order(1), order(2))
    billing = shop.billing(bill=failing(times=1))
    with pytest.raises(RuntimeError, match="price list"):
        until(lambda: billing.step(0.1), lambda: False)
    assert billed(shop) == []
    assert shop.committed("billing", shop.topics.orders) is None
    all_of(billing, 2)
    assert billed(shop) == ["order-1", "order-2"]


def test_who_begins_anew_begins_where_the_last_one_ended(shop: Shop) -> None:
    shop.order(order(1))
    first = shop.billing()
    all_of(first, 1)
    first.close()
    shop.order(order(2))
    all_of(shop.billing(), 1)
    assert billed(shop) == ["order-1", "order-2"]


def test_who_was_thought_dead_is_fenced_by_the_one_in_its_place(shop: Shop) -> None:
    heirs: list[Billing] = []

    def slow(given: Order) -> Invoice:
        heirs.append(shop.billing())  # somebody starts another process meanwhile
        return bill(given)

    shop.order(order(1))
    first = shop.billing(bill=slow)
    with pytest.raises(Fenced):
        until(lambda: first.step(0.1), lambda: False)
    first.close()
    assert billed(shop) == []
    all_of(heirs[0], 1)
    assert billed(shop) == ["order-1"]


def test_two_places_share_the_partitions(wide_shop: Shop) -> None:
    billings = [wide_shop.billing(place) for place in range(2)]
    for number in range(6):
        wide_shop.order(order(number), partition=number % 2)

    def step() -> None:
        for each in billings:
            each.step(0.1)

    until(step, lambda: len(billed(wide_shop, partitions=2)) >= 6)
    assert sorted(billed(wide_shop, partitions=2)) == [f"order-{number}" for number in range(6)]


def test_nobody_gets_what_was_undone(shop: Shop, kafka: Broker) -> None:
    shop.order(order(1), order(2))
    prices = failing(times=1)
    billing = shop.billing(bill=lambda given: prices(given) if given.id == "order-2" else bill(given))
    with pytest.raises(RuntimeError):
        until(lambda: billing.step(0.1), lambda: False)
    all_of(billing, 2)
    invoices = kafka.topics[shop.topics.invoices]
    assert_records(invoices, [{"key": "order-1"}, {"key": "order-2"}])
    assert {each.transaction for each in invoices.records()} <= {"aborted", "committed"}


def test_the_answer_to_a_commit_is_lost(shop: Shop, kafka: Broker, kafka_faults: Faults) -> None:
    shop.order(order(1))
    billing = shop.billing()
    with kafka_faults.disconnect("EndTxn", "before", times=1) as fault:
        all_of(billing, 1)
    assert fault.hits == 1
    assert_records(kafka.topics[shop.topics.invoices], [{"key": "order-1"}])
    assert_committed(kafka.groups[f"{shop.prefix}.billing"], {(shop.topics.orders, 0): 1})


@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("InitProducerId", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("AddPartitionsToTxn", ErrorCode.CONCURRENT_TRANSACTIONS),
        ("TxnOffsetCommit", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        ("EndTxn", ErrorCode.NOT_COORDINATOR),
        ("Produce", ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_passing_trouble_is_waited_for(
    shop: Shop, kafka: Broker, kafka_faults: Faults, api: str, error: ErrorCode
) -> None:
    shop.order(order(1))
    with kafka_faults.fail(api, error, times=2) as fault:
        all_of(shop.billing(), 1)
    assert fault.hits == 2
    assert_records(kafka.topics[shop.topics.invoices], [{"key": "order-1"}])


def test_an_invoice_that_is_refused_is_written_in_the_end(shop: Shop, kafka: Broker, kafka_faults: Faults) -> None:
    shop.order(order(1))
    billing = shop.billing()

    def step() -> None:
        with contextlib.suppress(KafkaException):  # it is undone, and delivered again
            billing.step(0.1)

    with kafka_faults.fail("Produce", ErrorCode.INVALID_RECORD, times=1, topic=shop.topics.invoices) as fault:
        until(step, kafka.topics[shop.topics.invoices].values)
    assert fault.hits == 1
    assert_records(kafka.topics[shop.topics.invoices], [{"key": "order-1", "transaction": "committed"}])


def test_a_transaction_that_takes_too_long_costs_the_place(
    shop: Shop, kafka: Broker, kafka_clock: SteeredClock
) -> None:
    def slow(given: Order) -> Invoice:
        if given.id == "order-2":
            kafka.wait_for(lambda broker: broker.topics[shop.topics.invoices].records())
            kafka_clock.advance(minutes=2)
        return bill(given)

    shop.order(order(1), order(2))
    first = shop.billing(bill=slow, **{"transaction.timeout.ms": 60_000})
    with pytest.raises(Fenced):
        until(lambda: first.step(0.1), lambda: False)
    first.close()
    assert_records(kafka.topics[shop.topics.invoices], [{"transaction": "aborted"}], isolation="read_uncommitted")
    all_of(shop.billing(), 2)
    assert_records(kafka.topics[shop.topics.invoices], [{"key": "order-1"}, {"key": "order-2"}])


def test_invoices_and_offsets_go_in_one_transaction(shop: Shop, kafka: Broker) -> None:
    shop.order(order(1))
    all_of(shop.billing(), 1)
    transactional_id = f"{shop.prefix}.billing-0"
    requests = kafka.requests
    assert_requested(requests, "TxnOffsetCommit", 1, transactional_id=transactional_id)
    (end,) = assert_requested(requests, "EndTxn", 1, transactional_id=transactional_id)
    assert end.request.committed
    asked = [each.api for each in requests if each.api in ("Produce", "TxnOffsetCommit", "EndTxn")]
    assert asked[-1] == "EndTxn"


@pytest.mark.parametrize("seed", range(3))
def test_each_order_is_billed_once_in_a_storm(shop: Shop, kafka: Broker, kafka_faults: Faults, seed: int) -> None:
    shop.order(*(order(number) for number in range(20)))
    billing = shop.billing()

    def step() -> None:
        with contextlib.suppress(KafkaException):  # it is undone, and delivered again
            billing.step(0.2)

    with kafka_faults.storm(("Produce", "EndTxn", "TxnOffsetCommit", "AddPartitionsToTxn"), seed=seed, rate=0.1):
        until(step, lambda: len(kafka.topics[shop.topics.invoices].values()) >= 20)
    assert_records(kafka.topics[shop.topics.invoices], [{"key": f"order-{number}"} for number in range(20)])
