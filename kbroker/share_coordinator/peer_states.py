"""Requests to the share coordinators on other brokers: the state of share partitions, over the network.

Owns the five operations as messages, and the batching of waiting questions: one request contains the share partitions
of one group for one operation, and each broker gets one request at a time (Kafka: PersisterStateManager). Never
retries: the caller retries, and looks up the coordinator again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from kbroker.peers.interface import PeersByNode, PeerUnavailable
from kbroker.protocol.errors import ErrorCode, known_error
from kbroker.protocol.messages import share_state as messages
from kbroker.share_coordinator.persister import Done, State, Summary
from kbroker.share_coordinator.share_partition_state import SharePartition, batches_from_wire

log = logging.getLogger(__name__)

_PARTITIONS_AT_ONCE: Final = 100
_BATCHES_AT_ONCE: Final = 1_000
"""The maximum number of share partitions and state batches of a request.

Encoding more would block the event loop for more than a millisecond. A share partition with more batches gets a request
of its own.
"""
NO_ANSWER: Final = ErrorCode.NETWORK_EXCEPTION
"""The error if no answer arrived. The coordinator may or may not have performed the operation."""

A = TypeVar("A", Done, State, Summary)


@dataclass(frozen=True, slots=True)
class Operation(Generic[A]):
    """An operation of the share coordinator as messages. `read` creates the result of a partition in the response."""

    request: Any
    topic: Any
    response: Any
    version: int
    read: Callable[[Any], A]
    failed: Callable[[ErrorCode, str | None], A]


def _failed_read(code: ErrorCode, message: str | None) -> State:
    return State(code, message=message)


def _failed_summary(code: ErrorCode, message: str | None) -> Summary:
    return Summary(code, message=message)


def _done(found: messages.PartitionResult) -> Done:
    return Done(known_error(found.error_code), found.error_message)


def _state(found: messages.PartitionState) -> State:
    batches = tuple(batches_from_wire(found.state_batches))
    return State(known_error(found.error_code), found.state_epoch, found.start_offset, batches, found.error_message)


def _summary(found: messages.PartitionSummary) -> Summary:
    return Summary(
        known_error(found.error_code),
        found.state_epoch,
        found.leader_epoch,
        found.start_offset,
        found.delivery_complete_count,
        found.error_message,
    )


INITIALIZE: Final = Operation(
    messages.InitializeShareGroupStateRequest,
    messages.InitializedTopic,
    messages.InitializeShareGroupStateResponse,
    0,
    _done,
    Done,
)
READ: Final = Operation(
    messages.ReadShareGroupStateRequest,
    messages.TopicToRead,
    messages.ReadShareGroupStateResponse,
    0,
    _state,
    _failed_read,
)
WRITE: Final = Operation(
    messages.WriteShareGroupStateRequest,
    messages.TopicToWrite,
    messages.WriteShareGroupStateResponse,
    1,
    _done,
    Done,
)
DELETE: Final = Operation(
    messages.DeleteShareGroupStateRequest,
    messages.TopicToDelete,
    messages.DeleteShareGroupStateResponse,
    0,
    _done,
    Done,
)
SUMMARY: Final = Operation(
    messages.ReadShareGroupStateSummaryRequest,
    messages.TopicToRead,
    messages.ReadShareGroupStateSummaryResponse,
    1,
    _summary,
    _failed_summary,
)


class _Asked(NamedTuple):
    """A waiting question about one share partition. `wanted` is the question's entry in the request."""

    place: SharePartition
    wanted: Any
    size: int
    until: float
    """The time of the loop's clock until which the question may wait to be sent."""
    answer: asyncio.Future[Any]


class _Queue(NamedTuple):
    """The questions that wait for one broker, with the same operation and group."""

    operation: Operation[Any]
    waiting: deque[_Asked]


_Line = tuple[int, str]
"""The API key of an operation, and a group."""


class PeerStates:
    """The share coordinators on other brokers. A request that is not answered within `timeout_ms` has failed.

    A call also fails if its request is not sent within `timeout_ms`: many groups may wait for a broker that never
    answers.
    """

    def __init__(self, by_node: PeersByNode, timeout_ms: float) -> None:
        self._by_node = by_node
        self._timeout_ms = timeout_ms
        self._queues: dict[int, dict[_Line, _Queue]] = {}
        self._sending: dict[int, asyncio.Task[None]] = {}
        self._is_closed = False

    async def ask(self, node_id: int, operation: Operation[A], place: SharePartition, wanted: Any) -> A:
        """Return a broker's answer about one share partition. If there is no answer, return the error NO_ANSWER."""
        if self._is_closed:
            return operation.failed(NO_ANSWER, None)
        loop = asyncio.get_running_loop()
        size = len(getattr(wanted, "state_batches", ()))
        asked = _Asked(place, wanted, size, loop.time() + self._timeout_ms / 1000, loop.create_future())
        lines, line = self._queues.setdefault(node_id, {}), (operation.request.KEY, place.group)
        if line not in lines:
            lines[line] = _Queue(operation, deque())
        lines[line].waiting.append(asked)
        if node_id not in self._sending:
            self._sending[node_id] = loop.create_task(self._send_all(node_id), name=f"share states of {node_id}")
        answer: A = await asked.answer
        return answer

    def brokers_changed(self) -> None:
        """Cancel requests to brokers that are gone or have new addresses. Such requests will not be answered."""
        self._by_node.drop_gone()

    def close(self) -> None:
        """Stop all requests. Waiting questions get NO_ANSWER."""
        self._is_closed = True
        for task in self._sending.values():
            task.cancel()
        for lines in self._queues.values():
            for operation, waiting in lines.values():
                _answer(operation, waiting, {})
        self._by_node.close()

    async def _send_all(self, node_id: int) -> None:
        lines, loop = self._queues[node_id], asyncio.get_running_loop()
        try:
            while lines:
                line = next(iter(lines))
                operation, waiting = lines.pop(line)
                sent = _take(waiting)
                if waiting:
                    lines[line] = _Queue(operation, waiting)  # the rest of the questions goes to the end of the queue
                answers: dict[SharePartition, Any] = {}
                try:
                    if loop.time() < sent[0].until:
                        answers = await self._send(node_id, operation, sent)
                    else:
                        await asyncio.sleep(0)
                finally:
                    _answer(operation, sent, answers)
        finally:
            del self._sending[node_id]
            if not lines:
                self._queues.pop(node_id, None)

    async def _send(self, node_id: int, operation: Operation[Any], sent: list[_Asked]) -> dict[SharePartition, Any]:
        group = sent[0].place.group
        topics: dict[bytes, Any] = {}
        for each in sent:
            topic = topics.get(each.place.topic_id)
            if topic is None:
                topic = topics[each.place.topic_id] = operation.topic(each.place.topic_id, [])
            topic.partitions.append(each.wanted)
        request = operation.request(group_id=group, topics=list(topics.values()))
        try:
            response = await self._by_node.ask(
                node_id, request, operation.version, operation.response, self._timeout_ms
            )
        except PeerUnavailable as error:
            log.info("broker %d did not answer for group %s: %s", node_id, group, error)
            return {}
        except Exception:
            # The waiting callers must continue, and later questions must be sent.
            log.exception("the share coordinator on broker %d could not be asked", node_id)
            return {}
        return {
            SharePartition(group, bytes(topic.topic_id), found.partition): operation.read(found)
            for topic in response.results
            for found in topic.partitions
        }


def _take(waiting: deque[_Asked]) -> list[_Asked]:
    """Remove the questions for the next request from the queue, in order. Return at most one per share partition."""
    taken: dict[SharePartition, _Asked] = {}
    size = 0
    while waiting and len(taken) < _PARTITIONS_AT_ONCE:
        following = waiting[0]
        if following.place in taken or (taken and size + following.size > _BATCHES_AT_ONCE):
            break
        taken[following.place] = waiting.popleft()
        size += following.size
    return list(taken.values())


def _answer(operation: Operation[Any], sent: Iterable[_Asked], answers: Mapping[SharePartition, Any]) -> None:
    for each in sent:
        if not each.answer.done():
            answer = answers.get(each.place)
            each.answer.set_result(operation.failed(NO_ANSWER, None) if answer is None else answer)
