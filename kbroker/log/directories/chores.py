"""Work that is due on every log of a directory once in a while.

Owns whose turn it is. Never knows what the work is, and has no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from kbroker.log.disk_errors import passes
from kbroker.log.partition_log import PartitionLog

_LOGS_PER_TICK: Final = 64

Key = tuple[str, int]

logger = logging.getLogger(__name__)


class Chores:
    """Chores that visit every log once per interval, a few logs at a time."""

    __slots__ = ("_chores", "_due", "_rounds")

    def __init__(self, *chores: tuple[int, Callable[[PartitionLog, int], None]]) -> None:
        self._chores = chores
        self._due = [0] * len(chores)
        self._rounds: list[Iterator[Key] | None] = [None] * len(chores)

    def start(self, now_ms: int) -> None:
        self._due = [now_ms + interval for interval, _ in self._chores]

    def run(self, now_ms: int, logs: dict[Key, PartitionLog]) -> None:
        for index, (interval, chore) in enumerate(self._chores):
            round_ = self._rounds[index]
            if round_ is None:
                if now_ms < self._due[index]:
                    continue
                self._due[index] = now_ms + interval
                round_ = self._rounds[index] = iter(list(logs))
            keys = list(islice(round_, _LOGS_PER_TICK))
            if len(keys) < _LOGS_PER_TICK:
                self._rounds[index] = None
            for key in keys:
                log = logs.get(key)
                if log is not None:
                    self._visit(chore, log, now_ms)

    def _visit(self, chore: Callable[[PartitionLog, int], None], log: PartitionLog, now_ms: int) -> None:
        try:
            chore(log, now_ms)
        except OSError as error:
            # One partition's trouble must not keep the others from their turn.
            logger.error("%s-%d: %s", log.topic, log.partition, error)
            if not passes(error):
                log.refuse_appends(str(error))
            log.report_failure(error)
