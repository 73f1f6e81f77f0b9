"""AlterPartition proposals in transit to the controller, whichever broker that is by then."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from kbroker.peers.interface import PeerUnavailable
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.inter_broker import AlteredPartition, AlteredTopic, AlterPartitionResponse
from kbroker.replica_manager.alter_partition_requests import InSyncChanges
from kbroker.replication.leadership import Granted, Proposal
from tests.replica_manager.virtual_time import run

TOPIC_ID = bytes(15) + b"t"
PATIENCE_MS = 30_000


class Controller:
    """The connection to the broker that is the controller; a frozen one does not answer."""

    def __init__(self, *, frozen: bool) -> None:
        self.frozen = frozen
        self.asked = asyncio.Event()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def ask(self, request: Any, _version: int, _answer: type[Any], timeout_ms: float) -> Any:
        self.asked.set()
        if self.frozen:
            await asyncio.wait((self.gone,), timeout=timeout_ms / 1000)
            raise PeerUnavailable("no answer")
        (topic,) = request.topics
        (wanted,) = topic.partitions
        isr = [each.broker_id for each in wanted.new_isr_with_epochs]
        altered = AlteredPartition(
            wanted.partition_index, ErrorCode.NONE, 1, wanted.leader_epoch, isr, 0, wanted.partition_epoch + 1
        )
        return AlterPartitionResponse(error_code=0, topics=[AlteredTopic(topic.topic_id, [altered])])

    def close(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


class Led:
    """A partition that is led here, as far as its proposals go."""

    topic, topic_id, index, key = "t", TOPIC_ID, 0, ("t", 0)
    leading = True
    isr = (1,)

    def __init__(self, proposal: Proposal) -> None:
        self.leadership = SimpleNamespace(proposed=proposal)
        self.told: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()

    def granted(self, _proposal: Proposal, told: Granted) -> None:
        self.told.set_result(told)


def test_a_frozen_controller_is_waited_for_no_longer_than_until_another_one_is_known() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        brokers = {"old": Controller(frozen=True), "new": Controller(frozen=False)}
        at = {"controller": ("old", 1)}
        peers: Any = SimpleNamespace(peer=lambda host, _port, _client_id: brokers[host])
        changes = InSyncChanges(1, peers, lambda: 7, lambda: at["controller"], PATIENCE_MS)
        proposal = Proposal(3, 5, frozenset({1}))
        led: Any = Led(proposal)
        changes.propose(led, proposal)
        await brokers["old"].asked.wait()
        changes.controller_changed()
        assert not brokers["old"].gone.done(), "it is the same"
        at["controller"] = ("new", 1)
        changes.controller_changed()
        assert await led.told == Granted(3, 6, frozenset({1}))
        assert loop.time() * 1000 < PATIENCE_MS / 10
        changes.close()

    run(main())
