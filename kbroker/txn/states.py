"""The states of a transactional id, and the allowed transitions.

    Empty            no transaction yet, or a producer has just been initialised
    Ongoing          partitions have been added
    PrepareCommit    the outcome is in the log, and final: markers are being written
    PrepareAbort
    CompleteCommit   all markers are written
    CompleteAbort
    Dead             the id is being deleted

Kafka's PrepareEpochFence exists only between a decision to fence and its PrepareAbort, which is one step here; its
number is kept because `__transaction_state` could contain it. From Empty and Complete* an abort is allowed since
transaction version 2, in which a producer does not know whether anything was added (KIP-890).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


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
"""States in which an id may be deleted."""

FOLLOWS: Final = {
    EMPTY: AT_REST,
    ONGOING: AT_REST | {ONGOING},
    PREPARE_COMMIT: frozenset({ONGOING}),
    PREPARE_ABORT: AT_REST | {ONGOING},
    COMPLETE_COMMIT: frozenset({PREPARE_COMMIT}),
    COMPLETE_ABORT: frozenset({PREPARE_ABORT}),
}
"""The allowed predecessors of each state."""

NAMES: Final = {state: state.name.title().replace("_", "") for state in TxnState}
"""The names for clients and tools."""
