"""What the settings of consumer groups demand of each other, as Kafka's GroupCoordinatorConfig has it.

Owns these checks of the broker's own settings. Those of a group's are in alter.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kbroker.config.model import ConfigError

_BOUNDED: Final = ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")


def check_consumer_groups(number: Callable[[str], int]) -> None:
    """Check the keys of consumer groups, read by `number`; raises ConfigError."""
    for name in _BOUNDED:
        key, low, high = f"group.consumer.{name}", f"group.consumer.min.{name}", f"group.consumer.max.{name}"
        for greater, lesser in ((high, low), (key, low)):
            if number(greater) < number(lesser):
                raise ConfigError(f"{greater} must be greater than or equal to {lesser}")
        if number(key) > number(high):
            raise ConfigError(f"{key} must be less than or equal to {high}")
    heartbeat, session = "group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"
    if number(heartbeat) >= number(session):
        raise ConfigError(f"{heartbeat} must be less than {session}")
