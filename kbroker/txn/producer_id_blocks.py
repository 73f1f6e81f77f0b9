"""Producer ids of a node of a cluster, from blocks that the controller allocates (KIP-730, RPCProducerIdManager).

Owns the current block and the next one, which is requested when nine tenths of this one are used. Nobody waits for a
block: without one, a request for an id fails with COORDINATOR_LOAD_IN_PROGRESS, and the client retries. An id is used
once in the life of the cluster; the rest of a block is lost when the broker ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from kbroker.clock import Clock
from kbroker.peers.interface import PeerGone, PeersByNode
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.to_controller import AllocateProducerIdsRequest, AllocateProducerIdsResponse

log = logging.getLogger(__name__)

VERSION: Final = 0
RETRY_MS: Final = 50
"""The pause after the controller has refused."""
_LAST: Final = 2**63 - 1
_NOTHING: Final = range(0)


class ProducerIdBlocks:
    """One broker's supply of producer ids. `broker_epoch` returns the epoch of its registration.

    `controller_id` returns the id of the controller, -1 without one.
    """

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        controller_id: Callable[[], int],
        ways: PeersByNode,
        clock: Clock,
        timeout_ms: float,
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._controller_id = controller_id
        self._ways = ways
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._current = _NOTHING  # the rest of it
        self._prefetch_at = -1  # the id at which the next block is requested
        self._spare: range | None = None
        self._asking: asyncio.Task[None] | None = None
        self._asked = -1
        """The controller of the current or last request."""
        self._not_before_ms = 0.0

    def next(self) -> int:
        """Return an id that no producer has had; raises ApiError while none is available."""
        if not self._current:
            if not self._spare:
                self._ask_for_more()
                raise ApiError(
                    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "Producer ID block is full. Waiting for next block"
                )
            self._current, self._spare = self._spare, None
            self._prefetch_at = self._current.start + len(self._current) * 9 // 10
        given = self._current.start
        self._current = self._current[1:]
        if given == self._prefetch_at:
            self._ask_for_more()
        return given

    def avoid(self, used: int) -> None:
        """Do nothing: ZooKeeper knows all allocated blocks."""

    def close(self) -> None:
        """Stop all requests."""
        if self._asking is not None:
            self._asking.cancel()

    def _ask_for_more(self) -> None:
        controller = self._controller_id()
        if self._asking is not None and controller >= 0 and controller != self._asked:
            # The previous controller may be frozen. A block that it has allocated after all stays unused.
            self._asking.cancel()
            self._asking = None
        if self._asking is None and not self._spare and self._clock.monotonic_ms() >= self._not_before_ms:
            self._asked = controller
            self._asking = asyncio.get_running_loop().create_task(self._ask(controller), name="a block of producer ids")

    async def _ask(self, controller: int) -> None:
        request = AllocateProducerIdsRequest(self._node_id, self._broker_epoch())
        try:
            answer = await self._ways.ask(controller, request, VERSION, AllocateProducerIdsResponse, self._timeout_ms)
            self._spare = self._block(answer)
        except PeerGone as gone:
            log.warning("the controller gave no producer ids: %s", gone)
        finally:
            if self._asking is asyncio.current_task():  # otherwise another controller was asked meanwhile
                self._asking = None
                if self._spare is None:
                    self._not_before_ms = self._clock.monotonic_ms() + RETRY_MS

    def _block(self, answer: AllocateProducerIdsResponse) -> range | None:
        """Return the block in a response, None if it has no usable one."""
        first, count = answer.producer_id_start, answer.producer_id_len
        if answer.error_code:
            log.warning("the controller gave no producer ids: error %d", answer.error_code)
        elif first < 0 or count <= 0 or first > _LAST - count or (self._current and first < self._current.stop):
            log.error("the controller gave producer ids that cannot be: %d from %d on", count, first)
        else:
            return range(first, first + count)
        return None
