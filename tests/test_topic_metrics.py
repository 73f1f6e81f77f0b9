"""The counters of topics: their sums never decrease, even if topics are deleted."""

from __future__ import annotations

from kbroker.log.append_info import AppendError
from kbroker.protocol.errors import ErrorCode
from kbroker.topic_metrics import TopicMetrics


def sums(of: TopicMetrics) -> int:
    by_topic, gone = of.now()
    return sum(each.bytes_in for each in (gone, *(traffic for _, traffic in by_topic)))


def test_a_topic_goes_with_its_last_partition_and_its_numbers_stay() -> None:
    topics = TopicMetrics()
    first, second = topics.host("orders"), topics.host("orders")
    assert first is second
    first.bytes_in += 10
    topics.unhost("orders")
    assert [topic for topic, _ in topics.now()[0]] == ["orders"]
    topics.unhost("orders")
    assert topics.now()[0] == []
    assert sums(topics) == 10
    topics.host("orders").bytes_in += 3
    assert sums(topics) == 13
    assert topics.now()[0][0][1].bytes_in == 3


def test_what_is_read_in_pieces_counts_once() -> None:
    topics = TopicMetrics()
    orders = topics.host("orders")
    orders.bytes_in += 10
    by_topic, gone = topics.now()
    orders.bytes_in += 5
    topics.unhost("orders")  # between two steps of the sum
    assert sum(each.bytes_in for each in (gone, *(traffic for _, traffic in by_topic))) == 15
    assert sums(topics) == 15


def test_what_is_refused_in_kafkas_usual_ways_has_not_failed() -> None:
    orders = TopicMetrics().host("orders")
    orders.refused(AppendError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    orders.refused(AppendError(ErrorCode.MESSAGE_TOO_LARGE))
    assert (orders.produces, orders.failed_produces) == (2, 0)
    orders.refused(AppendError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER))
    orders.refused(ZeroDivisionError())
    assert (orders.produces, orders.failed_produces) == (4, 2)
