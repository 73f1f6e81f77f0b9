"""The reasons why a client can connect to an address but is not served, as far as a TLS handshake shows them.

Owns one TLS handshake that trusts any certificate and sends no data. Never prints.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from socket import create_connection
from typing import Any, Final

_PATIENCE_S: Final = 3.0
_FILES: Final[Mapping[str, str]] = {
    "ssl_cafile": "the certificates that are trusted",
    "ssl_certfile": "the client's certificate",
    "ssl_keyfile": "the client's key",
    "ssl_crlfile": "the certificates that are revoked",
}
"""The files of TLS settings, by kafka-python's names of the settings."""


def speaks_tls(address: str, patience_s: float = _PATIENCE_S) -> bool | None:
    """Return whether HOST:PORT speaks TLS; None if it does not answer in time."""
    return _handshake(address, _trusting_all(), patience_s)[0]


def tls_fault(address: str, settings: Mapping[str, Any], patience_s: float = _PATIENCE_S) -> str | None:
    """Return the TLS fault between a client and HOST:PORT; None if there is no fault, or if it is unknown.

    `settings` are the client's settings under kafka-python's names.
    """
    protocol = str(settings.get("security_protocol") or "PLAINTEXT")
    spoken = speaks_tls(address, patience_s)
    if spoken is None:
        return None
    if not protocol.endswith("SSL"):
        other = "SASL_SSL" if protocol.startswith("SASL") else "SSL or SASL_SSL"
        return f"{address} speaks TLS, and security.protocol is {protocol}; set it to {other}" if spoken else None
    if not spoken:
        return f"{address} does not speak TLS, and security.protocol is {protocol}"
    refused = _refused(address, settings, patience_s)
    return None if refused is None else f"the certificate of {address} is not accepted: {refused}"


def unreadable_file(settings: Mapping[str, Any]) -> str | None:
    """Return a text about a TLS file that cannot be read; None if every needed file can be read."""
    if not str(settings.get("security_protocol")).endswith("SSL"):
        return None
    for key, what in _FILES.items():
        path = settings.get(key)
        if path is None:
            continue
        try:
            with open(path, "rb"):
                pass
            if key == "ssl_cafile":
                ssl.create_default_context(cafile=path)
        except ssl.SSLError:
            return f"{path} should contain {what} in PEM, but contains none"
        except OSError as error:
            return f"{path}, which should contain {what}, cannot be read: {error.strerror}"
    return None


def _refused(address: str, settings: Mapping[str, Any], patience_s: float) -> str | None:
    try:
        context = ssl.create_default_context(cafile=settings.get("ssl_cafile"))
    except OSError:
        return None
    context.check_hostname = bool(settings.get("ssl_check_hostname", True))
    return _handshake(address, context, patience_s)[1]


def _trusting_all() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _handshake(address: str, context: ssl.SSLContext, patience_s: float) -> tuple[bool | None, str | None]:
    """Return whether the server speaks TLS, and why the client refuses its certificate."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        with (
            create_connection((host, int(port)), patience_s) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return True, None
    except ssl.SSLCertVerificationError as error:
        return True, error.verify_message
    except ssl.SSLError as error:
        # A server that sends an alert speaks TLS. A server that closes the connection or sends another version speaks
        # plaintext.
        return "ALERT" in (error.reason or ""), None
    except ConnectionError:
        return False, None
    except OSError:
        return None, None
