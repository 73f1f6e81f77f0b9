"""The quotas of a broker: compares the resource use of its clients with the quotas in the cluster's state.

Passes the quotas from the state to the counters. If a quota's address is a host name, the name is resolved, and
resolved again whenever quotas of addresses change, as in Kafka. Until it is resolved, its quota applies to no client.
"""

from __future__ import annotations

import asyncio
import logging

from kbroker.clock import Clock
from kbroker.cluster_state import ClusterState
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.quota.client_quotas import ClientQuotas
from kbroker.quota.configured import CONNECTION, DEFAULT, Quotas
from kbroker.quota.connection_rate import ConnectionRates, canonical
from kbroker.quota.rate import Window
from kbroker.security.principal import printable

log = logging.getLogger(__name__)


class BrokerQuotas:
    """The counters of one broker, measured over the configured windows."""

    def __init__(self, config: BrokerConfig, clock: Clock, metadata: ClusterMetadata) -> None:
        get = config.get_int
        window = Window(get("quota.window.num"), get("quota.window.size.seconds") * 1000)
        mutations = Window(get("controller.quota.window.num"), get("controller.quota.window.size.seconds") * 1000)
        self.clients = ClientQuotas(clock.monotonic_ms, window, mutations)
        self.connections = ConnectionRates(clock.monotonic_ms, window)
        self._of_ips: dict[str, float] = {}
        self._found: dict[str, str] = {}  # resolved addresses by host name
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._take_all(metadata.state.quotas)
        metadata.subscribe(self._follow)

    def close(self) -> None:
        """Stop all look-ups."""
        for task in self._lookups.values():
            task.cancel()

    def _follow(self, old: ClusterState, new: ClusterState) -> None:
        if new.quotas is old.quotas:
            return
        entity = new.quotas.altered_since(old.quotas)
        if entity is None:
            self._take_all(new.quotas)
        elif entity.ip is None:
            self.clients.alter(entity, new.quotas.get(entity, {}))
        else:
            self._limit_ip(entity.ip, new.quotas.get(entity, {}).get(CONNECTION))

    def _take_all(self, quotas: Quotas) -> None:
        self.clients.replace(quotas)
        of_ips = {entity.ip: values[CONNECTION] for entity, values in quotas.items() if entity.ip is not None}
        for ip in self._of_ips.keys() - of_ips.keys():
            self._limit_ip(ip, None)
        for ip, limit in of_ips.items():
            if limit != self._of_ips.get(ip):
                self._limit_ip(ip, limit)

    def _limit_ip(self, ip: str, limit: float | None) -> None:
        if limit is None:
            self._of_ips.pop(ip, None)
        else:
            self._of_ips[ip] = limit
        if ip == DEFAULT:
            self.connections.limit_ip(None, limit)
        elif _is_address(ip):
            self.connections.limit_ip(canonical(ip), limit)
        else:
            self._limit_name(ip, limit)

    def _limit_name(self, name: str, limit: float | None) -> None:
        lookup = self._lookups.pop(name, None)
        if lookup is not None:
            lookup.cancel()
        found = self._found.pop(name, None)
        if found is not None:
            self.connections.limit_ip(found, self._of_ips.get(found))
        if limit is not None:
            self._lookups[name] = asyncio.get_running_loop().create_task(self._look_up(name, limit))

    async def _look_up(self, name: str, limit: float) -> None:
        try:
            (first, *_) = await asyncio.get_running_loop().getaddrinfo(name, None)
        except (OSError, ValueError):
            log.warning("%s has a quota of connections, and no address: it limits no client", printable(name))
        else:
            self._found[name] = canonical(str(first[4][0]))
            self.connections.limit_ip(self._found[name], limit)
        self._lookups.pop(name, None)


def _is_address(text: str) -> bool:
    known = canonical(text)
    return ":" in known or known.replace(".", "").isdecimal()
