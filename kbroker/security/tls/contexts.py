"""Converts settings to contexts of Python's ssl module: one for a listener, one for connections to other brokers.

Owns versions, ciphers, and the loading of keys. OpenSSL reads keys only from files, so this module passes keys as a
file in memory. Invalid settings raise ConfigError, in one line and without a secret.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import ssl
from collections.abc import Iterator, Sequence
from typing import Final

from kbroker.config.model import ConfigError
from kbroker.security.tls import pem
from kbroker.security.tls.settings import TlsSettings
from kbroker.security.tls.stores import KeyStore, key_store, trusted

OF_TLS_13: Final = ("TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256")
"""OpenSSL's cipher suites for TLSv1.3, which Python's ssl module cannot change."""


def openssl_name(name: str) -> str:
    """Return OpenSSL's name of a cipher suite of TLSv1.2, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256."""
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("_CBC_", "_").replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    whole = cipher if exchange == "RSA" else f"{exchange}-{cipher}"
    return whole.replace("_", "-")


def split(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return two parts of `names`: the suites of TLSv1.2 and the suites of TLSv1.3."""
    newer = [name for name in names if "_WITH_" not in name]
    return [name for name in names if "_WITH_" in name], newer


log = logging.getLogger(__name__)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_ANY: Final = "TLS"
_WEAK: Final = "CA_MD_TOO_WEAK"
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(settings: TlsSettings) -> tuple[ssl.SSLContext, KeyStore]:
    """Return the context of a listener, and its key store. Raises ConfigError."""
    keys = key_store(settings.keystore)
    if keys is None:
        names = settings.keystore.names
        raise ConfigError(
            f"listener {settings.listener} speaks TLS and has no certificate: set {names['location']}, or "
            f"{names['key']} and {names['certificates']}"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _choose(context, settings)
    _load_keys(context, settings, keys)
    context.verify_mode = _CLIENT_AUTH[settings.client_auth.lower()]
    if context.verify_mode is not ssl.CERT_NONE:
        _trust(context, settings)
    return context, keys


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return the context for this broker's connections to other brokers over the listener. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    algorithm = settings.endpoint_identification
    if algorithm.upper() not in ("", "HTTPS"):
        name = settings.names["endpoint.identification.algorithm"]
        raise ConfigError(f"{name} is {algorithm}; it must be https, or empty to check no name")
    context.check_hostname = bool(algorithm)
    _choose(context, settings)
    _trust(context, settings)
    keys = key_store(settings.keystore)
    if keys is not None:
        _load_keys(context, settings, keys)
    return context


def _choose(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Set the versions and the cipher suites."""
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    versions = _versions(settings)
    older, newer = split(settings.cipher_suites)
    name = settings.names["cipher.suites"]
    if settings.cipher_suites:
        if ssl.TLSVersion.TLSv1_3 in versions and newer and set(newer) != set(OF_TLS_13):
            raise ConfigError(
                f"{name}: offer all of TLSv1.3's suites ({', '.join(OF_TLS_13)}), or none: Python cannot select some"
            )
        left = [_VERSIONS[word] for word, suites in (("TLSv1.2", older), ("TLSv1.3", newer)) if suites]
        versions = [each for each in versions if each in left]
        if not versions:
            raise ConfigError(f"{name}: none of {', '.join(settings.cipher_suites)} is of a version that is offered")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if older:
        with contextlib.suppress(ssl.SSLError):  # OpenSSL supports none of these suites
            context.set_ciphers(":".join(map(openssl_name, older)))
        chosen = {each["name"] for each in context.get_ciphers()}
        unknown = [each for each in older if openssl_name(each) not in chosen]
        if unknown:
            raise ConfigError(f"{name}: {', '.join(unknown)} cannot be used with this system's OpenSSL")


def _versions(settings: TlsSettings) -> list[ssl.TLSVersion]:
    if settings.protocol not in (*_VERSIONS, _ANY):
        allowed = ", ".join([*_VERSIONS, _ANY])
        raise ConfigError(f"{settings.names['protocol']}: {settings.protocol} cannot be used; it may be {allowed}")
    wanted = settings.enabled_protocols
    if not wanted:
        return [_VERSIONS["TLSv1.2"]] if settings.protocol == "TLSv1.2" else list(_VERSIONS.values())
    unknown = [each for each in wanted if each not in _VERSIONS]
    if unknown:
        name = settings.names["enabled.protocols"]
        raise ConfigError(f"{name}: {', '.join(unknown)} cannot be used; it may be {' and '.join(_VERSIONS)}")
    return [_VERSIONS[each] for each in wanted]


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Load the trusted certificates: those of the trust store, or else those of the system."""
    # Accept a trusted certificate even if its issuer is not trusted, as Java does.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    certificates = trusted(settings.truststore)
    if certificates is None:
        context.load_default_certs(
            ssl.Purpose.CLIENT_AUTH if context.protocol is ssl.PROTOCOL_TLS_SERVER else ssl.Purpose.SERVER_AUTH
        )
        return
    names = settings.truststore.names
    try:
        context.load_verify_locations(cadata="".join(pem.write("CERTIFICATE", each) for each in certificates))
    except ssl.SSLError as error:
        name = names["certificates" if settings.truststore.location is None else "location"]
        raise ConfigError(f"{name}: a certificate can't be read: {reason_of(error)}") from None


def _load_keys(context: ssl.SSLContext, settings: TlsSettings, keys: KeyStore) -> None:
    text = keys.key + "".join(pem.write("CERTIFICATE", each) for each in keys.chain)
    names = settings.keystore.names
    name = names["key" if settings.keystore.location is None else "location"]
    try:
        with _as_file(text) as path:
            # Always pass a password: without one, OpenSSL would ask for an encrypted key's password on the terminal.
            password = keys.password or secrets.token_hex(8)
            try:
                context.load_cert_chain(path, password=password)
            except ssl.SSLError as error:
                if error.reason != _WEAK:
                    raise
                _allow_weak_signatures(context)
                context.load_cert_chain(path, password=password)
                log.warning("%s: a certificate is signed with SHA-1 or MD5, which many clients refuse; renew it", name)
    except ssl.SSLError as error:
        reason = reason_of(error)
        if error.reason == "KEY_VALUES_MISMATCH":
            reason = "the certificate belongs to another key"
        elif error.reason == _WEAK:
            reason = "one is signed with SHA-1 or MD5, which this OpenSSL refuses; have it signed with SHA-256"
        elif keys.password is not None:
            reason += f", or {names['key.password']} is wrong"
        raise ConfigError(f"{name}: the key and its certificate can't be used: {reason}") from None


def _allow_weak_signatures(context: ssl.SSLContext) -> None:
    """Accept certificates signed with SHA-1, as Java does; versions and cipher suites stay unchanged."""
    suites = [each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"]
    context.set_ciphers(":".join([*suites, "@SECLEVEL=0"]))


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield the path of a temporary file with a text, which other users cannot read. Remove the file afterwards."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("kbroker", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, text.encode("ascii"))
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    import tempfile

    with tempfile.NamedTemporaryFile("w", encoding="ascii") as file:  # only the file's owner may read it
        file.write(text)
        file.flush()
        yield file.name


def reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason as a readable text."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not accepted: {error.verify_message.rstrip('.')}"
    return (error.reason or "unknown reason").replace("_", " ").lower()
