"""Listeners: their addresses, their security protocols, and the values of one listener.

Owns the syntax of addresses, the rules between addresses, and the default of the advertised host. Owns the precedence
of a listener's values, as in Kafka's valuesWithPrefixOverride: first the listener's own `listener.name.NAME.KEY`,
dynamic before static, then the broker's key. Never opens a socket, and never checks more than the type and limits of a
value.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from kbroker.config.model import ConfigError, Value
from kbroker.config.table import BROKER
from kbroker.config.values import parse

log = logging.getLogger(__name__)

_ENDPOINT: Final = re.compile(
    r"(?P<name>[^:/]+)://(?:\[(?P<v6>[0-9A-Fa-f:.%\w]*)\]|(?P<host>[^:\[\]/]*)):(?P<port>-?\d+)"
)
_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a listener. An empty host means every interface; port 0 means any free port."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Listeners:
    """The broker's addresses, and the advertised addresses for clients, by listener name.

    Clients reach a listener without an advertised address at its own host and its actual port.
    """

    bind: tuple[Endpoint, ...]
    advertised: Mapping[str, Endpoint]
    protocols: Mapping[str, str]
    """The security protocol of each listener in `bind`."""
    inter_broker: str
    """The inter-broker listener. It must be in `bind` if there can be other brokers."""


def parse_endpoint(key: str, text: str) -> Endpoint:
    """Parse NAME://host:port. `key` is the config key for the message of a ConfigError."""
    found = _ENDPOINT.fullmatch(text.strip())
    if found is None or not 0 <= int(found["port"]) <= 65535:
        raise ConfigError(f"{key}: {text!r} is not an address like PLAINTEXT://host:9092, with a port from 0 to 65535")
    host = found["v6"] if found["v6"] is not None else found["host"]
    return Endpoint(found["name"].upper(), host, int(found["port"]))


def parse_protocol_map(text: str) -> dict[str, str]:
    """Parse listener.security.protocol.map to a mapping of protocol by listener name, both in upper case."""
    protocols = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = (part.strip().upper() for part in item.rpartition(":"))
        if not colon or not name or protocol not in _PROTOCOLS:
            allowed = ", ".join(_PROTOCOLS)
            raise ConfigError(
                f"listener.security.protocol.map: {item!r} is not NAME:PROTOCOL, with a protocol of {allowed}"
            )
        protocols[name] = protocol
    return protocols


def resolve(
    listeners: Iterable[str],
    advertised: Iterable[str] | None,
    protocol_map: str,
    controller_names: Iterable[str],
    inter_broker: str,
) -> Listeners:
    """Combine the keys about listeners, and omit the listeners of a KRaft controller.

    `inter_broker` is the name of the inter-broker listener; on a single node this listener is optional.

    Raises ConfigError for duplicates, for unsupported protocols and for unknown names.
    """
    protocols = parse_protocol_map(protocol_map)
    controllers = {name.upper() for name in controller_names}
    bind = [parse_endpoint("listeners", text) for text in listeners]
    names = [endpoint.name for endpoint in bind]
    for endpoint in bind:
        if names.count(endpoint.name) > 1:
            raise ConfigError(f"listeners: the name {endpoint.name} occurs more than once; each listener needs its own")
        ports = [other.name for other in bind if other.port == endpoint.port != 0 and other.host == endpoint.host]
        if len(ports) > 1:
            raise ConfigError(f"listeners: {' and '.join(ports)} have the same port {endpoint.port}")
    bind = [endpoint for endpoint in bind if endpoint.name not in controllers]
    if not bind:
        raise ConfigError("listeners: there is no listener for clients, only those of controller.listener.names")
    for endpoint in bind:
        _require_protocol(endpoint, protocols)
        if endpoint.host == "0.0.0.0" and not advertised:
            raise ConfigError(
                f"listeners: clients cannot connect to 0.0.0.0:{endpoint.port}; set advertised.listeners to an address "
                "that they can reach"
            )
    known = {endpoint.name for endpoint in bind}
    endpoints: dict[str, Endpoint] = {}
    for text in advertised or ():
        endpoint = parse_endpoint("advertised.listeners", text)
        if endpoint.name in controllers:
            continue
        if endpoint.name not in known:
            allowed = ", ".join(sorted(known))
            raise ConfigError(f"advertised.listeners: {endpoint.name} is no listener; listeners has {allowed}")
        if endpoint.host == "0.0.0.0":
            raise ConfigError("advertised.listeners: clients cannot connect to 0.0.0.0; name a host they can reach")
        endpoints[endpoint.name] = endpoint
    return Listeners(tuple(bind), endpoints, {name: protocols[name] for name in known}, inter_broker.upper())


def _require_protocol(endpoint: Endpoint, protocols: Mapping[str, str]) -> None:
    if endpoint.name not in protocols:
        raise ConfigError(
            f"listeners: {endpoint.name} is missing in listener.security.protocol.map; add "
            f"{endpoint.name}:PLAINTEXT, or {endpoint.name}:SSL"
        )


def own_host_name() -> str:
    """Return the default of a listener's advertised host: the name of this machine, as in Kafka."""
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        log.warning(
            "this machine's name %s has no address, so clients get 127.0.0.1; set advertised.listeners to change that",
            name,
        )
        return "127.0.0.1"
    return name


class Settings(Protocol):
    """The part of a broker's configuration that ListenerValues reads."""

    static: dict[str, str]
    dynamic_default: dict[str, str]
    dynamic_broker: dict[str, str]

    def __getitem__(self, name: str) -> Value: ...


class ListenerValues:
    """The values of a listener, by the broker's key names.

    Read each value only when it is used, because some values change at run time.
    """

    def __init__(self, config: Settings, listener: str) -> None:
        self._config = config
        self._prefix = f"listener.name.{listener.lower()}."

    def name_of(self, key: str) -> str:
        """Return the full name of the key with the value: the listener's own key if it is set, else the broker's."""
        return self._prefix + key if self.is_own(key) else key

    def is_own(self, key: str) -> bool:
        """Whether the listener has its own value for a key."""
        return any(self._prefix + key in settings for settings in self._sources())

    def get(self, key: str) -> Value:
        """Return a value. Raises InvalidConfig for an invalid text."""
        for settings in self._sources():
            text = settings.get(self._prefix + key)
            if text is not None:
                return parse(BROKER[key], text)
        return self._config[key]

    def get_str(self, key: str) -> str:
        """Return the value of a string key that has a value."""
        value = self.get(key)
        assert isinstance(value, str), key
        return value

    def get_optional_str(self, key: str) -> str | None:
        """Return the value of a string key that may be unset."""
        value = self.get(key)
        assert value is None or isinstance(value, str), key
        return value

    def get_list(self, key: str) -> tuple[str, ...]:
        """Return the value of a list key. The value of an unset key is empty."""
        value = self.get(key) or ()
        assert isinstance(value, tuple), key
        return value

    def get_bool(self, key: str) -> bool:
        """Return the value of a boolean key."""
        value = self.get(key)
        assert isinstance(value, bool), key
        return value

    def _sources(self) -> tuple[Mapping[str, str], ...]:
        config = self._config
        return config.dynamic_broker, config.dynamic_default, config.static
