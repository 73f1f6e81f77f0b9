"""The coordinators' topics are created at the first request for them."""

from __future__ import annotations

from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.transactions import AddOffsetsToTxnRequest

from .raw import Raw


def test_offsets_may_be_added_before_their_topic_is_there() -> None:
    """aiokafka finds the group's coordinator only when it sends offsets, after AddOffsetsToTxn."""
    with Broker({"offsets.topic.num.partitions": "3"}) as broker:
        one = Raw(broker.bootstrap_servers)
        topic, name = one.topic(), "id"
        producer = one.init(name)
        for group in ("a", "b", "c", "d"):
            request = AddOffsetsToTxnRequest(name, *producer, group)
            assert one.ask(request, 0).error_code == 0
        for group in ("a", "b", "c", "d"):
            one.find_group(group)
            assert one.offsets(name, producer, group, topic, 4) is ErrorCode.NONE
        one.end(name, producer)
        assert [one.position(group, topic) for group in ("a", "b", "c", "d")] == [4] * 4
        one.close()


def test_one_broker_is_enough_whatever_kafkas_defaults_ask_for() -> None:
    """Kafka's defaults are three replicas and two in sync; the broker uses only as many as there are brokers."""
    defaults = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
    with Broker(defaults) as broker:
        one = Raw(broker.bootstrap_servers, 2)
        topic = one.topic()
        producer = one.init("id")
        one.write("id", producer, topic, [b"x"])
        one.end("id", producer)
        assert one.see(topic).values == [b"x"]
        one.close()
