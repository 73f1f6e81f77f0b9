"""The values of one listener: its own `listener.name.NAME.KEY` if set, and otherwise the broker's.

Owns that order, which is Kafka's valuesWithPrefixOverride: the listener's own, dynamic before static, and then the
broker's. Never checks more than the type and limits of a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kbroker.config.model import Value
from kbroker.config.table import BROKER
from kbroker.config.values import parse


class Settings(Protocol):
    """The part of a broker's configuration that this reads."""

    static: dict[str, str]
    dynamic_default: dict[str, str]
    dynamic_broker: dict[str, str]

    def __getitem__(self, name: str) -> Value: ...


class ListenerValues:
    """The values of a listener by the broker's key names. Read anew each time: some change at run time."""

    def __init__(self, config: Settings, listener: str) -> None:
        self._config = config
        self._prefix = f"listener.name.{listener.lower()}."

    def name_of(self, key: str) -> str:
        """Return the full name of a set key: the listener's own, or the broker's."""
        return self._prefix + key if self.is_own(key) else key

    def is_own(self, key: str) -> bool:
        """Whether the listener has a value of its own."""
        return any(self._prefix + key in settings for settings in self._sources())

    def get(self, key: str) -> Value:
        """Return a value. Raises InvalidConfig for an invalid text."""
        for settings in self._sources():
            text = settings.get(self._prefix + key)
            if text is not None:
                return parse(BROKER[key], text)
        return self._config[key]

    def get_str(self, key: str) -> str:
        """Return a string key that has a value."""
        value = self.get(key)
        assert isinstance(value, str), key
        return value

    def get_optional_str(self, key: str) -> str | None:
        """Return a string key that may be unset."""
        value = self.get(key)
        assert value is None or isinstance(value, str), key
        return value

    def get_list(self, key: str) -> tuple[str, ...]:
        """Return a list key; an unset one is empty."""
        value = self.get(key) or ()
        assert isinstance(value, tuple), key
        return value

    def get_bool(self, key: str) -> bool:
        """Return a boolean key."""
        value = self.get(key)
        assert isinstance(value, bool), key
        return value

    def _sources(self) -> tuple[Mapping[str, str], ...]:
        config = self._config
        return config.dynamic_broker, config.dynamic_default, config.static
