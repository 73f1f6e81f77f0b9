"""The scalar encodings below the schema: varints, zig-zag.

Owns the bytes of single values. Never knows messages or versions.

    uvarint   7 bits a byte, low bits first, at most 5 bytes for 32 bits
    varint    a zig-zag encoded uvarint (used inside record batches)
"""

from __future__ import annotations

from kbroker.protocol.errors import Malformed

Buffer = bytes | bytearray | memoryview


def read_uvarint(buf: Buffer, pos: int) -> tuple[int, int]:
    """Return the unsigned varint at `pos` and the position behind it.

    Raises Malformed past five bytes, IndexError past the buffer.
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
