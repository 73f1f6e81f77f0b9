"""Transactions as described by their coordinators, and by the leaders of partitions with open transactions.

Owns the requests of KIP-664, which kafka-python lacks, and the definition of a hanging transaction. Never prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kafka.errors import IncompatibleBrokerVersion

from kbroker.admin.errors import AdminError, check_code, code_error, error_text
from kbroker.admin.own_request import ask_any, ask_broker, live_brokers
from kbroker.admin.placement import Key, leaders
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kbroker.protocol.messages.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    TopicRequest,
    TransactionState,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

T = TypeVar("T")
_TRANSACTION: Final = 1
"""FindCoordinator's key type for transactional ids."""
_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
_PATIENCE_S: Final = 15.0
_PAUSE_S: Final = 0.1
_OPEN: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id with the broker that coordinates it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class Open:
    """An open transaction in a partition, with the state of its producer on the leader."""

    topic: str
    partition: int
    producer: ProducerState


def listed(
    admin: Any,
    states: Sequence[str] = (),
    producer_ids: Sequence[int] = (),
    longer_than_ms: int = -1,
    pattern: str | None = None,
) -> list[Listed]:
    """Return the transactional ids of all brokers. Raises AdminError if a broker does not support a filter."""
    request = ListTransactionsRequest(list(states), list(producer_ids), longer_than_ms, pattern or None)
    at_least = 2 if pattern else 1 if longer_than_ms >= 0 else 0
    found: list[Listed] = []
    for broker in live_brokers(admin):
        answer = _retried(lambda: _list(admin, broker, request, at_least), "list transactions")  # noqa: B023 - at once
        if answer.unknown_state_filters:
            raise AdminError(f"no such state: {', '.join(answer.unknown_state_filters)}")
        found += [
            Listed(each.transactional_id, broker, each.producer_id, each.transaction_state)
            for each in answer.transaction_states
        ]
    return sorted(found, key=lambda each: each.transactional_id)


def _list(
    admin: Any, broker: int, request: ListTransactionsRequest, at_least: int
) -> tuple[int, str | None, ListTransactionsResponse]:
    try:
        answer = ask_broker(admin, broker, request, ListTransactionsResponse, at_least)
    except IncompatibleBrokerVersion:
        raise AdminError(f"broker {broker} does not support this filter of transactions") from None
    return answer.error_code, None, answer


def described(admin: Any, transactional_id: str) -> tuple[int, TransactionState] | None:
    """Return the coordinator of an id, and the coordinator's description of the id; None if the id does not exist."""

    def ask() -> tuple[int, str | None, tuple[int, TransactionState] | None]:
        coordinator = _coordinator(admin, transactional_id)
        request = DescribeTransactionsRequest([transactional_id])
        (state,) = ask_broker(admin, coordinator, request, DescribeTransactionsResponse).transaction_states
        if state.error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return 0, None, None
        return state.error_code, None, (coordinator, state)

    return _retried(ask, f"describe transactional id {transactional_id}")


def terminated(admin: Any, state: TransactionState) -> None:
    """Let a coordinator abort an open transaction and fence its producer, as a new producer with the same id does."""

    def ask() -> tuple[int, str | None, None]:
        coordinator = _coordinator(admin, state.transactional_id)
        request = InitProducerIdRequest(state.transactional_id, state.transaction_timeout_ms)
        return ask_broker(admin, coordinator, request, InitProducerIdResponse).error_code, None, None

    _retried(ask, f"terminate transactional id {state.transactional_id}")


def _coordinator(admin: Any, transactional_id: str) -> int:
    def ask() -> tuple[int, str | None, int]:
        request = FindCoordinatorRequest(transactional_id, _TRANSACTION, [transactional_id])
        answer = ask_any(admin, request, FindCoordinatorResponse)
        assert answer is not None
        found = answer.coordinators[0] if answer.coordinators else answer
        return found.error_code, found.error_message, found.node_id

    return _retried(ask, f"find the coordinator of {transactional_id}")


def producers(admin: Any, broker: int, wanted: Iterable[Key]) -> Iterator[tuple[Key, list[ProducerState]]]:
    """Yield the states of producers that a broker has for partitions. Raises AdminError."""
    topics: dict[str, list[int]] = {}
    for topic, index in wanted:
        topics.setdefault(topic, []).append(index)
    request = DescribeProducersRequest([TopicRequest(name, indexes) for name, indexes in topics.items()])
    answer = ask_broker(admin, broker, request, DescribeProducersResponse)
    for topic_result in answer.topics:
        for each in topic_result.partitions:
            what = f"cannot describe the producers of {topic_result.name}-{each.partition_index}"
            check_code(each.error_code, what, each.error_message)
            yield (topic_result.name, each.partition_index), each.active_producers


def hanging(admin: Any, wanted: dict[Key, int], older_than_ms: int) -> list[Open]:
    """Return the transactions that no coordinator knows and that have been open on leaders for longer than a time."""
    now_ms = time.time() * 1000
    found: list[Open] = []
    for broker in sorted({leader for leader in wanted.values() if leader >= 0}):
        led = [key for key, leader in wanted.items() if leader == broker]
        for (topic, index), states in producers(admin, broker, led):
            found += [
                Open(topic, index, each)
                for each in states
                if each.current_txn_start_offset >= 0 and now_ms - each.last_timestamp > older_than_ms
            ]
    known = known_open(admin, {each.producer.producer_id for each in found})
    return [each for each in found if (each.producer.producer_id, (each.topic, each.partition)) not in known]


def known_open(admin: Any, producer_ids: Iterable[int]) -> dict[tuple[int, Key], TransactionState]:
    """Return the transactions that are open according to their coordinators, by producer and partition."""
    wanted = sorted(producer_ids)
    found: dict[tuple[int, Key], TransactionState] = {}
    for each in listed(admin, producer_ids=wanted) if wanted else ():
        now = described(admin, each.transactional_id) if each.state in _OPEN else None
        if now is not None and now[1].transaction_state in _OPEN:
            for topic in now[1].topics:
                found.update({(now[1].producer_id, (topic.topic, index)): now[1] for index in topic.partitions})
    return found


def aborted(admin: Any, broker: int, key: Key, producer: ProducerState) -> None:
    """Make a leader append the marker that aborts a transaction in one partition. Raises AdminError."""
    topic, index = key
    marker = WritableTxnMarker(
        producer.producer_id,
        producer.producer_epoch,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(topic, [index])],
        coordinator_epoch=max(producer.coordinator_epoch, 0),
    )
    answer = ask_broker(admin, broker, WriteTxnMarkersRequest([marker]), WriteTxnMarkersResponse)
    for each in answer.markers:
        for topic_result in each.topics:
            for result in topic_result.partitions:
                check_code(result.error_code, f"cannot abort in {topic}-{index}")


def abort_at(admin: Any, key: Key, start_offset: int, *, force: bool) -> ProducerState:
    """Abort the transaction that begins at an offset of a partition, and return its producer. Raises AdminError.

    A transaction that its coordinator knows is not hanging; it is aborted only with `force`.
    """
    topic, partition = key
    leader = leaders(admin, topic, partition)[key]
    ((_, found),) = producers(admin, leader, [key])
    open_at = {each.current_txn_start_offset: each for each in found if each.current_txn_start_offset >= 0}
    producer = open_at.get(start_offset)
    if producer is None:
        begin = ", ".join(map(str, sorted(open_at)))
        there = f"those that are open begin at {begin}" if begin else "none is open there"
        raise AdminError(f"no transaction begins at offset {start_offset} of {topic}-{partition}; {there}")
    known = None if force else known_open(admin, [producer.producer_id]).get((producer.producer_id, key))
    if known is not None:
        name = known.transactional_id
        remedy = f"`kbroker transaction terminate {name}` aborts it everywhere; --force here only"
        raise AdminError(f"it does not hang: {name} is {known.transaction_state}. {remedy}")
    aborted(admin, leader, key, producer)
    return producer


def _retried(ask: Callable[[], tuple[int, str | None, T]], what: str) -> T:
    """Retry until the cluster is ready. Raises AdminError."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        code, message, answer = ask()
        error = code_error(code)
        if error is None:
            return answer
        if code not in _AGAIN or time.monotonic() > deadline:
            raise AdminError(f"cannot {what}: {error_text(error, message)}")
        time.sleep(_PAUSE_S)
