"""The checks of a broker's records: one check for each topic, with a shared registry and a shared process for values.

Owns the shared parts, the wait for a registry at the start of a broker, and the refusal of configs without effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

from kbroker.log.append_info import BatchRefused
from kbroker.log.log_config import LogConfig
from kbroker.protocol.errors import ApiError, ErrorCode
from kbroker.record_checks.schema_check import DeadLetters, SchemaCheck
from kbroker.record_checks.schema_lookup import SchemaLookup
from kbroker.record_checks.value_worker import ValueWorker

ENABLE: Final = ("confluent.key.schema.validation", "confluent.value.schema.validation")
DEAD_LETTERS: Final = "kbroker.schema.validation.deadletter.topic"
_PATIENCE_S: Final = 5.0
"""The seconds after a broker's start within which its registry must start."""
_PAUSE_S: Final = 0.05
_PUBLISHED_S: Final = 2.0
"""The seconds within which a broker that has just started must publish its registry."""
_MOST_NAMED: Final = 10
_AT_ONCE: Final = 4
"""The maximum number of unpacked batches in memory at the same time."""


class BrokerChecks:
    """The checks of one broker.

    On a single broker, `lookup` is None until the registry serves; in a cluster it is always set.
    """

    def __init__(self) -> None:
        self.lookup: SchemaLookup | None = None
        self.without_registry: Callable[[], Awaitable[Sequence[int]]] | None = None
        """A function that returns the ids of the cluster's brokers without a registry. Raises OSError.

        None without a cluster.
        """
        self._without: Sequence[int] = ()
        self.letters: DeadLetters | None = None
        self.worker = ValueWorker()
        self.room = asyncio.Semaphore(_AT_ONCE)
        self._until = asyncio.get_running_loop().time() + _PATIENCE_S
        self._topics: WeakValueDictionary[str, TopicChecks] = WeakValueDictionary()

    def close(self) -> None:
        """End the process that reads values."""
        self.worker.close()

    def of(self, topic: str) -> TopicChecks:
        """Return the checks of a topic; its partitions share them."""
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicChecks(topic, self)
        return found

    async def ready(self) -> SchemaLookup:
        """Return the registry when it accepts questions. Raises BatchRefused, Unavailable."""
        loop = asyncio.get_running_loop()
        while True:
            if self.lookup is not None:
                await self.lookup.ready()
                return self.lookup
            if loop.time() >= self._until:
                text = "The schemas of the records cannot be checked: this broker has no schema registry."
                raise BatchRefused(ErrorCode.INVALID_RECORD, text)
            await asyncio.sleep(_PAUSE_S)

    async def look(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Collect the facts for `why_without_effect`. Raises ApiError if they are not available now."""
        if self.without_registry is None or not any(_is_new(before, after, name) for name in ENABLE):
            return
        loop = asyncio.get_running_loop()
        until = loop.time() + _PUBLISHED_S
        while True:
            try:
                self._without = await self.without_registry()
            except OSError as error:
                text = f"It cannot be found out which brokers have a schema registry: {error}"
                raise ApiError(ErrorCode.REQUEST_TIMED_OUT, text) from None
            if not self._without or loop.time() >= until:
                return
            await asyncio.sleep(_PAUSE_S)

    def why_without_effect(self, topic: str, before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
        """Return the reason why a topic's new configs cannot have their effect; None if they can."""
        for name in ENABLE:
            if not _is_new(before, after, name):
                continue
            if self.lookup is None:
                return f"{name} cannot be set: this broker has no schema registry"
            if self._without:
                return f"{name} cannot be set: {_named(self._without)} no schema registry; each may lead partitions"
        letters = after.get(DEAD_LETTERS, "").strip()
        if letters == topic or letters.startswith("__"):
            return f"{DEAD_LETTERS}: {letters} cannot be the dead letter topic of {topic}"
        return None


class TopicChecks:
    """The checks of one topic (`RecordChecks`)."""

    def __init__(self, topic: str, checks: BrokerChecks) -> None:
        self._topic = topic
        self._checks = checks
        self._config: LogConfig | None = None
        self._check: SchemaCheck | None = None

    def under(self, config: LogConfig) -> SchemaCheck:
        """Return the check for a config that enables validation."""
        check = self._check
        if check is None or self._config is not config:
            check = self._check = SchemaCheck(self._topic, config, self._checks)
            self._config = config
        return check


def _is_new(before: Mapping[str, str], after: Mapping[str, str], name: str) -> bool:
    return _is_true(after, name) and not _is_true(before, name)


def _named(brokers: Sequence[int]) -> str:
    if len(brokers) == 1:
        return f"broker {brokers[0]} has"
    return f"brokers {', '.join(map(str, brokers[:_MOST_NAMED]))} have"


def _is_true(configs: Mapping[str, str], name: str) -> bool:
    return configs.get(name, "").strip().lower() == "true"
