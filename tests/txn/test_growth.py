"""Partitions are added to the coordinators' topics while transactions and groups are under way."""

from __future__ import annotations

from kbroker import Broker
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.topics import CreatePartitionsRequest, CreatePartitionsTopic

from .raw import Raw

GROUPS = [f"group-{n}" for n in range(8)]


def test_nothing_is_lost_when_the_coordinators_topics_grow() -> None:
    """Open transactions end, and offsets are found, as in Kafka: the broker keeps the partition count of its start."""
    small = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    with Broker(small) as broker:
        one = Raw(broker.bootstrap_servers, 2)
        topic = one.topic()
        names = [f"id-{n}" for n in range(8)]
        producers = {name: one.init(name) for name in names}
        for name, group in zip(names, GROUPS, strict=True):
            one.find_group(group)
            one.write(name, producers[name], topic, [name.encode()])
            assert one.offsets(name, producers[name], group, topic, 4) is ErrorCode.NONE
        for grown in ("__transaction_state", "__consumer_offsets"):
            request = CreatePartitionsRequest(
                [CreatePartitionsTopic(name=grown, count=20, assignments=None)], timeout_ms=10_000
            )
            assert [result.error_code for result in one.ask(request, 3).results] == [0]
        for name in names:
            one.end(name, producers[name])
        assert one.see(topic).values == [name.encode() for name in names]
        assert [one.position(group, topic) for group in GROUPS] == [4] * len(GROUPS)
        one.close()
