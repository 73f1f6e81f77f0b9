"""One partition of any Kafka: writes in transactions with a fixed transactional id, and reads of committed records.

Owns the requests of a transaction and their order: InitProducerId fences the writer that used the id before; then for
each transaction AddPartitionsToTxn, Produce, EndTxn. Owns the connection, and opens a new connection after each
failure. Uses the versions of transactions before KIP-890, which every broker since 0.11 serves. Never decides what to
write, and does not know the meaning of a record.

All methods wait for the network, so they belong on a thread. Only one method may run at a time. The exception is
`close`: any thread may call it at any time, and it ends a method that waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from kafka.errors import KafkaError

from kbroker.admin.cluster_view import TopicView
from kbroker.admin.connection import Connection
from kbroker.admin.errors import AdminError, code_error, error_text
from kbroker.admin.fetching import Piece, UnreadableBatch, fetch
from kbroker.admin.own_request import ask_any, ask_broker
from kbroker.coordination.shard import CoordinatorRecord
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.messages.groups import FindCoordinatorRequest, FindCoordinatorResponse
from kbroker.protocol.messages.logs import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from kbroker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from kbroker.protocol.records import build_batch

T = TypeVar("T")
TRANSACTION_MS: Final = 10_000
"""The maximum duration of a transaction in ms, after which the broker ends it. Usually it takes some milliseconds."""
_REQUEST_MS: Final = 5_000
_STEP_S: Final = 5.0
"""The seconds for which a step is retried while its broker asks for a retry."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1
_LATEST: Final = -1
_A_CLIENT: Final = -1
"""The replica id of a client."""
_OF_TRANSACTION: Final = 1
"""FindCoordinator's key type for transactional ids."""
# The last versions before KIP-890. With newer versions, a client states that it supports an epoch per transaction.
_INIT, _ADD, _PRODUCE, _END = 4, 3, 11, 4
_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
_FENCED: Final = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Fenced(AdminError):  # noqa: N818 - an outcome
    """Another writer has used the transactional id, or the broker has ended the transaction: call `begin` again."""


class TooLarge(AdminError):  # noqa: N818 - an outcome
    """The broker refuses a record of this size."""


class PartitionDenied(AdminError):  # noqa: N818 - an outcome
    """The broker refuses the request for a permanent reason, for example a missing right."""


class Unanswered(AdminError):  # noqa: N818 - an outcome
    """The broker did not answer within the time; it may have executed the request."""


class TransactionalPartition:
    """Partition 0 of a topic. The function `place` returns the topic, or creates it."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        transactional_id: str,
        place: Callable[[Any], TopicView],
    ) -> None:
        settings = {"request_timeout_ms": _REQUEST_MS, **connection.settings}
        self._connection = replace(connection, settings=settings)
        self._topic = topic
        self._id = transactional_id
        self._place = place
        self._admin: Any = None
        self._view: TopicView | None = None
        self._topic_id: Any = None
        self._coordinator: int | None = None
        self._producer = (-1, -1)
        self._sequence = 0
        self._closed = False
        self.topics_seen = 0
        """The number of topics with this name so far. A topic that was created anew counts again."""

    # -- the steps of a writer; all raise Fenced, TooLarge, PartitionDenied and Unanswered

    def begin(self) -> None:
        """Fence the earlier writer, and end its open transaction, so that this object is the only writer."""

        def ask(until: float) -> tuple[int, Any]:
            request = InitProducerIdRequest(self._id, TRANSACTION_MS)
            answer = ask_broker(self._client(), self._found(until), request, InitProducerIdResponse, at_most=_INIT)
            return answer.error_code, answer

        answer = self._patiently("begin", ask)
        self._producer, self._sequence = (answer.producer_id, answer.producer_epoch), 0

    def join(self) -> None:
        """Begin a transaction; return after the markers of the previous transaction are in the log."""

        def ask(until: float) -> tuple[int, Any]:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=self._producer[0],
                v3_and_below_producer_epoch=self._producer[1],
                v3_and_below_topics=[AddPartitionsToTxnTopic(self._topic, [0])],
                transactions=[],
            )
            answer = ask_broker(self._client(), self._found(until), request, AddPartitionsToTxnResponse, at_most=_ADD)
            results = [each for topic in answer.results_by_topic_v3_and_below for each in topic.results_by_partition]
            return results[0].partition_error_code if results else ErrorCode.UNKNOWN_SERVER_ERROR, None

        self._patiently("add the partition to the transaction", ask)

    def append(self, records: Sequence[CoordinatorRecord]) -> int:
        """Write records in the transaction, as one batch; return the offset of the first record.

        After an error the caller must call `begin` again.
        """
        now_ms = int(time.time() * 1000)
        batch = build_batch(
            [(now_ms, key, value, ()) for key, value in records],
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequence,
            transactional=True,
        )

        def ask(_until: float) -> tuple[int, Any]:
            view = self._looked_up()
            data = TopicProduceData(self._topic, view.topic_id, [PartitionProduceData(0, batch)])
            request = ProduceRequest(self._id, -1, _REQUEST_MS, [data])
            answer = ask_broker(self._client(), self._leader(view), request, ProduceResponse, at_most=_PRODUCE)
            found = answer.responses[0].partition_responses[0]
            # The broker recognizes a repeated batch by its sequence number, writes the batch once, and returns the
            # first offset.
            return found.error_code, found.base_offset

        base: int = self._patiently("write", ask)
        self._sequence += len(records)
        return base

    def end(self, *, commit: bool) -> None:
        """End the transaction."""

        def ask(until: float) -> tuple[int, Any]:
            request = EndTxnRequest(self._id, *self._producer, commit)
            answer = ask_broker(self._client(), self._found(until), request, EndTxnResponse, at_most=_END)
            return answer.error_code, None

        self._patiently("commit" if commit else "abort", ask)

    # -- reading

    def end_offset(self) -> int:
        """Return the high watermark: every record that was acknowledged so far is before it.

        Retries while a newly elected leader does not know its high watermark yet (KIP-207).
        """

        def ask(_until: float) -> tuple[int, Any]:
            view = self._looked_up()
            wanted = ListOffsetsPartition(0, view.partitions[0].leader_epoch, _LATEST)
            request = ListOffsetsRequest(
                _A_CLIENT, topics=[ListOffsetsTopic(self._topic, [wanted])], timeout_ms=_REQUEST_MS
            )
            answer = ask_broker(self._client(), self._leader(view), request, ListOffsetsResponse)
            found = answer.topics[0].partitions[0]
            return found.error_code, found.offset

        end: int = self._patiently("ask for the end", ask)
        return end

    def read(self, offset: int, wait_ms: int = 0) -> tuple[Piece, UnreadableBatch | None]:
        """Return committed records from an offset on. If the batch after these records cannot be read, return it, too.

        Waits for the first record for at most `wait_ms`.
        """

        def ask(_until: float) -> tuple[int, Any]:
            try:
                return ErrorCode.NONE, (self._fetched(offset, wait_ms), None)
            except UnreadableBatch as broken:
                return ErrorCode.NONE, (Piece(next_offset=broken.next_offset), broken)

        found: tuple[Piece, UnreadableBatch | None] = self._patiently("read", ask)
        return found

    def _fetched(self, offset: int, wait_ms: int) -> Piece:
        view = self._looked_up()
        key = (self._topic, 0)
        leader = {key: self._leader(view)}
        epochs = {key: view.partitions[0].leader_epoch}
        ids = {self._topic: view.topic_id}
        return fetch(self._client(), leader, {key: offset}, ids, committed=True, wait_ms=wait_ms, epochs=epochs)[key]

    def topic(self) -> TopicView:
        """Return the topic, or create it; raises the exceptions of `place` unchanged."""
        try:
            return self._looked_up()
        except BaseException:
            self._drop()
            raise

    # -- the connection

    def close(self) -> None:
        """Close the connection, also while another thread waits in a method."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        admin, self._admin = self._admin, None
        self._view = self._coordinator = None
        if admin is not None:
            with contextlib.suppress(Exception):  # the client is dropped, whether or not the close succeeds
                admin.close()

    def _client(self) -> Any:
        self._end_if_closed()
        if self._admin is None:
            self._admin = self._connection.open_admin()
            self._end_if_closed()
        return self._admin

    def _end_if_closed(self) -> None:
        if self._closed:
            self._drop()
            raise PartitionDenied("the connection is closed")

    def _looked_up(self) -> TopicView:
        if self._view is None:
            self._view = self._place(self._client())
            if self.topics_seen == 0 or self._view.topic_id != self._topic_id:
                self.topics_seen += 1
                self._topic_id = self._view.topic_id
        return self._view

    @staticmethod
    def _leader(view: TopicView) -> int:
        leader: int = view.partitions[0].leader_id
        if leader < 0:
            raise Unanswered(f"{view.name}-0 has no leader")
        return leader

    def _found(self, _until: float) -> int:
        """Return the broker that coordinates the transactional id."""
        if self._coordinator is None:
            request = FindCoordinatorRequest(self._id, _OF_TRANSACTION, [self._id])
            answer = ask_any(self._client(), request, FindCoordinatorResponse)
            assert answer is not None
            found = answer.coordinators[0] if answer.coordinators else answer
            if found.error_code in _AGAIN:
                raise Unanswered(error_text(code_error(found.error_code), found.error_message))
            self._check(found.error_code, "find the coordinator")
            self._coordinator = found.node_id
        return self._coordinator

    def _patiently(self, what: str, ask: Callable[[float], tuple[int, T]]) -> T:
        """Return the answer to a step; retry the step while the broker asks for a retry or cannot be reached."""
        until = time.monotonic() + _STEP_S
        pause = _PAUSE_S
        while True:
            try:
                code, answer = ask(until)
                if code not in _AGAIN:
                    self._check(code, what)
                    return answer
                reason = error_text(code_error(code))
                if code != ErrorCode.CONCURRENT_TRANSACTIONS:
                    self._view = self._coordinator = None
            except (Fenced, TooLarge, PartitionDenied):
                raise
            except Exception as error:  # if another thread closes the client, the client may raise any exception
                if isinstance(error, AdminError) and not _passes(error):
                    raise
                is_coded = isinstance(error, KafkaError) and hasattr(error, "errno")
                reason = error_text(error) if is_coded else str(error) or type(error).__name__
                self._drop()
            if self._closed or time.monotonic() + pause > until:
                raise Unanswered(f"Kafka does not {what}: {reason}")
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    @staticmethod
    def _check(code: int, what: str) -> None:
        if code == ErrorCode.NONE:
            return
        text = f"Kafka does not {what}: {error_text(code_error(code))}"
        if code in _FENCED:
            raise Fenced(text)
        if code in _TOO_LARGE:
            raise TooLarge(text)
        raise PartitionDenied(text)


def _passes(error: AdminError) -> bool:
    """Whether a retry may succeed after this failure."""
    refused = getattr(error, "error", None)  # PartitionRefused
    return (
        refused is None
        or bool(refused.retriable)
        or refused.__name__ in ("UnknownTopicIdError", "UnknownTopicOrPartitionError")
    )
