"""Clients' use of their quotas, and the resulting pauses (Apache Kafka 4.4: ClientQuotaManager).

Owns the counts by user and client id, the arithmetic of the four request quotas, and the choice of a client's limit:
the most specific limit, in Kafka's order. The clients of a bucket share one limit. The bucket of a user's limit has all
connections of the user. The bucket of a limit for a user and a client id has the user's connections with this client
id. The bucket of a client id's limit has all connections with this client id. Never mutes a connection: the result is
the client's pause in ms. Without quotas, no caller uses this module.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Final, NamedTuple

from kbroker.quota.configured import CLIENT_KEYS, CONSUMER, DEFAULT, MUTATION, PRODUCER, REQUEST, Entity, Values
from kbroker.quota.rate import LONGEST_MS, SampledRate, Sensors, TokenBucket, Window

Bucket = tuple[str | None, str | None]
"""A user and a client id. None means any user or any client id."""
_SPECIFIC: tuple[tuple[bool | None, bool | None], ...] = (
    (True, True), (True, False), (True, None),
    (False, True), (False, False), (False, None),
    (None, True), (None, False),
)  # fmt: skip
"""The levels of limits as (user, client id), the most specific first.

True means a limit of this very name, False the default limit, and None a limit for any name.
"""


class Limit(NamedTuple):
    """The limit of a client."""

    bucket: Bucket
    value: float


class Limits:
    """The limits of one key by user and client id."""

    def __init__(self, limits: Mapping[Bucket, float]) -> None:
        """Create the object. `limits` is a mapping by entity names, which include DEFAULT."""
        self._limits = dict(limits)
        self._counts = Counter(map(_specific, self._limits))
        self._find_levels()

    def _find_levels(self) -> None:
        """Find the levels that have limits: the other levels need no lookup."""
        self._levels = [level for level in _SPECIFIC if self._counts[level]]

    def alter(self, bucket: Bucket, value: float | None) -> None:
        """Set a limit, or remove it."""
        level = _specific(bucket)
        self._counts[level] += (value is not None) - (bucket in self._limits)
        if value is not None:
            self._limits[bucket] = value
        else:
            self._limits.pop(bucket, None)
        self._find_levels()

    def __bool__(self) -> bool:
        return bool(self._limits)

    def of(self, user: str, client_id: str | None) -> Limit | None:
        """Return a client's limit, or None if the client has none. A client without an id has no limit by client id."""
        for by_user, by_client in self._levels:
            if by_client is not None and not client_id:
                continue
            key = (_wanted(by_user, user), _wanted(by_client, client_id))
            value = self._limits.get(key)
            if value is not None:
                return Limit((None if by_user is None else user, None if by_client is None else client_id), value)
        return None

    def of_bucket(self, bucket: Bucket) -> float | None:
        """Return the limit of a bucket from `of`; None if the limit was removed meanwhile."""
        user, client_id = bucket
        for by_user, by_client in self._levels:
            if (by_user is None, by_client is None) == (user is None, client_id is None):
                value = self._limits.get((_wanted(by_user, user), _wanted(by_client, client_id)))
                if value is not None:
                    return value
        return None


def _wanted(level: bool | None, name: str | None) -> str | None:
    if level is None:
        return None
    return name if level else DEFAULT


def _specific(bucket: Iterable[str | None]) -> tuple[bool | None, bool | None]:
    user, client_id = (None if name is None else name != DEFAULT for name in bucket)
    return user, client_id


_LONGEST_NAME: Final = 256
"""The maximum length of a stored client id. A digest replaces a longer client id."""


class Used(NamedTuple):
    """The use of one limit, and the required pause in ms.

    The use is a rate per second, or the remaining tokens of a token bucket.
    """

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
        """Count a value. Return the client's pause in ms; 0 for no pause."""
        limit = self.limits.of(user, client_id)
        if limit is None:
            return 0
        sensor = self._sensor(limit, now_ms)
        sensor.record(value, now_ms)
        return sensor.excess_ms(limit.value, now_ms, self._at_most_ms)

    def note(self, user: str, client_id: str | None, value: float, now_ms: float) -> None:
        """Count a value, which may be negative, without a pause."""
        limit = self.limits.of(user, client_id)
        if limit is not None:
            self._sensor(limit, now_ms).record(value, now_ms)

    def at_once(self, user: str, client_id: str | None) -> float | None:
        """Return the largest amount that causes no pause by itself. Return None if there is no limit."""
        limit = self.limits.of(user, client_id)
        if limit is None:
            return None
        return limit.value * (self._window.samples - 1) * self._window.sample_ms / 1000

    def used(self, now_ms: float, most: int) -> Iterator[Used]:
        """Yield the most recently used limits, at most `most` of them."""
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
    """A limit on created or deleted partitions per second, with tokens that can be saved (KIP-599)."""

    def __init__(self, window: Window) -> None:
        self._sensors: Sensors[Bucket, TokenBucket] = Sensors(lambda: TokenBucket(window))
        self.limits = Limits({})

    def mutate(self, user: str, client_id: str | None, count: int, now_ms: float, *, strict: bool) -> tuple[bool, int]:
        """Return whether a client may create or delete partitions, and the time in ms for which it must pause.

        If `strict`, the client must not create or delete partitions while the bucket owes tokens. Otherwise the client
        may always do this, and must pause afterwards.
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
        """Yield the most recently used limits, at most `most` of them."""
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
        """The quota of time, in percent of one thread's time."""
        self.mutated = MutationQuota(mutation_window)
        self._by_key: dict[str, RateQuota | MutationQuota] = {
            PRODUCER: self.produced,
            CONSUMER: self.fetched,
            REQUEST: self.worked,
            MUTATION: self.mutated,
        }
        self.generation = 0
        """A number that grows whenever a limit changes."""
        self.active = False
        """Whether there is any limit."""
        self.on_activity: Callable[[], None] = lambda: None
        """A function that is called when `active` has changed."""

    def replace(self, quotas: Mapping[Entity, Values]) -> None:
        """Replace all quotas. The counts of a key are kept if the key still has a limit."""
        by_key: dict[str, dict[Bucket, float]] = {key: {} for key in CLIENT_KEYS}
        for entity, values in quotas.items():
            if entity.ip is None:
                for key, value in values.items():
                    by_key[key][_bucket(entity)] = value
        for key, quota in self._by_key.items():
            quota.limits = Limits(by_key[key])
        self._refresh()

    def alter(self, entity: Entity, values: Values) -> None:
        """Replace the limits of one entity."""
        if entity.ip is None:
            for key, quota in self._by_key.items():
                quota.limits.alter(_bucket(entity), values.get(key))
            self._refresh()

    def limit(self, user: str, client_id: str | None) -> bool:
        """Whether a client has any limit."""
        return any(quota.limits.of(user, client_id) is not None for quota in self._by_key.values())

    def _refresh(self) -> None:
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


def key_of(bucket: Bucket) -> Bucket:
    """Return the key of a bucket. A digest replaces a long client id, because clients choose their ids."""
    user, client_id = bucket
    if client_id is None or len(client_id) <= _LONGEST_NAME:
        return bucket
    return user, f"{len(client_id)} {sha256(client_id.encode(errors='surrogatepass')).hexdigest()}"
