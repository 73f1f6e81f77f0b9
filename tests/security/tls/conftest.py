"""An authority, and the files that it has signed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.config.listeners import ListenerValues
from kbroker.config.server_config import BrokerConfig
from kbroker.security.tls import development
from kbroker.security.tls.settings import TlsSettings, tls_settings

Settings = Callable[..., TlsSettings]


class Files:
    """An authority, a server's certificate and a client's, in files of PEM."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self.directory = directory
        self.authority = development.authority(name)
        self.ca = self.write(f"{name}.crt", self.authority.certificates_pem())
        self.server = self.sign("server", ["localhost", "127.0.0.1"])
        self.client = self.sign("alice")

    def write(self, name: str, data: bytes) -> str:
        path = self.directory / name
        path.write_bytes(data)
        path.chmod(0o600)
        return str(path)

    def sign(self, name: str, hosts: list[str] | None = None, days: float = 1) -> str:
        signed = development.sign(self.authority, name, hosts or [], days=days)
        return self.write(f"{name}.pem", signed.pem())

    def listener(self, **more: str) -> dict[str, str]:
        """Return a broker's settings with these files; `more` with _ for the dots behind ssl."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.server,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            **{f"ssl.{key.replace('_', '.')}": value for key, value in more.items()},
        }


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("strangers"), "another")


@pytest.fixture
def settings(files: Files) -> Settings:
    """Return the TLS of a listener that has the files, and what else is set."""

    def make(own: dict[str, str] | None = None, listener: str = "SSL") -> TlsSettings:
        text = {"listeners": f"{listener}://:9093", **files.listener(), **(own or {})}
        text["listener.security.protocol.map"] = f"{listener}:SSL"
        return tls_settings(listener, ListenerValues(BrokerConfig(text), listener))

    return make
