"""Certificates for tests: an authority and the certificates that it has signed, made by the `openssl` command.

Owns the files, all of them PEM. No certificate is valid for more than two days.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


class Authority:
    """An authority that signs certificates; `file` is its own certificate, by which others trust it."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name
        self.file = directory / f"{name}.pem"
        subject = ("-subj", f"/CN={name}", "-days", "2")
        _openssl("req", "-x509", *_KEY, "-nodes", "-keyout", self._key, "-out", self.file, *subject)

    @property
    def _key(self) -> Path:
        return self._directory / f"{self._name}.key"

    def sign(self, name: str, address: str = "IP:127.0.0.1", password: str | None = None) -> Path:
        """Return a file with a certificate for an address and its key, which is encrypted if there is a password."""
        key, request, certificate, whole = (
            self._directory / f"{name}.{ending}" for ending in ("key", "csr", "crt", "pem")
        )
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={address}\n")
        locked = ("-nodes",) if password is None else ("-passout", f"pass:{password}")
        _openssl("req", *_KEY, *locked, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        signed = ("-CA", self.file, "-CAkey", self._key, "-CAcreateserial", "-extfile", extensions)
        _openssl("x509", "-req", "-in", request, *signed, "-days", "2", "-out", certificate)
        whole.write_text(key.read_text() + certificate.read_text())
        return whole


def _openssl(*arguments: str | Path) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
