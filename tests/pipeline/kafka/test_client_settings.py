"""One set of settings, under the names of three clients."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.kafka.client_settings import java_settings, librdkafka_settings
from kbroker.security.tls import development


def test_user_and_password_become_a_login_module() -> None:
    found = java_settings(
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": "ann",
            "sasl_plain_password": 'a"b\\c',
            "ssl_cafile": "ca.pem",
        }
    )
    assert found == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "ssl.truststore.location": "ca.pem",
        "ssl.truststore.type": "PEM",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ann" password="a\\"b\\\\c";',
    }


def test_host_names_may_go_unchecked() -> None:
    assert java_settings({"ssl_check_hostname": False}) == {"ssl.endpoint.identification.algorithm": ""}
    assert java_settings({"ssl_check_hostname": True}) == {}


def test_a_key_in_a_file_of_its_own_is_handed_over_as_text(tmp_path: Path) -> None:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_text("-----BEGIN CERTIFICATE-----")
    key.write_text("-----BEGIN PRIVATE KEY-----")
    settings = {"ssl_certfile": str(certificate), "ssl_keyfile": str(key)}
    assert java_settings(settings) == {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----",
        "ssl.keystore.key": "-----BEGIN PRIVATE KEY-----",
    }
    key.write_text("-----BEGIN RSA PRIVATE KEY-----")
    with pytest.raises(PipelineError, match="PKCS #8"):
        java_settings(settings)
    with pytest.raises(PipelineError, match="No such file"):
        java_settings({**settings, "ssl_keyfile": str(tmp_path / "none")})
    with pytest.raises(PipelineError, match="needs ssl_certfile"):
        java_settings({"ssl_keyfile": str(key)})


@pytest.mark.parametrize("beside", [False, True])
def test_an_encrypted_key_is_handed_over_without_its_encryption(tmp_path: Path, beside: bool) -> None:
    signed = development.sign(development.authority(), "job")
    certificate, key = tmp_path / "job.pem", tmp_path / "key.pem"
    certificate.write_bytes(signed.pem("secret"))
    key.write_bytes(signed.pem("secret"))
    settings = {"ssl_certfile": str(certificate), **({"ssl_keyfile": str(key)} if beside else {})}
    found = java_settings({**settings, "ssl_password": "secret"})
    read = serialization.load_pem_private_key(found.pop("ssl.keystore.key").encode(), None)
    assert isinstance(read, ec.EllipticCurvePrivateKey)
    assert read.private_numbers() == signed.key.private_numbers()
    assert found == {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate.read_text()}
    with pytest.raises(PipelineError, match="cannot be decrypted") as caught:
        java_settings({**settings, "ssl_password": "another"})
    assert "another" not in str(caught.value)
    if beside:
        with pytest.raises(PipelineError, match="ssl_password is not set"):
            java_settings(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"linger_ms": 5},
        {"sasl_mechanism": "GSSAPI", "sasl_plain_username": "x"},
        {"sasl_mechanism": "OAUTHBEARER"},
        {"sasl_mechanism": "PLAIN"},
    ],
)
def test_what_cannot_be_translated_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(PipelineError, match="-X: "):
        java_settings(settings)
    with pytest.raises(PipelineError, match="-X: "):
        librdkafka_settings("h:1", {"sasl_oauth": 1})


def test_librdkafka_has_names_of_its_own() -> None:
    settings = {"sasl_plain_username": "ann", "sasl_mechanism": "PLAIN", "ssl_cafile": "c", "ssl_check_hostname": False}
    assert librdkafka_settings("h:1", settings) == {
        "bootstrap.servers": "h:1",
        "sasl.username": "ann",
        "sasl.mechanism": "PLAIN",
        "ssl.ca.location": "c",
        "ssl.endpoint.identification.algorithm": "none",
    }
