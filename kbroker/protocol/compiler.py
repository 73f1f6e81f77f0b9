"""Turns a declared message into straight-line decode and encode functions, one per (class, version), on first use.

Owns the cache of these functions, and their interface: their forms, and the call of each form. decoder_source.py and
encoder_source.py write the code of the functions. Never does I/O, and keeps no state except its caches.

Decoding takes any buffer that ends with the message; `records` fields decoded from a memoryview are views on it. Each
function also has a divided form for messages with long lists: a coroutine that yields. Encoding appends to a bytearray.
A `records` value that is large or is not a bytes object is omitted from the output and added to `spill` as (position in
the output, value), so that the transport can send it without a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar, cast

from kbroker.protocol.decoder_source import DecoderSource
from kbroker.protocol.encoder_source import EncoderSource
from kbroker.protocol.wire import Buffer

Decoder = Callable[[Buffer], Any]
Spill = list[tuple[int, Any]]
Encoder = Callable[[Any, bytearray, Spill], None]
DividedDecoder = Callable[[Buffer, Callable[[int], None]], Coroutine[Any, Any, Any]]
"""Called with the buffer, and with a function that receives the size in bytes of each list before it is allocated."""
DividedEncoder = Callable[[Any, bytearray, Spill], Coroutine[Any, Any, None]]
_T = TypeVar("_T")


def decoder(cls: type[_T], version: int) -> Callable[[Buffer], _T]:
    """Return the function that decodes version `version` of `cls`. The function raises Malformed for bad input."""
    return cast("Callable[[Buffer], _T]", _decoder(cast("Any", cls), version))


def encoder(cls: type[Any], version: int) -> Encoder:
    """Return the function that appends version `version` of a `cls` to a bytearray."""
    return _encoder(cast("Any", cls), version)


def short_decoder(cls: type[_T], version: int) -> Callable[[Buffer], _T | None]:
    """Return a decoder that returns None if any list is longer than SHORT_LIST."""
    return cast("Callable[[Buffer], _T | None]", _decoder(cast("Any", cls), version, "short"))


def stored_decoder(cls: type[_T], version: int) -> Callable[[Buffer], _T]:
    """Return a decoder of stored messages. As in Java, it replaces invalid UTF-8 with U+FFFD."""
    return cast("Callable[[Buffer], _T]", _decoder(cast("Any", cls), version, "stored"))


def exact_decoder(cls: type[_T], version: int) -> Callable[[Buffer], _T]:
    """Return a decoder of stored messages that also raises Malformed for bytes after the message."""
    return cast("Callable[[Buffer], _T]", _decoder(cast("Any", cls), version, "exact"))


def divided_decoder(cls: type[Any], version: int) -> DividedDecoder:
    """Return the decoder as a coroutine, which raises Malformed and the errors of its memory counter."""
    return cast("DividedDecoder", _decoder(cast("Any", cls), version, "divided"))


def divided_encoder(cls: type[Any], version: int) -> DividedEncoder:
    """Return the encoder as a coroutine."""
    return cast("DividedEncoder", _encoder(cast("Any", cls), version, "divided"))


def decode(cls: type[_T], version: int, buf: Buffer) -> _T:
    """Decode one message. Raises Malformed."""
    return decoder(cls, version)(buf)


def encode(value: Any, version: int) -> bytes:
    """Encode one message into a single buffer, including its records."""
    return b"".join([bytes(part) for part in encode_in_parts(value, version)])


def encode_in_parts(value: Any, version: int) -> list[Any]:
    """Encode one message into consecutive buffers. The message's records are among these buffers and are not copied."""
    out = bytearray()
    spill: Spill = []
    _encoder(cast("Any", type(value)), version)(value, out, spill)
    parts: list[Any] = []
    last = 0
    for pos, piece in spill:
        parts += [out[last:pos], piece]
        last = pos
    return [*parts, out[last:]]


@cache
def _decoder(cls: Any, version: int, form: str = "") -> Decoder:
    _check_version(cls, version)
    return cast("Decoder", DecoderSource(cls, version, form).build())


@cache
def _encoder(cls: Any, version: int, form: str = "") -> Encoder:
    _check_version(cls, version)
    return cast("Encoder", EncoderSource(cls, version, form).build())


def _check_version(cls: Any, version: int) -> None:
    if version not in cls.VERSIONS:
        raise ValueError(f"{cls.__name__} has no version {version}")
