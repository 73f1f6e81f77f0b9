"""The settings for clients of an embedded broker, with the names that each client library uses.

Owns these names. Never connects.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any, Final

MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
"""The SASL mechanisms of a broker with users."""
_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings for one client. Files are in PEM format."""

    bootstrap_servers: str
    security_protocol: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    mechanism: str = MECHANISMS[0]
    ca: str | None = None
    """The path of the certificate of the authority that the client trusts."""
    certificate: str | None = None
    """The path of the file that contains the client's own key and certificate."""

    @property
    def confluent_kafka(self) -> dict[str, Any]:
        """The settings with librdkafka's names, for `confluent_kafka.Producer({**settings, ...})`."""
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": self.security_protocol,
            **_set(
                ("ssl.ca.location", self.ca),
                ("ssl.certificate.location", self.certificate),
                ("ssl.key.location", self.certificate),
            ),
            **self._login("sasl.mechanism", "sasl.username", "sasl.password"),
        }

    @property
    def kafka_python(self) -> dict[str, Any]:
        """The settings for `kafka.KafkaProducer(**settings)`."""
        return {
            **self._in_python(),
            **_set(("ssl_cafile", self.ca), ("ssl_certfile", self.certificate), ("ssl_keyfile", self.certificate)),
        }

    @property
    def aiokafka(self) -> dict[str, Any]:
        """The settings for `aiokafka.AIOKafkaProducer(**settings)`. Reads the files."""
        return {**self._in_python(), **_set(("ssl_context", self._context()))}

    @property
    def java(self) -> dict[str, Any]:
        """The settings for Java's clients, for `--command-config`, and, with the prefix `kafka.`, for Spark."""
        found = {"bootstrap.servers": self.bootstrap_servers, "security.protocol": self.security_protocol}
        if self.ca is not None:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": self.ca}
        if self.certificate is not None:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self.certificate}
        if self.user is not None and self.password is not None:
            login = f'username="{quoted(self.user)}" password="{quoted(self.password)}"'
            found["sasl.mechanism"] = self.mechanism
            found["sasl.jaas.config"] = f"{_MODULES[self.mechanism]} required {login};"
        return found

    def _in_python(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": self.security_protocol,
            **self._login("sasl_mechanism", "sasl_plain_username", "sasl_plain_password"),
        }

    def _login(self, mechanism: str, user: str, password: str) -> dict[str, Any]:
        if self.user is None:
            return {}
        return {mechanism: self.mechanism, user: self.user, password: self.password}

    def _context(self) -> ssl.SSLContext | None:
        if self.ca is None:
            return None
        context = ssl.create_default_context(cafile=self.ca)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate)
        return context


def _set(*settings: tuple[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings if value is not None}


def quoted(text: str) -> str:
    """Return a text that is escaped for the quotation marks of a JAAS line."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
