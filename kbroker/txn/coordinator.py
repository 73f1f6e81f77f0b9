"""The transaction coordinator's interface for handlers: one method per request.

Owns the checks that need no transaction, and the form of answers. Never decides about a transaction: shard.py does.

A method returns its answer, or an awaitable of its answer if the high watermark has not reached the write. If a request
is refused, the answer has an error code; the handlers convert codes for older clients.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import NamedTuple

from kbroker.clock import Clock
from kbroker.cluster_state import TRANSACTIONS_TOPIC
from kbroker.coordination.service import CoordinatorService
from kbroker.coordination.shard import Outcome, Writer
from kbroker.failpoints import passed
from kbroker.long_work import then
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.txn.marker_sender import RETRY_MS, MarkerWriter, Marking
from kbroker.txn.shard import NO_IDENTITY, Identity, ProducerIdSupply, TransactionConfig, TransactionShard
from kbroker.txn.transaction import TopicPartition, Transaction

_ANSWERS = {ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE}
"""Conversions of errors of the coordinator's own log to errors for producers.

These conversions supplement the runtime's conversions.
"""


class Answer(NamedTuple):
    """An error code, or the producer's identity if there is no error."""

    code: ErrorCode
    producer: Identity = NO_IDENTITY


class TransactionCoordinator(CoordinatorService[TransactionShard]):
    """All transactional ids that this broker coordinates.

    `defer` schedules a function on the event loop; `ids` supplies producer ids; `level` returns transaction.version.
    """

    def __init__(
        self,
        config: TransactionConfig,
        writer: Writer,
        clock: Clock,
        ids: ProducerIdSupply,
        level: Callable[[], int],
        markers: MarkerWriter,
        defer: Callable[[Callable[[], None]], object],
    ) -> None:
        self.config = config
        super().__init__(
            TRANSACTIONS_TOPIC,
            config.num_partitions,
            lambda partition: TransactionShard(
                config,
                ids,
                level,
                partial(self._marking.soon, partition),
                partial(writer.max_batch_bytes, partition),
                RETRY_MS,
            ),
            writer,
            clock,
            config.write_timeout_ms,
        )
        self._marking = Marking(self._runtime, markers, defer)

    def close(self) -> None:
        """Stop. Markers that are not written yet are written after the next start."""
        super().close()
        self._marking.close()

    # -- requests of producers

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Identity | None
    ) -> Answer | Awaitable[Answer]:
        """Handle InitProducerId with a transactional id.

        Fails with CONCURRENT_TRANSACTIONS if this aborts an open transaction; the producer then retries.
        """
        if not transactional_id:
            return Answer(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self.config.max_timeout_ms:
            return Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

        def finish(answer: Answer) -> Answer:
            if answer.code is ErrorCode.NONE and answer.producer is NO_IDENTITY:
                return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
            return answer

        return then(
            self._run(
                transactional_id,
                lambda shard, now: shard.init_producer_id(transactional_id, timeout_ms, expected, now),
            ),
            finish,
        )

    def add_partitions(
        self, transactional_id: str, producer: Identity, partitions: Collection[TopicPartition], client_version: int
    ) -> ErrorCode | Awaitable[ErrorCode]:
        """Add all partitions to a transaction, or none."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        answer = self._run(
            transactional_id,
            lambda shard, now: shard.add_partitions(transactional_id, producer, partitions, client_version, now),
        )
        return then(answer, lambda answer: answer.code)

    def verify(
        self, transactional_id: str, producer: Identity, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        if not transactional_id:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        try:
            shard = self._runtime.shard(self.partition_for(transactional_id))
            return shard.verify(transactional_id, producer, partitions)
        except ApiError as err:
            return dict.fromkeys(partitions, err.code)

    def end(
        self, transactional_id: str, producer: Identity, commit: bool, client_version: int
    ) -> Answer | Awaitable[Answer]:
        """Handle an EndTxn. The answer is sent when the outcome is in the log; the markers may be written later."""
        if not transactional_id:
            return Answer(ErrorCode.INVALID_REQUEST)
        passed("txn.ending")
        return self._run(
            transactional_id, lambda shard, now: shard.end(transactional_id, producer, commit, client_version, now)
        )

    def _run(
        self, transactional_id: str, decide: Callable[[TransactionShard, int], Outcome]
    ) -> Answer | Awaitable[Answer]:
        answer: Identity | Answer | None | Awaitable[Identity | Answer | None] = self._runtime.run(
            self.partition_for(transactional_id), decide, lambda code, _message: Answer(_ANSWERS.get(code, code))
        )
        return then(answer, _answered)

    # -- after a replacement of the log

    def abandon(self, transactional_id: str) -> ErrorCode | Awaitable[ErrorCode]:
        """Abort an open transaction, as if it had timed out."""
        answer = self._run(transactional_id, lambda shard, now: shard.abandon(transactional_id, now))
        return then(answer, lambda answer: answer.code)

    def adopt(self, known: Transaction) -> ErrorCode | Awaitable[ErrorCode]:
        """Set an idle transactional id to the state that its producer knows."""
        answer = self._run(known.transactional_id, lambda shard, _now: shard.adopt(known))
        return then(answer, lambda answer: answer.code)

    # -- queries

    def find(self, transactional_id: str) -> Transaction:
        """Return the transaction of a transactional id. Raises ApiError."""
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        txn = self._runtime.shard(self.partition_for(transactional_id)).transactions.get(transactional_id)
        if txn is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return txn

    def all(self) -> list[Transaction]:
        """Return all transactions that this broker coordinates; raises ApiError while a partition is loading."""
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        found: list[Transaction] = []
        for _, shard in self._runtime.shards():
            if shard is None:
                raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            found += shard.transactions.values()
        return found


def _answered(answer: Identity | Answer | None) -> Answer:
    if isinstance(answer, Answer):
        return answer
    return Answer(ErrorCode.NONE, answer if answer is not None else NO_IDENTITY)
