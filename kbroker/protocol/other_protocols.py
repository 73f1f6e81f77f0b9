"""What a client speaks whose first bytes are no frame of Kafka's: HTTP, TLS at a port without, none at a port with it.

Owns how those begin, and the words in which the log tells of them. Never reads a stream.
"""

from __future__ import annotations

from typing import Final

_HTTP: Final = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "})
"""How its methods begin, and the preface of HTTP/2."""
_TLS_HANDSHAKE: Final = b"\x16\x03"


def spoken_in_clear(head: bytes) -> str | None:
    """Return what begins with these 4 bytes at a port without TLS; None where they tell nothing."""
    if head in _HTTP:
        return f"HTTP ({head.decode().strip()} ...): this port speaks Kafka's protocol"
    if head[:2] == _TLS_HANDSHAKE:
        return "TLS: this listener speaks PLAINTEXT (the client's security.protocol)"
    return None


def spoken_without_tls(head: bytes) -> str | None:
    """Return what begins with these 4 bytes at a port with TLS; None where they tell nothing."""
    if head[:1] == b"\0":
        return "Kafka's protocol without it (the client's security.protocol)"
    return "HTTP" if head in _HTTP else None
