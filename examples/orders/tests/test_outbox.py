"""The outbox: stored events arrive, in order, and once as far as Kafka can guarantee it."""

from __future__ import annotations

import sqlite3

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kbroker import Broker, ErrorCode, Faults
from kbroker.testing import assert_records, assert_requested
from orders.clients import header
from orders.model import Order
from orders.outbox import EVENT_ID, Outbox, Relay
from shop import PATIENCE_S, Shop, order, until


@pytest.fixture
def outbox(database: sqlite3.Connection) -> Outbox:
    return Outbox(database)


@pytest.fixture
def relay(outbox: Outbox, shop: Shop) -> Relay:
    return Relay(outbox, shop.producer(), shop.topics.orders)


def place(database: sqlite3.Connection, outbox: Outbox, *orders: Order) -> list[str]:
    with database:
        return [outbox.place(each) for each in orders]


def test_an_order_that_was_placed_arrives(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox, relay: Relay
) -> None:
    place(database, outbox, order(1))
    assert relay.step() == 1
    (message,) = shop.read(shop.topics.orders)
    assert Order.from_bytes(message.value()) == order(1)
    assert message.key() == b"order-1"


def test_an_order_that_was_not_placed_never_does(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox, relay: Relay
) -> None:
    outbox.place(order(1))
    database.rollback()  # the customer's card is refused
    assert relay.step() == 0
    assert shop.read(shop.topics.orders) == []


def test_orders_arrive_in_the_order_of_the_database(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox, relay: Relay
) -> None:
    place(database, outbox, *(order(number) for number in range(150)))
    assert [relay.step() for _ in range(3)] == [100, 50, 0]
    assert [Order.from_bytes(each).id for each in shop.values(shop.topics.orders)] == [
        f"order-{number}" for number in range(150)
    ]


def test_what_was_sent_is_not_sent_again(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox, relay: Relay
) -> None:
    place(database, outbox, order(1))
    relay.step()
    place(database, outbox, order(2))
    relay.step()
    assert len(shop.read(shop.topics.orders)) == 2


def test_a_crash_after_sending_sends_again_under_the_same_event_id(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox
) -> None:
    class Crashed(Exception):  # noqa: N818 - what happened
        pass

    class CrashingOutbox(Outbox):
        def note(self, *_: object) -> None:
            raise Crashed

    (event_id,) = place(database, outbox, order(1))
    with pytest.raises(Crashed):
        Relay(CrashingOutbox(database), shop.producer(), shop.topics.orders).step()
    assert Relay(outbox, shop.producer(), shop.topics.orders).step() == 1
    found = shop.read(shop.topics.orders)
    assert [header(each, EVENT_ID) for each in found] == [event_id, event_id]


def test_an_order_that_is_too_large_is_put_aside(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox, relay: Relay
) -> None:
    limit = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource("topic", shop.topics.orders, incremental_configs=[limit])
    admin = AdminClient({"bootstrap.servers": shop.kafka.bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)
    place(database, outbox, order(1))
    relay.step()
    place(database, outbox, order(2, customer="x" * 5000))
    relay.step()
    place(database, outbox, order(3))
    relay.step()
    assert len(shop.read(shop.topics.orders)) == 2
    assert [outbox.count(state) for state in ("waiting", "sent", "refused")] == [0, 2, 1]


def test_an_answer_that_is_lost_does_not_write_twice(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox, relay: Relay, kafka: Broker, kafka_faults: Faults
) -> None:
    place(database, outbox, order(1))
    with kafka_faults.disconnect("Produce", "before", times=1, topic=shop.topics.orders) as fault:
        assert relay.step() == 1
    assert fault.hits == 1
    assert_records(kafka.topics[shop.topics.orders], [{"key": "order-1"}])


def test_a_leader_that_moves_is_followed(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox, relay: Relay, kafka: Broker, kafka_faults: Faults
) -> None:
    place(database, outbox, order(1), order(2))
    with kafka_faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=3) as fault:
        assert relay.step() == 2
    assert fault.hits == 3
    assert_records(kafka.topics[shop.topics.orders], [{"key": "order-1"}, {"key": "order-2"}])


def test_with_a_full_disk_orders_wait(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox, kafka: Broker, kafka_faults: Faults
) -> None:
    place(database, outbox, order(1), order(2))
    with kafka_faults.full_disk(topic=shop.topics.orders):
        hasty = Relay(outbox, shop.producer(**{"message.timeout.ms": 300}), shop.topics.orders)
        assert hasty.step() == 0
    assert outbox.count("waiting") == 2
    assert Relay(outbox, shop.producer(), shop.topics.orders).step() == 2
    assert_records(kafka.topics[shop.topics.orders], [{"key": "order-1"}, {"key": "order-2"}])


def test_nothing_comes_late_of_what_was_given_up(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox, kafka: Broker, kafka_faults: Faults
) -> None:
    hasty = Relay(outbox, shop.producer(**{"message.timeout.ms": 1_000}), shop.topics.orders)
    place(database, outbox, order(1))
    until(hasty.step, lambda: outbox.count("sent"))  # by then it has a producer id
    place(database, outbox, order(2))
    with kafka_faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER) as fault:
        assert hasty.step() == 0
    assert fault.hits
    assert outbox.count("waiting") == 1
    place(database, outbox, order(3))
    assert Relay(outbox, shop.producer(), shop.topics.orders).step() == 2
    assert_records(kafka.topics[shop.topics.orders], [{"key": f"order-{number}"} for number in (1, 2, 3)])


def test_the_relay_asks_for_all_replicas_and_one_copy(
    shop: Shop, database: sqlite3.Connection, outbox: Outbox, relay: Relay, kafka: Broker
) -> None:
    place(database, outbox, order(1))
    relay.step()
    (request,) = assert_requested(kafka.requests, "Produce", 1, topic=shop.topics.orders)
    assert request.request.acks == -1
    (record,) = kafka.topics[shop.topics.orders].records()
    assert record.producer_id >= 0
