"""The quotas of a broker: what its clients use is held against what the cluster's state says by then.

Owns the way of quotas from the state to who counts. A name instead of an address is looked up, again whenever quotas of
addresses change, as Kafka does; until it is found it limits nobody.
"""

from __future__ import annotations

import asyncio
import logging

from kbroker.clock import Clock
from kbroker.cluster_state import ClusterState
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.cluster_metadata import ClusterMetadata
from kbroker.quota.client_quotas import ClientQuotas
from kbroker.quota.connection_rate import ConnectionRates, canonical
from kbroker.quota.entities import DEFAULT
from kbroker.quota.rate import Window
from kbroker.quota.stored import Quotas
from kbroker.quota.values import CONNECTION

log = logging.getLogger(__name__)


class BrokerQuotas:
    """Counts for one broker, over the windows that its configuration says."""

    def __init__(self, config: BrokerConfig, clock: Clock, metadata: ClusterMetadata) -> None:
        get = config.get_int
        window = Window(get("quota.window.num"), get("quota.window.size.seconds") * 1000)
        mutations = Window(get("controller.quota.window.num"), get("controller.quota.window.size.seconds") * 1000)
        self.clients = ClientQuotas(clock.monotonic_ms, window, mutations)
        self.connections = ConnectionRates(clock.monotonic_ms, window)
        self._of_ips: dict[str, float] = {}
        self._found: dict[str, float] = {}
        self._looking: asyncio.Task[None] | None = None
        self._take(metadata.state.quotas)
        metadata.subscribe(self._follow)

    def close(self) -> None:
        """Look for nothing more."""
        if self._looking is not None:
            self._looking.cancel()

    def _follow(self, old: ClusterState, new: ClusterState) -> None:
        if new.quotas is not old.quotas:
            self._take(new.quotas)

    def _take(self, quotas: Quotas) -> None:
        self.clients.replace(quotas)
        of_ips = {entity.ip: values[CONNECTION] for entity, values in quotas.items() if entity.ip is not None}
        if of_ips == self._of_ips:
            return
        self._of_ips = of_ips
        self._found = {canonical(ip): limit for ip, limit in of_ips.items() if ip and _is_address(ip)}
        self._limit_ips()
        names = [ip for ip in of_ips if ip and not _is_address(ip)]
        self.close()
        self._looking = asyncio.get_running_loop().create_task(self._look_up(names)) if names else None

    def _limit_ips(self) -> None:
        self.connections.limit_ips(self._of_ips.get(DEFAULT), self._found)

    async def _look_up(self, names: list[str]) -> None:
        for name in names:
            try:
                (first, *_) = await asyncio.get_running_loop().getaddrinfo(name, None)
            except (OSError, ValueError):
                log.warning("%s has a quota of connections, and no address: nobody is limited by it", name)
            else:
                self._found = {**self._found, canonical(str(first[4][0])): self._of_ips[name]}
                self._limit_ips()


def _is_address(text: str) -> bool:
    known = canonical(text)
    return ":" in known or known.replace(".", "").isdecimal()
