"""Ids of topics, directories and members: their creation, and their text.

Owns Kafka's text form, url-safe base64 without padding (22 characters), and the reserved ids. The schema has their
bytes in messages.
"""

from __future__ import annotations

import base64
import binascii
import os

from kbroker.protocol.wire import Buffer

ZERO_UUID = bytes(16)
RESERVED_UUIDS = (ZERO_UUID, bytes(15) + b"\x01")
"""Ids that Kafka never assigns."""


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
    """Return the 16 bytes of a text; raises ValueError."""
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error as err:
        raise ValueError(f"not a uuid: {text!r}") from err
    if len(raw) != 16:
        raise ValueError(f"not a uuid: {text!r}")
    return raw
