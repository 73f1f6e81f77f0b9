"""The loggers of this process as configs of a broker: what Kafka's tools list and alter under BROKER_LOGGER.

Owns Kafka's names for levels, and its checks and messages. Never stores anything: levels last as long as the process.
Only the root, this package's loggers and that of the authorizer are shown; those of a program that embeds a broker are
its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
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
_PACKAGE: Final = "kbroker"
_AUTHORIZER: Final = "kafka.authorizer.logger"

log = logging.getLogger(__name__)


def _loggers() -> dict[str, logging.Logger]:
    known = logging.root.manager.loggerDict.items()
    own = {name: each for name, each in known if name.partition(".")[0] == _PACKAGE or name == _AUTHORIZER}
    return {ROOT: logging.root, **{name: each for name, each in own.items() if isinstance(each, logging.Logger)}}


def levels() -> dict[str, str]:
    """Return the level of every logger, its own or the one it inherits."""
    return {name: _name_of(each.getEffectiveLevel()) for name, each in _loggers().items()}


def _name_of(level: int) -> str:
    return next((name for name, least in _LEVELS.items() if level <= least), "FATAL")


def check_levels(ops: Iterable[tuple[str, Op, str | None]]) -> None:
    """Check changes of levels; raises InvalidConfig in the words of Kafka's RuntimeLoggerManager."""
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
    """Make changes that were checked."""
    known = _loggers()
    for name, op, level in ops:
        known[name].setLevel(_LEVELS[level] if op is Op.SET and level else logging.NOTSET)
        log.warning("the log level of %s is %s", name, level if op is Op.SET else "inherited")
