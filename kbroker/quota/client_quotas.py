"""Clients' use of their quotas, and the resulting pauses (Apache Kafka 4.3: ClientQuotaManager).

Owns the counts by user and client id, and the arithmetic of the four request quotas. Never mutes a connection: the
result is for how many ms the client must pause. Without any quota it is not called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kbroker.quota.entities import Entity
from kbroker.quota.limits import Bucket, Limit, Limits
from kbroker.quota.quota_keys import CLIENT_KEYS, CONSUMER, MUTATION, PRODUCER, REQUEST, Values
from kbroker.quota.rate import LONGEST_MS, SampledRate, TokenBucket, Window
from kbroker.quota.sensors import Sensors, key_of


class Used(NamedTuple):
    """The use of one limit, per second (of tokens: the remaining ones), and the required pause in ms."""

    user: str | None
    client_id: str | None
    amount: float
    pause_ms: int


class RateQuota:
    """A limit on a rate per second, averaged over a window."""

    def __init__(self, window: Window, at_most_ms: float = LONGEST_MS) -> None:
        self._window = window
        self._at_most_ms = at_most_ms
        self._sensors: Sensors[Bucket, SampledRate] = Sensors(lambda: SampledRate(window))
        self.limits = Limits({})

    def _sensor(self, limit: Limit, now_ms: float) -> SampledRate:
        return self._sensors.get(key_of(limit.bucket), now_ms)

    def record(self, user: str, client_id: str | None, value: float, now_ms: float) -> int:
        """Count a value, and return for how many ms the client has to pause; 0 for no pause."""
        limit = self.limits.of(user, client_id)
        if limit is None:
            return 0
        sensor = self._sensor(limit, now_ms)
        sensor.record(value, now_ms)
        return sensor.excess_ms(limit.value, now_ms, self._at_most_ms)

    def note(self, user: str, client_id: str | None, value: float, now_ms: float) -> None:
        """Count a value, possibly negative, without a pause."""
        limit = self.limits.of(user, client_id)
        if limit is not None:
            self._sensor(limit, now_ms).record(value, now_ms)

    def at_once(self, user: str, client_id: str | None) -> float | None:
        """Return the largest amount that needs no pause on its own; None for no limit."""
        limit = self.limits.of(user, client_id)
        if limit is None:
            return None
        return limit.value * (self._window.samples - 1) * self._window.sample_ms / 1000

    def used(self, now_ms: float, most: int) -> Iterator[Used]:
        """Yield at most this many limits, the most recently used ones."""
        for bucket, sensor in self._sensors.latest(most):
            limit = self.limits.of_bucket(bucket)
            if limit is not None:
                yield Used(*bucket, sensor.per_second(now_ms), sensor.excess_ms(limit, now_ms, self._at_most_ms))

    def __len__(self) -> int:
        return len(self._sensors)

    def clear(self) -> None:
        """Drop all counts."""
        self._sensors.clear()


class MutationQuota:
    """A limit on created or deleted partitions per second, with tokens that may be saved up (KIP-599)."""

    def __init__(self, window: Window) -> None:
        self._sensors: Sensors[Bucket, TokenBucket] = Sensors(lambda: TokenBucket(window))
        self.limits = Limits({})

    def mutate(self, user: str, client_id: str | None, count: int, now_ms: float, *, strict: bool) -> tuple[bool, int]:
        """Request to create or delete partitions: return whether that is allowed, and for how many ms to pause.

        If `strict`, nothing is allowed while tokens are owed; otherwise everything is, and the client pauses for it.
        """
        limit = self.limits.of(user, client_id)
        if limit is None or math.isinf(limit.value):
            return True, 0
        bucket = self._sensors.get(key_of(limit.bucket), now_ms)
        if strict:
            owed_ms = bucket.owed_ms(limit.value, now_ms)
            if owed_ms or bucket.tokens(limit.value, now_ms) < 0:
                return False, owed_ms
            bucket.take(count, limit.value, now_ms)
            return True, 0
        bucket.take(count, limit.value, now_ms)
        return True, bucket.owed_ms(limit.value, now_ms)

    def used(self, now_ms: float, most: int) -> Iterator[Used]:
        """Yield at most this many limits, the most recently used ones."""
        for bucket, tokens in self._sensors.latest(most):
            limit = self.limits.of_bucket(bucket)
            if limit is not None and not math.isinf(limit):
                yield Used(*bucket, tokens.tokens(limit, now_ms), tokens.owed_ms(limit, now_ms))

    def __len__(self) -> int:
        return len(self._sensors)

    def clear(self) -> None:
        """Drop all counts."""
        self._sensors.clear()


class ClientQuotas:
    """The four request quotas. `now_ms` is a monotonic clock."""

    def __init__(self, now_ms: Callable[[], float], window: Window, mutation_window: Window) -> None:
        self.now_ms = now_ms
        self.produced = RateQuota(window)
        self.fetched = RateQuota(window)
        self.worked = RateQuota(window, window.sample_ms)
        """Percent of one thread's time."""
        self.mutated = MutationQuota(mutation_window)
        self._by_key: dict[str, RateQuota | MutationQuota] = {
            PRODUCER: self.produced,
            CONSUMER: self.fetched,
            REQUEST: self.worked,
            MUTATION: self.mutated,
        }
        self.generation = 0
        """Grows whenever a limit changes."""
        self.active = False
        """Whether there is any limit."""
        self.on_activity: Callable[[], None] = lambda: None
        """Called when `active` has changed."""

    def replace(self, quotas: Mapping[Entity, Values]) -> None:
        """Use other quotas from now on; counts are kept if there still is a limit of that key."""
        by_key: dict[str, dict[Bucket, float]] = {key: {} for key in CLIENT_KEYS}
        for entity, values in quotas.items():
            if entity.ip is None:
                for key, value in values.items():
                    by_key[key][_bucket(entity)] = value
        for key, quota in self._by_key.items():
            quota.limits = Limits(by_key[key])
        self._look()

    def alter(self, entity: Entity, values: Values) -> None:
        """Use other limits of one entity from now on."""
        if entity.ip is None:
            for key, quota in self._by_key.items():
                quota.limits.alter(_bucket(entity), values.get(key))
            self._look()

    def limit(self, user: str, client_id: str | None) -> bool:
        """Whether there is any limit for a client."""
        return any(quota.limits.of(user, client_id) is not None for quota in self._by_key.values())

    def _look(self) -> None:
        self.generation += 1
        for quota in self._by_key.values():
            if not quota.limits:
                quota.clear()
        active = any(quota.limits for quota in self._by_key.values())
        if active != self.active:
            self.active = active
            self.on_activity()


def _bucket(entity: Entity) -> Bucket:
    return entity.user, entity.client_id
