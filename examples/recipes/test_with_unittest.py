"""The same with unittest: `self.broker` is clean before each test."""

from __future__ import annotations

from confluent_kafka import Producer

from kbroker import BrokerTestCase, ErrorCode
from kbroker.testing import assert_records


class TestOrders(BrokerTestCase):
    """`broker_options` are the arguments for the broker."""

    broker_options = {"config": {"num.partitions": 2}}  # noqa: RUF012 - unittest has no instance before its tests

    def test_an_order_is_tried_again(self) -> None:
        with self.broker.faults.fail("Produce", ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2) as fault:
            producer = Producer({"bootstrap.servers": self.broker.bootstrap_servers, "log_level": 0})
            producer.produce("orders", "one", partition=1)
            assert producer.flush(20) == 0
            producer.close()
        assert fault.hits == 2
        assert_records(self.broker.topics["orders"], ["one"], partition=1)

    def test_the_next_one_sees_nothing_of_it(self) -> None:
        assert list(self.broker.topics) == []
