"""The coordinator's state of one transactional id, as a value.

    Empty            no transaction yet, or a producer has just been initialised
    Ongoing          partitions have been added
    PrepareCommit    the outcome is in the log, and final: markers are being written
    PrepareAbort     like PrepareCommit, for an abort
    CompleteCommit   all markers are written
    CompleteAbort    like CompleteCommit, for an abort
    Dead             the id is being deleted

In Kafka, PrepareEpochFence exists only between a decision to fence and its PrepareAbort. Here the decision and
PrepareAbort are one step. The number of PrepareEpochFence is kept because `__transaction_state` could contain it. Since
transaction version 2 an abort is allowed in Empty and Complete*, because a producer does not know whether partitions
were added (KIP-890).

Owns the state and its transitions (Kafka's TransactionMetadata): the next epoch, the exhaustion of a producer id, the
form of a retry. Never decides whether a request is allowed: shard.py and end_txn.py do.

A producer id has the epochs 0 to 32766 for clients. The epoch 32767 is only used in the markers of a transaction that
ended at epoch 32766.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

from kbroker.protocol.errors import ApiError, ErrorCode


class TxnState(IntEnum):
    """A state, with its number in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7


EMPTY: Final = TxnState.EMPTY
ONGOING: Final = TxnState.ONGOING
PREPARE_COMMIT: Final = TxnState.PREPARE_COMMIT
PREPARE_ABORT: Final = TxnState.PREPARE_ABORT
COMPLETE_COMMIT: Final = TxnState.COMPLETE_COMMIT
COMPLETE_ABORT: Final = TxnState.COMPLETE_ABORT

COMPLETE: Final = frozenset({COMPLETE_COMMIT, COMPLETE_ABORT})
PREPARED: Final = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
AT_REST: Final = COMPLETE | {EMPTY}
"""The states in which an id may be deleted."""

FOLLOWS: Final = {
    EMPTY: AT_REST,
    ONGOING: AT_REST | {ONGOING},
    PREPARE_COMMIT: frozenset({ONGOING}),
    PREPARE_ABORT: AT_REST | {ONGOING},
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
}
"""The states from which each state may be reached."""

NAMES: Final = {state: state.name.title().replace("_", "") for state in TxnState}
"""The names of the states for clients and tools."""


TopicPartition = tuple[str, int]

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
MAX_EPOCH: Final = 32767
LAST_CLIENT_EPOCH: Final = MAX_EPOCH - 1
_NEVER: Final = 2**31 - 1
"""The timeout in ms of a transaction that is never overdue: Java's largest int."""
BUMPS_EPOCH_SINCE: Final = 2
"""The transaction version from which each end of a transaction begins a new epoch (KIP-890)."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One transactional id. Times are in ms; `start_ms` is -1 without a transaction.

    `partitions` are the added partitions; when the outcome is decided, they are only the partitions that have no marker
    yet. `last_epoch` is the epoch for a retry of InitProducerId; as in Kafka it is not in the log. `next_producer_id`
    replaces the producer id if the end of a transaction exhausts the epochs. `client_version` is the producer's
    transaction version. `ending` is a number for each decided end of a transaction. Before version 2, several ends can
    have the same epoch, so the epoch does not identify an end. The number is in memory only.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    prev_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    timeout_ms: int = 0
    state: TxnState = EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    updated_ms: int = -1
    client_version: int = 0
    ending: int = field(default=0, compare=False)

    @property
    def exhausted(self) -> bool:
        """Whether no epoch is left for a client."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    def is_overdue(self, now_ms: int) -> bool:
        """Whether the transaction is open for longer than the producer's timeout."""
        return self.timeout_ms != _NEVER and self.start_ms + self.timeout_ms < now_ms

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and its markers are being written."""
        return self.state in PREPARED

    @property
    def bumps_epoch(self) -> bool:
        return self.client_version >= BUMPS_EPOCH_SINCE

    def may_be(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer with this id and epoch may still own the transactional id.

        A producer with the previous producer id and its last epoch retries the request that replaced this id.
        """
        return (
            self.producer_epoch == NO_EPOCH
            or producer_id == self.producer_id
            or (producer_id == self.prev_producer_id and epoch >= LAST_CLIENT_EPOCH)
        )

    # -- transitions

    def initialized(self, timeout_ms: int, expected_epoch: int | None, now_ms: int) -> Transaction:
        """Return the result of InitProducerId: a new epoch, or the current epoch for a retry. Raises ApiError."""
        if self.exhausted:
            raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR)  # as in Kafka, which finds no epoch that it could assign
        epoch, last = self.producer_epoch + 1, NO_EPOCH
        if expected_epoch is not None:
            if self.producer_epoch == NO_EPOCH or expected_epoch == self.producer_epoch:
                last = self.producer_epoch
            elif expected_epoch == self.last_epoch:
                epoch, last = self.producer_epoch, self.last_epoch
            else:
                raise ApiError(ErrorCode.PRODUCER_FENCED)
        return self._to(
            EMPTY,
            producer_epoch=epoch,
            last_epoch=last,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=-1,
            updated_ms=now_ms,
        )

    def rotated(self, producer_id: int, timeout_ms: int, now_ms: int, *, retryable: bool) -> Transaction:
        """Return the transaction after an InitProducerId that needs a new producer id.

        The epochs of the old id are exhausted. `retryable` means that the request has a producer id.
        """
        return self._to(
            EMPTY,
            producer_id=producer_id,
            producer_epoch=0,
            last_epoch=self.producer_epoch if retryable else NO_EPOCH,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=-1,
            updated_ms=now_ms,
        )

    def with_partitions(self, added: Iterable[TopicPartition], client_version: int, now_ms: int) -> Transaction:
        """Return the transaction with more partitions. If the transaction is not open, it begins now."""
        return self._to(
            ONGOING,
            partitions=self.partitions | frozenset(added),
            start_ms=self.start_ms if self.state is ONGOING else now_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def prepared(self, commit: bool, client_version: int, next_producer_id: int, now_ms: int) -> Transaction:
        """Return the transaction with a decided outcome.

        With transaction version 2 or newer, its markers have a new epoch.
        """
        epoch, last = self.producer_epoch, self.last_epoch
        if client_version >= BUMPS_EPOCH_SINCE:
            epoch, last = min(self.producer_epoch + 1, MAX_EPOCH), self.producer_epoch
        return self._to(
            PREPARE_COMMIT if commit else PREPARE_ABORT,
            producer_epoch=epoch,
            last_epoch=last,
            next_producer_id=next_producer_id,
            start_ms=self.start_ms if self.state is ONGOING else now_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def fenced(self, now_ms: int) -> Transaction:
        """Return a transaction that the coordinator aborts (before version 2), with an epoch that no producer gets."""
        return self._to(
            PREPARE_ABORT,
            producer_epoch=min(self.producer_epoch + 1, MAX_EPOCH),
            last_epoch=NO_EPOCH,
            next_producer_id=NO_PRODUCER_ID,
            updated_ms=now_ms,
            client_version=0,
        )

    def completed(self, now_ms: int) -> Transaction:
        producer_id, epoch = self.producer_id, self.producer_epoch
        if self.bumps_epoch and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, 0
        return self._to(
            COMPLETE_COMMIT if self.state is PREPARE_COMMIT else COMPLETE_ABORT,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            updated_ms=now_ms,
        )

    def without(self, partitions: Iterable[TopicPartition]) -> Transaction:
        """Return the transaction after markers were written to `partitions`. This progress is kept in memory only."""
        return replace(self, partitions=self.partitions.difference(partitions))

    def _to(self, state: TxnState, **changes: Any) -> Transaction:
        if self.state not in FOLLOWS[state]:
            raise ValueError(f"{self.transactional_id}: {state.name} cannot follow {self.state.name}")
        return replace(self, state=state, prev_producer_id=self.producer_id, **changes)
