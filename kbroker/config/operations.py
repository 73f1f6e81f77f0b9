"""The four operations of IncrementalAlterConfigs on the configs of a resource.

Defines how the operations change a value, with Kafka's messages. Never checks a value (validation.py and
changes_while_running.py do), and never stores a value. Returns the new configs, text by key, or raises InvalidConfig.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

from kbroker.config.model import ConfigKey, ConfigType, InvalidConfig
from kbroker.config.table import BROKER
from kbroker.config.values import to_text

MAX_VALUE_CHARS: Final = 32_767


class Op(IntEnum):
    """The operations that IncrementalAlterConfigs can request on a key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def apply_ops(
    keys: Mapping[str, ConfigKey], current: Mapping[str, str], ops: Iterable[tuple[str, Op, str | None]]
) -> dict[str, str]:
    """Return `current` after `ops` of (key, operation, text). An append to an unset list starts with its default."""
    configs = dict(current)
    for name, op, text in ops:
        if op is Op.DELETE or text is None:
            configs.pop(name, None)
            continue
        if op is Op.SET:
            configs[name] = text
            continue
        key = keys.get(name)
        if key is None or key.type is not ConfigType.LIST:
            raise InvalidConfig(f"Can't {op.name} to key {name} because its type is not LIST.")
        old = current.get(name, to_text(key.default) or "")
        if len(text) > MAX_VALUE_CHARS:
            raise _too_long()
        items = [item for item in old.split(",") if item]
        held = set(items)
        for item in _java_split(text):
            if op is Op.APPEND and item not in held:
                items.append(item)
                held.add(item)
            elif op is Op.SUBTRACT and item in held:
                items.remove(item)
                held = set(items)
        configs[name] = ",".join(items)
    for name, text in configs.items():
        if len(text) > MAX_VALUE_CHARS and current.get(name) != text:
            raise _too_long()
    return configs


def _too_long() -> InvalidConfig:
    return InvalidConfig(
        f"The configuration value cannot be added because it exceeds the maximum value size of {MAX_VALUE_CHARS} bytes."
    )


def _java_split(text: str) -> list[str]:
    """Split at commas as Java's String.split does: drop empty strings at the end."""
    items = text.split(",")
    while len(items) > 1 and not items[-1]:
        items.pop()
    return items


def apply_broker_ops(current: Mapping[str, str], ops: Iterable[tuple[str, Op, str | None]]) -> dict[str, str]:
    """Return a broker's dynamic configs after `ops`. Kafka's messages differ from those for other resources."""
    ops = list(ops)
    for name, op, _ in ops:
        if op not in (Op.APPEND, Op.SUBTRACT):
            continue
        key = BROKER.get(name)
        if key is None:
            raise InvalidConfig(f"Unknown config name: {name}")
        if key.type is not ConfigType.LIST:
            verb = "append" if op is Op.APPEND else "subtract"
            raise InvalidConfig(f"Config value {verb} is not allowed for config key: {name}")
    return apply_ops(BROKER, current, ops)
