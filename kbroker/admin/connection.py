"""The connection to a cluster, and the texts of a client's errors.

Owns the settings of the Kafka clients. The client is kafka-python, which works with any Kafka. Never prints.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import (
    BrokerResponseError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    NodeNotReadyError,
    UnknownBrokerIdError,
)

from kbroker.admin.errors import Unreachable, WrongInput, error_text
from kbroker.admin.tls_mismatch import tls_fault, unreadable_file

T = TypeVar("T")

_patience: Final = ContextVar("patience", default=15.0)
"""The seconds for which `patiently` retries a call."""
_PAUSE_S: Final = 0.1
_LAST_PORT: Final = 65_535
_PROTOCOL: Final = re.compile(r"^[0-9a-zA-Z\-%._]*://")

# The client's timeouts, shortened for a person who waits at a terminal.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "bootstrap_timeout_ms": 5_000,
    "reconnect_backoff_max_ms": 1_000,
    "max_block_ms": 10_000,
}


class _Forgetful(dict[Any, Any]):
    """Replaces kafka-python 3.0's cache of coordinators, which still names a broker after its groups have moved."""

    def __setitem__(self, key: Any, value: Any) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Connection:
    """The settings for connecting to a cluster: bootstrap addresses, and client settings under kafka-python's names."""

    bootstrap: str
    settings: Mapping[str, Any]
    client_id: str = "kbroker"
    """The client id, unless a setting overrides it."""

    @contextmanager
    def admin(self) -> Iterator[Any]:
        """Open a KafkaAdminClient."""
        client = self.open_admin()
        try:
            yield client
        finally:
            client.close()

    def open_admin(self) -> Any:
        """Return a KafkaAdminClient that the caller must close. Raises Unreachable."""
        self._require_reachable()
        client = self._made(KafkaAdminClient)
        client._manager.cluster._coordinators = _Forgetful()  # noqa: SLF001 - there is no setting for it
        return client

    def consumer(self, **own: Any) -> Any:
        """Create a KafkaConsumer that creates no topic; settings of -X override `own`."""
        self._require_reachable()
        consumer = self._made(KafkaConsumer, {"allow_auto_create_topics": False, **own})
        # kafka-python 3.0 does not apply this setting. So a refresh of its metadata would create a missing topic.
        consumer._cluster.config["allow_auto_create_topics"] = consumer.config["allow_auto_create_topics"]  # noqa: SLF001
        return consumer

    def producer(self, **own: Any) -> Any:
        """Create a KafkaProducer; settings of -X override `own`."""
        self._require_reachable()
        return self._made(KafkaProducer, own)

    def _require_reachable(self) -> None:
        """Raise Unreachable if no address accepts a connection, or if a TLS file cannot be read.

        The client itself would fail only after some seconds, and would not return the reason.
        """
        if (reason := unreadable_file(self.settings)) is not None:
            raise Unreachable(reason)
        if (reason := self.unreachable()) is not None:
            raise Unreachable(reason)

    def unreachable(self) -> str | None:
        """Return the reason why no bootstrap address accepts a connection.

        Returns None if one accepts a connection, or if the client uses a proxy.
        """
        if self.settings.get("proxy_url") or self.settings.get("socks5_proxy"):
            return None
        patience_ms = self.settings.get("bootstrap_timeout_ms") or _DEFAULTS["bootstrap_timeout_ms"]
        reasons = []
        for address in self.bootstrap.split(","):
            reason = _unreachable(address, patience_ms / 1000)
            if reason is None:
                return None
            reasons.append(f"{address}: {reason}")
        return f"no broker answers at {'; '.join(reasons)}"

    def _made(self, kind: Any, own: Mapping[str, Any] | None = None) -> Any:
        """Create a client; if it finds no broker, close the thread and sockets that it would leave open."""
        begun: list[Any] = []

        def begin(**settings: Any) -> Any:
            begun.append(kind.DEFAULT_CONFIG["kafka_client"](**settings))
            return begun[-1]

        try:
            return kind(**{**self._for(kind, own), "kafka_client": begin})
        except BaseException:
            for each in begun:
                each.close()
            raise

    def _for(self, kind: Any, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        merged = {**_DEFAULTS, "client_id": self.client_id, **(own or {}), **self.settings}
        merged["bootstrap_servers"] = self.bootstrap.split(",")
        return {key: value for key, value in merged.items() if key in kind.DEFAULT_CONFIG}


def _unreachable(address: str, patience_s: float) -> str | None:
    """Return the reason why HOST:PORT accepts no connection, or None if it accepts one."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), patience_s).close()
    except TimeoutError:
        return "no answer"
    except socket.gaierror as err:
        return "unknown host" if err.errno == socket.EAI_NONAME else str(err.strerror).lower()
    except UnicodeError:  # raised for a host name that is too long or has an empty label
        return "unknown host"
    except OSError as err:
        return (err.strerror or str(err)).lower()
    return None


def addresses(text: str) -> str:
    """Check a text like HOST:PORT,... and return it without blanks. Raises WrongInput.

    Ignores a protocol prefix, like PLAINTEXT:// in a broker's listeners, as Java's clients do.
    """
    found = [_PROTOCOL.sub("", each.strip()) for each in text.split(",") if each.strip()]
    for each in found:
        host, _, port = each.rpartition(":")
        if not host or not port.isdecimal() or int(port) > _LAST_PORT:
            raise WrongInput(f"--bootstrap takes HOST:PORT, not {each!r}")
    if not found:
        raise WrongInput("--bootstrap is empty")
    return ",".join(found)


def in_words(err: KafkaError, connection: Connection) -> str:
    """Return the text of a client's error for people."""
    if isinstance(err, BrokerResponseError):
        return error_text(err)
    reason = str(err.args[0]) if err.args else type(err).__name__
    if isinstance(err, KafkaTimeoutError) and "bootstrap" in reason:
        for address in connection.bootstrap.split(","):
            if (fault := tls_fault(address, connection.settings)) is not None:
                return fault
        if str(connection.settings.get("security_protocol", "")).startswith("SASL"):
            hint = "are mechanism, name and password right?"
            return f"no broker at {connection.bootstrap} lets this client in: {hint}"
        over = " over TLS" if connection.settings.get("security_protocol") == "SSL" else ""
        return f"no broker answers at {connection.bootstrap}{over}"
    if isinstance(err, UnknownBrokerIdError):
        return f"broker {reason} is gone, or not in the cluster's metadata yet"
    if isinstance(err, (KafkaConnectionError, NodeNotReadyError)):
        return f"the connection to the cluster at {connection.bootstrap} failed: {reason}"
    if isinstance(err, KafkaConfigurationError):
        return f"bad client setting: {reason}"
    return reason


@contextmanager
def patience(seconds: float | None) -> Iterator[None]:
    """Set the number of seconds for which `patiently` retries; None keeps the current number."""
    token = _patience.set(_patience.get() if seconds is None else seconds)
    try:
        yield
    finally:
        _patience.reset(token)


def patiently(call: Callable[[], T], *, reads: bool = False) -> T:
    """Retry a call while its error is retriable, for example because a coordinator loads or a leader moves.

    `reads` states that the call only reads. Such a call is also retried when its broker is unreachable, because
    Metadata still returns a broker's address for some seconds after the broker has ended.
    """
    deadline = time.monotonic() + _patience.get()
    while True:
        try:
            return call()
        except BrokerResponseError as err:
            if not err.retriable or time.monotonic() > deadline:
                raise
        except (KafkaConnectionError, NodeNotReadyError, UnknownBrokerIdError):
            if not reads or time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)
