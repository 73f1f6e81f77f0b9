"""The name in a certificate, as Java writes it."""

from __future__ import annotations

import base64
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from kbroker.security.tls import development
from kbroker.security.tls.names import BadCertificate, subject

Parts = list[list[tuple[x509.ObjectIdentifier, str, _ASN1Type | None]]]
_UTF8 = _ASN1Type.UTF8String


@pytest.fixture(scope="module")
def authority() -> development.Signed:
    return development.authority()


def certificate(authority: development.Signed, parts: Parts) -> bytes:
    """Return a certificate of a name; `parts` in the order in which they stand in it."""
    rdns = [
        x509.RelativeDistinguishedName([x509.NameAttribute(oid, value, kind) for oid, value, kind in each])
        for each in parts
    ]
    return development.sign(authority, x509.Name(rdns)).certificate.public_bytes(Encoding.DER)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([[(NameOID.COMMON_NAME, "alice", None)]], "CN=alice"),
        (
            [
                [(NameOID.COUNTRY_NAME, "DE", None)],
                [(NameOID.ORGANIZATION_NAME, "Example, Inc.", None)],
                [(NameOID.COMMON_NAME, "a+b=c", None)],
            ],
            r"CN=a\+b\=c,O=Example\, Inc.,C=DE",
        ),
        ([[(NameOID.COMMON_NAME, " x ", None)]], r"CN=\ x\ "),
        ([[(NameOID.COMMON_NAME, "Jürgen 東京", None)]], "CN=Jürgen 東京"),
        (
            [[(NameOID.EMAIL_ADDRESS, "a@example.org", None)], [(NameOID.COMMON_NAME, "a", None)]],
            "CN=a,1.2.840.113549.1.9.1=#160d61406578616d706c652e6f7267",
        ),
        ([[(NameOID.DOMAIN_COMPONENT, "org", None)], [(NameOID.USER_ID, "u1", None)]], "UID=u1,DC=org"),
    ],
)
def test_names(authority: development.Signed, parts: Parts, name: str) -> None:
    assert subject(certificate(authority, parts)) == name


def test_a_certificate_that_is_cut_off_has_no_name(authority: development.Signed) -> None:
    data = certificate(authority, [[(NameOID.COMMON_NAME, "alice", None)]])
    for end in range(60):
        with pytest.raises(BadCertificate):
            subject(data[:end])


def _random_parts(chosen: random.Random) -> Parts:
    words = [
        NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.LOCALITY_NAME,
        NameOID.STATE_OR_PROVINCE_NAME, NameOID.STREET_ADDRESS, NameOID.USER_ID, NameOID.TITLE, NameOID.SURNAME,
        NameOID.DN_QUALIFIER, NameOID.SERIAL_NUMBER, NameOID.GIVEN_NAME,
    ]  # fmt: skip
    letters = "abc XYZ09,=+<>#;\"\\/'äß東 \0\r\n_*"

    def value() -> str:
        return "".join(chosen.choice(letters) for _ in range(chosen.randint(1, 12)))

    def one() -> list[tuple[x509.ObjectIdentifier, str, _ASN1Type | None]]:
        oids = chosen.sample(words, 1 if chosen.random() < 0.8 else 2)
        return [(oid, value(), _UTF8) for oid in oids]

    return [one() for _ in range(chosen.randint(1, 5))]


@pytest.mark.java
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java")
def test_java_writes_the_same_names(authority: development.Signed) -> None:
    certificates = [certificate(authority, _random_parts(random.Random(seed))) for seed in range(200)]
    source = Path(__file__).with_name("PrintName.java")
    done = subprocess.run(
        ["java", str(source)],
        input="\n".join(base64.b64encode(each).decode() for each in certificates),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    names = [base64.b64decode(line).decode() for line in done.stdout.split()]
    assert [subject(each) for each in certificates] == names
