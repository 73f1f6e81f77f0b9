"""How `kbroker produce` reads a record from a line: headers, key and value, like kafka-console-producer's reader.

Owns the separators and the marker of null. Never sends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_OVERHEAD = 64
Headers = list[tuple[str, bytes]]


class Message(NamedTuple):
    """A record as read from a line."""

    key: bytes | None
    value: bytes
    headers: Headers

    @property
    def size(self) -> int:
        """Return its approximate size in memory, in bytes."""
        told = sum(len(name) + len(value) for name, value in self.headers)
        return _OVERHEAD + len(self.key or b"") + len(self.value) + told


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The form HEADERS delimiter KEY separator VALUE, of which all but the value may be missing."""

    key_separator: bytes | None = None
    headers_delimiter: bytes | None = None
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    empty_is_null: bool = False

    def parse(self, line: bytes) -> Message:
        """Return the record of a line; a null value is kept as typed, `is_null` recognizes it."""
        value = line.removesuffix(b"\n")
        headers: Headers = []
        if self.headers_delimiter is not None and self.headers_delimiter in value:
            told, _, value = value.partition(self.headers_delimiter)
            headers = [self._header(each) for each in told.split(self.headers_separator) if each]
        key = None
        if self.key_separator is not None and self.key_separator in value:
            key, _, value = value.partition(self.key_separator)
        return Message(None if key is None or self.is_null(key) else key, value, headers)

    def is_null(self, data: bytes) -> bool:
        """Return whether a key or a value stands for null."""
        return (self.empty_is_null and not data) or (self.null_marker is not None and data == self.null_marker)

    def _header(self, text: bytes) -> tuple[str, bytes]:
        """Return a header; the client here cannot send null headers."""
        name, _, value = text.partition(self.headers_key_separator)
        return name.decode("utf-8", "replace"), value
