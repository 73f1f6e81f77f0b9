"""The loggers of this process as configs of a broker: Kafka's tools list and alter them under BROKER_LOGGER.

Owns Kafka's names for levels and loggers, and its checks and messages. Never stores anything: levels apply until the
process ends. Lists only the root logger, this package's loggers and the loggers with Kafka's names, but no other
loggers of a program that embeds a broker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Final

from kbroker.config.model import InvalidConfig
from kbroker.config.operations import Op
from kbroker.protocol.errors import ErrorCode

ROOT: Final = "root"
_LEVELS: Final = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
_SAME_IN_PYTHON: Final = {"WARNING": "WARN", "CRITICAL": "FATAL"}
_PACKAGE: Final = "kbroker"
_CLEANER: Final = "kbroker.log.cleaner"
_CONTROLLER: Final = "kbroker.controller"
KAFKA_LOGGERS: Final = ("kafka.authorizer.logger", "kafka.request.logger")
"""Loggers with Kafka's names: for authorization decisions, and for each request."""
ALIASES: Final = {
    "kafka": _PACKAGE,
    "kafka.controller": _CONTROLLER,
    "kafka.log.LogCleaner": _CLEANER,
    "org.apache.kafka": _PACKAGE,
    "org.apache.kafka.controller": _CONTROLLER,
    "org.apache.kafka.storage.internals.log.LogCleaner": _CLEANER,
}
"""Kafka's loggers (3.x and 4.x) for which operators set levels, by name, with the corresponding loggers here."""

log = logging.getLogger(__name__)


def _loggers() -> dict[str, logging.Logger]:
    """Return the listed loggers by name. One logger may have two names."""
    known = logging.root.manager.loggerDict.items()
    own = {name: each for name, each in known if name.partition(".")[0] == _PACKAGE}
    found = {ROOT: logging.root, **{name: each for name, each in own.items() if isinstance(each, logging.Logger)}}
    for name in KAFKA_LOGGERS:
        found[name] = logging.getLogger(name)
    for name, own_name in ALIASES.items():
        found[name] = found[own_name] = logging.getLogger(own_name)
    return found


def levels() -> dict[str, str]:
    """Return the level of every logger: its own level, or the inherited level."""
    return {name: _name_of(each.getEffectiveLevel()) for name, each in _loggers().items()}


def _name_of(level: int) -> str:
    return next((name for name, least in _LEVELS.items() if level <= least), "FATAL")


def check_levels(ops: Iterable[tuple[str, Op, str | None]]) -> None:
    """Check changes of levels. Raises InvalidConfig with the messages of Kafka's RuntimeLoggerManager."""
    known = _loggers()
    for name, op, level in ops:
        if op in (Op.APPEND, Op.SUBTRACT):
            text = f"{op.name} operation is not allowed for the BROKER_LOGGER resource"
            raise InvalidConfig(text, ErrorCode.INVALID_REQUEST)
        if name not in known:
            raise InvalidConfig(f"Logger {name} does not exist!")
        if op is Op.SET and level not in _LEVELS:
            raise InvalidConfig(
                f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
                f"Valid log levels are {', '.join(sorted(_LEVELS))}"
            )
        if op is Op.DELETE and name == ROOT:
            raise InvalidConfig(
                f"Removing the log level of the {ROOT} logger is not allowed", ErrorCode.INVALID_REQUEST
            )


def set_levels(ops: Iterable[tuple[str, Op, str | None]]) -> None:
    """Apply changes that were checked before."""
    known = _loggers()
    for name, op, level in ops:
        known[name].setLevel(_LEVELS[level] if op is Op.SET and level else logging.NOTSET)
        log.warning("the log level of %s is %s", name, level if op is Op.SET else "inherited")


def parse_level(text: str) -> tuple[str, str]:
    """Parse `LEVEL` or `LOGGER=LEVEL`, ignoring case.

    Return the logger and Kafka's name of the level. The logger may also belong to a library. Raises ValueError.
    """
    name, equals, word = text.rpartition("=")
    name = name.strip() if equals else ROOT
    level = word.strip().upper()
    level = _SAME_IN_PYTHON.get(level, level)
    if level not in _LEVELS:
        raise ValueError(f"{word!r} is none of {', '.join(sorted(_LEVELS))}")
    if not name or (_is_ours(name) and not _exists(name)):
        raise ValueError(f"there is no logger {name!r}")
    return name, level


def _is_ours(name: str) -> bool:
    return name.startswith((f"{_PACKAGE}.", "kafka.", "org.apache."))


def _exists(name: str) -> bool:
    if name in _loggers():
        return True
    try:  # a module with this name may exist, although it is not imported yet
        return name.startswith(f"{_PACKAGE}.") and find_spec(name) is not None
    except ImportError:
        return False


def set_level(name: str, level: str) -> None:
    """Set the level of a logger. Both arguments are Kafka's names."""
    logging.getLogger(None if name == ROOT else ALIASES.get(name, name)).setLevel(_LEVELS[level])
