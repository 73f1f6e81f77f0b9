"""Which settings of SASL a configuration may contain, and which are refused."""

from __future__ import annotations

import pytest

from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.extras import how_to_install
from kbroker.security.sasl.authentication import AuthenticationFailed
from kbroker.security.sasl.settings import offers

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
LISTENERS = {
    "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0,OPEN://127.0.0.1:0",
    "listener.security.protocol.map": "INSIDE:SASL_PLAINTEXT,OUTSIDE:SASL_PLAINTEXT,OPEN:PLAINTEXT",
    "inter.broker.listener.name": "OPEN",
}


def jaas(**users):
    return f"{PLAIN} required " + " ".join(f'user_{name}="{word}"' for name, word in users.items()) + ";"


def lets_in(offer, name, password):
    try:
        offer.begin["PLAIN"]().respond(f"\0{name}\0{password}".encode())
    except AuthenticationFailed:
        return False
    return True


def test_every_listener_with_sasl_has_users_of_its_own():
    settings = {
        **LISTENERS,
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": jaas(alice="a"),
        "listener.name.inside.plain.sasl.jaas.config": jaas(bob="b"),
        "listener.name.inside.plain.connections.max.reauth.ms": "5000",
        "sasl.server.max.receive.size": "1000",
        "connection.failed.authentication.delay.ms": "7",
    }
    found = offers(BrokerConfig(settings, strict=True))
    assert set(found) == {"INSIDE", "OUTSIDE"}
    inside, outside = found["INSIDE"], found["OUTSIDE"]
    assert lets_in(outside, "alice", "a")
    assert not lets_in(outside, "bob", "b")
    assert lets_in(inside, "bob", "b")
    assert not lets_in(inside, "alice", "a")
    assert (inside.max_session_ms, outside.max_session_ms) == ({"PLAIN": 5000}, {"PLAIN": 0})
    assert (inside.mechanisms, inside.max_receive_bytes, inside.failure_delay_ms) == (["PLAIN"], 1000, 7)


def test_users_may_change_while_the_broker_runs():
    name = "listener.name.inside.plain.sasl.jaas.config"
    settings = {**LISTENERS, "sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": jaas(alice="a")}
    config = BrokerConfig(settings)
    inside = offers(config)["INSIDE"]
    assert lets_in(inside, "alice", "a")
    config.set_dynamic({}, {name: jaas(bob="b")})
    assert lets_in(inside, "bob", "b")
    assert not lets_in(inside, "alice", "a")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, f"GSSAPI, because an extra is missing: {how_to_install('gssapi')}"),
        ({"sasl.enabled.mechanisms": "FOO,PLAIN"}, "FOO; this version has PLAIN"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "listener.name.inside.plain.sasl.jaas.config is missing"),
        (
            {
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.inside.plain.sasl.jaas.config": "a.B required hunter2;",
            },
            "is not of the form",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": 'a.B required x="hunter2";'},
            f"the login module of PLAIN is {PLAIN}, not a.B",
        ),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": jaas(a="hunter2") * 2},
            "has 2 login modules",
        ),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(settings, said):
    with pytest.raises(ConfigError) as refused:
        offers(BrokerConfig({**LISTENERS, "sasl.jaas.config": jaas(a="b") if not settings else "", **settings}))
    text = str(refused.value)
    assert said in text
    assert "\n" not in text
    assert "hunter2" not in text


def test_without_a_listener_with_sasl_there_is_nothing_to_offer():
    assert offers(BrokerConfig({"sasl.enabled.mechanisms": "PLAIN"})) == {}


def test_a_login_module_of_a_whole_listener_may_be_meant_for_one_of_its_mechanisms():
    settings = {
        **LISTENERS,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.jaas.config": jaas(alice="a"),
        "listener.name.inside.sasl.jaas.config": jaas(bob="b"),
    }
    found = offers(BrokerConfig(settings))
    assert lets_in(found["INSIDE"], "bob", "b")
    assert lets_in(found["OUTSIDE"], "alice", "a")
    own = {"listener.name.inside.scram-sha-256.sasl.jaas.config": jaas(bob="b")}
    with pytest.raises(ConfigError, match="the login module of SCRAM-SHA-256 is"):
        offers(BrokerConfig({**settings, **own}))


FILE = """
KafkaServer {
    org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="a";
    org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" password="hunter2";
};
inside.KafkaServer {
    org.apache.kafka.common.security.plain.PlainLoginModule required user_bob="b";
};
Client { a.B required password="hunter2"; };
"""


def test_logins_may_stand_in_a_file_as_java_has_it(tmp_path):
    path = tmp_path / "jaas.conf"
    path.write_text(FILE)
    environment = {"KAFKA_OPTS": f"-Djava.security.auth.login.config={path}"}
    config = BrokerConfig.load(
        environment=environment, settings={**LISTENERS, "sasl.enabled.mechanisms": "PLAIN"}, strict=True
    )
    assert config.warnings == []
    found = offers(config)
    assert lets_in(found["OUTSIDE"], "alice", "a")
    assert not lets_in(found["OUTSIDE"], "bob", "b")
    assert lets_in(found["INSIDE"], "bob", "b")
    assert not lets_in(found["INSIDE"], "alice", "a")
    name = "listener.name.inside.plain.sasl.jaas.config"
    config.set_dynamic({}, {name: jaas(carol="c")})
    assert lets_in(found["INSIDE"], "carol", "c")
    assert not lets_in(found["INSIDE"], "bob", "b")
    config.set_dynamic({}, {})
    assert lets_in(found["INSIDE"], "bob", "b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No such file"),
        ("KafkaServer { hunter2", "is no login configuration"),
        ('KafkaServer { a.B required x="hunter2"; };', "listener.name.inside.plain.sasl.jaas.config is missing"),
        ('KafkaClient { a.B required x="hunter2"; };', "listener.name.inside.plain.sasl.jaas.config is missing"),
    ],
)
def test_a_file_of_logins_that_cannot_be_used(tmp_path, text, said):
    path = tmp_path / "jaas.conf"
    if text is not None:
        path.write_text(text)
    settings = {**LISTENERS, "sasl.enabled.mechanisms": "PLAIN", "java.security.auth.login.config": str(path)}
    with pytest.raises(ConfigError) as refused:
        offers(BrokerConfig(settings))
    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert "\n" not in str(refused.value)
