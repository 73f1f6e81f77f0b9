"""Encodes and decodes stored dynamic configs, of brokers, topics and all other resources.

Owns the encryption of passwords in ZooKeeper, and the rule that variables are stored unresolved (each broker resolves
them itself). Also defines the effect of stored values that this broker would refuse. Never stores anything.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping

from kbroker.config.model import ConfigError, ConfigKey, InvalidConfig, Value
from kbroker.config.password_encoder import PasswordEncoder, Undecodable
from kbroker.config.providers import Providers
from kbroker.config.table import broker_key
from kbroker.config.values import parse, parse_text
from kbroker.protocol.errors import ErrorCode

log = logging.getLogger(__name__)


class StoredConfigs:
    """Encodes and decodes stored texts. In a cluster, no password can be stored without an encoder."""

    def __init__(self, providers: Providers, *, in_cluster: bool) -> None:
        self._providers = providers
        self._in_cluster = in_cluster
        self.encoder: PasswordEncoder | None = None
        self.old_encoder: PasswordEncoder | None = None
        """The encoder that decrypts with the previous secret."""

    def read(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Return stored configs as clients set them. An unreadable password is logged and omitted."""
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
        """Return configs in the form for storing.

        Unchanged passwords keep their `stored` form. Raises InvalidConfig.
        """
        if not self._in_cluster:
            return dict(configs)
        return {name: self._written(name, text, stored.get(name)) for name, text in configs.items()}

    def reencrypted(self, stored: Mapping[str, str]) -> dict[str, str]:
        """Return stored configs. Passwords encrypted with the old secret are encrypted again with the new secret."""
        old = self.old_encoder
        found = dict(stored)
        for name, text in stored.items():
            if old is not None and _is_password(name):
                with contextlib.suppress(Undecodable):
                    found[name] = self._encoder().encode(old.decode(text))
        return found

    def effective(self, name: str, text: str) -> str:
        """Return a text with its variables resolved. Raises InvalidConfig."""
        try:
            return self._providers.resolved(name, text, is_dynamic=True)
        except ConfigError as error:
            raise InvalidConfig(str(error)) from None

    def check_count(self, configs: Mapping[str, str]) -> None:
        """Raise InvalidConfig for too many variables, because other requests wait during the look-up."""
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


def stored_values(
    keys: Mapping[str, ConfigKey], texts: Mapping[str, str], defaults: Mapping[str, Value]
) -> dict[str, Value]:
    """Parse stored texts as `parse_all` does, but accept values that this broker refuses and another broker accepted.

    For example, the minimum of segment.bytes is 14 in Apache Kafka 3.9, and 1 MiB in 4.4. A number outside the limits
    stays in effect; any other invalid value counts as unset.
    """
    values: dict[str, Value] = {}
    for name, key in keys.items():
        values[name] = defaults.get(name, key.default)
        if name in texts:
            try:
                values[name] = parse(key, texts[name])
            except InvalidConfig:
                with contextlib.suppress(InvalidConfig):
                    found = parse_text(name, key.type, texts[name])
                    if isinstance(found, int | float) and not isinstance(found, bool):
                        values[name] = found
    return values
