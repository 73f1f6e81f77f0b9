"""PEM: the blocks of a text, as Kafka accepts them in a file or in a setting; DER: the elements of their data.

Owns the reading and writing of blocks, and the tags and lengths of DER. A setting may contain blanks instead of line
breaks. Never interprets an element, nor reads a file. Truncated DER raises IndexError or ValueError.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_HEADER: Final = re.compile(r"^[A-Za-z-]+:.*$", re.MULTILINE)


class BadPem(Exception):  # noqa: N818 - named after the text
    """A text is not PEM; the message contains the reason, and no part of the text."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block from BEGIN to END: `text` is a PEM text of its own, `data` are the decoded bytes."""

    label: str
    data: bytes = field(repr=False)
    text: str = field(repr=False)

    @property
    def is_certificate(self) -> bool:
        return self.label in ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")

    @property
    def is_key(self) -> bool:
        return self.label.endswith("PRIVATE KEY")


def blocks(text: str) -> list[Block]:
    """Return the blocks of a text in order. Raises BadPem if a block cannot be decoded."""
    found = []
    for label, body in _BLOCK.findall(text):
        if _HEADER.search(body) is not None:  # an encrypted key in OpenSSL's older form: keep its headers
            found.append(Block(label, b"", f"-----BEGIN {label}-----{body}-----END {label}-----\n"))
            continue
        try:
            data = base64.b64decode("".join(body.split()), validate=True)
        except binascii.Error:
            raise BadPem(f"a block {label} is not of base64") from None
        found.append(Block(label, data, write(label, data)))
    return found


def write(label: str, data: bytes) -> str:
    """Return one block as text."""
    encoded = base64.b64encode(data).decode("ascii")
    lines = [encoded[at : at + 64] for at in range(0, len(encoded), 64)]
    return "\n".join([f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", ""])


def elements(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield the tag, the contents and the complete bytes of each element."""
    while data:
        tag, value, whole = element(data)
        yield tag, value, whole
        data = data[len(whole) :]


def element(data: memoryview) -> tuple[int, memoryview, memoryview]:
    """Return the tag, the contents and the complete bytes of the first element."""
    tag, size, begin = data[0], data[1], 2
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(data[2:begin], "big")
    end = begin + size
    if end > len(data):
        raise ValueError("an element ends after the end of its parent")
    return tag, data[begin:end], data[:end]
