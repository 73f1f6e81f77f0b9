"""The validation of configs of a topic, a group or a metrics subscription.

Owns the refusal of unknown names, and the broker's bounds on a group's keys, with Kafka's messages. between_keys.py
owns the rules between keys, and changes_while_running.py owns a running broker's own configs. Never parses (values.py
does) and never stores. Raises InvalidConfig for an invalid config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.config.between_keys import check_group, check_tags, check_topic
from kbroker.config.client_match import parse_match
from kbroker.config.limits import java_text
from kbroker.config.model import InvalidConfig, Value
from kbroker.config.server_config import BrokerConfig
from kbroker.config.table import CLIENT_METRICS, GROUP, TOPIC
from kbroker.config.values import parse_all
from kbroker.filters.filtering import compile_filter
from kbroker.filters.tokens import FilterError
from kbroker.protocol.errors import ErrorCode

_GROUP_KINDS: Final = ("consumer", "share", "streams")
_TAGS: Final = "streams.rack.aware.assignment.tags"
_FILTER: Final = "share.filter"
_DEAD_LETTERS: Final = "errors.deadletterqueue.topic.name"
_LEAST_INTERVAL_MS: Final = 100
_MOST_INTERVAL_MS: Final = 3_600_000


def _bounds(kind: str, *names: str) -> list[tuple[str, str | None, str | None]]:
    return [(f"{kind}.{name}", f"group.{kind}.min.{name}", f"group.{kind}.max.{name}") for name in names]


_GROUP_BOUNDS: Final[tuple[tuple[str, str | None, str | None], ...]] = (
    *_bounds("consumer", "heartbeat.interval.ms", "session.timeout.ms", "assignment.interval.ms"),
    *_bounds("share", "heartbeat.interval.ms", "session.timeout.ms", "record.lock.duration.ms"),
    *_bounds("share", "delivery.count.limit", "partition.max.record.locks", "assignment.interval.ms"),
    *_bounds("streams", "heartbeat.interval.ms", "session.timeout.ms"),
    ("streams.num.standby.replicas", None, "group.streams.max.standby.replicas"),
    *_bounds("streams", "assignment.interval.ms"),
    ("streams.task.offset.interval.ms", "group.streams.min.task.offset.interval.ms", None),
    ("streams.num.warmup.replicas", None, "group.streams.max.warmup.replicas"),
)
"""The group keys with the broker keys that limit them, in the order of Kafka's checks (GroupConfig.validateValues)."""


def validate_topic(config: BrokerConfig, configs: Mapping[str, str]) -> dict[str, Value]:
    """Check a topic's own configs and return the resulting value of every topic key."""
    for name in configs:
        if name not in TOPIC:
            raise InvalidConfig(f"Unknown topic config name: {name}")
    values = parse_all(TOPIC, configs, config.topic_defaults())
    check_topic(values)
    if values["remote.storage.enable"] and not config.get_bool("remote.log.storage.system.enable"):
        raise InvalidConfig(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    return values


def validate_group(config: BrokerConfig, configs: Mapping[str, str]) -> dict[str, Value]:
    """Check a group's own configs and return the resulting value of every group key.

    Keys that the group does not set are not checked, because the operator is responsible for the broker's values.
    """
    for name in configs:
        if name not in GROUP:
            raise InvalidConfig(f"Unknown group config name: {name}")
    check_tags(_TAGS, configs.get(_TAGS, ""))
    if text := configs.get(_FILTER, ""):
        try:
            compile_filter(text)
        except FilterError as error:
            raise InvalidConfig(f"{_FILTER}: {error}") from error
    values = parse_all(GROUP, configs, config.group_defaults())
    for name, low, high in _GROUP_BOUNDS:
        if name in configs:
            _check_bounds(config, name, values[name], low, high)
    assignor, registered = values["streams.assignor.name"], config.get_list("group.streams.assignors")
    if "streams.assignor.name" in configs and assignor not in registered:
        raise InvalidConfig(
            f"streams.assignor.name '{java_text(assignor)}' is not a registered task assignor. "
            f"Registered assignors are: {java_text(registered)}."
        )
    for kind in _GROUP_KINDS:
        if f"{kind}.session.timeout.ms" in configs or f"{kind}.heartbeat.interval.ms" in configs:
            check_group(values, kind)
    if str(values[_DEAD_LETTERS]).startswith("__"):
        raise InvalidConfig(f"{_DEAD_LETTERS}: DLQ topic name must not start with '__'")
    return values


def _check_bounds(config: BrokerConfig, name: str, value: Value, low: str | None, high: str | None) -> None:
    """Raise InvalidConfig for a number outside the broker's bounds. The bounds are the values of `low` and `high`."""
    assert isinstance(value, int)
    least = config.get_int(low) if low is not None else value
    most = config.get_int(high) if high is not None else value
    if least <= value <= most:
        return
    if low is not None and high is not None:
        raise InvalidConfig(f"{name} must be in the range {least} to {most} inclusive.")
    if value < least:
        raise InvalidConfig(f"{name} must be greater than or equal to {least}")
    raise InvalidConfig(f"{name} must be less than or equal to {most}")


def validate_client_metrics(name: str, configs: Mapping[str, str]) -> dict[str, Value]:
    """Check the configs of a subscription to clients' metrics and return the value of each of its keys (KIP-714)."""
    if not name:
        raise InvalidConfig("Subscription name can't be empty", ErrorCode.INVALID_REQUEST)
    for key in configs:
        if key not in CLIENT_METRICS:
            raise InvalidConfig(f"Unknown client metrics configuration: {key}", ErrorCode.INVALID_REQUEST)
    values = parse_all(CLIENT_METRICS, configs, {})
    interval, match = values["interval.ms"], values["match"]
    assert isinstance(interval, int) and isinstance(match, tuple)  # noqa: PT018 - one statement for the type checker
    if not _LEAST_INTERVAL_MS <= interval <= _MOST_INTERVAL_MS:
        text = f"Invalid value {interval} for interval.ms, interval must be between 100 and 3600000 (1 hour)"
        raise InvalidConfig(text, ErrorCode.INVALID_REQUEST)
    parse_match(match)
    return values
