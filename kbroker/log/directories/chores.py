"""Periodic work on every log of a directory.

Owns the order of the logs. Does not know the kind of work, and has no clock. The work is done in pieces: there may be
thousands of logs, and a log may have thousands of segments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

from kbroker.log.disk_errors import passes
from kbroker.log.partition_log import PartitionLog
from kbroker.long_work import step, turn

Key = tuple[str, int]

logger = logging.getLogger(__name__)


Chore = Callable[[PartitionLog, int], Coroutine[Any, Any, None]]


class Chores:
    """Chores that process every log once per interval, one log after the other."""

    __slots__ = ("_chores", "_due")

    def __init__(self, *chores: tuple[int, Chore]) -> None:
        self._chores = chores
        self._due = [0] * len(chores)

    def start(self, now_ms: int, delay_ms: int) -> None:
        """Start the intervals: each chore is due after its interval, or after `delay_ms` if this is less."""
        self._due = [now_ms + min(interval, delay_ms) for interval, _ in self._chores]

    async def run(self, now_ms: int, logs: dict[Key, PartitionLog]) -> None:
        """Do the due chores; skip a log that is removed from `logs` meanwhile."""
        for index, (interval, chore) in enumerate(self._chores):
            if now_ms < self._due[index]:
                continue
            self._due[index] = now_ms + interval
            for key in list(logs):
                log = logs.get(key)
                if log is None:
                    continue
                visit = self._visit(chore, log, now_ms)
                while logs.get(key) is log and not step(visit):
                    await turn
                visit.close()
                await turn

    async def _visit(self, chore: Chore, log: PartitionLog, now_ms: int) -> None:
        try:
            await chore(log, now_ms)
        except OSError as error:
            # A failure of one partition must not delay the others.
            logger.error("%s-%d: %s", log.topic, log.partition, error)
            if not passes(error):
                log.refuse_appends(str(error))
            log.report_failure(error)
