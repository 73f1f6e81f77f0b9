"""A disk that is full, or slow, as a fault: which requests meet it."""

from __future__ import annotations

from typing import Final

from kbroker.testing.filters import Filter, Seen

WRITING: Final = (
    "Produce", "OffsetCommit", "TxnOffsetCommit", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn",
)  # fmt: skip
"""The APIs whose answers wait for a log."""


def that_write(filters: Filter) -> Filter:
    """Narrow filters: a producer id without a transactional id is given out, and stands in no log."""
    wanted = filters.get("where")

    def writes(seen: Seen) -> bool:
        stands = seen.api != "InitProducerId" or bool(seen.transactional_ids)
        return stands and (wanted is None or wanted(seen))

    return {**filters, "where": writes}
