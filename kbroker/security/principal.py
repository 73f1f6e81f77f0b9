"""Who a client is: Kafka's KafkaPrincipal.

Owns its parts and its text, TYPE:NAME. Never finds out who somebody is: the ways of authentication do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

USER: Final = "User"
"""The type of every principal that authentication makes."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who has authenticated. Type and name are compared as they are, upper and lower case apart."""

    kind: str
    name: str
    by_token: bool = field(default=False, compare=False)
    """Whether a delegation token was shown: then its owner may not get more of them."""

    @classmethod
    def parse(cls, text: str) -> Principal:
        """Read TYPE:NAME; the name may have colons. Raises ValueError for anything else."""
        kind, colon, name = text.partition(":")
        if not colon or not kind:
            raise ValueError(f"{text!r} is not a principal like User:alice")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def printable(text: str) -> str:
    """Return a name as a line of the log may have it: what does not print, as the end of a line, is escaped."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


ANONYMOUS: Final = Principal(USER, "ANONYMOUS")
"""Whoever comes without a name: by a listener without authentication, or by TLS without a certificate."""
