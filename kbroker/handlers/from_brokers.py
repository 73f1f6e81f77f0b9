"""Accepts inter-broker requests only from brokers, if inter.broker.apis.from=brokers (kbroker's own config).

Owns the list of these requests, and the addresses of the hosts of registered brokers. Without an authorizer Kafka
accepts such a request from any client. This module checks the request's listener and source address. Never checks the
authenticated principal: an authorizer checks it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import lru_cache
from typing import Any, Final

from kbroker.controller.tree.znode import Denied, Unreachable
from kbroker.handlers.fetch_attempt import is_of_follower
from kbroker.handlers.registry import Api, CloseConnection, Handler, RequestContext
from kbroker.protocol.errors import ApiError, ErrorCode

log = logging.getLogger(__name__)

_ALWAYS: Final = frozenset(
    {
        "LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition", "AllocateProducerIds",
        "WriteTxnMarkers", "InitializeShareGroupState", "ReadShareGroupState", "WriteShareGroupState",
        "DeleteShareGroupState", "ReadShareGroupStateSummary",
    }
)  # fmt: skip
_ADD_PARTITIONS_OF_BROKERS_SINCE: Final = 4
_PAUSE_SECONDS: Final = 1.0
"""The minimum time between two reads of the hosts, if unknown addresses cause these reads.

Without a minimum, unknown clients could cause reads at any rate.
"""
_HOLDS_SECONDS: Final = 30.0
"""When a known broker sends a request, the hosts are read again if the last read is older than this."""
_READ_SECONDS: Final = 5.0

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BrokerHosts:
    """The addresses of brokers.

    `listener` is the inter-broker listener; `registered()` returns the brokers' hosts on this listener. If `registered`
    raises Unreachable or Denied, unknown clients are disconnected. They may try again.
    """

    def __init__(self, listener: str, registered: Callable[[], Awaitable[Iterable[str]]]) -> None:
        self.listener = listener
        self._registered = registered
        self._known: frozenset[Address] = frozenset()
        self._resolved: dict[str, set[Address]] = {}
        self._read_at = self._tried_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    def close(self) -> None:
        """Cancel a read in progress."""
        if self._reading is not None:
            self._reading.cancel()

    def knows(self, host: str) -> bool:
        """Whether an address such as "/192.0.2.1" belonged to a broker at the last read. May start a new read."""
        found = _address(host) in self._known or (_address(host).is_loopback and self._has_loopback())
        if found and asyncio.get_running_loop().time() - self._tried_at > _HOLDS_SECONDS:
            self._begin(0)
        return found

    def _has_loopback(self) -> bool:
        return any(each.is_loopback for each in self._known)

    async def knows_now(self, host: str) -> bool:
        """Read the hosts again, then do the check of `knows`. Raises CloseConnection if the read fails."""
        asked_at = asyncio.get_running_loop().time()
        while self._read_at < asked_at:
            await asyncio.shield(self._begin(self._tried_at + _PAUSE_SECONDS - asked_at))
        return self.knows(host)

    def _begin(self, delay: float) -> asyncio.Task[None]:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(delay))
            # Retrieve the task's exception, because the task may end while nobody awaits it.
            self._reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        return self._reading

    async def _read(self, delay: float) -> None:
        try:
            await asyncio.sleep(max(delay, 0))
            loop = asyncio.get_running_loop()
            began = self._tried_at = loop.time()
            found: dict[str, set[Address]] = {}
            async with asyncio.timeout(_READ_SECONDS):
                for host in dict.fromkeys(await self._registered()):
                    try:
                        addresses = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
                        found[host] = {_address(str(each[4][0])) for each in addresses}
                    except OSError as error:
                        log.warning("the host %r of a broker cannot be resolved: %s", host, error)
                        found[host] = self._resolved.get(host, set())  # after a failed lookup keep the old addresses
            self._resolved = found
            self._known, self._read_at = frozenset().union(*found.values()), began
        except (Unreachable, Denied, TimeoutError) as error:
            log.warning("the hosts of registered brokers cannot be read: %s", str(error) or "no answer in time")
            raise CloseConnection("the brokers' addresses are not known") from None
        finally:
            self._reading = None


@lru_cache(256)  # every fetch of a follower calls this
def _address(host: str) -> Address:
    found = ipaddress.ip_address(host.removeprefix("/").partition("%")[0])
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def only_from_brokers(api: Api, handler: Handler, hosts: BrokerHosts) -> Handler:
    """Return a handler that refuses (CLUSTER_AUTHORIZATION_FAILED) a request that does not come from a broker."""
    if api.name == "Fetch":
        is_of_broker: Callable[[RequestContext, Any], bool] = _fetches_as_follower
    elif api.name == "AddPartitionsToTxn":
        is_of_broker = _adds_as_broker
    elif api.name in _ALWAYS:
        is_of_broker = _always
    else:
        return handler

    def guarded(ctx: RequestContext, request: Any) -> Any:
        if not is_of_broker(ctx, request):
            return handler(ctx, request)
        if ctx.listener != hosts.listener:
            raise _refusal(api, ctx)
        return handler(ctx, request) if hosts.knows(ctx.client_host) else checked(ctx, request)

    async def checked(ctx: RequestContext, request: Any) -> Any:
        if not await hosts.knows_now(ctx.client_host):
            raise _refusal(api, ctx)
        return handler(ctx, request)

    return guarded


def _always(_ctx: RequestContext, _request: Any) -> bool:
    return True


def _fetches_as_follower(_ctx: RequestContext, request: Any) -> bool:
    return is_of_follower(request)


def _adds_as_broker(ctx: RequestContext, _request: Any) -> bool:
    return ctx.version >= _ADD_PARTITIONS_OF_BROKERS_SINCE


def _refusal(api: Api, ctx: RequestContext) -> ApiError:
    log.info("%s from %s by listener %s is refused: the sender is no broker", api.name, ctx.client_host, ctx.listener)
    return ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
