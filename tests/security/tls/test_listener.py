"""How a listener is created: stores, versions, ciphers; and what may replace them while it serves."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from kbroker.config.listeners import ListenerValues
from kbroker.config.model import ConfigError
from kbroker.config.server_config import BrokerConfig
from kbroker.security.principal import ANONYMOUS
from kbroker.security.tls import development
from kbroker.security.tls.contexts import OF_TLS_13, client_context, server_context
from kbroker.security.tls.listener import TlsListener
from kbroker.security.tls.session import Broken
from kbroker.security.tls.settings import tls_settings
from tests.security.tls.conftest import Files, Settings

PASSWORD = "a-secret"
SIGNED_WITH_SHA1 = b"""\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgZso0sNfis3awRJSu
oqIaNAaq8La46cmvYqeFkmNAoIChRANCAASFwUgv3WRWogISYk6yQpotiU9CLtSk
C46zJGANpDIaGUJ6ztcAhGWXZtDTqdipsTo7zDiRQiwDrpBraErClHjO
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBHDCBwwIUcNu14Te3Ko//0F7SU4Z51KFQ7QgwCQYHKoZIzj0EATANMQswCQYD
VQQDDAJjYTAgFw0yNjExMjcwMTQ0MjFaGA8yMTI2MTEwMzAxNDQyMVowFDESMBAG
A1UEAwwJbG9jYWxob3N0MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEhcFIL91k
VqICEmJOskKaLYlPQi7UpAuOsyRgDaQyGhlCes7XAIRll2bQ06nYqbE6O8w4kUIs
A66Qa2hKwpR4zjAJBgcqhkjOPQQBA0kAMEYCIQDdRaRVuifkSV8a4VIcKtgPGw+x
Sb7V6pWdInmXNkUkUAIhAO+QsYRQ8eHGVWczK2pYrWMTRygsvD+Vqt4CELc6vMeG
-----END CERTIFICATE-----
"""
"""For a hundred years, as `openssl x509 -req -sha1` makes it: the library that makes others signs nothing so."""


def refused(settings: Settings, own: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as error:
        TlsListener(settings(own), between_brokers=True)
    text = str(error.value)
    assert "\n" not in text
    assert PASSWORD not in text
    assert "PRIVATE" not in text
    return text


@pytest.fixture(scope="module")
def more(files: Files) -> dict[str, str]:
    """Other forms of the same stores, by name."""
    signed = development.sign(files.authority, "server", ["localhost"])
    found = {
        "locked": files.write("locked.pem", signed.pem(PASSWORD)),
        "pkcs12": files.write("server.p12", signed.pkcs12("server", PASSWORD)),
        "trust": files.write("trust.p12", development.trust_store(files.authority.certificate, PASSWORD)),
        "jks": files.write("old.jks", b"\xfe\xed\xfe\xed\0\0\0\2" + bytes(40)),
        "nothing": files.write("nothing.pem", b"nothing of the kind\n"),
        "halves": files.write("halves.pem", Path(files.server).read_bytes()),
    }
    key = development.sign(files.authority, "other").pem().split(b"-----BEGIN CERTIFICATE")[0]
    cut = Path(files.server).read_bytes()
    found["halves"] = files.write("halves.pem", key + cut[cut.index(b"-----BEGIN CERTIFICATE") :])
    return found


def test_pem_files(settings: Settings) -> None:
    listener = TlsListener(settings(), between_brokers=True)
    assert listener.client_context.check_hostname


def test_a_locked_key(settings: Settings, more: dict[str, str]) -> None:
    own = {"ssl.keystore.location": more["locked"]}
    TlsListener(settings({**own, "ssl.key.password": PASSWORD}))
    assert "ssl.key.password is not set" in refused(settings, own)
    assert "ssl.key.password is wrong" in refused(settings, {**own, "ssl.key.password": PASSWORD + "x"})


def test_texts_of_pem_with_blanks_for_line_breaks(settings: Settings, files: Files) -> None:
    text = Path(files.server).read_text().replace("\n", " ")
    key, _, chain = text.partition("-----BEGIN CERTIFICATE")
    own = {
        "ssl.keystore.location": "",
        "ssl.truststore.location": "",
        "ssl.keystore.key": key,
        "ssl.keystore.certificate.chain": f"-----BEGIN CERTIFICATE{chain}",
        "ssl.truststore.certificates": Path(files.ca).read_text().replace("\n", " "),
    }
    TlsListener(settings(own), between_brokers=True)
    assert "but not ssl.keystore.key" in refused(settings, {**own, "ssl.keystore.key": ""})
    assert "set it to PEM" in refused(settings, {**own, "ssl.keystore.type": "JKS"})
    assert "both set" in refused(settings, {**own, "ssl.keystore.location": files.server})


@pytest.mark.parametrize("kind", ["PKCS12", "JKS", "pkcs12"])
def test_pkcs12(settings: Settings, more: dict[str, str], kind: str) -> None:
    own = {
        "ssl.keystore.type": kind,
        "ssl.keystore.location": more["pkcs12"],
        "ssl.keystore.password": PASSWORD,
        "ssl.truststore.type": kind,
        "ssl.truststore.location": more["trust"],
        "ssl.truststore.password": PASSWORD,
    }
    TlsListener(settings(own), between_brokers=True)
    assert "its password is different" in refused(settings, {**own, "ssl.keystore.password": "wrong!"})
    assert "but not ssl.keystore.password" in refused(settings, {**own, "ssl.keystore.password": ""})
    assert "its password is different" in refused(settings, {**own, "ssl.truststore.password": "wrong!"})


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"ssl.keystore.location": ""}, "has no certificate: set ssl.keystore.location"),
        ({"ssl.keystore.location": "/nowhere/x.pem"}, "ssl.keystore.location: cannot read /nowhere/x.pem"),
        ({"ssl.keystore.location": "NOTHING"}, "one private key is needed"),
        ({"ssl.keystore.location": "HALVES"}, "the certificate belongs to another key"),
        ({"ssl.truststore.location": "NOTHING"}, "there is no certificate in it"),
        (
            {"ssl.keystore.type": "JKS", "ssl.keystore.location": "JKS", "ssl.keystore.password": "x"},
            "password is different",
        ),
        ({"ssl.keystore.type": "BKS", "ssl.keystore.password": "x"}, "it may be PEM, PKCS12 or JKS"),
        ({"ssl.keystore.password": "x"}, "a store of PEM has no password; that of its key is ssl.key.password"),
        ({"ssl.truststore.password": "x"}, "ssl.truststore.password: a store of PEM has no password"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols: TLSv1.1 cannot be used"),
        ({"ssl.protocol": "SSLv3"}, "ssl.protocol: SSLv3 cannot be used"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_RC9_MD5"}, "TLS_RSA_WITH_RC9_MD5 cannot be used"),
        ({"ssl.cipher.suites": OF_TLS_13[0]}, "all"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "it must be https, or empty"),
        ({"ssl.principal.mapping.rules": "RULES"}, "ssl.principal.mapping.rules: 'RULES' is neither"),
        ({"listener.name.ssl.ssl.keystore.location": "/nowhere"}, "listener.name.ssl.ssl.keystore.location: cannot"),
    ],
)
def test_what_cannot_work_is_refused(settings: Settings, more: dict[str, str], own: dict[str, str], words: str) -> None:
    paths = {"NOTHING": more["nothing"], "HALVES": more["halves"], "JKS": more["jks"]}
    own = {key: paths.get(text, text) if key.endswith("location") else text for key, text in own.items()}
    assert words in refused(settings, own)


def test_brokers_must_accept_each_other(settings: Settings, strangers: Files) -> None:
    own = {"ssl.truststore.location": strangers.ca}
    assert "they would not accept each other" in refused(settings, own)
    TlsListener(settings(own))  # clients of a listener that is not for brokers have their own trust


def test_the_listeners_own_settings_come_first(settings: Settings, files: Files) -> None:
    own = {"ssl.keystore.location": "/nowhere", "listener.name.outside.ssl.keystore.location": files.server}
    TlsListener(settings(own, "OUTSIDE"))


def test_versions_and_ciphers(settings: Settings) -> None:
    def context(own: dict[str, str]) -> ssl.SSLContext:
        return server_context(settings(own))[0]

    both = context({})
    assert (both.minimum_version, both.maximum_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    assert both.options & ssl.OP_NO_RENEGOTIATION
    only = context({"ssl.enabled.protocols": "TLSv1.2"})
    assert only.maximum_version is ssl.TLSVersion.TLSv1_2
    # What TLSv1.3 has no suite for is not offered, as in Java.
    older = context({"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"})
    assert older.maximum_version is ssl.TLSVersion.TLSv1_2
    assert "ECDHE-ECDSA-AES128-GCM-SHA256" in {each["name"] for each in older.get_ciphers()}
    assert "ECDHE-ECDSA-AES256-GCM-SHA384" not in {each["name"] for each in older.get_ciphers()}
    newer = context({"ssl.cipher.suites": ",".join(OF_TLS_13)})
    assert newer.minimum_version is ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(("algorithm", "checks"), [("https", True), ("HTTPS", True), ("", False)])
def test_whether_a_brokers_name_is_checked(settings: Settings, algorithm: str, checks: bool) -> None:
    made = client_context(settings({"ssl.endpoint.identification.algorithm": algorithm}))
    assert made.check_hostname is checks
    assert made.verify_mode is ssl.CERT_REQUIRED


def test_where_clients_log_in_only_a_listeners_own_value_asks_for_certificates(files: Files) -> None:
    def auth(own: dict[str, str]) -> str:
        values = ListenerValues(BrokerConfig({**files.listener(), **own}), "PLAINTEXT")
        return tls_settings("PLAINTEXT", values, has_sasl=True).client_auth

    assert auth({"ssl.client.auth": "required"}) == "none"
    assert auth({"listener.name.plaintext.ssl.client.auth": "required"}) == "required"


def test_who_a_certificate_names(settings: Settings, files: Files) -> None:
    listener = TlsListener(settings({"ssl.principal.mapping.rules": "RULE:^CN=([a-z]+)$/$1/U"}))
    der = ssl.PEM_cert_to_DER_cert(_certificate(files.client))
    assert str(listener.principal_of(der)) == "User:ALICE"
    assert listener.principal_of(None) == ANONYMOUS
    other = files.authority.certificates_pem().decode()
    strict = TlsListener(settings({"ssl.principal.mapping.rules": "RULE:^CN=b$/b/"}))
    with pytest.raises(Broken, match="no rule"):
        strict.principal_of(ssl.PEM_cert_to_DER_cert(other))


def _certificate(path: str) -> str:
    text = Path(path).read_text()
    return text[text.index("-----BEGIN CERTIFICATE") :]


@pytest.mark.parametrize(
    ("name", "hosts", "own", "words"),
    [
        ("server", ["localhost", "127.0.0.1"], {}, None),
        ("server", ["localhost", "127.0.0.1", "one.more"], {}, None),
        ("server", ["localhost"], {}, "SubjectAltNames do not match"),
        ("server", ["localhost"], {"ssl.allow.san.changes": "true"}, None),
        ("another", ["localhost", "127.0.0.1"], {}, "DistinguishedName does not match"),
        ("another", ["localhost", "127.0.0.1"], {"ssl.allow.dn.changes": "true"}, None),
    ],
)
def test_a_certificate_may_not_lose_names(
    settings: Settings, files: Files, name: str, hosts: list[str], own: dict[str, str], words: str | None
) -> None:
    listener = TlsListener(settings(own))
    before = listener.session()
    signed = development.sign(files.authority, name, hosts)
    path = files.write("replacement.pem", signed.pem())
    changed = settings({**own, "ssl.keystore.location": path})
    if words is None:
        listener.replacement(changed)()
        assert listener.settings == changed
    else:
        with pytest.raises(ConfigError, match=words):
            listener.replacement(changed)
        assert listener.settings != changed
    assert before is not listener.session()


def test_no_secret_is_ever_printed(settings: Settings) -> None:
    made = settings(
        {"ssl.key.password": PASSWORD, "ssl.keystore.key": PASSWORD, "ssl.truststore.certificates": PASSWORD}
    )
    assert PASSWORD not in repr(made)


def test_a_certificate_signed_with_sha1_is_used_and_told(
    settings: Settings, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    """OpenSSL refuses it ("ca md too weak") until it is configured otherwise; Java uses it."""
    path = files.write("weak.pem", SIGNED_WITH_SHA1)
    own = {"ssl.keystore.location": path, "ssl.truststore.location": path}
    before, _ = server_context(settings())
    assert not caplog.messages
    context, _ = server_context(settings(own))
    assert caplog.messages == [
        "ssl.keystore.location: a certificate is signed with SHA-1 or MD5, which many clients refuse; renew it"
    ]
    assert [each["name"] for each in context.get_ciphers()] == [each["name"] for each in before.get_ciphers()]
    assert context.minimum_version == before.minimum_version
    assert TlsListener(settings(own), between_brokers=True)


def test_a_file_that_all_may_read_is_told(settings: Settings, files: Files, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(files.write("open.pem", Path(files.server).read_bytes()))
    path.chmod(0o644)
    TlsListener(settings({"ssl.keystore.location": str(path)}))
    assert f"every user of this machine may read {path}" in caplog.text


def test_a_store_that_is_a_pipe_holds_nobody_up(settings: Settings, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    said = refused(settings, {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pipe)})
    assert said.endswith("is no file")
