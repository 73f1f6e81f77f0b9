"""The broker's configuration: its sources, its checks, and how it is described."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbroker.config.describe import (
    describe_broker,
    describe_broker_default,
    describe_created_topic,
    describe_group,
    describe_topic,
)
from kbroker.config.model import ConfigError, ConfigSource
from kbroker.config.server_config import BrokerConfig
from kbroker.config.sources import parse_properties, settings_from_environment
from kbroker.config.table import BROKER, GROUP, TOPIC
from kbroker.config.values import to_text


def test_properties_file_syntax() -> None:
    text = (
        "# a comment\n! another\n\n"
        "a=1\n  b : 2\nc 3\nd=\ne\n"
        "long=one,\\\n    two,\\\n    three\n"
        "escaped\\ key=tab\\there\\u0041\\=\n"
        "path=c:\\\\dir\\\\\n"
        "not.a.comment=x # y\r\n"
        "last=1\\"
    )
    assert parse_properties(text) == {
        "a": "1",
        "b": "2",
        "c": "3",
        "d": "",
        "e": "",
        "long": "one,two,three",
        "escaped key": "tab\thereA=",
        "path": "c:\\dir\\",
        "not.a.comment": "x # y",
        "last": "1",
    }


def test_properties_file_with_a_bad_escape_names_the_line() -> None:
    with pytest.raises(ConfigError, match="line 2 of the properties file"):
        parse_properties("a=1\nb=\\u12x4")


def test_environment_names_follow_the_image() -> None:
    environment = {
        "KAFKA_LOG_RETENTION_MS": "5",
        "KAFKA_A__B_C": "underscore",
        "KAFKA_A___B": "dash",
        "KAFKA_HEAP_OPTS": "-Xmx1G",
        "KAFKA_LOG4J_LOGGERS": "kafka=WARN",
        "KAFKA_JMX_PORT": "1",
        "KAFKA_BOOTSTRAP_SERVERS": "b:1",
        "CLUSTER_ID": "x",
        "PATH": "/bin",
    }
    assert settings_from_environment(environment) == {"log.retention.ms": "5", "a_b.c": "underscore", "a-b": "dash"}


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nlog.dirs=/a,/b\nmessage.max.bytes=10\n")
    config = BrokerConfig.load(
        file,
        {"KAFKA_NUM_PARTITIONS": "3", "KAFKA_MESSAGE_MAX_BYTES": "20"},
        ["message.max.bytes = 30"],
        settings={"num.partitions": "1", "offsets.topic.num.partitions": "4"},
    )
    assert config.get_int("num.partitions") == 3
    assert config.get_int("message.max.bytes") == 30
    assert config.get_int("offsets.topic.num.partitions") == 4
    assert config.log_dirs == ("/a", "/b")
    assert config.source("num.partitions") is ConfigSource.STATIC_BROKER_CONFIG
    assert config.source("log.dir") is ConfigSource.DEFAULT_CONFIG
    assert config.warnings == []


def test_unknown_key_is_a_warning_with_the_nearest_name_and_an_error_under_strict() -> None:
    config = BrokerConfig({"num.partitons": "3"})
    assert config.warnings == ["unknown config num.partitons; did you mean num.partitions?"]
    with pytest.raises(ConfigError, match=r"unknown config num\.partitons"):
        BrokerConfig({"num.partitons": "3"}, strict=True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("flush.messages", "it is a config of a topic, the broker's own is log.flush.interval.messages"),
        ("retention.ms", "it is a config of a topic, the broker's own is log.retention.ms"),
        (
            "consumer.session.timeout.ms",
            "it is a config of a group, the broker's own is group.consumer.session.timeout.ms",
        ),
        ("remote.storage.enable", "it is a config of a topic, the broker has none for all"),
    ],
)
def test_a_config_of_a_topic_or_group_is_told_the_brokers_own_name(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig({name: "1"}, strict=True)
    assert str(refused.value) == f"unknown config {name}; {hint}"


def test_every_config_that_a_topic_or_group_takes_from_the_broker_has_its_hint() -> None:
    for name, key in {**TOPIC, **GROUP}.items():
        if key.synonyms and name not in BROKER:
            (warning,) = BrokerConfig({name: "1"}).warnings
            assert warning.endswith(f" the broker's own is {key.synonyms[0].name}"), name
            assert key.synonyms[0].name in BROKER, name


def test_key_of_an_older_version_is_named_as_such_even_under_strict() -> None:
    config = BrokerConfig({"inter.broker.protocol.version": "3.9"}, strict=True)
    assert "inter.broker.protocol.version has no effect" in config.warnings[0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num.partitions": "many"}, ["num.partitions", "many", "INT"]),
        ({"num.partitions": "0"}, ["num.partitions", "0", "at least 1", "[1,...]"]),
        ({"zookeeper.connect": "zk:2181"}, ["zookeeper.connect", "but not broker.id"]),
        ({"listeners": "9092"}, ["listeners", "'9092'", "PLAINTEXT://host:9092"]),
        ({"listener.name.INSIDE.ssl.client.auth": "none"}, ["listener.name.INSIDE", "in small letters"]),
        ({"ssl.provider": "Conscrypt"}, ["ssl.provider: this version has no such setting"]),
        ({"listeners": "INSIDE://:9093"}, ["INSIDE", "listener.security.protocol.map"]),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, ["PLAINTEXT", "more than once"]),
        ({"listeners": "PLAINTEXT://a:70000"}, ["70000"]),
        ({"advertised.listeners": "OTHER://h:1"}, ["OTHER", "PLAINTEXT"]),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, ["0.0.0.0"]),
        ({"listener.security.protocol.map": "A:B"}, ["'A:B'"]),
        ({"node.id": "1", "broker.id": "2"}, ["node.id", "broker.id"]),
        ({"log.retention.ms": "0"}, ["log.retention.ms", "-1"]),
        ({"log.roll.ms": "0"}, ["log.roll.ms"]),
        ({"log.cleaner.min.compaction.lag.ms": "9", "log.cleaner.max.compaction.lag.ms": "8"}, ["compaction.lag"]),
    ],
)
def test_bad_settings_give_one_clear_line(settings: dict[str, str], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig(settings)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_listeners_of_a_kraft_file_are_understood() -> None:
    config = BrokerConfig(
        {
            "process.roles": "broker,controller",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": "1@localhost:9093",
            "listeners": "PLAINTEXT://localhost:9092,INSIDE://[::1]:0,CONTROLLER://localhost:9093",
            "advertised.listeners": "PLAINTEXT://example.org:19092,CONTROLLER://localhost:9093",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,inside:plaintext,SSL:SSL",
        },
        strict=True,
    )
    assert [(each.name, each.host, each.port) for each in config.listeners.bind] == [
        ("PLAINTEXT", "localhost", 9092),
        ("INSIDE", "::1", 0),
    ]
    assert set(config.listeners.advertised) == {"PLAINTEXT"}
    assert config.listeners.advertised["PLAINTEXT"].port == 19092


def test_node_id_comes_from_either_name() -> None:
    assert BrokerConfig().node_id == 1
    assert BrokerConfig({"broker.id": "7"}).node_id == 7
    config = BrokerConfig({"node.id": "8"})
    assert config.node_id == 8
    # Apache Kafka shows both names as set, and no default of node.id.
    assert config.synonyms("node.id") == [("node.id", "8", ConfigSource.STATIC_BROKER_CONFIG)]
    assert config.synonyms("broker.id")[0] == ("broker.id", "8", ConfigSource.STATIC_BROKER_CONFIG)


def test_topic_defaults_convert_units_and_follow_precedence() -> None:
    assert BrokerConfig().topic_defaults()["retention.ms"] == 604_800_000
    assert BrokerConfig({"log.retention.hours": "2"}).topic_defaults()["retention.ms"] == 7_200_000
    both = {"log.retention.hours": "2", "log.retention.minutes": "3"}
    assert BrokerConfig(both).topic_defaults()["retention.ms"] == 180_000
    assert BrokerConfig({**both, "log.retention.ms": "4"}).topic_defaults()["retention.ms"] == 4
    assert BrokerConfig({"log.retention.hours": "-1"}).topic_defaults()["retention.ms"] == -1
    assert BrokerConfig({"record.validation": "full"}).topic_defaults()["record.validation"] == "full"


def test_dynamic_configs_win_and_tell_what_changed() -> None:
    config = BrokerConfig({"message.max.bytes": "100"})
    assert config.set_dynamic({"message.max.bytes": "200"}, {}) == {"message.max.bytes"}
    assert config.source("message.max.bytes") is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    assert config.set_dynamic({"message.max.bytes": "200"}, {"message.max.bytes": "300"}) == {"message.max.bytes"}
    assert config.topic_defaults()["max.message.bytes"] == 300
    assert config.set_dynamic({}, {"message.max.bytes": "nonsense"}) == {"message.max.bytes"}
    assert config.get_int("message.max.bytes") == 100
    assert "dynamic config ignored" in config.warnings[-1]


def test_describe_topic_shows_sources_and_synonyms() -> None:
    config = BrokerConfig({"log.retention.hours": "2", "log.retention.ms": "5"})
    entries = {entry.name: entry for entry in describe_topic(config, {"retention.ms": " 7"})}
    assert "internal.segment.bytes" not in entries
    retention = entries["retention.ms"]
    assert (retention.value, retention.source) == ("7", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert retention.synonyms == [
        ("retention.ms", "7", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "5", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "2", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    ]
    # Kafka lists no synonyms if only the one in another unit has a value.
    assert entries["segment.ms"].synonyms == []
    assert entries["segment.ms"].source is ConfigSource.DEFAULT_CONFIG


def test_created_topic_is_described_as_it_was_asked_for() -> None:
    config = BrokerConfig({"log.retention.hours": "2"})
    entries = {entry.name: entry for entry in describe_created_topic(config, {"min.cleanable.dirty.ratio": ".25"})}
    ratio, retention = entries["min.cleanable.dirty.ratio"], entries["retention.ms"]
    assert (ratio.value, ratio.source) == (".25", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert (retention.value, retention.source) == ("7200000", ConfigSource.STATIC_BROKER_CONFIG)
    assert entries["segment.ms"].source is ConfigSource.DEFAULT_CONFIG


def test_describe_broker_hides_secrets_and_what_it_does_not_know() -> None:
    secret = "listener.name.plaintext.ssl.keystore.password"
    config = BrokerConfig({"my.own": "secret", "message.max.bytes": "5"})
    config.set_dynamic({"message.max.bytes": "6"}, {secret: "secret"})
    entries = {entry.name: entry for entry in describe_broker(config)}
    for name in (secret, "my.own"):
        assert entries[name].value is None
        assert entries[name].sensitive
        assert all(text is None for _, text, _ in entries[name].synonyms)
    assert entries["message.max.bytes"].value == "6"
    assert not entries["message.max.bytes"].read_only
    assert entries["num.partitions"].read_only
    assert [(e.name, e.value, e.source) for e in describe_broker_default(config)] == [
        ("message.max.bytes", "6", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    ]


def test_describe_group_takes_the_brokers_defaults() -> None:
    config = BrokerConfig({"group.consumer.heartbeat.interval.ms": "7000"})
    entries = {entry.name: entry for entry in describe_group(config, {"consumer.session.timeout.ms": "50000"})}
    assert entries["consumer.heartbeat.interval.ms"].value == "7000"
    assert entries["consumer.heartbeat.interval.ms"].source is ConfigSource.STATIC_BROKER_CONFIG
    assert entries["consumer.session.timeout.ms"].source is ConfigSource.GROUP_CONFIG
    assert entries["share.isolation.level"].source is ConfigSource.DEFAULT_CONFIG


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group.consumer.heartbeat.interval.ms": "1000"}, "must be greater than or equal to group.consumer.min"),
        ({"group.consumer.session.timeout.ms": "70000"}, "must be less than or equal to group.consumer.max"),
        ({"group.consumer.max.assignment.interval.ms": "500"}, "must be less than or equal to"),
        ({"group.consumer.min.session.timeout.ms": "61000"}, "must be greater than or equal to"),
        (
            {
                "group.consumer.min.session.timeout.ms": "4000",
                "group.consumer.session.timeout.ms": "5000",
                "group.consumer.heartbeat.interval.ms": "5000",
            },
            "heartbeat.interval.ms must be less than group.consumer.session.timeout.ms",
        ),
    ],
)
def test_settings_of_consumer_groups_that_do_not_go_together(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig(settings)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sasl.oauthbearer.token.endpoint.url", "http://of.nobody"),
        ("sasl.of.a.later.version", "x"),
        ("early.start.listeners", "PLAINTEXT"),
        ("listener.name.plaintext.plain.sasl.login.class", "secret"),
    ],
)
def test_a_setting_that_promises_security_refuses_the_start(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=r"does not have this part of SASL") as refused:
        BrokerConfig({name: value})
    assert str(refused.value).startswith(f"{name}: ")
    assert value not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_that_promises_security_is_named_also_from_the_environment() -> None:
    environment = {"KAFKA_SASL_LOGIN_CLASS": "x", "KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": "k"}
    with pytest.raises(ConfigError, match=r"^sasl\.login\.class, sasl\.oauthbearer\.token\.endpoint\.url: "):
        BrokerConfig.load(environment=environment)


@pytest.mark.parametrize("key", ["inter.broker.listener.name", "security.inter.broker.protocol"])
def test_the_listener_between_brokers_must_be_one_that_there_is(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} SASL_SSL is not among the listeners: PLAINTEXT"):
        BrokerConfig({key: "SASL_SSL"})
    assert BrokerConfig({key: "PLAINTEXT"}).listeners.inter_broker == "PLAINTEXT"


def test_the_defaults_of_security_may_be_given() -> None:
    refused = {name: to_text(key.default) for name, key in BROKER.items() if key.refused and key.default is not None}
    assert "sasl.oauthbearer.jwt.retriever.class" in refused
    assert BrokerConfig({name: text for name, text in refused.items() if text is not None}).warnings == []


def test_sasl_that_no_listener_speaks_is_told() -> None:
    config = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": 'a.B required x="y";',
    }
    names = "listener.name.plaintext.plain.sasl.jaas.config, sasl.enabled.mechanisms"
    assert BrokerConfig(config).warnings == [f"{names}: without effect, as no listener speaks SASL"]


def test_tls_that_no_listener_speaks_is_told() -> None:
    config = {
        "ssl.client.auth": "required",
        "listener.name.plaintext.ssl.protocol": "TLSv1.2",
        "ssl.protocol": "TLSv1.3",
    }
    (warning,) = BrokerConfig(config).warnings
    assert warning == (
        "listener.name.plaintext.ssl.protocol, ssl.client.auth: without effect, as no listener speaks SSL"
    )
    assert BrokerConfig({**config, "listeners": "SSL://:9093"}).warnings == []


def test_a_security_setting_that_is_left_empty_promises_nothing() -> None:
    names = ("ssl.keystore.location", "ssl.endpoint.identification.algorithm", "super.users", "sasl.jaas.config")
    assert BrokerConfig(dict.fromkeys(names, " ")).warnings == []


def test_a_key_of_our_own_is_told_as_kafkas_are() -> None:
    def told(settings: dict[str, str], configs: dict[str, str]) -> list[object]:
        config = BrokerConfig(settings)
        entries = [*describe_topic(config, configs), *describe_created_topic(config, configs), *describe_broker(config)]
        return [entry.value for entry in entries if entry.name == "record.validation"]

    assert told({}, {}) == ["full", "full", "full"]
    assert told({}, {"record.validation": "header"}) == ["header", "header", "full"]
    assert told({"record.validation": "header"}, {}) == ["header", "header", "header"]
