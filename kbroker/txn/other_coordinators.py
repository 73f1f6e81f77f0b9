"""Asks coordinators on other brokers, before an append, whether the partition is in the transaction (KIP-890).

Owns the batching into requests (AddPartitionsToTxn v5), one request at a time to each broker, and the error for a
missing response (AddPartitionsToTxnManager). Never retries: the producer retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, NamedTuple

from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ErrorCode, known_error
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kbroker.txn.shard import Identity
from kbroker.txn.transaction import TopicPartition

log = logging.getLogger(__name__)

VERSION: Final = 5
_AT_ONCE: Final = 200
"""The maximum number of transactions in a request."""
_REQUESTS_AT_ONCE: Final = 20
"""The number of transactions whose results are delivered in one turn of the event loop."""

Codes = Mapping[TopicPartition, ErrorCode]


class _Question(NamedTuple):
    producer: Identity
    partitions: tuple[TopicPartition, ...]
    verify_only: bool
    answer: asyncio.Future[Codes]

    def finish(self, code: ErrorCode) -> None:
        if not self.answer.done():
            self.answer.set_result(dict.fromkeys(self.partitions, code))


class OtherCoordinators:
    """The coordinators on other brokers.

    `coordinator_of` returns the broker that coordinates a transactional id, or None.
    """

    def __init__(
        self, node_id: int, coordinator_of: Callable[[str], int | None], by_node: PeersByNode, timeout_ms: float
    ) -> None:
        self._node_id = node_id
        self._coordinator_of = coordinator_of
        self._by_node = by_node
        self._timeout_ms = timeout_ms
        self._queues: dict[int, dict[str, _Question]] = {}  # the requests by broker and transactional id
        self._asking: dict[int, asyncio.Task[None]] = {}

    def is_here(self, transactional_id: str) -> bool:
        """Whether this broker coordinates a transactional id."""
        return self._coordinator_of(transactional_id) == self._node_id

    def ask(
        self, transactional_id: str, producer: Identity, partitions: Iterable[TopicPartition], *, verify_only: bool
    ) -> Codes | Awaitable[Codes]:
        """Return an error code for each partition: NONE if the partition is in the transaction, or was added to it.

        The code is COORDINATOR_NOT_AVAILABLE if no coordinator is known, NETWORK_EXCEPTION if there is no response. Of
        two queued requests with one transactional id, only the request with the newer epoch is sent.
        """
        wanted = tuple(partitions)
        node_id = self._coordinator_of(transactional_id)
        if node_id is None or not self._by_node.knows(node_id):
            return dict.fromkeys(wanted, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        queue = self._queues.setdefault(node_id, {})
        earlier = queue.get(transactional_id)
        if earlier is not None:
            if earlier.producer.epoch > producer.epoch:
                return dict.fromkeys(wanted, ErrorCode.INVALID_PRODUCER_EPOCH)
            # A request with the same epoch is the producer's retry.
            fenced = earlier.producer.epoch < producer.epoch
            earlier.finish(ErrorCode.INVALID_PRODUCER_EPOCH if fenced else ErrorCode.NETWORK_EXCEPTION)
        loop = asyncio.get_running_loop()
        question = _Question(producer, wanted, verify_only, loop.create_future())
        queue[transactional_id] = question
        if node_id not in self._asking:
            self._asking[node_id] = loop.create_task(self._ask_all(node_id, queue), name=f"verification at {node_id}")
        return question.answer

    def close(self) -> None:
        """Stop all requests."""
        for task in self._asking.values():
            task.cancel()
        for queue in self._queues.values():
            for question in queue.values():
                question.finish(ErrorCode.NETWORK_EXCEPTION)
            queue.clear()
        self._by_node.close()

    async def _ask_all(self, node_id: int, queue: dict[str, _Question]) -> None:
        asked: dict[str, _Question] = {}
        try:
            while queue:
                asked = {name: queue.pop(name) for name in list(queue)[:_AT_ONCE]}
                try:
                    await self._ask(node_id, asked)
                except Exception:
                    # The waiting callers must retry, and later requests must be sent.
                    log.exception("broker %d could not be asked about transactions", node_id)
                _give_up(asked)
        finally:
            del self._asking[node_id]
            _give_up(asked)

    async def _ask(self, node_id: int, asked: Mapping[str, _Question]) -> None:
        request = AddPartitionsToTxnRequest(transactions=[_transaction(name, each) for name, each in asked.items()])
        try:
            answer = await self._by_node.ask(node_id, request, VERSION, AddPartitionsToTxnResponse, self._timeout_ms)
        except PeerUnavailable as error:
            log.info("broker %d did not answer about transactions: %s", node_id, error)
            return
        if answer.error_code:
            code = known_error(answer.error_code)
            log.warning("broker %d refuses to answer about transactions: %s", node_id, code.name)
            if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                code = ErrorCode.INVALID_TXN_STATE  # this is a problem between brokers, and not a fault of the producer
            for question in asked.values():
                question.finish(code)
            return
        for number, result in enumerate(answer.results_by_transaction, 1):
            if number % _REQUESTS_AT_ONCE == 0:
                await asyncio.sleep(0)  # each result leads to an append
            question_of = asked.get(result.transactional_id)
            if question_of is None or question_of.answer.done():
                continue
            found = {
                (topic.name, partition.partition_index): known_error(partition.partition_error_code)
                for topic in result.topic_results
                for partition in topic.results_by_partition
            }
            question_of.answer.set_result(
                {each: found.get(each, ErrorCode.NETWORK_EXCEPTION) for each in question_of.partitions}
            )


def _give_up(asked: Mapping[str, _Question]) -> None:
    """Finish the requests that have no result."""
    for question in asked.values():
        question.finish(ErrorCode.NETWORK_EXCEPTION)


def _transaction(transactional_id: str, question: _Question) -> AddPartitionsToTxnTransaction:
    topics: dict[str, list[int]] = {}
    for topic, index in question.partitions:
        topics.setdefault(topic, []).append(index)
    return AddPartitionsToTxnTransaction(
        transactional_id,
        question.producer.producer_id,
        question.producer.epoch,
        question.verify_only,
        [AddPartitionsToTxnTopic(name, indexes) for name, indexes in topics.items()],
    )
