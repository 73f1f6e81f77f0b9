"""Dynamic configs of a broker on their way from and to where they are stored.

Owns that passwords lie encrypted in ZooKeeper, and that variables are stored as variables: what they stand for is
looked up by each broker for itself. Never stores anything, and never parses a value.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from kbroker.config.model import ConfigError, InvalidConfig
from kbroker.config.password_encoder import PasswordEncoder, Undecodable
from kbroker.config.providers import Providers
from kbroker.config.table import broker_key
from kbroker.protocol.errors import ErrorCode

log = logging.getLogger(__name__)


class StoredConfigs:
    """Reads and writes texts as they are stored. Without an encoder no password can be stored in a cluster."""

    def __init__(self, providers: Providers, *, in_cluster: bool) -> None:
        self._providers = providers
        self._in_cluster = in_cluster
        self.encoder: PasswordEncoder | None = None
        self.old_encoder: PasswordEncoder | None = None
        """Reads what was encrypted by the secret before this one."""

    def read(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Return stored configs as somebody set them; a password that cannot be read is told, and left out."""
        if not self._in_cluster:
            return dict(stored)
        found = {}
        for name, text in stored.items():
            if not _is_password(name):
                found[name] = text
                continue
            try:
                found[name] = self._encoder().decode(text)
            except (Undecodable, InvalidConfig) as error:
                log.error("dynamic config %s is passed over: %s", name, error)
        return found

    def write(self, configs: Mapping[str, str], stored: Mapping[str, str]) -> dict[str, str]:
        """Return what is to be stored of configs, where others are stored already. Raises InvalidConfig."""
        if not self._in_cluster:
            return dict(configs)
        return {name: self._written(name, text, stored.get(name)) for name, text in configs.items()}

    def encrypted_anew(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Return stored configs with passwords of the old secret encrypted by the new one; the others as they are."""
        old = self.old_encoder
        found = dict(stored)
        for name, text in stored.items():
            if old is not None and _is_password(name):
                with contextlib.suppress(Undecodable):
                    found[name] = self._encoder().encode(old.decode(text))
        return found

    def effective(self, name: str, text: str) -> str:
        """Return what a text with variables comes to. Raises InvalidConfig."""
        try:
            return self._providers.resolved(name, text, is_dynamic=True)
        except ConfigError as error:
            raise InvalidConfig(str(error)) from None

    def check_count(self, configs: Mapping[str, str]) -> None:
        """Raise InvalidConfig for more variables than can be looked up while others wait."""
        self._providers.check_count(configs.values())

    def _written(self, name: str, text: str, stored: str | None) -> str:
        if not _is_password(name):
            return text
        encoder = self._encoder()
        if stored is not None:
            try:
                if encoder.decode(stored) == text:
                    return stored
            except Undecodable:
                pass
        return encoder.encode(text)

    def _encoder(self) -> PasswordEncoder:
        if self.encoder is None:
            raise InvalidConfig("Password encoder secret not configured", ErrorCode.INVALID_REQUEST)
        return self.encoder


def _is_password(name: str) -> bool:
    key = broker_key(name)
    return key is not None and key.sensitive
