"""The bytes of coordinators' records: an int16 (the type in a key, the version in a value), then a message.

Reads like Kafka's CoordinatorRecordSerde: bytes behind a message are skipped, and in a string that is not valid UTF-8,
U+FFFD replaces the invalid bytes.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar, cast

from kbroker.protocol.compiler import encoder, stored_decoder
from kbroker.protocol.errors import ApiError, ErrorCode, Malformed

_UNENCODABLE = (struct.error, UnicodeEncodeError, OverflowError)
_T = TypeVar("_T")


def read_prefix(data: bytes, what: str) -> int:
    """Return the type or version at the beginning of a `what` (key, value); raises Malformed if it is too short."""
    if len(data) < 2:
        raise Malformed(f"its {what} has {len(data)} bytes, and no version")
    return int.from_bytes(data[:2], "big", signed=True)


def decode_value(cls: type[_T], value: bytes) -> _T:
    """Return the message in a value; raises Malformed, also for an unknown version, as in Kafka."""
    version = read_prefix(value, "value")
    if version not in cast("Any", cls).VERSIONS:
        raise Malformed(f"its value has version {version}, which {cls.__name__} does not have")
    return stored_decoder(cls, version)(memoryview(value)[2:])


def encode(prefix: int, message: Any, version: int) -> bytes:
    """Return int16 `prefix` and a message. A string that is too long for the format is an error of the request."""
    out = bytearray(prefix.to_bytes(2, "big"))
    try:
        encoder(type(message), version)(message, out, [])
    except _UNENCODABLE as err:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR) from err
    return bytes(out)
