"""The result of a request to end a transaction in each state: the tables of both generations of the protocol.

Owns the decisions about EndTxn. Never writes: shard.py carries the decisions out.

Version 1 (EndTxn up to 4). The request must have the current epoch; otherwise the result is PRODUCER_FENCED.

    state            commit               abort
    Ongoing          prepare              prepare
    Prepare*         CONCURRENT           CONCURRENT
    CompleteCommit   done already         INVALID_TXN_STATE
    CompleteAbort    INVALID_TXN_STATE    done already
    Empty            INVALID_TXN_STATE    INVALID_TXN_STATE

Version 2 (EndTxn since 5, KIP-890). Each end of a transaction begins a new epoch, so a retry has the previous epoch
(or, if the epochs were exhausted, the last epoch of the previous producer id). Any other epoch is PRODUCER_FENCED.

    state            commit, retry   commit, current     abort, retry    abort, current
    Ongoing          fenced          prepare             fenced          prepare
    Prepare*         CONCURRENT      CONCURRENT          CONCURRENT      CONCURRENT
    CompleteCommit   done already    INVALID_TXN_STATE   INVALID_TXN_STATE  prepare
    CompleteAbort    INVALID_TXN_STATE  INVALID_TXN_STATE  done already  prepare
    Empty            fenced          INVALID_TXN_STATE   fenced          prepare
"""

from __future__ import annotations

from enum import Enum

from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.txn.transaction import (
    BUMPS_EPOCH_SINCE,
    COMPLETE,
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    LAST_CLIENT_EPOCH,
    ONGOING,
    Transaction,
)


class Verdict(Enum):
    """The action to take on an EndTxn."""

    PREPARE = 0
    DONE_ALREADY = 1


def judge(txn: Transaction, producer_id: int, epoch: int, commit: bool, client_version: int, *, busy: bool) -> Verdict:
    """Decide about an EndTxn. Raises ApiError. `busy` means that a state change or markers are being written."""
    if client_version >= BUMPS_EPOCH_SINCE:
        return _judge_v2(txn, producer_id, epoch, commit, busy)
    if txn.producer_id != producer_id:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if txn.producer_epoch != epoch:
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    if busy:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if txn.state is ONGOING:
        return Verdict.PREPARE
    if txn.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
        return Verdict.DONE_ALREADY
    raise ApiError(ErrorCode.INVALID_TXN_STATE)


def _judge_v2(txn: Transaction, producer_id: int, epoch: int, commit: bool, busy: bool) -> Verdict:
    # This check is first because a running change may assign another producer id, and the checks below depend on the
    # id.
    if busy:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    after_overflow = txn.prev_producer_id == producer_id and epoch == LAST_CLIENT_EPOCH and txn.producer_epoch == 0
    if txn.producer_id != producer_id and not after_overflow:
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_retry = after_overflow or txn.producer_epoch == epoch + 1
    if epoch != txn.producer_epoch and not (is_retry and txn.state in COMPLETE):
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    if txn.state is ONGOING:
        return Verdict.PREPARE
    if is_retry:
        if txn.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT):
            return Verdict.DONE_ALREADY
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    if commit:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    return Verdict.PREPARE
