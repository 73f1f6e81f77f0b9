"""A config key: its type, default, limits, and the possible sources of its value.

Owns the vocabulary of this package. Knows no particular key (table.py does), and never parses a value (values.py does).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from kbroker.protocol.errors import ApiError, ErrorCode

Value = bool | int | float | str | tuple[str, ...] | None

ALL_DIRS: Final = "*"
"""The value of cordoned.log.dirs that means all log directories."""


class ConfigType(IntEnum):
    """The type of a value, with the numbers of DescribeConfigs v3 and later."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ConfigSource(IntEnum):
    """The source of a value, with the numbers of DescribeConfigs."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    CLIENT_METRICS_CONFIG = 7
    GROUP_CONFIG = 8


class Mode(Enum):
    """The way in which a broker key can change while the broker runs, in Kafka's words."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class ConfigError(Exception):
    """Raised if the broker cannot start with this configuration. The message is one line for its operator."""


class InvalidConfig(ApiError):  # noqa: N818 - named after the code it carries
    """Raised if a client requests an invalid config. The message is Kafka's."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_CONFIG) -> None:
        super().__init__(code, message)
        self.text: str = message


Check = Callable[[str, Value], None]


@dataclass(frozen=True, slots=True)
class Validator:
    """A limit on values. `check` raises InvalidConfig; `text` describes the allowed values."""

    text: str
    check: Check


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker key that is the default of a topic key. The topic key's value is this key's value times `factor`."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One declared key. `effect` is False if a value is accepted and returned but changes nothing.

    `refused` is True for a security key without effect: a broker starts only if the key has its default. `dynamic_only`
    is True if the key must not be in server.properties.
    """

    name: str
    type: ConfigType
    default: Value
    validator: Validator | None
    doc: str
    mode: Mode = Mode.READ_ONLY
    effect: bool = True
    internal: bool = False
    synonyms: tuple[Synonym, ...] = ()
    refused: bool = False
    dynamic_only: bool = False

    @property
    def sensitive(self) -> bool:
        """Whether the value is a secret, which must never be shown."""
        return self.type is ConfigType.PASSWORD
