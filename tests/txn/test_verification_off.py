"""With transaction.partition.verification.enable=false, only batches of the second generation are verified."""

from __future__ import annotations

from kbroker import Broker
from kbroker.protocol.errors import ErrorCode

from .raw import Raw


def test_nobody_is_asked_about_the_first_generation() -> None:
    with Broker({"transaction.partition.verification.enable": "false"}) as broker:
        one = Raw(broker.bootstrap_servers)
        topic, other = one.topic(), one.topic()
        producer = one.init("id")
        assert one.produce("id", producer, topic, [b"x"], version=11) == 0
        assert one.state("id") == "Empty", "so this transaction hangs, until an administrator ends it"
        assert one.see(topic).stable == 0
        assert one.mark(producer, topic, False) is ErrorCode.NONE
        assert one.see(topic).stable == 2
        assert one.produce("id", producer, other, [b"y"], version=12) == 0
        assert one.state("id") == "Ongoing"
        one.end("id", producer)
        assert one.see(other).values == [b"y"]
        one.close()
