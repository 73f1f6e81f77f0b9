"""Certificates of an embedded broker: `with Broker(tls=True) as broker: broker.certificates.ca`.

Owns a private directory, which is deleted with the broker. Each broker has its own new certificate authority.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kbroker.security.tls import development


class Certificates:
    """A certificate authority, the broker's certificate and those of its clients; all files are PEM."""

    def __init__(self, host: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="kbroker-certificates-"))
        self._authority = development.authority()
        self.ca = str(self._write("ca", self._authority.certificates_pem()))
        """The file with the authority's certificate, which clients trust."""
        hosts = list(dict.fromkeys(["localhost", "127.0.0.1", *([host] if host else [])]))
        self._server = self._write("server", development.sign(self._authority, "server", hosts).pem())

    def client(self, name: str) -> str:
        """Return a file with a key and a certificate of a client with the principal User:CN=name."""
        return str(self._write(f"client-{name}", development.sign(self._authority, name).pem()))

    @property
    def settings(self) -> Mapping[str, str]:
        """The broker's settings for them. Clients may present a certificate; without one they are ANONYMOUS."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._server),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            "ssl.client.auth": "requested",
        }

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def _write(self, name: str, data: bytes) -> Path:
        path = self._directory / f"{name}.pem"
        path.touch(0o600)
        path.write_bytes(data)
        return path
