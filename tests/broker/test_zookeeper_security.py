"""The settings for the connection to ZooKeeper, and which of them refuse the start."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

import pytest

from compat_tests.harness.certificates import Authority
from kbroker.broker.zookeeper_security import zookeeper_security
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.controller.tree.connection import Others, Security

MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"
TLS = {"zookeeper.ssl.client.enable": "true"}


def security_of(**settings: str) -> Security:
    return zookeeper_security(config({name.replace("_", "."): value for name, value in settings.items()}))


def config(settings: dict[str, str]) -> BrokerConfig:
    return BrokerConfig({"zookeeper.connect": "127.0.0.1:1", "broker.id": "1", **settings})


def refused(settings: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as error:
        zookeeper_security(config(settings))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


@pytest.fixture
def jaas(tmp_path: Path) -> Path:
    file = tmp_path / "jaas.conf"
    file.write_text(f'Client {{ {MODULE} required username="kafka" password="secret"; }};')
    return file


def test_by_default_there_is_none() -> None:
    security = zookeeper_security(config({}))
    assert security == Security()
    assert security.others("/config/users") is Others.CHANGE


def test_the_jaas_file_of_a_java_broker_says_who_this_is(jaas: Path) -> None:
    found = BrokerConfig.load(
        environment={
            "KAFKA_OPTS": f"-Xss1m -Djava.security.auth.login.config={jaas} -Dfile.encoding=UTF-8",
            "KAFKA_ZOOKEEPER_CONNECT": "127.0.0.1:1",
            "KAFKA_BROKER_ID": "1",
        }
    )
    assert zookeeper_security(found).user == ("kafka", "secret")
    assert "secret" not in repr(zookeeper_security(found))


def test_a_broker_that_is_alone_says_that_it_does_not_log_in(jaas: Path) -> None:
    alone = BrokerConfig.load(environment={"KAFKA_OPTS": f'-Djava.security.auth.login.config="{jaas}"'}, strict=True)
    assert alone.warnings == [
        "java.security.auth.login.config has no effect: no listener asks for SASL, and no ZooKeeper is connected"
    ]


def test_a_jaas_file_without_the_section_is_told_of(jaas: Path, caplog: pytest.LogCaptureFixture) -> None:
    login = {"java.security.auth.login.config": str(jaas)}
    other = {**login, "zookeeper.sasl.clientconfig": "Other"}
    assert zookeeper_security(config({**other, "zookeeper.sasl.client": "false"})).user is None
    assert not caplog.records
    assert zookeeper_security(config(other)).user is None
    assert [each.getMessage() for each in caplog.records] == [
        f"java.security.auth.login.config: {jaas} has no section Other: this broker does not log in to ZooKeeper"
    ]
    assert "zookeeper.sasl.client is false" in refused({**login, "zookeeper.sasl.client": "false"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Client {", "is no login configuration: at the end"),
        ("Client { com.sun.security.auth.module.Krb5LoginModule required; };", f"knows is {MODULE}"),
        (f"Client {{ {MODULE} required username=a; }};", "section Client has no username, or no password"),
        (None, "No such file"),
    ],
)
def test_a_jaas_file_that_cannot_be_used_refuses_the_start(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "jaas.conf"
    if text is not None:
        file.write_text(text)
    told = refused({"java.security.auth.login.config": str(file)})
    assert str(file) in told
    assert said in told


def test_with_acls_others_may_read_but_secrets_and_change_nothing() -> None:
    others = security_of(zookeeper_set_acl="true", zookeeper_digest_credentials="kafka:secret").others
    assert others("/consumers") is Others.CHANGE
    assert {others(each) for each in ("/config/users/a", "/config/brokers", "/config/brokers/1")} == {Others.NOTHING}
    assert {others(each) for each in ("/", "/brokers/ids/1", "/config/topics/users")} == {Others.READ}


def test_acls_need_credentials(authority: Authority, jaas: Path) -> None:
    acls = {"zookeeper.set.acl": "true"}
    assert "has no login for ZooKeeper" in refused(acls)
    assert "has no login for ZooKeeper" in refused({**acls, **TLS})
    own = authority.sign("broker")
    certificate = {"zookeeper.ssl.keystore.location": str(own)}
    assert "has no login for ZooKeeper" in refused({**acls, **certificate})
    assert zookeeper_security(config({**acls, **certificate, **TLS})).others("/a") is Others.READ
    assert zookeeper_security(config({**acls, "java.security.auth.login.config": str(jaas)})).user is not None


@pytest.mark.parametrize("text", ["kafka", "kafka:", ":secret"])
def test_credentials_have_two_parts(text: str) -> None:
    told = refused({"zookeeper.digest.credentials": text})
    assert told == "zookeeper.digest.credentials is not of the form user:password"


def test_tls_trusts_those_that_are_named_and_checks_names(authority: Authority) -> None:
    settings = {**TLS, "zookeeper.ssl.truststore.location": str(authority.file)}
    context = zookeeper_security(config(settings)).tls
    assert context is not None
    assert [each["subject"] for each in context.get_ca_certs()] == [((("commonName", "authority"),),)]
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (context.minimum_version, context.maximum_version) == (ssl.TLSVersion.TLSv1_2,) * 2
    unchecked = {**settings, "zookeeper.ssl.endpoint.identification.algorithm": ""}
    context = zookeeper_security(config(unchecked)).tls
    assert context is not None
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_versions_and_ciphers_are_as_they_are_asked_for() -> None:
    both = zookeeper_security(config({**TLS, "zookeeper.ssl.enabled.protocols": "TLSv1.3,TLSv1.2"})).tls
    assert both is not None
    assert (both.minimum_version, both.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    names = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_RSA_WITH_AES_128_CBC_SHA"
    one = zookeeper_security(config({**TLS, "zookeeper.ssl.cipher.suites": names})).tls
    assert one is not None
    chosen = [each["name"] for each in one.get_ciphers() if each["protocol"] != "TLSv1.3"]
    assert chosen == ["ECDHE-RSA-AES256-GCM-SHA384", "AES128-SHA"]


def test_a_key_may_have_a_password(authority: Authority) -> None:
    own = {**TLS, "zookeeper.ssl.keystore.location": str(authority.sign("locked", password="open sesame"))}
    assert zookeeper_security(config({**own, "zookeeper.ssl.keystore.password": "open sesame"})).tls is not None
    for wrong in ({}, {"zookeeper.ssl.keystore.password": "open"}):
        assert "is no PEM file that can be used" in refused({**own, **wrong})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"zookeeper.ssl.protocol": "TLSv1.1"}, "zookeeper.ssl.protocol: TLSv1.1 cannot be used"),
        ({"zookeeper.ssl.enabled.protocols": "TLSv1.2,SSLv3"}, "zookeeper.ssl.enabled.protocols: SSLv3 cannot be used"),
        ({"zookeeper.ssl.endpoint.identification.algorithm": "HTTP"}, "must be HTTPS, or empty"),
        ({"zookeeper.ssl.cipher.suites": "TLS_X_WITH_Y"}, "TLS_X_WITH_Y cannot be used"),
        (
            {
                "zookeeper.ssl.protocol": "TLSv1.3",
                "zookeeper.ssl.cipher.suites": "TLS_AES_128_GCM_SHA256",
            },
            "can only be set for TLSv1.2",
        ),
        ({"zookeeper.ssl.truststore.location": "/x/trust.jks"}, "its form is jks, but only PEM can be read"),
        ({"zookeeper.ssl.keystore.location": "/x/key.p12"}, "its form is p12, but only PEM can be read"),
        (
            {"zookeeper.ssl.keystore.location": "/x/key.pem", "zookeeper.ssl.keystore.type": "PKCS12"},
            "its form is PKCS12",
        ),
        ({"zookeeper.ssl.keystore.location": "/x/key"}, "its form can't be told by its name"),
        ({"zookeeper.ssl.keystore.location": "/x/key.pem"}, "/x/key.pem cannot be read: No such file"),
        ({"zookeeper.ssl.truststore.location": "/dev/null", "zookeeper.ssl.truststore.type": "PEM"}, "is no PEM file"),
        ({"zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNIO"}, "which does not support TLS"),
        ({"zookeeper.clientCnxnSocket": "x.Y"}, "String must be one of"),
        ({"zookeeper.ssl.crl.enable": "true"}, "does not check whether ZooKeeper's certificate was revoked"),
        ({"zookeeper.ssl.ocsp.enable": "true"}, "does not check whether ZooKeeper's certificate was revoked"),
    ],
)
def test_what_cannot_be_had_refuses_the_start(settings: dict[str, str], said: str) -> None:
    told = refused({**TLS, **settings})
    assert said in told
    assert any(name in told for name in settings)


def test_keys_of_tls_without_tls_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert zookeeper_security(config({"zookeeper.ssl.keystore.location": "/x/key.jks"})).tls is None
    assert "zookeeper.ssl.keystore.location: without effect" in caplog.text


def test_credentials_in_clear_text_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    credentials = {"zookeeper.digest.credentials": "kafka:secret"}
    assert zookeeper_security(config({**credentials, **TLS})).digest is not None
    assert not caplog.records
    assert zookeeper_security(config(credentials)).digest is not None
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        (
            "WARNING",
            "zookeeper.digest.credentials: user and password go to ZooKeeper in clear text, as "
            "zookeeper.ssl.client.enable is not true",
        )
    ]
