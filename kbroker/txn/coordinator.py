"""The transaction coordinator as handlers see it: one method per request.

Owns the checks that need no transaction, the way from a transactional id to its partition of `__transaction_state`, and
the rounds of markers of transactions whose outcome is decided. Never decides about a transaction: shard.py does.

A method returns its answer, or an awaitable of it where the high watermark lags behind. A refusal is an error code in
the answer; which code older clients are told instead is the handlers' business.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple

from kbroker.clock import Clock
from kbroker.coordination import Runtime
from kbroker.coordination_outcome import Outcome, Writer, partition_for, then
from kbroker.failpoints import passed
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.txn.config import TransactionConfig
from kbroker.txn.markers import Marker, MarkerWriter, Progress
from kbroker.txn.shard import NOBODY, Identity, TransactionShard
from kbroker.txn.states import PREPARE_COMMIT
from kbroker.txn.transaction import TopicPartition, Transaction

log = logging.getLogger(__name__)

TOPIC = "__transaction_state"
_NONE_DONE = Progress(frozenset(), False)
_ANSWERS = {ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE}
"""What producers are told of the coordinator's own log, beside what the runtime translates for all coordinators."""
MARK_SLICE_SECONDS = 0.005


class Answer(NamedTuple):
    """An error code, and who the producer is where there is none."""

    code: ErrorCode
    producer: Identity = NOBODY


class TransactionCoordinator:
    """All transactional ids that this broker coordinates.

    `defer` runs something soon on the event loop; `next_id` hands out producer ids; `level` tells transaction.version.
    """

    def __init__(
        self,
        config: TransactionConfig,
        writer: Writer,
        clock: Clock,
        next_id: Callable[[], int],
        level: Callable[[], int],
        markers: MarkerWriter,
        defer: Callable[[Callable[[], None]], object],
    ) -> None:
        self.config = config
        self._writer = writer
        self._markers = markers
        self._defer = defer
        self._closed = False
        self._to_mark: deque[str] = deque()
        self._rounds: set[asyncio.Task[None]] = set()
        self._runtime: Runtime[TransactionShard] = Runtime(
            TOPIC, lambda: TransactionShard(config, next_id, level, self._mark_soon), writer, clock,
            config.write_timeout_ms,
        )  # fmt: skip

    # -- life

    def partition_for(self, transactional_id: str) -> int:
        """Return the partition of `__transaction_state` that coordinates an id."""
        return partition_for(transactional_id, self._writer.partition_count() or self.config.num_partitions)

    def ensure_topic(self) -> bool:
        """Return whether `__transaction_state` exists; where it does not, have it created."""
        if self._writer.partition_count() == 0:
            self._writer.ensure_topic()
        return self._writer.partition_count() > 0

    def on_leadership(self, partition: int, epoch: int) -> None:
        """Begin to coordinate a partition that this broker leads now."""
        if not self._closed:
            self._runtime.lead(partition, epoch)

    def resign(self, partition: int) -> None:
        """Stop coordinating a partition."""
        self._runtime.resign(partition)

    def tick(self) -> None:
        """Run the timers that are due; needed only where the clock is advanced by hand."""
        self._runtime.tick()

    def close(self) -> None:
        """Stop; what is decided and not written yet is written after the next start."""
        self._closed = True
        self._runtime.close()
        for task in self._rounds:
            task.cancel()

    # -- requests of producers

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Identity | None
    ) -> Answer | Awaitable[Answer]:
        """InitProducerId with a transactional id. After aborting an open transaction: CONCURRENT_TRANSACTIONS."""
        if not transactional_id:
            return Answer(ErrorCode.INVALID_REQUEST)
        if not 0 < timeout_ms <= self.config.max_timeout_ms:
            return Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)

        def finish(answer: Answer) -> Answer:
            if answer.code is ErrorCode.NONE and answer.producer is NOBODY:
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
        """Add partitions to a transaction: all or none."""
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
        """Tell which partitions are in the transaction."""
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
        """EndTxn: answered once the outcome is in the log; the markers follow."""
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

    # -- looking

    def find(self, transactional_id: str) -> Transaction:
        """Return what is known of an id; raises ApiError."""
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if not transactional_id:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        txn = self._runtime.shard(self.partition_for(transactional_id)).transactions.get(transactional_id)
        if txn is None:
            raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return txn

    def all(self) -> Iterable[Transaction]:
        """Return all transactions coordinated here; raises ApiError as long as a partition is loading."""
        if self._closed:
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        found: list[Transaction] = []
        for _, shard in self._runtime.shards():
            if shard is None:
                raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            found += shard.transactions.values()
        return found

    # -- markers

    def _mark_soon(self, transactional_id: str) -> None:
        """Write the markers once the decision that led here has been dealt with."""
        self._to_mark.append(transactional_id)
        if len(self._to_mark) == 1:
            self._defer(self._mark_some)

    def _mark_some(self) -> None:
        """Work for a while, then let the loop serve: after a crash there may be thousands."""
        until = time.perf_counter() + MARK_SLICE_SECONDS
        while self._to_mark:
            try:
                self._mark(self._to_mark[0])
            except Exception:
                log.exception("markers of %s could not be sent", self._to_mark[0])
            self._to_mark.popleft()
            if self._to_mark and time.perf_counter() > until:
                self._defer(self._mark_some)
                return

    def _mark(self, transactional_id: str) -> None:
        partition = self.partition_for(transactional_id)
        try:
            txn = self._runtime.shard(partition).transactions.get(transactional_id)
        except ApiError:
            return  # whoever coordinates the id now goes on
        if txn is None or not txn.is_prepared:
            return
        passed("txn.prepared")
        marker = Marker(
            txn.producer_id,
            txn.producer_epoch,
            self._runtime.epoch(partition),
            txn.state is PREPARE_COMMIT,
            txn.client_version,
            tuple(sorted(txn.partitions)),
        )
        try:
            rounds = self._markers.write(marker)
        except Exception:
            log.exception("markers of %s could not be written", transactional_id)
            rounds = [_NONE_DONE]
        for part in rounds:
            if isinstance(part, Progress):
                self._note(txn, part)
            else:
                task = asyncio.ensure_future(self._note_later(txn, part))
                self._rounds.add(task)
                task.add_done_callback(self._rounds.discard)

    async def _note_later(self, txn: Transaction, part: Awaitable[Progress]) -> None:
        try:
            progress = await part
        except Exception:
            log.exception("markers of %s could not be written", txn.transactional_id)
            progress = _NONE_DONE
        self._note(txn, progress)

    def _note(self, txn: Transaction, progress: Progress) -> None:
        if progress.fenced:
            log.warning("the transaction of %s has been taken over, its markers are given up", txn.transactional_id)
            return
        partition = self.partition_for(txn.transactional_id)
        passed("txn.marked")
        self._runtime.run(partition, lambda shard, now: shard.marked(txn, progress.done, now), _ignore)
        passed("txn.completed")


def _answered(answer: Identity | Answer | None) -> Answer:
    if isinstance(answer, Answer):
        return answer
    return Answer(ErrorCode.NONE, answer if answer is not None else NOBODY)


def _ignore(_code: ErrorCode, _message: str | None) -> None:
    """Pass over a failure: it has been logged, and a timer tries again."""
