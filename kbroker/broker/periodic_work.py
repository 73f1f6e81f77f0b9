"""A broker's periodic work: the logs' chores, compaction, timers of the coordinators, expired tokens.

Owns the timing, and how much is done before others have their turn. Never does any of the work itself.
"""

from __future__ import annotations

import asyncio
import logging

from kbroker.broker.deleted_topics import DeletedTopics
from kbroker.broker.expired_tokens import ExpiredTokens
from kbroker.clock import Clock
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.directories.log_manager import LogManager
from kbroker.long_work import in_slices
from kbroker.replicas import Replicas
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.hanging_transactions import HangingSearch

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
_CLEANING_TICK_SECONDS = 0.05


class PeriodicWork:
    """Runs on the event loop from `begin` to `close`.

    Only a single node has deleted topics to forget, and hanging transactions to look for: in a cluster, another
    broker's coordinator may know the transactions that are open here.
    """

    def __init__(
        self,
        clock: Clock,
        logs: LogManager,
        cleaner_pool: WorkerPool,
        replicas: Replicas,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
        deleted_topics: DeletedTopics | None = None,
        expired_tokens: ExpiredTokens | None = None,
        hanging: HangingSearch | None = None,
    ) -> None:
        self._clock = clock
        self._logs = logs
        self._cleaner_pool = cleaner_pool
        self._replicas = replicas
        self._groups = groups
        self._transactions = transactions
        self._deleted_topics = deleted_topics
        self._expired_tokens = expired_tokens
        self._tick: asyncio.Task[None] | None = None
        self._cleaning_tick: asyncio.Task[None] | None = None
        self._at_work = asyncio.Lock()
        self.hanging = hanging

    def begin(self) -> None:
        """Start."""
        self._tick = asyncio.get_running_loop().create_task(self._tick_for_ever())

    def close(self) -> None:
        for task in (self._tick, self._cleaning_tick):
            if task is not None:
                task.cancel()
        if self._expired_tokens is not None:
            self._expired_tokens.close()

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            await self.tick()

    async def tick(self) -> None:
        """Do the due work; also called after the clock has been moved."""
        async with self._at_work:
            await self._tick_once()

    async def _tick_once(self) -> None:
        try:
            await in_slices(self._logs.due(self._clock.now_ms()))
            self._cleaner_pool.tick(self._clock.now_ms())
            if self._deleted_topics is not None:
                self._deleted_topics.tick()
            if self._expired_tokens is not None:
                self._expired_tokens.tick()
            self._replicas.tick()
            self._groups.tick()
            self._transactions.tick()
            if self.hanging is not None:
                await in_slices(self.hanging.when_due())
        except Exception:
            log.exception("periodic work on the logs failed")
        if self._logs.cleaning and (self._cleaning_tick is None or self._cleaning_tick.done()):
            self._cleaning_tick = asyncio.get_running_loop().create_task(self._follow_cleaning())

    async def _follow_cleaning(self) -> None:
        """Poll more often during a compaction, to apply the worker's results."""
        while self._logs.cleaning:
            await asyncio.sleep(_CLEANING_TICK_SECONDS)
            try:
                await in_slices(self._logs.follow_cleaning(self._clock.now_ms()))
            except Exception:
                log.exception("following the compaction failed")
