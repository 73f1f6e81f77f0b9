"""What the log says of who was allowed what, and who was denied it: under Kafka's name `kafka.authorizer.logger`.

Owns the lines and their levels. Changes that administrators ask for have lines of their own
(handlers/authorized/audit.py).
"""

from __future__ import annotations

import logging

from kbroker.security.authorizer.acls import Operation, Pattern
from kbroker.security.principal import Principal, printable

log = logging.getLogger("kafka.authorizer.logger")
"""Kafka's own name for it: what is denied at INFO, what is allowed at DEBUG."""


def denied(who: Principal, host: str, operation: Operation, pattern: Pattern) -> None:
    """Say that an operation was denied."""
    _say(logging.INFO, "Denied", who, host, operation, pattern)


def allowed(who: Principal, host: str, operation: Operation, pattern: Pattern) -> None:
    """Say that an operation was allowed."""
    _say(logging.DEBUG, "Allowed", who, host, operation, pattern)


def tells_allowed() -> bool:
    """Tell whether anybody would read of what is allowed."""
    return log.isEnabledFor(logging.DEBUG)


def _say(level: int, what: str, who: Principal, host: str, operation: Operation, pattern: Pattern) -> None:
    log.log(
        level, "Principal = %s is %s operation = %s from host = %s on resource = %s",
        printable(str(who)), what, operation.name, host, printable(str(pattern)),
    )  # fmt: skip
