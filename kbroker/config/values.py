"""Conversion from text to typed value and back, by key, as in Kafka.

Owns the parsing, the checks and the canonical text of values. Does not know the source of a text. Raises InvalidConfig
with Kafka's message.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kbroker.config.limits import invalid, java_double
from kbroker.config.model import ConfigKey, ConfigType, InvalidConfig, Value

_INTEGER: Final = re.compile(r"[-+]?[0-9]+", re.ASCII)
_DOUBLE: Final = re.compile(r"[-+]?(?:NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fFdD]?)", re.ASCII)
_COMMA: Final = re.compile(r"[ \t\n\x0b\f\r]*,[ \t\n\x0b\f\r]*")
_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}
# The characters that Java's String.trim removes: every control character and the space.
_JAVA_BLANK: Final = "".join(map(chr, range(0x21)))


def parse(key: ConfigKey, text: str | None) -> Value:
    """Return the typed value of `text` for `key`, after checking it against the key's limits."""
    value = None if text is None else parse_text(key.name, key.type, text)
    if isinstance(value, tuple) and key.validator is not None:
        value = tuple(dict.fromkeys(value))
    if key.validator is not None:
        key.validator.check(key.name, value)
    return value


def parse_text(name: str, kind: ConfigType, text: str) -> Value:
    """Return the typed value of `text`, without checking the limits of the key `name`."""
    trimmed = text.strip(_JAVA_BLANK)
    match kind:
        case ConfigType.BOOLEAN:
            if trimmed.lower() not in ("true", "false"):
                raise invalid(name, text, "Expected value to be either true or false")
            return trimmed.lower() == "true"
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            half = 1 << (_BITS[kind] - 1)
            if _INTEGER.fullmatch(trimmed) is None or not -half <= int(trimmed) < half:
                raise invalid(name, text, f"Not a number of type {kind.name}")
            return int(trimmed)
        case ConfigType.DOUBLE:
            if _DOUBLE.fullmatch(trimmed) is None:
                raise invalid(name, text, "Not a number of type DOUBLE")
            return float(trimmed.rstrip("fFdD")) if not trimmed.endswith("Infinity") else float(trimmed)
        case ConfigType.LIST:
            return tuple(_COMMA.split(trimmed)) if trimmed else ()
        case _:
            return trimmed


def to_text(value: Value) -> str | None:
    """Return the canonical text of a value, as in DescribeConfigs. Return None for no value."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return java_double(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def parse_all(
    keys: Mapping[str, ConfigKey], texts: Mapping[str, str], defaults: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the value of every key: from `texts`, else from `defaults`, else the key's own default.

    Raises InvalidConfig for the first wrong value in the order of `keys`.
    """
    values: dict[str, Value] = {}
    for name, key in keys.items():
        if name in texts:
            values[name] = parse(key, texts[name])
        else:
            values[name] = defaults.get(name, key.default)
    return values


def per_ip_overrides(text: str) -> dict[str, int]:
    """Parse "host:count,...". Raises InvalidConfig with the message of Kafka's own parser."""
    found = {}
    for item in (part.strip() for part in text.split(",")):
        if not item:
            continue
        host, colon, count = item.rpartition(":")
        if not colon:
            detail = f"begin 0, end -1, length {len(item)}"
            raise InvalidConfig(f"Error parsing configuration property 'max.connections.per.ip.overrides': {detail}")
        try:
            found[host] = int(count)
        except ValueError:
            raise InvalidConfig(f'For input string: "{count}"') from None
    return found
