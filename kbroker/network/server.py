"""Listening sockets and the connections on them.

Owns accepting, the counts of connections, the check for idle connections, and the orderly shutdown. If /proc exists,
finds the process that already listens on a port, so that an error can name this process. Never reads a request:
connection.py does.
"""

from __future__ import annotations

import asyncio
import errno
import glob
import logging
import os
import socket
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kbroker.config.listeners import ListenerValues
from kbroker.config.server_config import BrokerConfig
from kbroker.config.values import per_ip_overrides
from kbroker.handlers.registry import RequestContext
from kbroker.handlers.services import Services
from kbroker.network.connection import RECEIVE_BYTES, Connection
from kbroker.network.dispatch import Dispatcher, Run
from kbroker.network.loop_watch import LoopWatch
from kbroker.network.memory_budget import Memory
from kbroker.network.refused_connections import NO_DESCRIPTOR, Refusals, last_descriptor, refusing_limit
from kbroker.network.sasl_gate import SaslGate
from kbroker.network.tls_channel import HANDSHAKE_SECONDS, Tls, TlsPort
from kbroker.network.turns import SLICE, Turns, now
from kbroker.quota.connection_rate import ConnectionRates
from kbroker.security.sasl.authentication import Offer

log = logging.getLogger(__name__)

_ACCEPT_PAUSE = 0.5
"""The number of seconds in which no connection is accepted, if no descriptors are left."""
_MOST_HELD = 256
"""The maximum number of refused connections that stay open for a while because their addresses connect too often."""
_LINGER_SECONDS = 2.0
"""The number of seconds for which a stop waits for clients to read their last responses."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of connections: bytes, counts, and ms."""

    max_request_bytes: int
    max_connections: int
    max_connections_per_ip: int
    per_ip_overrides: dict[str, int]
    max_idle_ms: int
    send_buffer_bytes: int
    receive_buffer_bytes: int
    backlog: int
    max_queued_bytes: int
    connection_rates: Mapping[str, int] = field(default_factory=dict)
    """The maximum rate of new connections per second, by listener. The key "" means the complete broker."""
    protected_listener: str | None = None
    """The inter-broker listener, if clients use another listener. The broker-wide rate does not apply to it."""


def server_limits(config: BrokerConfig) -> ServerLimits:
    """Return the limits of connections in a broker's config."""
    return ServerLimits(
        max_request_bytes=config.get_int("socket.request.max.bytes"),
        max_connections=config.get_int("max.connections"),
        max_connections_per_ip=config.get_int("max.connections.per.ip"),
        per_ip_overrides=per_ip_overrides(config.get_str("max.connections.per.ip.overrides")),
        max_idle_ms=config.get_int("connections.max.idle.ms"),
        send_buffer_bytes=config.get_int("socket.send.buffer.bytes"),
        receive_buffer_bytes=config.get_int("socket.receive.buffer.bytes"),
        backlog=config.get_int("socket.listen.backlog.size"),
        max_queued_bytes=config.get_int("queued.max.request.bytes"),
        connection_rates=_connection_rates(config),
        protected_listener=config.listeners.inter_broker if len(config.listeners.bind) > 1 else None,
    )


def _connection_rates(config: BrokerConfig) -> dict[str, int]:
    key = "max.connection.creation.rate"
    rates = {"": config.get_int(key)}
    for listener in config.listeners.bind:
        rate = ListenerValues(config, listener.name).get(key)
        assert isinstance(rate, int)
        rates[listener.name] = rate
    return rates


class Server:
    """Serves one broker's listeners."""

    def __init__(
        self,
        services: Services,
        dispatcher: Dispatcher,
        limits: ServerLimits,
        tls: Mapping[str, Tls] | None = None,
        sasl: Mapping[str, Offer] | None = None,
        rates: ConnectionRates | None = None,
    ) -> None:
        """Initialize; `tls` contains the TLS of listeners by name, and `sasl` the mechanisms of listeners by name.

        `rates` limits new connections.
        """
        self.dispatcher = dispatcher
        self._sasl = sasl or {}
        self.max_request_bytes = limits.max_request_bytes
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        loop = asyncio.get_running_loop()
        self.turns = Turns(loop)
        self.times = dispatcher.times
        self.memory = Memory(limits.max_queued_bytes)
        self.watch = LoopWatch(loop, dispatcher.name_of)
        self._refusals = Refusals(loop)
        patience = min(HANDSHAKE_SECONDS, limits.max_idle_ms / 1000) if limits.max_idle_ms >= 0 else HANDSHAKE_SECONDS
        self._ports = {
            name: TlsPort(loop, self.turns, each, self._refusals.log, patience) for name, each in (tls or {}).items()
        }
        self._loop = loop
        self._last_descriptor = last_descriptor()
        self._services = services
        self._rates = rates
        self._held: dict[socket.socket, asyncio.TimerHandle] = {}
        self.limit(limits)
        self._connections: dict[Connection, None] = {}  # in the order of arrival
        self._per_ip: Counter[str] = Counter()
        self._hosts: dict[Connection, str] = {}
        self.by_listener: Counter[str] = Counter()
        self.created: Counter[str] = Counter()
        """The number of open connections and of all connections so far, by listener."""
        self._listening: list[socket.socket] = []
        self._not_served: list[tuple[socket.socket, str]] = []
        self._paused: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._all_closed: asyncio.Future[None] | None = None
        self.count_opened = 0
        """The number of connections so far."""
        self.refuses = False
        """Whether a test has injected the fault that all new connections are refused."""

    def limit(self, limits: ServerLimits) -> None:
        """Use other limits from now on."""
        self.limits = limits
        if self._rates is not None:
            self._rates.limit_all(limits.connection_rates)

    async def listen(self, name: str, sock: socket.socket, *, serve: bool = True) -> int:
        """Accept connections on a socket from `bind`, and return its port. Raises OSError if the address is in use.

        Without `serve`, clients that connect wait until `serve` is called.
        """
        host, port = sock.getsockname()[:2]
        try:
            sock.listen(self.limits.backlog)  # the system reports only at this call that an address is in use
        except OSError as err:
            raise _cannot_listen(host, port, err) from None
        if serve:
            self._loop.add_reader(sock.fileno(), self._accept, sock, name)
        else:
            self._not_served.append((sock, name))
        self._listening.append(sock)
        if self._sweep is None:
            self._schedule_sweep()
            self.watch.start()
        log.info("listening on %s://%s:%d", name, f"[{host}]" if ":" in host else host, port)
        return int(port)

    def serve(self) -> None:
        """Accept the clients that have connected so far, and all later clients."""
        for sock, name in self._not_served:
            self._loop.add_reader(sock.fileno(), self._accept, sock, name)
        self._not_served.clear()

    def _accept(self, listening: socket.socket, name: str) -> None:
        """Accept waiting clients for one slice of time. The poller reports the other clients again."""
        started = now()
        self._accept_some(listening, name, started + SLICE)
        self.turns.used(now() - started)

    def _accept_some(self, listening: socket.socket, name: str, deadline: float) -> None:
        port = self._ports.get(name)
        while now() < deadline:
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as err:
                self._cannot_accept(listening, name, err)
                return
            if sock.fileno() >= self._last_descriptor:
                self._refusals.log(address[0], NO_DESCRIPTOR)
                sock.close()
                continue
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError:  # the client has already closed the connection
                sock.close()
                continue
            # A listener for IPv4 and IPv6 reports IPv4 addresses in the format of IPv6.
            peer = f"{address[0].removeprefix('::ffff:')}:{address[1]}"
            if self._rates is None or not self._rates.active:
                Connection(self, self._loop, sock, peer, name, port)
            elif self._must_wait(self._rates, listening, name, sock, peer):
                return
            else:
                self._admit(self._rates, name, sock, peer)

    def _must_wait(
        self, rates: ConnectionRates, listening: socket.socket, name: str, sock: socket.socket, peer: str
    ) -> bool:
        """Whether all connections from this one on must wait: the rate exceeds a listener's or the broker's limit."""
        pause_ms = rates.pause_ms(name, protected=name == self.limits.protected_listener)
        if not pause_ms:
            return False
        self._loop.remove_reader(listening.fileno())
        go_on = partial(self._go_on_accepting, rates, listening, name, sock, peer)
        self._held[sock] = self._loop.call_later(pause_ms / 1000, go_on)
        return True

    def _go_on_accepting(
        self, rates: ConnectionRates, listening: socket.socket, name: str, sock: socket.socket, peer: str
    ) -> None:
        del self._held[sock]
        self._admit(rates, name, sock, peer)
        self._accept_again(listening, name)

    def _admit(self, rates: ConnectionRates, name: str, sock: socket.socket, peer: str) -> None:
        """Serve a connection.

        If the client's address connects too often, keep the connection open without serving it for a while.
        """
        host = peer.rpartition(":")[0]
        held_ms = rates.refused_ms(host, name, protected=name == self.limits.protected_listener)
        if not held_ms:
            Connection(self, self._loop, sock, peer, name, self._ports.get(name))
            return
        self._refusals.log(peer, "too many new connections of one address (connection_creation_rate)")
        if len(self._held) < _MOST_HELD:
            self._held[sock] = self._loop.call_later(held_ms / 1000, self._release, sock)
        else:
            sock.close()

    def _release(self, sock: socket.socket) -> None:
        del self._held[sock]
        sock.close()

    def _release_all(self) -> None:
        for sock, timer in self._held.items():
            timer.cancel()
            sock.close()
        self._held.clear()

    def _cannot_accept(self, listening: socket.socket, name: str, err: OSError) -> None:
        log.error("no more connections can be accepted for now: %s", err.strerror)
        self._loop.remove_reader(listening.fileno())
        self._paused = self._loop.call_later(_ACCEPT_PAUSE, self._accept_again, listening, name)

    def _accept_again(self, listening: socket.socket, name: str) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening, name)

    async def close(self) -> None:
        """Stop accepting, and close all connections. Connections with waiting bytes are closed last, at a deadline."""
        if self._sweep is not None:
            self._sweep.cancel()
        self.watch.close()
        self._refusals.close()
        self.memory.close()
        if self._paused is not None:
            self._paused.cancel()
        self._release_all()
        for sock in self._listening:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        for connection in list(self._connections):
            connection.close()
        if self._connections:
            self._all_closed = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._all_closed], timeout=_LINGER_SECONDS)
        for connection in list(self._connections):
            connection.abort()

    def abort(self) -> None:
        """Stop accepting, and break all connections without answering any request."""
        self._release_all()
        for sock in self._listening:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        self._listening.clear()
        for connection in list(self._connections):
            connection.abort()

    def forgive(self, ms: float) -> None:
        """Handle a clock that was moved forward by `ms`.

        The skipped time does not count as idle time, and it shortens the pauses of clients.
        """
        for connection in self._connections:
            connection.idle_since += ms
        self.shorten_pauses(ms)

    def shorten_pauses(self, ms: float) -> None:
        """Shorten the pauses of clients that exceed their quotas, by `ms`."""
        for connection in self._connections:
            connection.shorten_pause(ms)

    def divert(self, run: Run | None) -> None:
        """Pass the frames of all connections to `run` instead of the dispatcher. None restores the dispatcher."""
        before, after = self.dispatcher.entrance, run or self.dispatcher.run
        self.dispatcher.entrance = after
        for connection in self._connections:
            if connection.run == before:  # a SASL gate reads `entrance` itself
                connection.run = after

    @property
    def connection_count(self) -> int:
        """The number of connected clients."""
        return len(self._connections)

    # --- called by connections

    def opened(self, connection: Connection) -> RequestContext | None:
        """Admit a connection, or refuse it (max.connections, max.connections.per.ip)."""
        host = connection.peer.rpartition(":")[0]
        reason = self._refusing_limit(host)
        if reason is not None:
            self._refusals.log(connection.peer, reason)
            return None
        self._connections[connection] = None
        self.count_opened += 1
        log.debug("%s connects to %s", connection.peer, connection.listener)
        self._per_ip[host] += 1
        self._hosts[connection] = host
        self.by_listener[connection.listener] += 1
        self.created[connection.listener] += 1
        offer = self._sasl.get(connection.listener)
        if offer is not None:
            gate = SaslGate(connection, self.dispatcher, offer, self._services.clock, self.max_request_bytes)
            connection.run = gate.run
        port = int(connection.peer.rpartition(":")[2])
        return RequestContext(self._services, "/" + java_address(host), connection.listener, ("", 0), port)

    def _refusing_limit(self, host: str) -> str | None:
        """Return the reason for which one more connection of a host is refused; None if there is none."""
        if self.refuses:
            return "a fault refuses connections"
        return refusing_limit(self.limits, host, self._per_ip[host], len(self._connections))

    def renew_receive_buffer(self) -> None:
        """Use another receive buffer from now on, because a request still needs the bytes received last."""
        self.receive_buffer = memoryview(bytearray(RECEIVE_BYTES))

    def closed(self, connection: Connection) -> None:
        """Remove a connection from the counts."""
        if connection not in self._connections:
            return
        del self._connections[connection]
        self.by_listener[connection.listener] -= 1
        log.debug("%s has disconnected", connection.peer)
        host = self._hosts.pop(connection)
        self._per_ip[host] -= 1
        if not self._per_ip[host]:
            del self._per_ip[host]
        if self._all_closed is not None and not self._connections and not self._all_closed.done():
            self._all_closed.set_result(None)

    def _schedule_sweep(self) -> None:
        max_idle_ms = self.limits.max_idle_ms
        delay = min(max(max_idle_ms / 4000, 0.05), 60.0) if max_idle_ms >= 0 else 60.0
        self._sweep = asyncio.get_running_loop().call_later(delay, self._close_idle)

    def _close_idle(self) -> None:
        """Close connections that have been idle for connections.max.idle.ms. If this config is negative, close none."""
        self._schedule_sweep()
        now = self._services.clock.monotonic_ms()
        for connection in list(self._connections):
            if connection.has_moved():
                connection.idle_since = now
            elif 0 <= self.limits.max_idle_ms <= now - connection.idle_since:
                log.debug("closing the connection from %s: idle", connection.peer)
                connection.abort()


def bind(host: str, port: int, limits: ServerLimits) -> socket.socket:
    """Bind an address, but accept no connections yet. Raise OSError if the address is in use.

    Port 0 means any free port. As in Java, an empty host means every address of IPv4 and IPv6.
    """
    sock, address = _socket_for(host, port)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit this option
        if limits.send_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        if limits.receive_buffer_bytes > 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limits.receive_buffer_bytes)
        sock.bind(address)
    except OSError as err:
        sock.close()
        raise _cannot_listen(host or "0.0.0.0", port, err) from None
    sock.setblocking(False)
    return sock


def _socket_for(host: str, port: int) -> tuple[socket.socket, Any]:
    if not host and socket.has_dualstack_ipv6():
        sock = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        return sock, ("::", port)
    family, _, _, _, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
    return socket.socket(family, socket.SOCK_STREAM), address


def java_address(host: str) -> str:
    """Return an address in Java's format, which ACLs and group members use: IPv6 without "::"."""
    address, percent, zone = host.partition("%")
    if ":" not in address:
        return host
    raw = socket.inet_pton(socket.AF_INET6, address)
    return ":".join(f"{raw[at] << 8 | raw[at + 1]:x}" for at in range(0, 16, 2)) + percent + zone


def _cannot_listen(host: str, port: int, error: OSError) -> OSError:
    holder = process_on(port) if error.errno == errno.EADDRINUSE else None
    return OSError(f"cannot listen on {host}:{port}: {error.strerror}{f', by {holder}' if holder else ''}")


_LISTEN = "0A"


def process_on(port: int) -> str | None:
    """Return "process 12 (java -jar x.jar)" for the process that listens on a TCP port, or None if it is unknown."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    if not sockets:
        return None
    for link in glob.iglob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(link) not in sockets:
                continue
            pid = link.split("/")[2]
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                command = " ".join(file.read(200).decode("utf-8", "replace").split("\0")).strip()
        except OSError:
            continue  # the process has ended, or is not readable for this user
        return f"process {pid} ({''.join(c if c.isprintable() else '?' for c in command)})"
    return None


def _listening(port: int) -> list[str]:
    """Return the inodes of the sockets that listen on a port."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        found += [row[9] for row in rows if row[3] == _LISTEN and int(row[1].rpartition(":")[2], 16) == port]
    return found
