"""The rules between several keys of a broker, a topic or a group, as in Kafka's KafkaConfig and its parts.

Owns these rules, both at a start and for changes while the broker runs. Never checks a single value: limits.py does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from kbroker.config.model import ALL_DIRS, ConfigError, InvalidConfig, Value
from kbroker.config.values import per_ip_overrides

# This is the pattern of Kafka's Utils.validHostPattern.
_HOST: Final = re.compile(r"([0-9a-zA-Z\-%._:]*)")
_AS_RETENTION: Final = -2
"""The value with which local.retention.ms or local.retention.bytes is the same as the topic's retention."""
_BOUNDED: Final = ("heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms")
_STREAMS: Final = (
    ("group.streams.num.standby.replicas", "less", "group.streams.max.standby.replicas"),
    ("group.streams.task.offset.interval.ms", "greater", "group.streams.min.task.offset.interval.ms"),
    ("group.streams.num.warmup.replicas", "less", "group.streams.max.warmup.replicas"),
)


class Values(Protocol):
    """The part of a broker's configuration that the rules read."""

    @property
    def log_dirs(self) -> tuple[str, ...]: ...

    def get_int(self, name: str) -> int: ...

    def get_str(self, name: str) -> str: ...

    def get_list(self, name: str) -> tuple[str, ...]: ...

    def topic_defaults(self) -> dict[str, Value]: ...


class Rule(NamedTuple):
    """A condition, and Kafka's message if it is violated. In the message, `{key}` is replaced with the key's value."""

    text: str
    holds: Callable[[Values], bool]


RULES: Final = (
    Rule(
        "log.roll.ms must be greater than or equal to 1",
        lambda values: _number(values.topic_defaults()["segment.ms"]) >= 1,
    ),
    Rule(
        "log.roll.jitter.ms must be greater than or equal to 0",
        lambda values: _number(values.topic_defaults()["segment.jitter.ms"]) >= 0,
    ),
    Rule(
        "log.retention.ms must be unlimited (-1) or, greater than or equal to 1",
        lambda values: _number(values.topic_defaults()["retention.ms"]) != 0,
    ),
    Rule(
        "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        lambda values: (
            values.get_int("log.cleaner.dedupe.buffer.size") // values.get_int("log.cleaner.threads") > 1 << 20
        ),
    ),
    Rule(
        "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary socket "
        "timeouts",
        lambda values: values.get_int("replica.fetch.wait.max.ms") <= values.get_int("replica.socket.timeout.ms"),
    ),
    Rule(
        "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent frequent "
        "changes in ISR",
        lambda values: values.get_int("replica.fetch.wait.max.ms") <= values.get_int("replica.lag.time.max.ms"),
    ),
    Rule(
        "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
        lambda values: not 0 < values.get_int("queued.max.request.bytes") < values.get_int("socket.request.max.bytes"),
    ),
    Rule(
        "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
        lambda values: values.get_int("max.connections.per.ip") != 0 or bool(_overrides(values)),
    ),
    Rule(
        "connection.failed.authentication.delay.ms={connection.failed.authentication.delay.ms} should always be less "
        "than connections.max.idle.ms={connections.max.idle.ms} to prevent failed authentication responses from timing "
        "out",
        lambda values: (
            not 0
            <= values.get_int("connections.max.idle.ms")
            <= values.get_int("connection.failed.authentication.delay.ms")
        ),
    ),
)
"""The rules, in the order in which Kafka's KafkaConfig.validateValues checks them."""


def check_rules(values: Values) -> None:
    """Check a broker's complete configuration, at a start or after a change. Raises InvalidConfig."""
    overrides = _overrides(values)
    if values.get_int("log.cleaner.threads") == 0:
        raise InvalidConfig("/ by zero")
    for rule in RULES:
        if not rule.holds(values):
            text = re.sub(r"\{([a-z.]+)\}", lambda name: str(values.get_int(name[1])), rule.text)
            raise InvalidConfig(f"requirement failed: {text}")
    wrong = [host for host in overrides if _HOST.fullmatch(host) is None]
    if wrong:
        raise InvalidConfig(f"max.connections.per.ip.overrides contains invalid addresses : {','.join(wrong)}")
    check_cordoned(values.get_list("cordoned.log.dirs"), values.log_dirs)


def check_start(values: Values) -> None:
    """Check the configuration of a starting broker. Raises ConfigError."""
    try:
        if values.get_int("log.cleaner.threads") < 1:
            raise InvalidConfig("log.cleaner.threads must be at least 1")
        check_rules(values)
    except InvalidConfig as error:
        raise ConfigError(error.text.removeprefix("requirement failed: ")) from None
    defaults = values.topic_defaults()
    if _number(defaults["min.compaction.lag.ms"]) > _number(defaults["max.compaction.lag.ms"]):
        raise ConfigError(
            "log.cleaner.min.compaction.lag.ms must not be greater than log.cleaner.max.compaction.lag.ms"
        )
    for kind in ("consumer", "share", "streams"):
        _check_groups(values, kind)
    for name, word, bound in _STREAMS:
        difference = values.get_int(name) - values.get_int(bound)
        if difference < 0 if word == "greater" else difference > 0:
            raise ConfigError(f"{name} must be {word} than or equal to {bound}")


def _overrides(values: Values) -> dict[str, int]:
    return per_ip_overrides(values.get_str("max.connections.per.ip.overrides"))


def _number(value: Value) -> float:
    assert isinstance(value, (int, float))
    return value


def _check_groups(values: Values, kind: str) -> None:
    """Check the settings for one kind of groups, as Kafka's GroupCoordinatorConfig does."""
    number = values.get_int
    for name in _BOUNDED:
        key, low, high = f"group.{kind}.{name}", f"group.{kind}.min.{name}", f"group.{kind}.max.{name}"
        for greater, lesser in ((high, low), (key, low)):
            if number(greater) < number(lesser):
                raise ConfigError(f"{greater} must be greater than or equal to {lesser}")
        if number(key) > number(high):
            raise ConfigError(f"{key} must be less than or equal to {high}")
    heartbeat, session = f"group.{kind}.heartbeat.interval.ms", f"group.{kind}.session.timeout.ms"
    if number(heartbeat) >= number(session):
        raise ConfigError(f"{heartbeat} must be less than {session}")


def check_cordoned(cordoned: Sequence[str], log_dirs: Sequence[str]) -> None:
    """Refuse a directory that is not a log directory of the broker, and ALL_DIRS together with directories."""
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


def check_metadata_dir(directory: str, log_dirs: Sequence[str]) -> None:
    """Refuse metadata outside the log directories. Paths are absolute. Raises ConfigError."""
    if directory not in log_dirs:
        raise ConfigError(f"metadata.log.dir {directory} is not among log.dirs; this broker keeps its metadata there")


def check_topic(values: Mapping[str, Value]) -> None:
    """Raise InvalidConfig for contradictory values of a topic."""
    low, high = _number(values["min.compaction.lag.ms"]), _number(values["max.compaction.lag.ms"])
    if low > high:
        raise InvalidConfig(
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        )
    _check_schedules(values)
    _check_tiers(values)
    delay, retention = _number(values["delivery.delay.ms"]), _number(values["retention.ms"])
    if not delay:
        return
    if values["message.timestamp.type"] != "LogAppendTime":
        raise InvalidConfig(
            "delivery.delay.ms needs message.timestamp.type=LogAppendTime: the delay counts from a record's append"
        )
    policy = values["cleanup.policy"]
    if isinstance(policy, tuple) and "delete" in policy and 0 <= retention <= delay:
        raise InvalidConfig(
            f"delivery.delay.ms ({delay}) must be less than retention.ms ({retention}), or records expire unread"
        )


def _check_tiers(values: Mapping[str, Value]) -> None:
    """Check the keys of remote storage, in the order and with the texts of Kafka's LogConfig."""
    if not values["remote.storage.enable"]:
        return
    if values["cleanup.policy"] not in ((), ("delete",)):
        raise InvalidConfig(
            "Remote log storage only supports topics with cleanup.policy=delete or cleanup.policy being an empty list."
        )
    if values["delivery.delay.ms"] or values["schedule.enable"]:
        raise InvalidConfig("remote.storage.enable excludes delivery.delay.ms and schedule.enable")
    is_copying = not values["remote.log.copy.disable"]
    for unit in ("ms", "bytes"):
        local, total = _number(values[f"local.retention.{unit}"]), _number(values[f"retention.{unit}"])
        if not is_copying and local not in (_AS_RETENTION, total):
            raise InvalidConfig(
                f"When `remote.log.copy.disable` is set to true, the `local.retention.{unit}` and `retention.{unit}` "
                "must be set to the identical value because there will be no more logs copied to the remote storage."
            )
    for unit in ("ms", "bytes"):
        local, total = _number(values[f"local.retention.{unit}"]), _number(values[f"retention.{unit}"])
        kept = total if local == _AS_RETENTION else local
        if total >= 0 and kept < 0:
            raise InvalidConfig(
                f"Invalid value {local} for configuration local.retention.{unit}: Value must not be -1 as "
                f"retention.{unit} value is set as {total}."
            )
        if 0 <= total < kept:
            raise InvalidConfig(
                f"Invalid value {local} for configuration local.retention.{unit}: Value must not be more than "
                f"retention.{unit} property value: {total}"
            )
        lag = _number(values[f"remote.copy.lag.{unit}"])
        if 0 <= kept < lag:
            raise InvalidConfig(
                f"Invalid value {lag} for configuration remote.copy.lag.{unit}: Value must not exceed "
                f"local.retention.{unit} (effective value: {kept})"
            )


def _check_schedules(values: Mapping[str, Value]) -> None:
    if not values["schedule.enable"]:
        if values["schedule.target.topic"]:
            raise InvalidConfig("schedule.target.topic has a meaning only with schedule.enable=true")
        return
    if values["message.timestamp.type"] != "LogAppendTime":
        raise InvalidConfig(
            "schedule.enable needs message.timestamp.type=LogAppendTime: durations count from a record's append"
        )
    policy = values["cleanup.policy"]
    if isinstance(policy, tuple) and "compact" in policy:
        raise InvalidConfig(
            "schedule.enable and cleanup.policy=compact exclude each other: compaction would remove pending records"
        )
    if _number(values["delivery.delay.ms"]):
        raise InvalidConfig("schedule.enable and delivery.delay.ms exclude each other: headers name the time")


def check_tags(name: str, text: str) -> None:
    """Raise InvalidConfig if the list `text` of key `name` repeats a tag. In other lists, repetitions are dropped."""
    tags = re.split(r"\s*,\s*", text.strip())
    if len(set(tags)) < len(tags):
        raise InvalidConfig(f"{name} must not contain duplicate tag keys.")


def check_group(values: Mapping[str, Value], kind: str) -> None:
    """Raise InvalidConfig for contradictory values of a group of this kind."""
    if _number(values[f"{kind}.session.timeout.ms"]) <= _number(values[f"{kind}.heartbeat.interval.ms"]):
        raise InvalidConfig(f"{kind}.session.timeout.ms must be greater than {kind}.heartbeat.interval.ms")
