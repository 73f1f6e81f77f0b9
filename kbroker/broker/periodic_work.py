"""A broker's periodic work: the logs' chores, compaction, timers of the coordinators, expired tokens, deleted topics.

Owns the timing, the amount of work before other tasks get a turn, and two chores that belong to no other part. One
chore removes expired delegation tokens (every `delegation.token.expiry.check.interval.ms`). The other chore forgets
deleted topics once no directory on disk has their names any more. Never decides whether a token is valid, and never
renames a directory (log/directories/deleted_partitions.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from itertools import islice

from kbroker.broker.stuck_groups import StuckGroups
from kbroker.clock import Clock
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.controller.controller import Controller
from kbroker.group_coordinator.coordinator import GroupCoordinator
from kbroker.log.cleaner.worker_pool import WorkerPool
from kbroker.log.directories.log_manager import LogManager
from kbroker.long_work import in_slices, turn
from kbroker.protocol.errors import ApiError
from kbroker.replicas import Replicas
from kbroker.restore.state_copies import StateCopies
from kbroker.scheduling.service import Schedules
from kbroker.security.principal import printable
from kbroker.security.tokens.token import Token, TokenSettings
from kbroker.share_coordinator.coordinator import ShareCoordinator
from kbroker.share_partition.delivery import ShareDelivery
from kbroker.tiers.service import Tiers
from kbroker.txn.coordinator import TransactionCoordinator
from kbroker.txn.hanging_transactions import HangingSearch
from kbroker.views.hosted_views import HostedViews

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
_CLEANING_TICK_SECONDS = 0.05
_FORGOTTEN_AT_ONCE = 1000
"""The number of deleted topics that are forgotten in one step. A step takes one or two ms."""


class PeriodicWork:
    """Runs on the event loop from `begin` to `close`.

    Only a single node forgets deleted topics, and searches for hanging transactions. In a cluster, another
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
        shares: ShareCoordinator,
        share: Callable[[], ShareDelivery],
        stuck: StuckGroups,
        schedules: Schedules,
        views: HostedViews,
        deleted_topics: DeletedTopics | None = None,
        expired_tokens: ExpiredTokens | None = None,
        hanging: HangingSearch | None = None,
        tiers: Tiers | None = None,
        state_copies: StateCopies | None = None,
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
        self._shares = shares
        self._share = share
        self._stuck = stuck
        self._schedules = schedules
        self._views = views
        self._tiers = tiers
        self._state_copies = state_copies

    def begin(self) -> None:
        """Start the periodic work."""
        self._tick = asyncio.get_running_loop().create_task(self._tick_for_ever())

    def close(self) -> None:
        for task in (self._tick, self._cleaning_tick):
            if task is not None:
                task.cancel()
        self._stuck.close()
        if self._expired_tokens is not None:
            self._expired_tokens.close()

    async def _tick_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            await self.tick()

    async def tick(self) -> None:
        """Do the work that is due. The control API also calls this after it has moved the clock."""
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
            self._shares.tick()
            self._share().tick()
            self._stuck.tick()
            self._schedules.tick()
            self._views.tick()
            if self._tiers is not None:
                self._tiers.tick()
            if self._state_copies is not None:
                self._state_copies.tick()
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


class ExpiredTokens:
    """Removes expired tokens from `metadata`, on the controller.

    No client can log in with an expired token, even before it is removed.
    """

    def __init__(self, metadata: ClusterMetadata, settings: TokenSettings, clock: Clock) -> None:
        self._metadata = metadata
        self._interval_ms = settings.check_interval_ms
        self._clock = clock
        self._next_ms = clock.monotonic_ms() + self._interval_ms
        self._removing: asyncio.Task[None] | None = None

    def tick(self) -> None:
        """Start to remove expired tokens if the check is due."""
        now = self._clock.monotonic_ms()
        if now < self._next_ms or self._removing is not None:
            return
        self._next_ms = now + self._interval_ms
        if self._metadata.is_controller:
            self._removing = asyncio.get_running_loop().create_task(self._remove())

    def close(self) -> None:
        """Stop removing tokens."""
        if self._removing is not None:
            self._removing.cancel()

    async def _remove(self) -> None:
        try:
            await in_slices(self._remove_all())
        except (ApiError, OSError) as error:
            log.warning("expired delegation tokens are not all removed: %s", error)
        except Exception:
            log.exception("removing expired delegation tokens failed")
        finally:
            self._removing = None

    async def _remove_all(self) -> None:
        for token in self._metadata.state.tokens:
            if token.has_ended(self._clock.now_ms()):
                await self._remove_one(token.info.token_id)
            await turn

    async def _remove_one(self, token_id: str) -> None:
        def revise(token: Token | None) -> Token | None:
            """Check the token again, because it may have been renewed or removed by now."""
            return None if token is None or token.has_ended(self._clock.now_ms()) else token

        known = self._metadata.state.tokens.get(token_id)
        if await self._metadata.change_token(token_id, revise) is None and known is not None:
            log.info("delegation token %s of %s has expired", token_id, printable(str(known.info.owner)))


class DeletedTopics:
    """Makes the controller forget the ids of deleted topics; call `tick` periodically.

    A deletion is stored first, then published; then the directories are renamed, in several steps for a large topic. If
    the broker crashes between these steps, directories keep their old names, and only the topic id distinguishes them
    from foreign directories.
    """

    def __init__(self, controller: Controller, logs: LogManager) -> None:
        self._controller = controller
        self._logs = logs
        self._failed = False
        self._syncing: tuple[list[bytes], list[Future[None]]] | None = None

    def tick(self) -> None:
        """Forget deleted topics once their directories are renamed and the renames are on disk.

        After a disk error no more topics are forgotten; the next start searches for leftovers.
        """
        try:
            self._go_on()
        except OSError as error:
            self._failed = True
            log.error("deleted topics are looked for again at the next start: %s", error)

    def _go_on(self) -> None:
        if self._failed:
            return
        if self._syncing is not None:
            ids, synced = self._syncing
            if not all(each.done() for each in synced):
                return
            self._syncing = None
            for each in synced:
                each.result()
            self._controller.forget_deleted(ids)
        ids = list(islice(self._controller.deleted_topics, _FORGOTTEN_AT_ONCE))
        if ids and self._controller.is_settled and not self._logs.departing:
            self._syncing = ids, self._logs.sync_by_threads()
