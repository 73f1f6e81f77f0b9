"""Values: how they are parsed, which are refused with which texts, and how they are printed."""

from __future__ import annotations

import pytest

from kbroker.config.limits import java_double
from kbroker.config.model import InvalidConfig
from kbroker.config.table import BROKER, GROUP, TOPIC
from kbroker.config.values import parse, to_text


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("retention.ms", " 100 ", 100),
        ("retention.ms", "+7", 7),
        ("min.cleanable.dirty.ratio", "1e-1", 0.1),
        ("min.cleanable.dirty.ratio", ".5f", 0.5),
        ("preallocate", "TRUE", True),
        ("cleanup.policy", " compact ,delete", ("compact", "delete")),
        ("cleanup.policy", "delete,delete", ("delete",)),
        ("cleanup.policy", "", ()),
        ("compression.gzip.level", "-1", -1),
        ("leader.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2")),
        ("leader.replication.throttled.replicas", "*", ("*",)),
    ],
)
def test_topic_value_parses(key: str, text: str, value: object) -> None:
    assert parse(TOPIC[key], text) == value


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("retention.ms", "foo", "Invalid value foo for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "1_0", "Invalid value 1_0 for configuration retention.ms: Not a number of type LONG"),
        ("retention.ms", "-2", "Invalid value -2 for configuration retention.ms: Value must be at least -1"),
        (
            "segment.bytes",
            "2147483648",
            "Invalid value 2147483648 for configuration segment.bytes: Not a number of type INT",
        ),
        ("segment.bytes", "1", "Invalid value 1 for configuration segment.bytes: Value must be at least 1048576"),
        (
            "min.cleanable.dirty.ratio",
            "1.5",
            "Invalid value 1.5 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
        ),
        (
            "preallocate",
            "yes",
            "Invalid value yes for configuration preallocate: Expected value to be either true or false",
        ),
        (
            "cleanup.policy",
            "compact,nothing",
            "Invalid value nothing for configuration cleanup.policy: String must be one of: compact, delete",
        ),
        ("cleanup.policy", "compact,,delete", "Configuration 'cleanup.policy' values must not be empty."),
        (
            "compression.type",
            "brotli",
            "Invalid value brotli for configuration compression.type: String must be one of: "
            "uncompressed, zstd, lz4, snappy, gzip, producer",
        ),
        (
            "compression.gzip.level",
            "10",
            "Invalid value 10 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
        ),
        (
            "leader.replication.throttled.replicas",
            "a:b",
            "Invalid value [a:b] for configuration leader.replication.throttled.replicas: "
            "leader.replication.throttled.replicas must be the literal '*' or a list of replicas in the following "
            "format: [partitionId]:[brokerId],[partitionId]:[brokerId],...",
        ),
    ],
)
def test_wrong_topic_value_is_refused_in_kafkas_words(key: str, text: str, message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse(TOPIC[key], text)
    assert caught.value.text == message


def test_every_default_is_valid_and_survives_a_round_trip() -> None:
    for table in (TOPIC, BROKER, GROUP):
        for key in table.values():
            text = to_text(key.default)
            if text is not None:
                assert parse(key, text) == key.default, key.name


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0, "0.0"),
        (1e7, "1.0E7"),
        (9999999.0, "9999999.0"),
        (0.001, "0.001"),
        (0.00012, "1.2E-4"),
        (-1.5e300, "-1.5E300"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_doubles_print_as_java_prints_them(number: float, text: str) -> None:
    assert java_double(number) == text
