"""One set of client settings, with the names that the three Kafka clients in use need.

Owns the translation from kafka-python's names, which users give with -X, into those of the Java client inside Spark's
connector and of librdkafka. The Java client needs a key and its certificate in one file, or as text, so separate files
are passed as text. An encrypted key is decrypted and passed as text, because not every Java reads OpenSSL's encryption.
Never opens a connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kbroker.pipeline.errors import PipelineError

_JAVA_NAMES: Final = {"ssl_cafile": "ssl.truststore.location", "ssl_certfile": "ssl.keystore.location"}
_AS_THEY_ARE: Final = ("security_protocol", "sasl_mechanism", "client_id", "request_timeout_ms")
_JAAS: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_LIBRDKAFKA_NAMES: Final = {
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
}


def java_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a Python client's security settings with the Java client's names.

    Raises PipelineError for other settings.
    """
    found: dict[str, str] = {}
    settings = dict(settings)
    password = settings.pop("ssl_password", None)
    if password is not None:
        settings.setdefault("ssl_keyfile", settings.get("ssl_certfile"))
    if settings.get("ssl_keyfile") is not None:
        found |= _key_as_text(settings.pop("ssl_certfile", None), settings.pop("ssl_keyfile"), password)
    user, secret = settings.get("sasl_plain_username"), settings.get("sasl_plain_password")
    for name, value in settings.items():
        if name in _AS_THEY_ARE:
            found[name.replace("_", ".")] = str(value)
        elif name in _JAVA_NAMES:
            found[_JAVA_NAMES[name]] = str(value)
            found[_JAVA_NAMES[name].replace("location", "type")] = "PEM"
        elif name == "ssl_check_hostname":
            if not value:
                found["ssl.endpoint.identification.algorithm"] = ""
        elif name not in ("sasl_plain_username", "sasl_plain_password"):
            raise _not_known(name)
    if user is not None or "sasl_mechanism" in settings:
        module = _JAAS.get(str(settings.get("sasl_mechanism")))
        if module is None or user is None:
            raise PipelineError(f"-X: a job logs in by {', '.join(_JAAS)}, with a user and a password")
        quoted = [str(text).replace("\\", "\\\\").replace('"', '\\"') for text in (user, secret or "")]
        found["sasl.jaas.config"] = f'{module} required username="{quoted[0]}" password="{quoted[1]}";'
    return found


def _key_as_text(certificate: str | None, key: str, password: str | None) -> dict[str, str]:
    """Return a key and its certificate as text for the Java client (KIP-651)."""
    if certificate is None:
        raise PipelineError("-X: ssl_keyfile needs ssl_certfile")
    texts = []
    for name, path in (("ssl_certfile", certificate), ("ssl_keyfile", key)):
        try:
            texts.append(Path(path).read_text(encoding="ascii"))
        except (OSError, UnicodeDecodeError) as err:
            raise PipelineError(f"-X: cannot read {name} {path}: {getattr(err, 'strerror', None) or err}") from err
    if not any(f"-----BEGIN {kind}PRIVATE KEY-----" in texts[1] for kind in ("", "ENCRYPTED ")):
        raise PipelineError(f"-X: ssl_keyfile {key} is not PKCS #8, which the Java client needs (openssl pkcs8 -topk8)")
    encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----" in texts[1]
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": texts[0],
        "ssl.keystore.key": _decrypted(key, texts[1], password) if encrypted else texts[1],
    }


def _decrypted(path: str, text: str, password: str | None) -> str:
    from cryptography.hazmat.primitives import serialization

    if password is None:
        raise PipelineError(f"-X: ssl_keyfile {path} is encrypted, and ssl_password is not set")
    begin = text.index("-----BEGIN ENCRYPTED PRIVATE KEY-----")
    try:
        key = serialization.load_pem_private_key(text[begin:].encode(), str(password).encode())
    except (ValueError, TypeError):
        raise PipelineError(f"-X: ssl_keyfile {path} cannot be decrypted by ssl_password") from None
    form, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, encryption).decode("ascii")


def librdkafka_settings(bootstrap: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for librdkafka. Raises PipelineError for a setting without a translation."""
    found: dict[str, Any] = {"bootstrap.servers": bootstrap}
    for name, value in settings.items():
        if name in _AS_THEY_ARE:
            found[name.replace("_", ".")] = value
        elif name in _LIBRDKAFKA_NAMES:
            found[_LIBRDKAFKA_NAMES[name]] = value
        elif name == "ssl_check_hostname":
            found["ssl.endpoint.identification.algorithm"] = "https" if value else "none"
        else:
            raise _not_known(name)
    return found


def _not_known(name: str) -> PipelineError:
    return PipelineError(f"-X: {name} is no setting of security, and cannot be set for a job")
