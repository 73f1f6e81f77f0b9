"""The TLS settings of one listener: the keys `ssl.*`, and the listener's own keys, which override them.

Owns the list of keys, and their full names in the operator's configuration. Never opens a file, and never validates a
value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol


class Values(Protocol):
    """The values of a listener (config/listeners.py)."""

    def name_of(self, key: str) -> str:
        """Return the full name of a key that is set."""

    def get_str(self, key: str) -> str: ...

    def get_optional_str(self, key: str) -> str | None: ...

    def get_list(self, key: str) -> tuple[str, ...]: ...

    def get_bool(self, key: str) -> bool: ...

    def is_own(self, key: str) -> bool:
        """Whether the listener has its own value."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """A key store or a trust store: a file, or PEM texts. `names` maps the last words of config keys to full keys."""

    names: dict[str, str]
    kind: str
    location: str | None
    password: str | None = field(repr=False)
    certificates: str | None = field(repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)

    @property
    def is_set(self) -> bool:
        return self.location is not None or self.certificates is not None or self.key is not None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The TLS settings of one listener. `names` maps the last words of config keys to full keys."""

    listener: str
    names: dict[str, str]
    client_auth: str
    mapping_rules: str
    protocol: str
    enabled_protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    endpoint_identification: str
    allow_dn_changes: bool
    allow_san_changes: bool
    keystore: StoreSettings
    truststore: StoreSettings


_KEYSTORE: Final = {
    "type": "ssl.keystore.type",
    "location": "ssl.keystore.location",
    "password": "ssl.keystore.password",
    "certificates": "ssl.keystore.certificate.chain",
    "key": "ssl.keystore.key",
    "key.password": "ssl.key.password",
}
_TRUSTSTORE: Final = {
    "type": "ssl.truststore.type",
    "location": "ssl.truststore.location",
    "password": "ssl.truststore.password",
    "certificates": "ssl.truststore.certificates",
}
_OTHERS: Final = {
    "protocol": "ssl.protocol",
    "enabled.protocols": "ssl.enabled.protocols",
    "cipher.suites": "ssl.cipher.suites",
    "endpoint.identification.algorithm": "ssl.endpoint.identification.algorithm",
    "principal.mapping.rules": "ssl.principal.mapping.rules",
}


def tls_settings(listener: str, values: Values, *, has_sasl: bool = False) -> TlsSettings:
    """Return the settings of a listener.

    With SASL, a listener requests clients' certificates only if its own `ssl.client.auth` is set, as in Kafka.
    """
    asks = not has_sasl or values.is_own("ssl.client.auth")
    return TlsSettings(
        listener=listener,
        names=_names(values, _OTHERS),
        client_auth=values.get_str("ssl.client.auth") if asks else "none",
        mapping_rules=values.get_str("ssl.principal.mapping.rules"),
        protocol=values.get_str("ssl.protocol"),
        enabled_protocols=values.get_list("ssl.enabled.protocols"),
        cipher_suites=values.get_list("ssl.cipher.suites"),
        endpoint_identification=values.get_optional_str("ssl.endpoint.identification.algorithm") or "",
        allow_dn_changes=values.get_bool("ssl.allow.dn.changes"),
        allow_san_changes=values.get_bool("ssl.allow.san.changes"),
        keystore=_store(values, _KEYSTORE),
        truststore=_store(values, _TRUSTSTORE),
    )


def _names(values: Values, keys: Mapping[str, str]) -> dict[str, str]:
    return {word: values.name_of(key) for word, key in keys.items()}


def _store(values: Values, keys: Mapping[str, str]) -> StoreSettings:
    def text(word: str) -> str | None:
        return values.get_optional_str(keys[word]) or None if word in keys else None

    return StoreSettings(
        names=_names(values, keys),
        kind=values.get_str(keys["type"]).upper(),
        location=text("location"),
        password=text("password"),
        certificates=text("certificates"),
        key=text("key"),
        key_password=text("key.password"),
    )
