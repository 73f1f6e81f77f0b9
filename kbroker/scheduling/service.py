"""The partitions of schedule topics that a broker hosts.

Owns the choice of the partitions to follow: partitions of topics with `schedule.enable`, and partitions with an index.
The latter may have pending records that fire when the config is set again. Never decides which records fire
(scheduled.py does).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

from kbroker.log.files import SCHEDULES
from kbroker.partition import Partition
from kbroker.scheduling.scheduled import ScheduledPartition
from kbroker.scheduling.shared import Shared

log = logging.getLogger(__name__)


class Schedules:
    """Follows the partitions from their hosting until `close`."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._followed: dict[tuple[str, int], ScheduledPartition] = {}
        self._is_closed = False

    def __iter__(self) -> Iterator[ScheduledPartition]:
        return iter(self._followed.values())

    def hosted(self, partition: Partition) -> None:
        """Follow a newly hosted partition, before it leads, if its topic needs this."""
        if partition.log.config.schedule_enable or os.path.exists(f"{partition.log.directory}/{SCHEDULES}"):
            self._follow(partition, is_change=False)

    def reconfigured(self, partition: Partition) -> None:
        """Handle changed configs of a partition: notify the object that follows the partition.

        If there is no such object, follow the partition if `schedule.enable` is set.
        """
        followed = self._followed.get(partition.key)
        if followed is not None and followed.partition is partition and not followed.is_closed:
            followed.reconfigured()
        elif partition.log.config.schedule_enable:
            self._follow(partition, is_change=True)

    def _follow(self, partition: Partition, *, is_change: bool) -> None:
        if self._is_closed:
            return
        before = self._followed.get(partition.key)
        if before is not None:
            before.poke()  # the object detects that its partition is not hosted, and ends
        followed = self._followed[partition.key] = ScheduledPartition(partition, self._shared)
        if partition.log.kept_from is None:
            partition.log.kept_from = partition.log.log_start_offset
        followed.begin(is_change=is_change)

    def tick(self) -> None:
        """Check the clock, because it may have jumped."""
        for key, followed in list(self._followed.items()):
            if followed.is_closed:
                del self._followed[key]
            else:
                followed.tick()

    async def close(self, *, clean: bool = True) -> None:
        """Stop everything. Undelivered records are delivered after the next start, or by the next leader."""
        self._is_closed = True
        for followed in list(self._followed.values()):
            await followed.close(clean=clean)
        self._followed.clear()
        self._shared.close()
