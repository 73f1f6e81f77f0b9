"""The guard of a batch that opens a transaction on a partition (KIP-890).

Owns the state between the question to the transaction coordinator and the append. Never asks the coordinator: the
handlers do, and producer_state.py compares.

One guard stands for one transaction of one producer. It is dropped when the transaction begins here, and when a marker
arrives. An answer older than the marker then has no guard, so a late batch cannot open a transaction that the
coordinator does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kbroker.log.append_info import AppendError
from kbroker.protocol.errors import ErrorCode
from kbroker.protocol.records import BatchHeader

UNCHECKED: Final = object()
"""Passed if nobody verifies: verification is switched off, or the caller is not a client."""


@dataclass(slots=True, eq=False)
class Verification:
    """The running verification of one producer; `epoch_bump` from transaction version 2 on."""

    epoch: int
    lowest_sequence: int
    epoch_bump: bool
    started_ms: int

    def note(self, epoch: int, sequence: int) -> None:
        """Add another batch that waits for the same answer."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch and sequence < self.lowest_sequence:
            self.lowest_sequence = sequence

    def check_sequence(self, header: BatchHeader, *, known: bool) -> None:
        """Refuse a batch that would overtake an earlier one that will be retried; raises AppendError.

        A producer of version 2 that the partition does not know begins with sequence 0 (KAFKA-14920).
        """
        sequence = header.base_sequence
        if sequence > self.lowest_sequence or (self.epoch_bump and sequence != 0 and not known):
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                detail=f"producer {header.producer_id} sent sequence {sequence} before {self.lowest_sequence}",
            )
