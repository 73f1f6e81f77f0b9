"""One set of settings by the names of three clients."""

from __future__ import annotations

import pytest

from kbroker.pipeline.client_settings import java_settings, librdkafka_settings
from kbroker.pipeline.errors import PipelineError


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


@pytest.mark.parametrize("settings", [{"linger_ms": 5}, {"sasl_mechanism": "GSSAPI", "sasl_plain_username": "x"}])
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
