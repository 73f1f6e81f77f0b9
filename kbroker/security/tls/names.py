"""The name in a certificate, in Java's form (X500Principal.getName): RFC 2253.

Owns the conversion of a certificate's bytes to that text. Relies on the form of these bytes, because OpenSSL has
already parsed them. Never validates a certificate.

    CN=alice,OU=billing,O=Example,C=DE
    1.2.840.113549.1.9.1=#160a6140622e6578616d706c65,CN=alice        a type without a name in RFC 2253
"""

from __future__ import annotations

from typing import Final

from kbroker.security.tls.pem import element, elements

_WORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
# UTF8String, PrintableString, T61String, IA5String, GeneralString, BMPString; other types are shown in hexadecimal.
_TEXTS: Final = frozenset({12, 19, 20, 22, 27, 30})
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_VERSION: Final = 0xA0
_BLANKS: Final = " \r"


class BadCertificate(Exception):  # noqa: N818 - named after the input
    """A certificate's bytes do not have the required form."""


def subject(certificate: bytes) -> str:
    """Return the distinguished name of a certificate (DER). Raises BadCertificate."""
    try:
        return _text(_subject(memoryview(certificate)))
    except (IndexError, ValueError, StopIteration):
        raise BadCertificate("a certificate without a name that can be read") from None


def _subject(certificate: memoryview) -> memoryview:
    """Return the name's parts, which are sets, in the order of the certificate."""
    _, whole, _ = element(certificate)
    _, signed, _ = element(whole)
    fields = elements(signed)
    tag, _, _ = next(fields)
    # The fields are: version (optional), serial number, algorithm, issuer, validity, subject.
    for _ in range(4 if tag == _VERSION else 3):
        next(fields)
    return next(fields)[1]


def _text(name: memoryview) -> str:
    parts = []
    for _, parts_of_one, _ in elements(name):
        parts.append("+".join(_attribute(each) for _, each, _ in elements(parts_of_one)))
    return ",".join(reversed(parts))


def _attribute(attribute: memoryview) -> str:
    inside = elements(attribute)
    identifier = _dotted(bytes(next(inside)[1]))
    tag, value, whole = next(inside)
    word = _WORDS.get(identifier)
    if word is None or tag not in _TEXTS:
        return f"{word or identifier}=#{bytes(whole).hex()}"
    return f"{word}={_escaped(str(value, 'utf-8', 'replace'))}"


def _escaped(text: str) -> str:
    first = len(text) - len(text.lstrip(_BLANKS))
    last = len(text.rstrip(_BLANKS))
    out = []
    for at, char in enumerate(text):
        if char == "\0":
            out.append("\\00")
        elif char in _ESCAPED or at < first or at >= last:
            out.append(f"\\{char}")
        else:
            out.append(char)
    return "".join(out)


def _dotted(data: bytes) -> str:
    numbers, value = [], 0
    for byte in data:
        value = value << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(value)
            value = 0
    first = numbers[0]
    top = min(first // 40, 2)
    return ".".join(map(str, [top, first - 40 * top, *numbers[1:]]))
