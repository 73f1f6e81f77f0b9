"""The log of allowed and denied operations: under Kafka's name `kafka.authorizer.logger`.

Owns the lines and their levels. Changes by administrators have their own lines (handlers/authorized/audit.py).
"""

from __future__ import annotations

import logging

from kbroker.security.authorizer.acls import Operation, Pattern
from kbroker.security.principal import Principal, printable

log = logging.getLogger("kafka.authorizer.logger")
"""Kafka's own name for it: denials at INFO, permissions at DEBUG."""


def denied(who: Principal, host: str, operation: Operation, pattern: Pattern) -> None:
    """Log a denied operation."""
    _say(logging.INFO, "Denied", who, host, operation, pattern)


def allowed(who: Principal, host: str, operation: Operation, pattern: Pattern) -> None:
    """Log an allowed operation."""
    _say(logging.DEBUG, "Allowed", who, host, operation, pattern)


def tells_allowed() -> bool:
    """Whether allowed operations are logged."""
    return log.isEnabledFor(logging.DEBUG)


def _say(level: int, what: str, who: Principal, host: str, operation: Operation, pattern: Pattern) -> None:
    log.log(
        level, "Principal = %s is %s operation = %s from host = %s on resource = %s",
        printable(str(who)), what, operation.name, host, printable(str(pattern)),
    )  # fmt: skip
