"""The bytes of coordinators' records: an int16 (the type in a key, the version in a value), then a message."""

from __future__ import annotations

import struct
from typing import Any

from kbroker.protocol.compiler import encoder
from kbroker.protocol.errors import ApiError, ErrorCode

_UNENCODABLE = (struct.error, UnicodeEncodeError, OverflowError)


def encode(prefix: int, message: Any, version: int) -> bytes:
    """Return int16 `prefix` and a message. A string too long for the format is an error of the request, not of ours."""
    out = bytearray(prefix.to_bytes(2, "big"))
    try:
        encoder(type(message), version)(message, out, [])
    except _UNENCODABLE as err:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from err
    return bytes(out)
