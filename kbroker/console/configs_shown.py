"""The rows of configs on pages, for every kind of entity.

Never shows a sensitive value, even if a broker returns one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kbroker.admin.configs import Subject, source_name
from kbroker.config.model import ConfigType
from kbroker.config.table import BROKER, GROUP, TOPIC
from kbroker.console.number_text import size, span
from kbroker.protocol.messages.configs import DescribeConfigsResourceResult

_FOR_EVER: Final = 2**62
_SECOND_MS: Final = 1000
_LARGE: Final = 10_000
_MARKUP: Final = re.compile(r"<[^>]{0,200}>")
_SOURCES: Final = {
    "DYNAMIC_TOPIC_CONFIG": "set here",
    "DYNAMIC_BROKER_CONFIG": "set for this broker",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "set for all brokers",
    "DYNAMIC_BROKER_LOGGER_CONFIG": "logger",
    "STATIC_BROKER_CONFIG": "file",
    "DEFAULT_CONFIG": "default",
    "CLIENT_METRICS_CONFIG": "set here",
    "GROUP_CONFIG": "set here",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A config."""

    key: str
    value: str
    secret: bool
    source: str
    own: bool
    """Whether the value was set on this entity itself."""
    read_only: bool
    kind: str
    documentation: str
    means: str = ""
    """The value in readable units; empty if the value itself is readable."""


def rows_of(subject: Subject, found: Iterable[DescribeConfigsResourceResult]) -> list[Row]:
    """Return configs ordered by name; configs that are set on the entity itself come first."""
    shown = [_row(subject, each) for each in found]
    return sorted(shown, key=lambda each: (not each.own, each.key))


def _row(subject: Subject, each: DescribeConfigsResourceResult) -> Row:
    source = source_name(each)
    own = subject.is_of(each.config_source) and source not in ("DEFAULT_CONFIG", "STATIC_BROKER_CONFIG")
    kind = ConfigType(each.config_type).name.lower() if each.config_type in list(ConfigType) else ""
    return Row(
        each.name,
        "" if each.is_sensitive else each.value or "",
        each.is_sensitive,
        _SOURCES.get(source, source.lower()),
        own,
        each.read_only,
        kind,
        _documentation(subject, each),
        "" if each.is_sensitive else meaning(each.name, each.value or ""),
    )


def meaning(key: str, value: str) -> str:
    """Return a time in ms as days or hours, or a size in bytes as MB; empty if the value is already readable.

    The end of the config's name shows whether a value is a time or a size.
    """
    if not value.isdecimal() or int(value) >= _FOR_EVER:
        return ""
    if key.endswith(".ms") and int(value) >= _SECOND_MS:
        return span(int(value))
    return size(int(value)) if key.endswith(".bytes") and int(value) >= _LARGE else ""


def _documentation(subject: Subject, each: DescribeConfigsResourceResult) -> str:
    """Return the broker's documentation of a config, without markup; if there is none, kbroker's own."""
    if each.documentation:
        return " ".join(_MARKUP.sub("", each.documentation).split())
    table = {"topic": TOPIC, "broker": BROKER, "group": GROUP}.get(subject.kind, {})
    known = table.get(each.name)
    return "" if known is None else known.doc
