"""The channels to brokers: what one request with very many partitions costs the loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kbroker.controller.cluster.channel_queue import Metadata
from kbroker.controller.cluster.channels import Channels
from kbroker.protocol.messages.inter_broker import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataResponse,
)

COUNT = 10_000


class Broker:
    """A peer that answers immediately."""

    def __init__(self) -> None:
        self.told = 0

    def peer(self, *_address: object) -> Broker:
        return self

    async def ask(self, request: Any, *_: object) -> UpdateMetadataResponse:
        self.told += sum(len(topic.partition_states) for topic in request.topic_states)
        return UpdateMetadataResponse()

    def close(self) -> None:
        pass


def test_metadata_of_many_partitions_takes_slices_of_the_loop_and_not_a_turn_for_each() -> None:
    async def scenario() -> int:
        broker, turns = Broker(), 0
        live: Any = SimpleNamespace(epoch=1, at=lambda _listener: SimpleNamespace(host="", port=0))
        context: Any = SimpleNamespace(topic_ids={}, topics={})
        channels = Channels((1, 1), context, broker, asyncio.sleep, lambda *_: None)  # type: ignore[arg-type]
        channels.open(2, live, ("A", "A"), 1000)
        parts = {("t", each): UpdateMetadataPartitionState(partition_index=each) for each in range(COUNT)}
        channels.put(2, Metadata(parts, [UpdateMetadataBroker(2)]))
        while not channels.has_sent_all(2):
            turns += 1
            await asyncio.sleep(0)
        assert broker.told == COUNT
        channels.close_all()
        return turns

    assert asyncio.run(scenario()) < COUNT / 10
