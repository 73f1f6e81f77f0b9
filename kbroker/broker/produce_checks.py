"""The checks that a topic's configs require of produced records: schedules, schemas, or both.

Owns the order: schedules come first, because the check of schemas may write dead letters. schedules/ and record_checks/
decide about records.
"""

from __future__ import annotations

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from kbroker.clock import Clock
from kbroker.cluster_state import ClusterState, TopicState
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.log.append_validation import BatchRules
from kbroker.log.log_config import LogConfig
from kbroker.log.record_check import MayWrite, RecordCheck, RecordChecks
from kbroker.record_checks.checks import BrokerChecks
from kbroker.replicas import Replicas
from kbroker.schedules.produce_check import AT_ONCE, ScheduleChecks

_PATIENCE_S: Final = 1.0
"""The seconds within which a broker of a cluster learns of a topic that was just created."""


class ProduceChecks:
    """The checks of one broker."""

    def __init__(
        self, schemas: BrokerChecks, metadata: ClusterMetadata, replicas: Replicas, clock: Clock, *, alone: bool
    ) -> None:
        self._schemas = schemas
        self._topics = _Topics(metadata, replicas, 0.0 if alone else _PATIENCE_S)
        self._clock = clock
        self._room = asyncio.Semaphore(AT_ONCE)
        self._known: WeakValueDictionary[str, _TopicChecks] = WeakValueDictionary()

    def of(self, topic: str) -> RecordChecks:
        """Return the checks of a topic; its partitions share them."""
        found = self._known.get(topic)
        if found is None:
            found = self._known[topic] = _TopicChecks(
                topic, self._schemas.of(topic), self._topics, self._clock, self._room
            )
        return found


class _Topics:
    def __init__(self, metadata: ClusterMetadata, replicas: Replicas, patience_s: float) -> None:
        self.patience_s = patience_s
        self._metadata = metadata
        self._replicas = replicas

    @property
    def state(self) -> ClusterState:
        return self._metadata.state

    def settings_of(self, topic: TopicState) -> LogConfig:
        return self._replicas.settings_of(topic)


class _TopicChecks:
    def __init__(
        self, topic: str, schemas: RecordChecks, topics: _Topics, clock: Clock, room: asyncio.Semaphore
    ) -> None:
        self._room = room
        self._topic = topic
        self._schemas = schemas
        self._topics = topics
        self._clock = clock
        self._schedules: ScheduleChecks | None = None
        self._both: _Both | None = None

    def under(self, config: LogConfig) -> RecordCheck:
        if not config.schedule_enable:
            return self._schemas.under(config)
        if self._schedules is None:
            self._schedules = ScheduleChecks(self._topic, self._topics, self._clock.now_ms, self._room)
        schedules = self._schedules.under(config)
        if not config.checks_schemas:
            return schedules
        both = self._both
        if both is None or both.first is not schedules:
            both = self._both = _Both(schedules, self._schemas.under(config))
        return both


class _Both:
    is_quick = False

    def __init__(self, first: RecordCheck, second: RecordCheck) -> None:
        self.first = first
        self.second = second

    def passes(self, _data: bytes | memoryview, _start: int, _count: int) -> bool:
        return False

    async def judge(self, batch: memoryview, rules: BatchRules, may_write: MayWrite) -> memoryview:
        return await self.second.judge(await self.first.judge(batch, rules, may_write), rules, may_write)
