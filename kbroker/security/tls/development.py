"""An authority for development, and the certificates that it signs.

Owns their form (P-256 keys, valid for a year), and the names in a server's certificate. Anyone who has the files can
claim any identity, so the files must not be used on a network with strangers. Writes no file: cli/cert.py does.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_DAYS: Final = 365
_EARLIER: Final = datetime.timedelta(hours=1)
"""A certificate's validity begins this long before the certificate is created: another machine's clock may be slow."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A key and its certificate; `issuer` is None if the certificate is self-signed."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    issuer: x509.Certificate | None = None

    def certificates_pem(self) -> bytes:
        """Return the certificate in PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def pem(self, password: str | None = None) -> bytes:
        """Return the key (PKCS8, encrypted if a password is given) and the certificate in PEM, in Kafka's form."""
        how = _encryption(password)
        key = self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how)
        return key + self.certificates_pem()

    def pkcs12(self, name: str, password: str) -> bytes:
        """Return key and certificates as a PKCS12 key store."""
        others = None if self.issuer is None else [self.issuer]
        return pkcs12.serialize_key_and_certificates(
            name.encode(), self.key, self.certificate, others, _encryption(password)
        )


def _encryption(password: str | None) -> serialization.KeySerializationEncryption:
    if password is None:
        return serialization.NoEncryption()
    return serialization.BestAvailableEncryption(password.encode())


def server_names() -> list[str]:
    """Return this machine's names and addresses, for the certificate of a server on this machine."""
    return ["localhost", "127.0.0.1", "::1", socket.gethostname()]


def trust_store(certificate: x509.Certificate, password: str) -> bytes:
    """Return a PKCS12 trust store that Java can read."""
    trusted = pkcs12.PKCS12Certificate(certificate, b"ca")
    return pkcs12.serialize_java_truststore([trusted], _encryption(password))


def authority(name: str = "kbroker development CA") -> Signed:
    """Return a new authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = (
        _begun(key, subject, subject)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Signed(key, builder.sign(key, hashes.SHA256()))


def load_authority(pem: bytes) -> Signed:
    """Return an authority from its `pem`. Raises ValueError."""
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("its key is not of the expected kind")
    return Signed(key, x509.load_pem_x509_certificate(pem))


def sign(
    issuer: Signed,
    subject: str | x509.Name,
    hosts: Sequence[str] = (),
    *,
    days: float = _DAYS,
) -> Signed:
    """Return a signed certificate for a name (a common name or a full distinguished name) and for hosts."""
    key = ec.generate_private_key(ec.SECP256R1())
    if isinstance(subject, str):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = (
        _begun(key, subject, issuer.certificate.subject, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usages, critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False)
    )
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False)
    return Signed(key, builder.sign(issuer.key, hashes.SHA256()), issuer.certificate)


def _begun(
    key: ec.EllipticCurvePrivateKey, subject: x509.Name, issuer: x509.Name, days: float = _DAYS
) -> x509.CertificateBuilder:
    end = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    begin = min(datetime.datetime.now(datetime.UTC), end) - _EARLIER
    return x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number(), begin, end)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
