"""Which records of a `__share_group_state` partition are redundant.

Owns the offset of each share partition's newest snapshot (Kafka: ShareCoordinatorOffsetsManager). All records before
the oldest of these snapshots may be deleted: the topic is not compacted. Never deletes anything.
"""

from __future__ import annotations

from collections import OrderedDict

from kbroker.share_coordinator.share_partition_state import SharePartition


class NewestSnapshots:
    """The newest snapshots of one log, in the order of their offsets."""

    def __init__(self) -> None:
        self._offsets: OrderedDict[SharePartition, int] = OrderedDict()
        self.redundant_below = 0
        """The offset below which all records are redundant."""

    def add(self, place: SharePartition, offset: int, *, is_deletion: bool = False) -> None:
        """Note a snapshot, or the deletion of a share partition, at the log's next offset."""
        self._offsets[place] = offset
        self._offsets.move_to_end(place)
        self.redundant_below = next(iter(self._offsets.values()))
        if is_deletion:
            del self._offsets[place]
