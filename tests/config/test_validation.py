"""Which changed configs Kafka refuses, and with which texts."""

from __future__ import annotations

import pytest

from kbroker.config.changes_while_running import validate_broker
from kbroker.config.model import InvalidConfig
from kbroker.config.server_config import BrokerConfig
from kbroker.config.validation import validate_group, validate_topic
from kbroker.protocol.errors import ErrorCode

CONFIG = BrokerConfig()


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"nope": "1"}, "Unknown topic config name: nope"),
        ({"retention.ms": "x"}, "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        (
            {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"},
            "conflict topic config setting min.compaction.lag.ms (9) > max.compaction.lag.ms (8)",
        ),
        (
            {"remote.storage.enable": "true"},
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        ),
        # Of several wrong values, the one that Kafka declares first is reported.
        (
            {"retention.ms": "x", "segment.bytes": "y"},
            "Invalid value y for configuration segment.bytes: Not a number of type INT",
        ),
    ],
)
def test_topic_validation(configs: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        validate_topic(CONFIG, configs)
    assert caught.value.text == message
    assert caught.value.code is ErrorCode.INVALID_CONFIG


def test_topic_values_fill_up_from_the_broker() -> None:
    values = validate_topic(BrokerConfig({"message.max.bytes": "77"}), {"retention.ms": "5"})
    assert (values["max.message.bytes"], values["retention.ms"]) == (77, 5)


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"nope": "1"}, "Unknown group config name: nope"),
        (
            {"consumer.session.timeout.ms": "1000"},
            "consumer.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
        ),
        (
            {"share.delivery.count.limit": "11"},
            "share.delivery.count.limit must be in the range 2 to 10 inclusive.",
        ),
        (
            {"streams.num.standby.replicas": "3"},
            "streams.num.standby.replicas must be less than or equal to 2",
        ),
        (
            {"streams.task.offset.interval.ms": "14999"},
            "streams.task.offset.interval.ms must be greater than or equal to 15000",
        ),
        (
            {"streams.assignor.name": "mine"},
            "streams.assignor.name 'mine' is not a registered task assignor. Registered assignors are: [sticky].",
        ),
        (
            {"streams.rack.aware.assignment.tags": "zone ,rack, zone"},
            "streams.rack.aware.assignment.tags must not contain duplicate tag keys.",
        ),
        (
            {"errors.deadletterqueue.topic.name": "__dead"},
            "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'",
        ),
        (
            {"share.release.backoff.multiplier": "0.5"},
            "Invalid value 0.5 for configuration share.release.backoff.multiplier: Value must be at least 1",
        ),
        # A session that expires before the group's own heartbeat.
        (
            {"share.heartbeat.interval.ms": "15000", "share.session.timeout.ms": "44999"},
            "share.session.timeout.ms must be in the range 45000 to 60000 inclusive.",
        ),
        (
            {"share.auto.offset.reset": "soon"},
            "Invalid value soon for configuration share.auto.offset.reset: Invalid value `soon` for configuration "
            "share.auto.offset.reset. The value must be either 'earliest', 'latest' or of the format "
            "'by_duration:<PnDTnHnMn.nS>'.",
        ),
    ],
)
def test_group_validation(configs: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        validate_group(CONFIG, configs)
    assert caught.value.text == message


def test_group_configs_that_are_fine() -> None:
    configs = {"consumer.session.timeout.ms": "50000", "share.auto.offset.reset": "by_duration:PT1H"}
    assert validate_group(CONFIG, configs)["consumer.session.timeout.ms"] == 50000


@pytest.mark.parametrize(
    ("configs", "per_broker", "message"),
    [
        ({"num.partitions": "2"}, True, "Cannot update these configs dynamically: [num.partitions]"),
        (
            {"ssl.keystore.type": "PEM"},
            True,
            "These security configs can be dynamically updated only per-listener using the listener prefix: "
            "[ssl.keystore.type]",
        ),
        (
            {"listener.name.inside.ssl.keystore.type": "PEM"},
            False,
            "Cannot update these configs at default cluster level, broker id must be specified: "
            "[listener.name.inside.ssl.keystore.type]",
        ),
        (
            {"message.max.bytes": "x"},
            False,
            "Invalid value x for configuration message.max.bytes: Not a number of type INT",
        ),
        (
            {"num.io.threads": "100"},
            False,
            "Invalid value org.apache.kafka.common.config.ConfigException: Dynamic thread count update validation "
            "failed for num.io.threads=100, value should not be greater than double the current value 8 for "
            "configuration Invalid dynamic configuration",
        ),
    ],
)
def test_broker_validation(configs: dict[str, str], per_broker: bool, message: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        validate_broker(CONFIG, configs, per_broker=per_broker)
    assert caught.value.text == message
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_a_broker_may_have_configs_of_ones_own() -> None:
    validate_broker(CONFIG, {"message.max.bytes": "1000", "my.own": "anything"}, per_broker=False)


JAAS = "listener.name.plaintext.plain.sasl.jaas.config"


@pytest.mark.parametrize(
    "text",
    [
        "hunter2",
        'a.B required x="hunter2"',
        'a.B required x="hunter2',
        "a.B hunter2;",
        'a.B required x="hunter2";' * 2,
        "a" * 100_000,
    ],
)
def test_a_login_module_that_cannot_be_read_is_not_stored(text: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        validate_broker(BrokerConfig({}), {JAAS: text}, per_broker=True)
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert refused.value.text.startswith(f"{JAAS} ")
    assert "hunter2" not in refused.value.text


@pytest.mark.parametrize("text", ['a.B required x="y";', "a.B required;", " "])
def test_a_login_module_that_can_be_read_is(text: str) -> None:
    validate_broker(BrokerConfig({}), {JAAS: text}, per_broker=True)


def refusal(config: BrokerConfig, configs: dict[str, str]) -> str:
    with pytest.raises(InvalidConfig) as caught:
        validate_broker(config, configs, per_broker=True)
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    return caught.value.text


@pytest.mark.parametrize("name", ["max.connections", "listener.name.plaintext.max.connections"])
def test_no_connections_at_all_are_refused(name: str) -> None:
    assert "Invalid max.connections 0" in refusal(BrokerConfig({}), {name: "0"})
    validate_broker(BrokerConfig({}), {name: "1"}, per_broker=True)


def test_a_running_broker_keeps_its_listeners() -> None:
    config = BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:9093"})
    own, protocols = "PLAINTEXT://127.0.0.1:9092,SSL://127.0.0.1:9093", "PLAINTEXT:PLAINTEXT,SSL:SSL"
    for same in ({"listeners": own}, {"listener.security.protocol.map": f"{protocols},OTHER:SSL"}):
        validate_broker(config, same, per_broker=True)
    other = {"listeners": f"{own},OTHER://127.0.0.1:0"}
    assert "No security protocol defined for listener OTHER" in refusal(config, other)
    known = {"listener.security.protocol.map": f"{protocols},OTHER:PLAINTEXT"}
    for changed in (
        other | known,
        {"listeners": "PLAINTEXT://127.0.0.1:0"},
        {"listeners": own.replace("9093", "9094")},
    ):
        assert "only when it starts" in refusal(config, changed)
    changed = {"listener.security.protocol.map": "PLAINTEXT:SSL,SSL:SSL"}
    assert "cannot be updated for existing listener ListenerName(PLAINTEXT)" in refusal(config, changed)
    gone = {"listener.security.protocol.map": "SSL:SSL"}
    assert "No security protocol defined for listener PLAINTEXT" in refusal(config, gone)
    assert "nonsense" in refusal(config, {"listener.security.protocol.map": "nonsense"})
    assert "'nonsense'" in refusal(config, {"listeners": "nonsense"})
