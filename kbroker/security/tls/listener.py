"""TLS on one listener: its context, which may be replaced while it serves, and the identities of its clients.

Owns the checks of a replacement: a new certificate must keep the names of the old certificate, by which clients or
brokers identify the broker (`ssl.allow.dn.changes` and `ssl.allow.san.changes` allow other names). Never opens a
socket. (Kafka's SslFactory.)
"""

from __future__ import annotations

import contextlib
import logging
import ssl
from collections.abc import Callable

from kbroker.config.model import ConfigError
from kbroker.security.principal import ANONYMOUS, USER, Principal
from kbroker.security.tls.contexts import client_context, server_context
from kbroker.security.tls.mapping import BadRules, NoRule, PrincipalMapper
from kbroker.security.tls.names import BadCertificate, subject
from kbroker.security.tls.session import Broken, Session
from kbroker.security.tls.settings import TlsSettings
from kbroker.security.tls.stores import KeyStore, open_to_others

log = logging.getLogger(__name__)


class TlsListener:
    """The TLS of one listener. If `names_clients`, certificates identify clients; otherwise SASL does."""

    def __init__(self, settings: TlsSettings, *, names_clients: bool = True, between_brokers: bool = False) -> None:
        """Read the stores. Raises ConfigError if TLS cannot work with them.

        If `between_brokers`, brokers also connect to each other over this listener, so the broker must accept its own
        certificate.
        """
        self._between_brokers = between_brokers
        self._names_clients = names_clients
        self._take(*_made(settings, between_brokers))
        readable = open_to_others(settings.keystore)
        if readable is not None:
            log.warning("%s: every user of this machine may read %s", settings.keystore.names["location"], readable)

    def _take(
        self, settings: TlsSettings, context: ssl.SSLContext, keys: KeyStore, client: ssl.SSLContext | None,
        mapper: PrincipalMapper,
    ) -> None:  # fmt: skip
        self.settings, self._context, self._keys, self._client, self._mapper = settings, context, keys, client, mapper

    def session(self) -> Session:
        """Return the TLS session of one accepted connection."""
        return Session(self._context)

    @property
    def client_context(self) -> ssl.SSLContext:
        """The context for this broker's connections to other brokers over the listener."""
        assert self._client is not None
        return self._client

    def principal_of(self, certificate: bytes | None) -> Principal:
        """Return the principal of a certificate in DER, or ANONYMOUS without a certificate.

        Raises Broken if no rule matches the certificate's name.
        """
        if certificate is None or not self._names_clients:
            return ANONYMOUS
        try:
            return Principal(USER, self._mapper.name_of(subject(certificate)))
        except (NoRule, BadCertificate) as error:
            raise Broken(str(error)) from None

    def replacement(self, settings: TlsSettings) -> Callable[[], None]:
        """Return a function that makes new connections use new stores. Raises ConfigError if the stores are refused."""
        made = _made(settings, self._between_brokers)
        check_names(self._keys.chain[0], made[2].chain[0], settings)
        if not self.settings.truststore.is_set and settings.truststore.is_set:
            raise ConfigError(
                "Cannot add SSL truststore to an existing listener for which no truststore was configured."
            )

        def replace() -> None:
            self._take(*made)
            log.info("listener %s shows another certificate from now on", settings.listener)

        return replace


Made = tuple[TlsSettings, ssl.SSLContext, KeyStore, ssl.SSLContext | None, PrincipalMapper]


def _made(settings: TlsSettings, between_brokers: bool) -> Made:
    try:
        mapper = PrincipalMapper(settings.mapping_rules)
    except BadRules as error:
        raise ConfigError(f"{settings.names['principal.mapping.rules']}: {error}") from None
    context, keys = server_context(settings)
    client = client_context(settings) if between_brokers else None
    if client is not None:
        _meet(settings, context, client)
    return settings, context, keys, client, mapper


def _meet(settings: TlsSettings, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Perform a TLS handshake of this broker with itself.

    Raises ConfigError if it fails, because handshakes with other programs would fail, too.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    checks, client.check_hostname = client.check_hostname, False  # the name that other brokers use is unknown
    try:
        asking, asked = client.wrap_bio(incoming, outgoing), Session(server)
        for _ in range(8):
            with contextlib.suppress(ssl.SSLWantReadError):
                asking.do_handshake()
            data = outgoing.read()
            if data:
                asked.shake(memoryview(data))
            incoming.write(asked.to_send())
            if asked.is_open and not data:
                return
    except (ssl.SSLError, Broken) as error:
        reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error)
        names = settings.truststore.names
        raise ConfigError(
            f"listener {settings.listener} is also for brokers, but they would not accept each other with these stores "
            f"({names['location']}): {reason}"
        ) from None
    finally:
        client.check_hostname = checks


def check_names(old: bytes, new: bytes, settings: TlsSettings) -> None:
    """Refuse a changed distinguished name, and missing alternative names, with Kafka's messages."""
    was, becomes = subject(old), subject(new)
    if not settings.allow_dn_changes and was.lower() != becomes.lower():
        raise ConfigError(
            f"Keystore DistinguishedName does not match: existing={{alias=kafka, DN={was}}}, "
            f"new={{alias=kafka, DN={becomes}}}"
        )
    before, after = alternative_names(old), alternative_names(new)
    if not settings.allow_san_changes and not before <= after:
        raise ConfigError(
            f"Keystore SubjectAltNames do not match: existing={{alias=kafka, SAN={sorted(before)}}}, "
            f"new={{alias=kafka, SAN={sorted(after)}}}"
        )


def alternative_names(certificate: bytes) -> set[str]:
    """Return the alternative names of a certificate (DER)."""
    from cryptography import x509

    try:
        found = x509.load_der_x509_certificate(certificate).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except x509.ExtensionNotFound:
        return set()
    return {f"{type(each).__name__}:{each.value}" for each in found.value}
