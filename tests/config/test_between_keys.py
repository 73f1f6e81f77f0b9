"""What a broker's keys require of each other: at a start, and when they are changed."""

from __future__ import annotations

import pytest

from kbroker.config.between_keys import RULES
from kbroker.config.changes_while_running import validate_broker
from kbroker.config.model import ConfigError, InvalidConfig
from kbroker.config.server_config import BrokerConfig
from kbroker.protocol.errors import ErrorCode

MB = 1 << 20
BROKEN = [
    ({"log.roll.ms": "0"}, "log.roll.ms must be greater than or equal to 1"),
    ({"log.cleaner.threads": "0"}, "log.cleaner.threads must be at least 1"),
    ({"log.roll.jitter.ms": "-1"}, "log.roll.jitter.ms must be greater than or equal to 0"),
    ({"log.retention.ms": "0"}, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
    ({"log.retention.hours": "0"}, "log.retention.ms must be unlimited (-1) or, greater than or equal to 1"),
    (
        {"log.cleaner.dedupe.buffer.size": str(4 * MB), "log.cleaner.threads": "4"},
        "log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
    ),
    (
        {"replica.fetch.wait.max.ms": "900", "replica.socket.timeout.ms": "800"},
        "replica.socket.timeout.ms should always be at least replica.fetch.wait.max.ms to prevent unnecessary socket "
        "timeouts",
    ),
    (
        {"replica.fetch.wait.max.ms": "900", "replica.lag.time.max.ms": "800"},
        "replica.fetch.wait.max.ms should always be less than or equal to replica.lag.time.max.ms to prevent frequent "
        "changes in ISR",
    ),
    (
        {"queued.max.request.bytes": "1000"},
        "queued.max.request.bytes must be larger or equal to socket.request.max.bytes",
    ),
    (
        {"max.connections.per.ip": "0"},
        "max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides property is set.",
    ),
    (
        {"connections.max.idle.ms": "100"},
        "connection.failed.authentication.delay.ms=100 should always be less than connections.max.idle.ms=100 to "
        "prevent failed authentication responses from timing out",
    ),
]
FINE = [
    {"log.cleaner.dedupe.buffer.size": str(4 * MB + 4), "log.cleaner.threads": "4"},
    {"replica.fetch.wait.max.ms": "800", "replica.socket.timeout.ms": "800", "replica.lag.time.max.ms": "800"},
    {"queued.max.request.bytes": "1000", "socket.request.max.bytes": "1000"},
    {"queued.max.request.bytes": "-1"},
    {"max.connections.per.ip": "0", "max.connections.per.ip.overrides": "127.0.0.1:5"},
    {"connections.max.idle.ms": "101"},
    {"connections.max.idle.ms": "-1"},
    {"log.retention.ms": "-1"},
]


@pytest.mark.parametrize(("settings", "text"), BROKEN)
def test_a_start_is_refused(settings: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(settings)
    assert str(refused.value) == text


@pytest.mark.parametrize("settings", FINE)
def test_at_the_bound_a_start_goes_on(settings: dict[str, str]) -> None:
    BrokerConfig(settings)


def test_every_rule_has_its_case() -> None:
    told = [text for _, text in BROKEN]
    for rule in RULES:
        assert any(text.startswith(rule.text.partition("{")[0]) for text in told), rule.text


@pytest.mark.parametrize("kind", ["consumer", "share"])
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"max.heartbeat.interval.ms": "4000"},
            "{0}max.heartbeat.interval.ms must be greater than or equal to {0}min.h",
        ),
        ({"heartbeat.interval.ms": "4000"}, "{0}heartbeat.interval.ms must be greater than or equal to {0}min.heart"),
        ({"heartbeat.interval.ms": "16000"}, "{0}heartbeat.interval.ms must be less than or equal to {0}max.heartb"),
        ({"session.timeout.ms": "61000"}, "{0}session.timeout.ms must be less than or equal to {0}max.session"),
    ],
)
def test_settings_of_groups_keep_their_bounds(kind: str, changed: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig({f"group.{kind}.{name}": value for name, value in changed.items()})
    assert str(refused.value).startswith(text.format(f"group.{kind}."))


@pytest.mark.parametrize(
    ("settings", "configs", "text"),
    [
        (
            {},
            {"max.connections.per.ip": "0"},
            "requirement failed: max.connections.per.ip can be set to zero only if max.connections.per.ip.overrides "
            "property is set.",
        ),
        (
            {"log.cleaner.threads": "2"},
            {"log.cleaner.dedupe.buffer.size": str(2 * MB)},
            "requirement failed: log.cleaner.dedupe.buffer.size must be at least 1MB per cleaner thread.",
        ),
        (
            {},
            {"max.connections.per.ip.overrides": "a b:1"},
            "max.connections.per.ip.overrides contains invalid addresses : a b",
        ),
        (
            {},
            {"log.cleaner.threads": "3"},
            "Invalid value org.apache.kafka.common.config.ConfigException: Log cleaner threads cannot be increased to "
            "more than double the current value 1 for configuration Invalid dynamic configuration",
        ),
        (
            {},
            {"log.local.retention.ms": "604800001"},
            "Invalid value org.apache.kafka.common.config.ConfigException: Invalid value 604800001 for configuration "
            "log.local.retention.ms: Value must not be more than log.retention.ms property value: 604800000 for "
            "configuration Invalid dynamic configuration",
        ),
        (
            {"log.retention.bytes": "7"},
            {"log.local.retention.bytes": "-1"},
            "Invalid value org.apache.kafka.common.config.ConfigException: Invalid value -1 for configuration "
            "log.local.retention.bytes: Value must not be -1 as log.retention.bytes value is set as 7. for "
            "configuration Invalid dynamic configuration",
        ),
        ({}, {"log.cleaner.threads": "0"}, "/ by zero"),
        (
            {"log.cleaner.threads": "8"},
            {"log.cleaner.threads": "3"},
            "Invalid value org.apache.kafka.common.config.ConfigException: Log cleaner threads cannot be reduced to "
            "less than half the current value 8 for configuration Invalid dynamic configuration",
        ),
    ],
)
@pytest.mark.parametrize("per_broker", [True, False])
def test_a_change_is_refused(settings: dict[str, str], configs: dict[str, str], text: str, per_broker: bool) -> None:
    with pytest.raises(InvalidConfig) as refused:
        validate_broker(BrokerConfig(settings), configs, per_broker=per_broker)
    assert refused.value.text == text
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_a_change_is_seen_together_with_what_is_set_elsewhere() -> None:
    config = BrokerConfig()
    config.set_dynamic({"max.connections.per.ip.overrides": "127.0.0.1:5"}, {})
    validate_broker(config, {"max.connections.per.ip": "0"}, per_broker=True)
    assert config.get_int("max.connections.per.ip") != 0
