"""What a broker does again and again: the logs' chores, compaction, timers of the coordinators.

Owns when. Never does any of it itself.
"""

from __future__ import annotations

import asyncio
import logging

from kbroker.clock import Clock
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.directories.log_manager import LogManager
from kbroker.replicas import Replicas
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.hanging_transactions import find_hanging, warn_of

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
_CLEANING_TICK_SECONDS = 0.05


class PeriodicWork:
    """Runs on the event loop from `begin` to `close`."""

    def __init__(
        self,
        clock: Clock,
        logs: LogManager,
        cleaner_pool: WorkerPool,
        replicas: Replicas,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
    ) -> None:
        self._clock = clock
        self._logs = logs
        self._cleaner_pool = cleaner_pool
        self._replicas = replicas
        self._groups = groups
        self._transactions = transactions
        self._bootstrap_servers = ""
        self._tick: asyncio.TimerHandle | None = None
        self._cleaning_tick: asyncio.TimerHandle | None = None
        self.looked_for_hanging = False
        """Whether transactions that hang have been looked for: once, when all that are known are loaded."""

    def begin(self, bootstrap_servers: str) -> None:
        """Start; `bootstrap_servers` is what a warning tells people to connect to."""
        self._bootstrap_servers = bootstrap_servers
        self._schedule()

    def close(self) -> None:
        for timer in (self._tick, self._cleaning_tick):
            if timer is not None:
                timer.cancel()

    def _schedule(self) -> None:
        self._tick = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._on_tick)

    def _on_tick(self) -> None:
        try:
            self._logs.tick(self._clock.now_ms())
            self._cleaner_pool.tick(self._clock.now_ms())
            self._replicas.tick()
            self._groups.tick()
            self._transactions.tick()
            self._look_for_hanging()
        except Exception:
            log.exception("periodic work on the logs failed")
        self._schedule()
        if self._cleaning_tick is None:
            self._follow_cleaning()

    def _look_for_hanging(self) -> None:
        if not self.looked_for_hanging and self._transactions.is_loaded:
            self.looked_for_hanging = True
            led = (((each.topic, each.index), each.log.producers) for each in self._replicas if each.leading)
            warn_of(find_hanging(led, self._transactions.all()), self._bootstrap_servers)

    def _follow_cleaning(self) -> None:
        """Look more often while a log is compacted: what the worker has done waits to be taken over."""
        self._cleaning_tick = None
        if self._logs.cleaning:
            loop = asyncio.get_running_loop()
            self._cleaning_tick = loop.call_later(_CLEANING_TICK_SECONDS, self._on_cleaning_tick)

    def _on_cleaning_tick(self) -> None:
        try:
            self._logs.follow_cleaning(self._clock.now_ms())
        except Exception:
            log.exception("following the compaction failed")
        self._follow_cleaning()
