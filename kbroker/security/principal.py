"""The identity of a client: Kafka's KafkaPrincipal.

Owns its parts and its text, TYPE:NAME. Never determines an identity: the authentication methods do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

USER: Final = "User"
"""The type of every principal that authentication creates."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated identity. Comparisons of type and name are exact: upper and lower case differ."""

    kind: str
    name: str
    by_token: bool = field(default=False, compare=False)
    """Whether the client logged in with a delegation token; if so, it must not create further tokens."""

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Parse TYPE:NAME; the name may contain colons. Raises ValueError for anything else."""
        kind, colon, name = text.partition(":")
        if not colon or not kind:
            raise ValueError(f"{text!r} is not a principal like User:alice")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def printable(text: str) -> str:
    """Return a name in a safe form for the log: unprintable characters, such as line ends, are escaped."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""A client without a name: over a listener without authentication, or over TLS without a certificate."""
