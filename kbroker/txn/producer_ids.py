"""Producer ids from blocks that the controller reserves permanently (KIP-730), on a single node and in a cluster.

Owns the current block, and the next block. Never reuses an id: the rest of a block is lost at a restart. A single node
reserves the next block when half of the current block is used. The reservation is on disk before the block is needed,
so no request waits for the disk. A node of a cluster requests the next block from the controller when nine tenths are
used (RPCProducerIdManager). No request waits for this block: if there is no block, a request for an id fails with
COORDINATOR_LOAD_IN_PROGRESS, and the client retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kbroker.clock import Clock
from kbroker.log.producers.producer_state import CREDIBLE_IDS
from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.protocol.messages.inter_broker import AllocateProducerIdsRequest, AllocateProducerIdsResponse

log = logging.getLogger(__name__)

BLOCK = 1000
VERSION: Final = 0
RETRY_MS: Final = 50
"""The pause in ms after the controller has refused a request."""
_LAST: Final = 2**63 - 1
_NOTHING: Final = range(0)


class ProducerIds:
    """The supply of a single node.

    `reserve(count)` returns the first id of a new block; `skip(least)` excludes ids below `least` from all later
    blocks; `settle()` returns when the reservation is durable.
    """

    def __init__(
        self, reserve: Callable[[int], int], skip: Callable[[int], None], settle: Callable[[], None] = lambda: None
    ) -> None:
        self._reserve = reserve
        self._skip = skip
        self._settle = settle
        self._spare = -1  # the first id of the next block
        self._next = 0
        self._end = 0

    def avoid(self, used: int) -> None:
        """Never supply an id up to `used`, because a log contains this id. Another broker may have written the log."""
        if used >= CREDIBLE_IDS:
            return  # such a high id is not from a broker; avoiding it would exhaust the supply
        if used >= self._end:
            self._skip(used + 1)
            self._spare = -1
        self._next = min(max(self._next, used + 1), self._end)

    def next(self) -> int:
        """Return an id that was never supplied before."""
        if self._next == self._end:
            first = self._spare if self._spare >= 0 else self._reserve(BLOCK)
            self._settle()
            self._next, self._end, self._spare = first, first + BLOCK, -1
        self._next += 1
        if self._end - self._next == BLOCK // 2:
            self._reserve_ahead()
        return self._next - 1

    def _reserve_ahead(self) -> None:
        with suppress(OSError):  # the reservation is retried when it is needed
            self._spare = self._reserve(BLOCK)


class ProducerIdBlocks:
    """The supply of a node in a cluster. `broker_epoch` returns the epoch of the node's registration.

    `controller_id` returns the id of the controller, -1 if there is none.
    """

    def __init__(
        self,
        node_id: int,
        broker_epoch: Callable[[], int],
        controller_id: Callable[[], int],
        peers: PeersByNode,
        clock: Clock,
        timeout_ms: float,
    ) -> None:
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._controller_id = controller_id
        self._peers = peers
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._current = _NOTHING  # the unused rest of the current block
        self._prefetch_at = -1  # the id at which the next block is requested
        self._spare: range | None = None
        self._asking: asyncio.Task[None] | None = None
        self._asked = -1
        """The controller of the current or last request."""
        self._not_before_ms = 0.0

    def next(self) -> int:
        """Return an id that was never supplied before; raises ApiError while no id is available."""
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
            # The previous controller may have hung. If that controller allocates a block after all, the block stays
            # unused.
            self._asking.cancel()
            self._asking = None
        if self._asking is None and not self._spare and self._clock.monotonic_ms() >= self._not_before_ms:
            self._asked = controller
            self._asking = asyncio.get_running_loop().create_task(self._ask(controller), name="a block of producer ids")

    async def _ask(self, controller: int) -> None:
        request = AllocateProducerIdsRequest(self._node_id, self._broker_epoch())
        try:
            answer = await self._peers.ask(controller, request, VERSION, AllocateProducerIdsResponse, self._timeout_ms)
            self._spare = self._block(answer)
        except PeerUnavailable as error:
            log.warning("the controller gave no producer ids: %s", error)
        finally:
            if self._asking is asyncio.current_task():  # if not, a request to another controller has replaced this one
                self._asking = None
                if self._spare is None:
                    self._not_before_ms = self._clock.monotonic_ms() + RETRY_MS

    def _block(self, answer: AllocateProducerIdsResponse) -> range | None:
        """Return the block in a response; None if the response has no usable block."""
        first, count = answer.producer_id_start, answer.producer_id_len
        if answer.error_code:
            log.warning("the controller gave no producer ids: error %d", answer.error_code)
        elif first < 0 or count <= 0 or first > _LAST - count or (self._current and first < self._current.stop):
            log.error("the controller returned impossible producer ids: %d from %d on", count, first)
        else:
            return range(first, first + count)
        return None
