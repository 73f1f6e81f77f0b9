"""Java's older format of key stores, JKS: keys with their certificates, and trusted certificates.

Owns the reading of this format. The format is small, and no maintained library reads it. Never writes such a file:
`keytool` creates PKCS12 by default.

    0xFEEDFEED, version i32 (2), entries i32
      entry 1, a key       alias, created i64, key (i32 length), certificates i32, each: type, i32 length, DER
      entry 2, trusted     alias, created i64, type, i32 length, DER
    SHA-1 of password (UTF-16), "Mighty Aphrodite" and all bytes above

A masked key consists of a salt (20 bytes), the masked bytes of the key in PKCS #8, and SHA-1 of password and key. The
first part of the mask is SHA-1 of password and salt; each further part is SHA-1 of password and the previous part.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass, field
from typing import Final

from kbroker.security.tls.pem import element, elements

MAGIC: Final = b"\xfe\xed\xfe\xed"
_WORD: Final = b"Mighty Aphrodite"
_HASH: Final = 20
_KEY, _TRUSTED = 1, 2
_MASKED: Final = bytes.fromhex("2b060104012a021101" + "01")
"""The object identifier 1.3.6.1.4.1.42.2.17.1.1: Java's only algorithm for masking keys in JKS."""


class BadStore(Exception):  # noqa: N818 - named after the file
    """A file is not a JKS store, or the password is wrong; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A masked key with its certificate chain in DER, or a trusted certificate without a key.

    The key's own certificate is the first of the chain.
    """

    alias: str
    chain: tuple[bytes, ...]
    masked: bytes | None = field(default=None, repr=False)


def load(data: bytes, password: str | None) -> list[Entry]:
    """Return the entries of a store, in order. Without a password, this function does not detect a changed file."""
    if password is not None:
        digest = hashlib.sha1(_utf16(password) + _WORD + data[:-_HASH]).digest()
        if not hmac.compare_digest(digest, data[-_HASH:]):
            raise BadStore("its password is different, or the file was changed")
    try:
        return _entries(_Reader(memoryview(data)))
    except (struct.error, IndexError, ValueError):
        raise BadStore("it can't be read") from None


def unmasked(masked: bytes, password: str) -> bytes:
    """Return an entry's key (PKCS #8, DER). Raises BadStore if the password is wrong."""
    try:
        _, whole, _ = element(memoryview(masked))
        inside = elements(whole)
        _, algorithm, _ = next(inside)
        _, identifier, _ = element(algorithm)
        _, held, _ = next(inside)
    except (IndexError, ValueError, StopIteration):
        raise BadStore("its key can't be read") from None
    if bytes(identifier) != _MASKED or len(held) < 2 * _HASH:
        raise BadStore("its key is masked with an unknown algorithm")
    secret = _utf16(password)
    mask, hidden, digest = bytes(held[:_HASH]), bytes(held[_HASH:-_HASH]), bytes(held[-_HASH:])
    stream = bytearray()
    while len(stream) < len(hidden):
        mask = hashlib.sha1(secret + mask).digest()
        stream += mask
    key = bytes(left ^ right for left, right in zip(hidden, stream, strict=False))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), digest):
        raise BadStore("the password of its key is different")
    return key


def _utf16(password: str) -> bytes:
    return password.encode("utf-16-be")


class _Reader:
    """Reads a store's bytes in order."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def number(self) -> int:
        (value,) = struct.unpack_from(">i", self._data, self._at)
        self._at += 4
        return int(value)

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError("ends too soon")
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def text(self) -> str:
        (size,) = struct.unpack(">H", self.take(2))
        return self.take(size).decode("utf-8", "replace")


def _entries(reader: _Reader) -> list[Entry]:
    if reader.take(4) != MAGIC:
        raise ValueError("another form")
    version, count = reader.number(), reader.number()

    def certificate() -> bytes:
        if version > 1:
            reader.text()
        return reader.take(reader.number())

    found = []
    for _ in range(count):
        kind, alias = reader.number(), reader.text()
        reader.take(8)
        if kind == _KEY:
            masked = reader.take(reader.number())
            found.append(Entry(alias, tuple(certificate() for _ in range(reader.number())), masked))
        elif kind == _TRUSTED:
            found.append(Entry(alias, (certificate(),)))
        else:
            raise ValueError("an entry of another kind")
    return found
