"""The rates of new connections to a broker, to each of its listeners, and from each address.

Owns these counts (Apache Kafka 4.4: ConnectionQuotas). Never accepts or closes a connection. It returns the time in ms
for which to accept no connections, or to keep a refused connection open.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from typing import Final

from kbroker.quota.rate import SampledRate, Sensors, Window

UNLIMITED: Final = 2**31 - 1
"""The value of max.connection.creation.rate that means no limit."""


class ConnectionRates:
    """The counts of one broker. `now_ms` is a monotonic clock."""

    def __init__(self, now_ms: Callable[[], float], window: Window) -> None:
        self._now_ms = now_ms
        self._window = window
        self._default: float | None = None
        self._by_ip: dict[str, float] = {}
        self._ips: Sensors[str, SampledRate] = Sensors(lambda: SampledRate(window))
        self._shared: dict[str, tuple[float, SampledRate]] = {}  # by listener; "" means the broker

    def limit_ip(self, ip: str | None, limit: float | None) -> None:
        """Set the limit of an address in the form of `canonical`. None means all addresses without their own limit."""
        if ip is None:
            self._default = limit
        elif limit is None:
            self._by_ip.pop(ip, None)
        else:
            self._by_ip[ip] = limit
        if self._default is None and not self._by_ip:
            self._ips.clear()

    def limit_all(self, by_listener: Mapping[str, int]) -> None:
        """Set the limits of the listeners. The broker's limit has the name ""."""
        self._shared = {
            name: (rate, self._shared[name][1] if name in self._shared else SampledRate(self._window))
            for name, rate in by_listener.items()
            if rate < UNLIMITED
        }

    @property
    def active(self) -> bool:
        """Whether there is any limit."""
        return bool(self._shared or self._by_ip) or self._default is not None

    def pause_ms(self, listener: str, *, protected: bool) -> int:
        """Count a new connection. Return the time in ms for which this and all later connections must wait.

        `protected` means that the connection uses the inter-broker listener, to which the broker's limit does not
        apply.
        """
        now_ms, pause_ms = self._now_ms(), 0
        for name in (listener,) if protected else ("", listener):
            if name in self._shared:
                rate, sensor = self._shared[name]
                sensor.record(1, now_ms)
                pause_ms = max(pause_ms, sensor.excess_ms(rate, now_ms, self._window.sample_ms))
        return pause_ms

    def refused_ms(self, host: str, listener: str, *, protected: bool) -> int:
        """Count a connection from an address.

        Return 0 if the connection is accepted, else the time in ms for which to keep the refused connection open. A
        refused connection counts neither for its address nor for its listener.
        """
        if self._default is None and not self._by_ip:
            return 0
        ip = canonical(host)
        limit = self._by_ip.get(ip, self._default)
        if limit is None:
            return 0
        now_ms = self._now_ms()
        sensor = self._ips.get(ip, now_ms)
        sensor.record(1, now_ms)
        held_ms = sensor.excess_ms(limit, now_ms, self._window.sample_ms)
        if held_ms:
            sensor.record(-1, now_ms)
            for name in (listener,) if protected else ("", listener):
                if name in self._shared:
                    self._shared[name][1].record(-1, now_ms)
        return held_ms


def canonical(host: str) -> str:
    """Return an address in the form used for comparisons. Return any other text unchanged."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)
