"""DER, as far as certificates and key stores need it: one element after the other.

Owns tags and lengths. Never knows what an element means. Raises IndexError or ValueError for truncated data.
"""

from __future__ import annotations

from collections.abc import Iterator


def elements(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield the tag, the contents and the whole of each element."""
    while data:
        tag, value, whole = element(data)
        yield tag, value, whole
        data = data[len(whole) :]


def element(data: memoryview) -> tuple[int, memoryview, memoryview]:
    """Return the tag, the contents and the whole of the first element."""
    tag, size, begin = data[0], data[1], 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[2:begin], "big")
    end = begin + size
    if end > len(data):
        raise ValueError("an element ends behind what holds it")
    return tag, data[begin:end], data[:end]
