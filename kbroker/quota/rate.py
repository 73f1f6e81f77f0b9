"""Rates, and the pauses that they require, like Kafka's Rate over a WindowedSum and its TokenBucket.

Owns the samples and the arithmetic, and the counters of all buckets in use. A counter is dropped after an hour without
use, as in Kafka. If there are too many counters, the counter with the longest time without use is dropped earlier.
Times are ms of any monotonic clock; a rate is per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

LONGEST_MS = 2**31 - 1
"""The maximum value of throttle_time_ms."""


class Window(NamedTuple):
    """The number of samples, and the length of each sample (quota.window.num, quota.window.size.seconds)."""

    samples: int
    sample_ms: int


class SampledRate:
    """The mean rate of the last samples. The newest sample is incomplete."""

    __slots__ = ("_current", "_samples", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._samples: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: float) -> None:
        """Count a value at the current time."""
        if not self._samples:
            self._samples.append(_Sample(now_ms))
        sample = self._samples[self._current]
        if now_ms - sample.start_ms >= self._window.sample_ms:
            sample = self._next(now_ms)
        sample.value += value
        sample.last_ms = now_ms

    def _next(self, now_ms: float) -> _Sample:
        # Keep one sample more than the window has, because the oldest sample partly overlaps the window.
        self._current = (self._current + 1) % (self._window.samples + 1)
        if self._current == len(self._samples):
            self._samples.append(_Sample(now_ms))
        else:
            self._samples[self._current].begin(now_ms)
        return self._samples[self._current]

    def window_ms(self, now_ms: float) -> float:
        """Return the time, in ms, over which the rate is averaged."""
        samples, sample_ms = self._window
        oldest = now_ms
        for each in self._samples:
            if now_ms - each.last_ms >= samples * sample_ms:
                each.begin(now_ms)
            oldest = min(oldest, each.start_ms)
        elapsed = now_ms - oldest
        whole = int(elapsed // sample_ms)
        if whole < samples - 1:
            elapsed += (samples - 1 - whole) * sample_ms
        return max(elapsed, 1.0)

    def per_second(self, now_ms: float) -> float:
        """Return the rate per second."""
        window_ms = self.window_ms(now_ms)
        return sum(each.value for each in self._samples) * 1000 / window_ms

    def excess_ms(self, limit: float, now_ms: float, at_most_ms: float = LONGEST_MS) -> int:
        """Return the time in ms to pause until the rate is back at `limit`.

        Return 0 if the rate is not above `limit`.
        """
        window_ms = self.window_ms(now_ms)
        rate = sum(each.value for each in self._samples) * 1000 / window_ms
        if rate <= limit:
            return 0
        if not limit:
            return math.floor(at_most_ms)
        return math.floor(min((rate - limit) / limit * window_ms, at_most_ms) + 0.5)


class _Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: float) -> None:
        self.begin(now_ms)

    def begin(self, now_ms: float) -> None:
        self.start_ms = self.last_ms = now_ms
        self.value = 0.0


class TokenBucket:
    """Tokens that are refilled at a rate, up to the amount of all samples. A negative number means owed tokens."""

    __slots__ = ("_at_ms", "_tokens", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        self._tokens = math.inf
        self._at_ms = 0.0

    def tokens(self, rate: float, now_ms: float) -> float:
        """Return the number of tokens."""
        burst = self._window.samples * self._window.sample_ms / 1000 * rate
        self._tokens = min(burst, self._tokens + rate * (now_ms - self._at_ms) / 1000)
        self._at_ms = now_ms
        return self._tokens

    def take(self, count: float, rate: float, now_ms: float) -> None:
        """Take tokens, even if there are not enough."""
        self._tokens = self.tokens(rate, now_ms) - count

    def owed_ms(self, rate: float, now_ms: float) -> int:
        """Return the time in ms to wait until no tokens are owed."""
        tokens = self.tokens(rate, now_ms)
        return 0 if tokens >= 0 else math.floor(min(-tokens / rate * 1000, LONGEST_MS) + 0.5)


EXPIRY_MS: Final = 3_600_000
MOST: Final = 10_000
"""The maximum number of buckets of one kind: about 15 MB."""

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")


class Sensors(Generic[K, S]):
    """One counter for each key, created by `make`."""

    def __init__(self, make: Callable[[], S], most: int = MOST) -> None:
        self._make = make
        self._most = most
        self._known: dict[K, tuple[S, float]] = {}  # the counter with the longest time without use is first

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: K, now_ms: float) -> S:
        """Return the counter of a key, after creating it if it is missing."""
        known = self._known.pop(key, None)
        if known is None:
            self._make_room(now_ms)
        sensor = self._make() if known is None or now_ms - known[1] >= EXPIRY_MS else known[0]
        self._known[key] = (sensor, now_ms)
        return sensor

    def _make_room(self, now_ms: float) -> None:
        while self._known:
            oldest = next(iter(self._known))
            if len(self._known) < self._most and now_ms - self._known[oldest][1] < EXPIRY_MS:
                return
            del self._known[oldest]

    def latest(self, most: int) -> list[tuple[K, S]]:
        """Return the counters of at most this many keys, with the most recently used first."""
        return [(key, self._known[key][0]) for key in islice(reversed(self._known), most)]

    def clear(self) -> None:
        """Drop all counters."""
        self._known.clear()
