"""The metrics that clients should push: the cluster's client-metrics configs, and their combination for a client.

Owns the subscription id of a client, which is equal to Kafka's and depends on the order of Java's hash tables. Does not
know the connected clients, and does no I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kbroker.config.client_match import Match, fits, parse_match
from kbroker.config.model import InvalidConfig, Value
from kbroker.config.stored_configs import stored_values
from kbroker.config.table import CLIENT_METRICS
from kbroker.group_coordinator.java_order import in_java_order, list_in_java_order
from kbroker.long_work import turn
from kbroker.protocol.checksum import crc32c

ALL: Final = "*"
"""The metric name that means all metrics."""
DEFAULT_INTERVAL_MS: Final = 5 * 60 * 1000
"""The time between two pushes, in ms. It also applies to a client without a subscription."""
MOST_SUMS: Final = 256
"""The maximum number of combinations of subscriptions that are cached."""
_AT_ONCE: Final = 5_000
"""The number of names that are joined before other tasks get a turn."""
Texts = Mapping[str, str | None]
"""The texts of a client that the broker knows, by selector."""
Stored = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription: name prefixes in the order of Java's hash tables, ms between pushes, and its clients."""

    metrics: tuple[str, ...]
    interval_ms: int
    match: Match


@dataclass(frozen=True, slots=True)
class Wanted:
    """The combination of a client's subscriptions. Clients with the same subscriptions share the object."""

    metrics: tuple[str, ...]
    interval_ms: int
    version: int
    """The version of `Subscriptions` from which this object was computed."""
    checksum: int
    """A CRC-32C of the names and the interval, in Java's text form."""


class Subscriptions:
    """All subscriptions. `version` grows with every change."""

    def __init__(self) -> None:
        self.version = 0
        self._stored: Stored = {}
        self._known: dict[str, Subscription] = {}
        self._sums: dict[tuple[int, ...], Wanted] = {}
        """The cached combinations of subscriptions, by the positions of the subscriptions."""

    def __len__(self) -> int:
        return len(self._known)

    def follow(self, stored: Stored) -> None:
        """Replace all configs. Do not parse a config again if it is still the same object."""
        before, known = self._stored, self._known
        if stored is before:
            return
        self._known = {
            name: known[name] if before.get(name) is stored[name] and name in known else _read(stored[name])
            for name in in_java_order(stored)
        }
        self._stored = stored
        self._sums = {}
        self.version += 1

    async def wanted(self, texts: Texts) -> Wanted:
        """Return the combined subscription of a client, from the subscriptions that exist at the end of this call."""
        while True:
            version, places, fitting = self.version, list[int](), list[Subscription]()
            for place, each in enumerate(list(self._known.values())):
                if fits(each.match, texts):
                    places.append(place)
                    fitting.append(each)
                await turn
            if version == self.version:
                found = self._sums.get(key := tuple(places)) or await _sum(fitting, version)
            if version == self.version:
                self._sums[key] = found
                if len(self._sums) > MOST_SUMS:
                    del self._sums[next(iter(self._sums))]
                return found


async def _sum(subscriptions: Sequence[Subscription], version: int) -> Wanted:
    metrics, interval_ms = dict[str, None](), DEFAULT_INTERVAL_MS
    for each in subscriptions:
        metrics.update(dict.fromkeys(each.metrics))
        interval_ms = min(interval_ms, each.interval_ms)
        await turn
    names = [ALL] if ALL in metrics else await list_in_java_order(metrics.keys())
    checksum = crc32c(b"[")
    for start in range(0, len(names), _AT_ONCE):
        text = ", ".join(names[start : start + _AT_ONCE])
        checksum = crc32c((", " * (start > 0) + text).encode("utf-8", "replace"), checksum)
        await turn
    return Wanted(tuple(names), interval_ms, version, crc32c(f"]{interval_ms}".encode(), checksum))


def _read(configs: Mapping[str, str]) -> Subscription:
    values = stored_values(CLIENT_METRICS, configs, {})
    metrics, interval, match = values["metrics"], values["interval.ms"], values["match"]
    assert isinstance(metrics, tuple) and isinstance(interval, int) and isinstance(match, tuple)  # noqa: PT018
    return Subscription(tuple(in_java_order(metrics)), interval, _match(match))


def _match(patterns: Value) -> Match:
    assert isinstance(patterns, tuple)
    try:
        return parse_match(patterns)
    except InvalidConfig:  # a later version stored the config: matching no client is safer than matching all clients
        return {"": lambda _text: None}


def subscription_id(wanted: Wanted, instance_id: bytes) -> int:
    """Return the subscription id of a client: a CRC-32C of the combination, mixed with the client's instance id."""
    high, low = struct.unpack(">QQ", instance_id)
    both = high ^ low
    number = wanted.checksum ^ (both >> 32 ^ both) & 0xFFFFFFFF
    signed: int = struct.unpack(">i", struct.pack(">I", number))[0]
    return signed
