"""TLS of one broker: of each of its TLS listeners, and of its connections to other brokers.

Owns the mapping of settings to listeners, and their changes for new connections. As in Kafka, the broker checks the
files of its stores after each change of its configs, even to the same value. It reads a key store or trust store again
if its file has changed. Never opens a socket.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from typing import Final

from kbroker.config.listeners import ListenerValues
from kbroker.config.model import ConfigError, InvalidConfig
from kbroker.config.server_config import BrokerConfig
from kbroker.protocol.errors import ErrorCode
from kbroker.security.tls.listener import TlsListener
from kbroker.security.tls.settings import StoreSettings, TlsSettings, tls_settings

log = logging.getLogger(__name__)

_OVER_TLS: Final = frozenset({"SSL", "SASL_SSL"})
_FAILED: Final = "Validation of dynamic config update of SSLFactory failed"
_EXCEPTION: Final = "org.apache.kafka.common.config.ConfigException"
Stamp = tuple[object, ...]


class TlsListeners:
    """The TLS listeners of a broker; `by_name` is empty if there are none."""

    def __init__(self, config: BrokerConfig) -> None:
        """Read the listeners' stores. Raises ConfigError if a store cannot be used."""
        self.by_name: dict[str, TlsListener] = {}
        self._stamps: dict[str, Stamp] = {}
        self._inter_broker = config.listeners.inter_broker
        for name, protocol in config.listeners.protocols.items():
            if protocol not in _OVER_TLS:
                continue
            try:
                settings = _settings(config, name)
            except InvalidConfig as error:
                raise ConfigError(error.text) from None
            if protocol != "SSL" and config["ssl.client.auth"] != "none" and settings.client_auth == "none":
                log.warning(
                    "ssl.client.auth has no effect on %s, where clients log in; listener.name.%s.ssl.client.auth has",
                    name,
                    name.lower(),
                )
            self._stamps[name] = _stamp(settings)
            self.by_name[name] = TlsListener(
                settings, names_clients=protocol == "SSL", between_brokers=name == self._inter_broker
            )

    def client_context(self) -> ssl.SSLContext | None:
        """Return the context for connections to other brokers; None without TLS."""
        listener = self.by_name.get(self._inter_broker)
        return None if listener is None else listener.client_context

    def check(self, config: BrokerConfig) -> None:
        """Check the stores of a configuration; raises InvalidConfig, in Kafka's words."""
        try:
            self._replacements(config)
        except (ConfigError, InvalidConfig) as error:
            reason = config.hide(error.text if isinstance(error, InvalidConfig) else str(error))
            text = f"{_EXCEPTION}: {_FAILED}: {_EXCEPTION}: {reason}"
            raise InvalidConfig(
                f"Invalid value {text} for configuration Invalid dynamic configuration", ErrorCode.INVALID_REQUEST
            ) from None

    def follow(self, config: BrokerConfig) -> None:
        """Apply a changed configuration to new connections; log unusable stores, and keep the old stores."""
        try:
            for replace in self._replacements(config):
                replace()
        except (ConfigError, InvalidConfig) as error:
            log.error("the stores of TLS are unchanged: %s", config.hide(str(error)))

    def _replacements(self, config: BrokerConfig) -> list[Callable[[], None]]:
        found = []
        for name, listener in self.by_name.items():
            settings = _settings(config, name)
            stamp = _stamp(settings)
            if settings != listener.settings or stamp != self._stamps[name]:
                found.append(self._replacement(name, listener, settings, stamp))
        return found

    def _replacement(self, name: str, listener: TlsListener, settings: TlsSettings, stamp: Stamp) -> Callable[[], None]:
        replace = listener.replacement(settings)

        def do() -> None:
            replace()
            self._stamps[name] = stamp

        return do


def _settings(config: BrokerConfig, name: str) -> TlsSettings:
    has_sasl = config.listeners.protocols[name] != "SSL"
    return tls_settings(name, ListenerValues(config, name), has_sasl=has_sasl)


def _stamp(settings: TlsSettings) -> Stamp:
    """Return a value that changes whenever the file of a store changes."""
    return _file_stamp(settings.keystore), _file_stamp(settings.truststore)


def _file_stamp(store: StoreSettings) -> object:
    if store.location is None:
        return None
    try:
        found = os.stat(store.location)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
