"""Recognizes clients of other protocols by their first bytes: HTTP; TLS on a port without it; no TLS on a port with it.

Owns the first bytes of these protocols, and their descriptions for the log. Never reads a stream.
"""

from __future__ import annotations

from typing import Final

_HTTP: Final = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "})
"""The beginnings of its methods, and of the preface of HTTP/2."""
_TLS_HANDSHAKE: Final = b"\x16\x03"


def spoken_in_clear(head: bytes) -> str | None:
    """Return the protocol that begins with these 4 bytes on a port without TLS, or None if it is unknown."""
    if head in _HTTP:
        return f"HTTP ({head.decode().strip()} ...): this port speaks Kafka's protocol"
    if head[:2] == _TLS_HANDSHAKE:
        return "TLS: this listener speaks PLAINTEXT (the client's security.protocol)"
    return None


def spoken_without_tls(head: bytes) -> str | None:
    """Return the protocol that begins with these 4 bytes on a port with TLS, or None if it is unknown."""
    if head[:1] == b"\0":
        return "Kafka's protocol without it (the client's security.protocol)"
    return "HTTP" if head in _HTTP else None
