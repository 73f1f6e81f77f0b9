"""Cipher suites by the names of the standards, which Java uses too, and by those of OpenSSL.

Owns the names, and which versions of TLS a list of suites leaves. Never touches a context.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

OF_TLS_13: Final = ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256")
"""What OpenSSL offers for TLSv1.3. Python's ssl module can only leave them as they are."""


def openssl_name(name: str) -> str:
    """Return what OpenSSL calls a cipher suite of TLSv1.2: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 and the like."""
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("_CBC_", "_").replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    whole = cipher if exchange == "RSA" else f"{exchange}-{cipher}"
    return whole.replace("_", "-")


def split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the suites of TLSv1.2 and those of TLSv1.3 among `names`."""
    newer = [name for name in names if "_WITH_" not in name]
    return [name for name in names if "_WITH_" in name], newer
