"""Requests to the controller to change in-sync replicas (AlterPartition; Apache Kafka: AlterPartitionManager).

Owns the waiting proposals and the one request in flight, and applies the response to each proposal. Never decides which
replicas are in sync: the partitions propose changes (replicated_partition.py), and the controller grants them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import islice
from typing import Final

from kbroker.long_work import in_slices, turn
from kbroker.peers.interface import Peer, Peers, PeerUnavailable
from kbroker.protocol.errors import ErrorCode, known_error
from kbroker.protocol.messages.inter_broker import (
    AlteredPartition,
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    BrokerState,
)
from kbroker.replica_manager.replicated_partition import ReplicatedPartition
from kbroker.replication.leadership import Granted, Proposal

log = logging.getLogger(__name__)

_VERSION: Final = 3
_RETRY_MS: Final = 50
_CHECK_MS: Final = 100
"""The pause between two lookups of the controller's address, in ms."""
_AT_ONCE: Final = 1000
"""The maximum number of partitions in one request."""

Endpoint = tuple[str, int]


class InSyncChanges:
    """Sends proposals, one request at a time. `request_timeout_ms` is the time limit for a response."""

    def __init__(
        self,
        node_id: int,
        peers: Peers,
        broker_epoch: Callable[[], int],
        controller_endpoint: Callable[[], Endpoint | None],
        request_timeout_ms: int,
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._broker_epoch = broker_epoch
        self._controller_endpoint = controller_endpoint
        self._timeout_ms = request_timeout_ms
        self._waiting: dict[tuple[str, int], tuple[ReplicatedPartition, Proposal]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._peer: Peer | None = None
        self._endpoint: Endpoint | None = None
        self._logged = ""
        self._closed = False
        self.shrinks = 0
        self.expands = 0
        self.failed = 0
        """The numbers of granted removals and additions of replicas, and of refused proposals."""

    def propose(self, partition: ReplicatedPartition, proposal: Proposal) -> None:
        """Queue a proposal. The new proposal replaces an earlier proposal of the same partition."""
        if self._closed:
            return
        self._waiting[partition.key] = partition, proposal
        if self._sending is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_all())

    def controller_changed(self) -> None:
        """Handle a possible change of the controller: stop waiting for the previous controller.

        The previous controller may be frozen, and then its connection stays open until the request times out. The
        partition epochs show whether the previous controller applied the request. (Apache Kafka's
        NodeToControllerRequestThread also switches to the new controller.)
        """
        endpoint = self._controller_endpoint()
        if self._peer is not None and endpoint is not None and endpoint != self._endpoint:
            self._peer.close()
            self._peer = None

    def close(self) -> None:
        """Stop all requests."""
        self._closed = True
        self._waiting.clear()
        if self._sending is not None:
            self._sending.cancel()
        if self._peer is not None:
            self._peer.close()

    async def _send_all(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # other proposals may follow in this turn of the event loop
                try:
                    await in_slices(self._send_some())
                except Exception:
                    log.exception("AlterPartition failed, and is tried again")
                    await asyncio.sleep(_CHECK_MS / 1000)
        finally:
            self._sending = None

    async def _send_some(self) -> None:
        batch = list(islice(self._waiting.values(), _AT_ONCE))
        batch = [each for each in batch if self._is_current(*each)]
        answer = await self._ask(batch)
        if answer is not None and await self._take(batch, answer):
            await asyncio.sleep(_RETRY_MS / 1000)

    def _is_current(self, partition: ReplicatedPartition, proposal: Proposal) -> bool:
        """Return whether a proposal is still valid; forget an invalid proposal."""
        if partition.leading and partition.leadership.proposed is proposal:
            return True
        self._forget(partition, proposal)
        return False

    def _forget(self, partition: ReplicatedPartition, proposal: Proposal) -> None:
        waiting = self._waiting.get(partition.key)
        if waiting is not None and waiting[1] is proposal:
            del self._waiting[partition.key]

    async def _ask(self, batch: list[tuple[ReplicatedPartition, Proposal]]) -> AlterPartitionResponse | None:
        """Send the batch and return the controller's response; return None if the batch has to be sent again."""
        if not batch:
            return None
        peer = self._controller()
        if peer is None:
            await asyncio.sleep(_CHECK_MS / 1000)
            return None
        request = AlterPartitionRequest(self._node_id, self._broker_epoch(), _topics(batch))
        try:
            answer = await peer.ask(request, _VERSION, AlterPartitionResponse, self._timeout_ms)
        except PeerUnavailable as error:
            self._log_trouble(str(error))
            await asyncio.sleep(_CHECK_MS / 1000)
            return None
        if answer.error_code == ErrorCode.NONE:
            self._logged = ""
            return answer
        self._log_trouble(f"error {answer.error_code}")
        pause_ms = _CHECK_MS if answer.error_code == ErrorCode.NOT_CONTROLLER else _RETRY_MS
        await asyncio.sleep(pause_ms / 1000)
        return None

    def _log_trouble(self, trouble: str) -> None:
        """Log a problem once instead of at each attempt."""
        if trouble != self._logged:
            self._logged = trouble
            log.warning("the controller does not change in-sync replicas, and is asked again: %s", trouble)

    def _controller(self) -> Peer | None:
        endpoint = self._controller_endpoint()
        if endpoint is None:
            return None
        if self._peer is None or endpoint != self._endpoint:
            if self._peer is not None:
                self._peer.close()
            self._peer = self._peers.peer(*endpoint, str(self._node_id))
            self._endpoint = endpoint
        return self._peer

    async def _take(self, batch: list[tuple[ReplicatedPartition, Proposal]], answer: AlterPartitionResponse) -> bool:
        """Apply a response; return whether any proposal has to be sent again."""
        again = False
        found = {(topic.topic_id, each.partition_index): each for topic in answer.topics for each in topic.partitions}
        for partition, proposal in batch:
            altered = found.get((partition.topic_id, partition.index))
            if altered is not None:
                self._forget(partition, proposal)
                self._altered(partition, proposal, altered)
            # also true if the response lacks the partition
            again |= self._waiting.get(partition.key) == (partition, proposal)
            await turn
        return again

    def _altered(self, partition: ReplicatedPartition, proposal: Proposal, altered: AlteredPartition) -> None:
        if altered.error_code == ErrorCode.NONE:
            granted = Granted(altered.leader_epoch, altered.partition_epoch, frozenset(altered.isr))
            self._count(len(granted.isr) - len(partition.isr))
            log.info("%s-%d: in sync are %s", partition.topic, partition.index, sorted(granted.isr))
            partition.granted(proposal, granted)
            return
        self.failed += 1
        code = known_error(altered.error_code)
        text = "%s-%d: the controller refuses %s as in-sync replicas: %s"
        log.info(text, partition.topic, partition.index, sorted(proposal.isr), code.name)
        if partition.refused(proposal, code):
            self._waiting[partition.key] = partition, proposal

    def _count(self, more: int) -> None:
        self.shrinks += more < 0
        self.expands += more > 0


def _topics(batch: list[tuple[ReplicatedPartition, Proposal]]) -> list[AlterPartitionTopic]:
    topics: dict[bytes, list[AlterPartitionData]] = {}
    for partition, proposal in batch:
        isr = [BrokerState(each, -1) for each in sorted(proposal.isr)]
        data = AlterPartitionData(
            partition_index=partition.index,
            leader_epoch=proposal.leader_epoch,
            new_isr_with_epochs=isr,
            partition_epoch=proposal.partition_epoch,
        )
        topics.setdefault(partition.topic_id, []).append(data)
    return [AlterPartitionTopic(topic_id, partitions) for topic_id, partitions in topics.items()]
