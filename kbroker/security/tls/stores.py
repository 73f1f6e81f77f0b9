"""Key stores and trust stores: PEM in a file or in a setting, PKCS12, and Java's JKS.

Owns the reading of stores, with Kafka's rules for combining settings. Never creates a context. Errors raise ConfigError
with the config's name, and never with a secret.

A file's first bytes decide whether it is PKCS12 or JKS. Between these two, the configured type has no effect, because
Java reads both formats under both names.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kbroker.config.model import ConfigError
from kbroker.security.tls import jks, pem
from kbroker.security.tls.settings import StoreSettings

if TYPE_CHECKING:  # imported only if a store needs it, so that other starts are faster
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

_PEM: Final = "PEM"
_PKCS12: Final = "PKCS12"
_JKS: Final = "JKS"
_LARGEST: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class KeyStore:
    """A private key in PEM, its password or None, and its certificate chain in DER (its own certificate first)."""

    key: str = field(repr=False)
    password: str | None = field(repr=False)
    chain: tuple[bytes, ...]


def key_store(settings: StoreSettings) -> KeyStore | None:
    """Return a listener's key and certificates; None if unset. Raises ConfigError."""
    names = settings.names
    if settings.key is not None or settings.certificates is not None:
        if settings.key is None or settings.certificates is None:
            missing, other = names["key"], names["certificates"]
            if settings.certificates is None:
                missing, other = other, missing
            raise ConfigError(f"{other} is set, but not {missing}: a key and its certificates belong together")
        _check_texts(settings, names["key"])
        return _from_texts(settings, settings.key, settings.certificates, names["key"])
    data = _file(settings)
    if data is None:
        return None
    if settings.kind == _PEM:
        text = _text(settings, data)
        return _from_texts(settings, text, text, names["location"])
    if settings.password is None:
        raise ConfigError(f"{names['location']} is set, but not {names['password']}, with which the file is encrypted")
    return _key_of_jks(settings, data) if data.startswith(jks.MAGIC) else _key_of_pkcs12(settings, data)


def trusted(settings: StoreSettings) -> tuple[bytes, ...] | None:
    """Return the trusted certificates (DER); None if unset. Raises ConfigError."""
    names = settings.names
    if settings.certificates is not None:
        _check_texts(settings, names["certificates"])
        return _certificates(settings.certificates, names["certificates"])
    data = _file(settings)
    if data is None:
        return None
    if settings.kind == _PEM:
        return _certificates(_text(settings, data), names["location"])
    return _trusted_of_jks(settings, data) if data.startswith(jks.MAGIC) else _trusted_of_pkcs12(settings, data)


# --- PEM


def _check_texts(settings: StoreSettings, name: str) -> None:
    if settings.kind != _PEM:
        raise ConfigError(f"{name} is a text of PEM, but {settings.names['type']} is {settings.kind}: set it to PEM")
    if settings.location is not None:
        raise ConfigError(f"{name} and {settings.names['location']} are both set; leave one of them out")
    _no_password(settings)


def _no_password(settings: StoreSettings) -> None:
    if settings.password is not None:
        beside = f"; that of its key is {settings.names['key.password']}" if "key" in settings.names else ""
        raise ConfigError(f"{settings.names['password']}: a store of PEM has no password{beside}")


def _from_texts(settings: StoreSettings, key: str, certificates: str, name: str) -> KeyStore:
    keys = [each for each in _blocks(key, name) if each.is_key]
    if len(keys) != 1:
        raise ConfigError(
            f"{name}: one private key is needed, and there {'are' if keys else 'is'} {len(keys) or 'none'}"
        )
    locked = keys[0].label.startswith("ENCRYPTED") or "ENCRYPTED" in keys[0].text[:200]
    if locked and settings.key_password is None:
        raise ConfigError(f"{name}: the private key is encrypted, and {settings.names['key.password']} is not set")
    chain_name = name if certificates is key else settings.names["certificates"]
    return KeyStore(keys[0].text, settings.key_password, _certificates(certificates, chain_name))


def _certificates(text: str, name: str) -> tuple[bytes, ...]:
    found = tuple(each.data for each in _blocks(text, name) if each.is_certificate)
    if not found:
        raise ConfigError(
            f"{name}: there is no certificate in it; a certificate begins with -----BEGIN CERTIFICATE-----"
        )
    return found


def _blocks(text: str, name: str) -> list[pem.Block]:
    try:
        return pem.blocks(text)
    except pem.BadPem as error:
        raise ConfigError(f"{name}: {error}") from None


# --- files


def _file(settings: StoreSettings) -> bytes | None:
    """Return the content of the store's file, or None."""
    path, names = settings.location, settings.names
    if path is None:
        if settings.password is not None:
            raise ConfigError(f"{names['password']} is set, but not {names['location']}")
        return None
    if settings.kind not in (_PEM, _PKCS12, _JKS):
        raise ConfigError(f"{names['type']} is {settings.kind}; it may be {_PEM}, {_PKCS12} or {_JKS}")
    if settings.kind == _PEM:
        _no_password(settings)
    try:
        # O_NONBLOCK, because opening a pipe without a writer would block forever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{names['location']}: {path} is no file")
            data = file.read(_LARGEST)
    except OSError as error:
        raise ConfigError(f"{names['location']}: cannot read {path}: {error.strerror}") from None
    return data


def open_to_others(settings: StoreSettings) -> str | None:
    """Return the path of a key store's file if every user of this machine may read it, else None."""
    if settings.location is None:
        return None
    try:
        mode = os.stat(settings.location).st_mode
    except OSError:
        return None
    return settings.location if mode & stat.S_IROTH else None


def _text(settings: StoreSettings, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{settings.names['location']}: {settings.location} is not a PEM text") from None


# --- JKS


def _key_of_jks(settings: StoreSettings, data: bytes) -> KeyStore:
    assert settings.password is not None
    try:
        for entry in jks.load(data, settings.password):
            if entry.masked is not None and entry.chain:
                key = jks.unmasked(entry.masked, settings.key_password or settings.password)
                return KeyStore(pem.write("PRIVATE KEY", key), None, entry.chain)
    except jks.BadStore as error:
        name = settings.names["location"]
        raise ConfigError(f"{name}: {settings.location} is no JKS file that can be used: {error}") from None
    raise ConfigError(f"{settings.names['location']}: {settings.location} has no private key with a certificate")


def _trusted_of_jks(settings: StoreSettings, data: bytes) -> tuple[bytes, ...]:
    try:
        found = tuple(entry.chain[0] for entry in jks.load(data, settings.password) if entry.masked is None)
    except jks.BadStore as error:
        name = settings.names["location"]
        raise ConfigError(f"{name}: {settings.location} is no JKS file that can be used: {error}") from None
    if not found:
        raise ConfigError(f"{settings.names['location']}: {settings.location} has no trusted certificate")
    return found


# --- PKCS12


def _key_of_pkcs12(settings: StoreSettings, data: bytes) -> KeyStore:
    from cryptography.hazmat.primitives import serialization

    held = _opened(settings, data)
    if held.key is None or held.cert is None:
        raise ConfigError(f"{settings.names['location']}: {settings.location} has no private key with a certificate")
    der = serialization.Encoding.DER
    key = held.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    others = (each.certificate.public_bytes(der) for each in held.additional_certs)
    return KeyStore(key.decode("ascii"), None, (held.cert.certificate.public_bytes(der), *others))


def _trusted_of_pkcs12(settings: StoreSettings, data: bytes) -> tuple[bytes, ...]:
    from cryptography.hazmat.primitives import serialization

    held = _opened(settings, data)
    found = tuple(each.certificate.public_bytes(serialization.Encoding.DER) for each in held.additional_certs)
    if not found:
        raise ConfigError(f"{settings.names['location']}: {settings.location} has no trusted certificate")
    return found


def _opened(settings: StoreSettings, data: bytes) -> PKCS12KeyAndCertificates:
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        return pkcs12.load_pkcs12(data, None if settings.password is None else settings.password.encode("utf-8"))
    except ValueError as error:
        reason = "its password is different" if "password" in str(error).lower() else "it can't be read"
        name = settings.names["location"]
        raise ConfigError(f"{name}: {settings.location} is no PKCS12 file that can be used: {reason}") from None
