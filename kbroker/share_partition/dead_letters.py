"""Dead letters: the reports about records that a share group gives up (KIP-1191).

Owns the causes, the dead letter about a range of records, and the interface of the writer. transitions.py decides which
records are given up. Never writes: broker/dead_letters.py does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from kbroker.partition import Partition
from kbroker.share_coordinator.state_batches import StateBatch
from kbroker.share_partition.states import RecordState

REJECTED: Final = "Offset rejected by client."
EXCEEDED: Final = "Offset delivery count exceeded the threshold."
"""The causes, in Kafka's words. A header of each dead letter contains its cause (ShareGroupDLQManager)."""


class Letter(NamedTuple):
    """A range of records that are given up for one cause after `delivery_count` deliveries."""

    first_offset: int
    last_offset: int
    delivery_count: int
    cause: str


class DeadLetters(Protocol):
    """The writer of dead letters."""

    async def write(self, group: str, partition: Partition, letters: Sequence[Letter]) -> None:
        """Write a dead letter for each offset of `letters` into the group's dead letter topic.

        Return when each dead letter is written or given up. As in Kafka, a dead letter may be given up, and this is
        logged and counted. Never raises.
        """


def stored_letters(batches: Iterable[StateBatch], delivery_limit: int) -> list[Letter]:
    """Return the dead letters of stored state that might not be written (SharePartition.maybeResumeDlqArchiving).

    The cause is not stored. Records at the limit of deliveries are assumed to have exceeded the limit.
    """
    return [
        Letter(first, last, count, EXCEEDED if count >= delivery_limit else REJECTED)
        for first, last, state, count in batches
        if state == RecordState.ARCHIVING
    ]


def cut(letters: list[Letter], most: int) -> list[Letter]:
    """Remove the dead letters about the first `most` records from a list, and return them."""
    taken: list[Letter] = []
    while letters and most > 0:
        first, last, count, cause = letters[0]
        end = min(last, first + most - 1)
        taken.append(Letter(first, end, count, cause))
        most -= end - first + 1
        if end < last:
            letters[0] = Letter(end + 1, last, count, cause)
        else:
            del letters[0]
    return taken
