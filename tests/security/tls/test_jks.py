"""JKS files, as Java's keytool makes them."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.config.model import ConfigError
from kbroker.security.tls import jks
from kbroker.security.tls.contexts import server_context
from kbroker.security.tls.names import subject
from kbroker.security.tls.stores import trusted
from tests.security.tls.conftest import Files, Settings

STORE, KEY = "store-secret", "key-secret"


@given(st.binary(max_size=300))
def test_no_bytes_do_harm(data: bytes) -> None:
    for each in (data, jks.MAGIC + b"\0\0\0\2" + data):
        with contextlib.suppress(jks.BadStore):
            jks.load(each, None)
    with pytest.raises(jks.BadStore):
        jks.load(jks.MAGIC + data, "password")
    with pytest.raises(jks.BadStore):
        jks.unmasked(data, "password")


def keytool(*arguments: str) -> None:
    subprocess.run(["keytool", *arguments], check=True, capture_output=True, timeout=120)


@pytest.mark.java
@pytest.mark.skipif(shutil.which("keytool") is None, reason="no Java")
def test_what_keytool_makes(settings: Settings, files: Files, tmp_path: Path) -> None:
    path, trust = str(tmp_path / "server.jks"), str(tmp_path / "trust.jks")
    store = ("-keystore", path, "-storetype", "JKS", "-storepass", STORE, "-keypass", KEY)
    keytool("-genkeypair", "-alias", "Server", "-keyalg", "RSA", "-keysize", "2048", "-dname", "CN=jks,O=X", *store)
    keytool(
        *("-importcert", "-noprompt", "-alias", "ca", "-file", files.ca, "-keystore", trust),
        *("-storetype", "JKS", "-storepass", STORE),
    )
    own = {
        "ssl.keystore.type": "JKS",
        "ssl.keystore.location": path,
        "ssl.keystore.password": STORE,
        "ssl.key.password": KEY,
        "ssl.truststore.type": "JKS",
        "ssl.truststore.location": trust,
        "ssl.truststore.password": STORE,
    }
    _, keys = server_context(settings(own))
    assert subject(keys.chain[0]) == "CN=jks,O=X"
    text = files.authority.certificates_pem().decode()
    assert trusted(settings(own).truststore) == (ssl.PEM_cert_to_DER_cert(text),)
    assert trusted(settings({**own, "ssl.truststore.password": ""}).truststore)
    for wrong in ("ssl.keystore.password", "ssl.key.password"):
        with pytest.raises(ConfigError, match="is different"):
            server_context(settings({**own, wrong: "wrong!"}))
