"""The encodings of single values: varints, zig-zag, and the ids of topics, directories and members.

Owns the bytes of single values, and Kafka's text form of an id: url-safe base64 without padding (22 characters). Knows
nothing about messages or versions.

    uvarint   7 bits a byte, low bits first, at most 5 bytes for 32 bits
    varint    a zig-zag encoded uvarint (used inside record batches)
"""

from __future__ import annotations

import base64
import binascii
import os

from kbroker.protocol.errors import Malformed

Buffer = bytes | bytearray | memoryview


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Return the unsigned varint at `pos` and the position after it.

    Raises Malformed after five bytes, and IndexError at the end of the buffer.
    """
    value = shift = 0
    while True:
        byte = buf[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
        if shift > 28:
            raise Malformed("varint is longer than five bytes")


def write_uvarint(out: bytearray, value: int) -> None:
    """Append `value` (0 to 2^32-1) as an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


ZERO_UUID = bytes(16)
RESERVED_UUIDS = (ZERO_UUID, bytes(15) + b"\x01")
"""The ids that Kafka never assigns."""


def new_uuid() -> bytes:
    """Return a random version 4 uuid whose text does not begin with a dash (as Uuid.randomUuid does)."""
    while True:
        raw = bytearray(os.urandom(16))
        raw[6] = raw[6] & 0x0F | 0x40
        raw[8] = raw[8] & 0x3F | 0x80
        if bytes(raw) not in RESERVED_UUIDS and not uuid_text(raw).startswith("-"):
            return bytes(raw)


def uuid_text(raw: Buffer) -> str:
    """Return Kafka's text form of a uuid: url-safe base64 without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """Return the 16 bytes of an id's text form. Raises ValueError."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as err:
        raise ValueError(f"not a uuid: {text!r}") from err
    if len(raw) != 16:
        raise ValueError(f"not a uuid: {text!r}")
    return raw
