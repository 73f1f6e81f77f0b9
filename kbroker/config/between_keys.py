"""What a broker's keys demand of each other, as Kafka's KafkaConfig and its parts have it.

Owns these rules, at a start and for what changes while the broker runs. Never looks at one value alone: limits.py does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from kbroker.config.model import ALL_DIRS, ConfigError, InvalidConfig, Value
from kbroker.config.values import per_ip_overrides

_BOUNDED: Final = ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")


class Values(Protocol):
    """What is read of a broker's configuration."""

    @property
    def log_dirs(self) -> tuple[str, ...]: ...

    def get_int(self, name: str) -> int: ...

    def get_str(self, name: str) -> str: ...

    def get_list(self, name: str) -> tuple[str, ...]: ...

    def topic_defaults(self) -> dict[str, Value]: ...


def check_start(config: Values) -> None:
    """Check the configuration of a broker that starts; raises ConfigError."""
    defaults = config.topic_defaults()
    if _number(defaults["segment.ms"]) < 1:
        raise ConfigError("log.roll.ms must be at least 1")
    if _number(defaults["segment.jitter.ms"]) < 0:
        raise ConfigError("log.roll.jitter.ms must be at least 0")
    if _number(defaults["retention.ms"]) == 0:
        raise ConfigError("log.retention.ms must be at least 1, or -1 to keep everything")
    if _number(defaults["min.compaction.lag.ms"]) > _number(defaults["max.compaction.lag.ms"]):
        raise ConfigError(
            "log.cleaner.min.compaction.lag.ms must not be greater than log.cleaner.max.compaction.lag.ms"
        )
    _check_consumer_groups(config)
    try:
        check_cordoned(config.get_list("cordoned.log.dirs"), config.log_dirs)
        per_ip_overrides(config.get_str("max.connections.per.ip.overrides"))
    except InvalidConfig as error:
        raise ConfigError(error.text) from None


def _number(value: Value) -> float:
    assert isinstance(value, (int, float))
    return value


def _check_consumer_groups(config: Values) -> None:
    """As Kafka's GroupCoordinatorConfig."""
    number = config.get_int
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


def check_cordoned(cordoned: Sequence[str], log_dirs: Sequence[str]) -> None:
    """Refuse directories that are not among the broker's own, and the sign for all of them beside others."""
    if ALL_DIRS in cordoned:
        if len(cordoned) > 1:
            raise InvalidConfig(
                f"requirement failed: When cordoned.log.dirs is set to {ALL_DIRS}, it must not contain other values"
            )
        return
    missing = [each for each in cordoned if each not in log_dirs]
    if missing:
        raise InvalidConfig(
            "requirement failed: All entries in cordoned.log.dirs must be present in log.dirs or log.dir. "
            f"Missing entries : {', '.join(missing)}"
        )
