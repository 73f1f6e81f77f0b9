"""Confluent's wire format, in which a key or a value names its schema.

    in front of the data    0, id u32
    in a header             0, id u32  or  1, GUID of 16 bytes; the data then have nothing in front of them

The header is `__key_schema_id` or `__value_schema_id`, and has precedence over the data. For Protobuf the indexes of
the message follow the id or GUID. In this code the token is the 5 bytes of 0 and id, or the 17 bytes of 1 and GUID. If
the bytes at this position are invalid, they are called the token, too.
"""

from __future__ import annotations

from typing import Final

ID_BYTES: Final = 5
GUID_BYTES: Final = 17
KEY_HEADER: Final = b"__key_schema_id"
VALUE_HEADER: Final = b"__value_schema_id"


def split(data: bytes, header: bytes | None) -> tuple[bytes, bytes]:
    """Return the token of a key or value, and the data after it; `header` is the header's content, if it exists."""
    if header is None:
        return data[:ID_BYTES], data[ID_BYTES:]
    length = token_length(header)
    return header[:length], header[length:] + data


def token_length(header: bytes) -> int:
    """Return the length in bytes of the token at the start of a header's content."""
    return GUID_BYTES if header[:1] == b"\x01" else ID_BYTES


def id_of(token: bytes) -> int | None:
    """Return the id that a token contains, or None."""
    return int.from_bytes(token[1:]) if len(token) == ID_BYTES and token[0] == 0 else None


def guid_of(token: bytes) -> bytes | None:
    """Return the GUID that a token contains, or None."""
    return token[1:] if len(token) == GUID_BYTES and token[0] == 1 else None


def fault_of(token: bytes) -> str | None:
    """Return the reason for which a token names no schema, or None if it names one."""
    if id_of(token) is not None or guid_of(token) is not None:
        return None
    if not token:
        return "is empty, and so names no schema"
    if token[0]:
        return f"begins with the byte {token[0]}, not with the id of a schema"
    return f"has only {len(token)} bytes where it should name a schema"
