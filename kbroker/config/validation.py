"""The validation of configs of a topic, a group or a metrics subscription.

Owns the refusal of unknown names, and the broker's bounds on a group's keys, with Kafka's messages. between_keys.py
owns the rules between keys, changes_while_running.py a running broker's own configs. Never parses (values.py) and never
stores: an invalid config raises InvalidConfig.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.config.between_keys import check_group, check_topic
from kbroker.config.client_match import parse_match
from kbroker.config.model import InvalidConfig, Value
from kbroker.config.server_config import BrokerConfig
from kbroker.config.table import CLIENT_METRICS, GROUP, TOPIC
from kbroker.config.values import parse_all
from kbroker.protocol.errors import ErrorCode

_GROUP_KINDS: Final = ("consumer", "share", "streams")
_LEAST_INTERVAL_MS: Final = 100
_MOST_INTERVAL_MS: Final = 3_600_000


def validate_topic(config: BrokerConfig, configs: Mapping[str, str]) -> dict[str, Value]:
    """Check a topic's own configs and return the resulting value of every topic key."""
    for name in configs:
        if name not in TOPIC:
            raise InvalidConfig(f"Unknown topic config name: {name}")
    values = parse_all(TOPIC, configs, config.topic_defaults())
    check_topic(values)
    if values["remote.storage.enable"]:
        raise InvalidConfig(
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage."
        )
    return values


def validate_group(config: BrokerConfig, configs: Mapping[str, str]) -> dict[str, Value]:
    """Check a group's own configs and return the resulting value of every group key."""
    for name in configs:
        if name not in GROUP:
            raise InvalidConfig(f"Unknown group config name: {name}")
    values = parse_all(GROUP, configs, config.group_defaults())
    for name, low, high in _group_bounds(configs):
        value = values[name]
        assert isinstance(value, int)
        if low is not None and value < config.get_int(low):
            raise InvalidConfig(f"{name} must be greater than or equal to {low}")
        if high is not None and value > config.get_int(high):
            raise InvalidConfig(f"{name} must be less than or equal to {high}")
    for kind in _GROUP_KINDS:
        check_group(values, kind)
    return values


def _group_bounds(configs: Mapping[str, str]) -> list[tuple[str, str | None, str | None]]:
    """Return group keys with the broker keys that bound them, in the order of Kafka's checks."""
    bounds: list[tuple[str, str | None, str | None]] = []
    for kind in _GROUP_KINDS:
        names = [f"{kind}.heartbeat.interval.ms", f"{kind}.session.timeout.ms"]
        if kind == "share":
            names += ["share.record.lock.duration.ms", "share.delivery.count.limit", "share.partition.max.record.locks"]
        pairs = [(name, f"min.{name.partition('.')[2]}", f"max.{name.partition('.')[2]}") for name in names]
        bounds += [(name, f"group.{kind}.{low}", f"group.{kind}.{high}") for name, low, high in pairs]
        if kind == "streams":
            bounds.append(("streams.num.standby.replicas", None, "group.streams.max.standby.replicas"))
        # An interval from the broker's own configuration is not checked against the broker's bounds.
        if (name := f"{kind}.assignment.interval.ms") in configs:
            low, high = f"group.{kind}.min.assignment.interval.ms", f"group.{kind}.max.assignment.interval.ms"
            bounds.append((name, low, high))
    return bounds


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
