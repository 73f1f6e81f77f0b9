"""One connection's TLS: bytes of the wire in and out, bytes of the application in and out.

Owns the handshake and the records, in OpenSSL's memory. Owns also the detection of clients that use a wrong protocol
for their port: HTTP, TLS on a port without TLS, plaintext on a port with TLS. Never uses a socket, a clock or a loop.
The memory of a session is limited to the bytes that it received since its last request for more.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

from kbroker.security.tls.contexts import reason_of

_HTTP: Final = frozenset({b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI "})
"""The first 4 bytes of HTTP's methods, and of HTTP/2's preface."""
_TLS_HANDSHAKE: Final = b"\x16\x03"


def plain_protocol(head: bytes) -> str | None:
    """Return the wrong protocol of a client on a port without TLS, from its first 4 bytes; None if unknown."""
    if head in _HTTP:
        return f"HTTP ({head.decode().strip()} ...): this port speaks Kafka's protocol"
    if head[:2] == _TLS_HANDSHAKE:
        return "TLS: this listener speaks PLAINTEXT (the client's security.protocol)"
    return None


def protocol_without_tls(head: bytes) -> str | None:
    """Return the wrong protocol of a client on a port with TLS, from its first 4 bytes; None if unknown."""
    if head[:1] == b"\0":
        return "Kafka's protocol without it (the client's security.protocol)"
    return "HTTP" if head in _HTTP else None


FIRST_BYTE = 0x16
"""The first byte of a client's first record, which is a handshake record."""
MOST_OF_HANDSHAKE = 256 * 1024
"""The maximum number of bytes that a client may send before its handshake is finished."""


class Broken(Exception):  # noqa: N818 - an outcome
    """The other side's bytes are invalid; the message gives the reason.

    `to_send` then returns the TLS alert for the other side.
    """


class Session:
    """The TLS session of one connection, on the server's side."""

    __slots__ = ("_incoming", "_outgoing", "_taken", "_tls", "ended", "is_open")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._taken = 0
        self.is_open = False
        """Whether the handshake is done."""
        self.ended = False
        """Whether the other side has sent close_notify."""

    def shake(self, data: memoryview) -> bool:
        """Process bytes of a handshake; return whether the handshake is done. Raises Broken."""
        if not self._taken and data and data[0] != FIRST_BYTE:
            protocol = protocol_without_tls(bytes(data[:4]))
            raise Broken(f"this is no TLS, but looks like {protocol}" if protocol else "this is no TLS")
        self._taken += len(data)
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            if self._taken > MOST_OF_HANDSHAKE:
                raise Broken(f"a handshake of more than {MOST_OF_HANDSHAKE} bytes") from None
            return False
        except ssl.SSLError as error:
            raise Broken(reason_of(error)) from None
        self.is_open = True
        return True

    def certificate(self) -> bytes | None:
        """Return the other side's accepted certificate (DER), or None."""
        return self._tls.getpeercert(binary_form=True)

    def describe(self) -> str:
        """Return the version and the cipher, for the log."""
        cipher = self._tls.cipher()
        return f"{self._tls.version()} {cipher[0] if cipher else ''}".strip()

    @property
    def has_more(self) -> bool:
        """Whether data may be read without another byte from the wire."""
        return bool(self._incoming.pending or self._tls.pending() or self.ended)

    def received(self, data: memoryview) -> None:
        """Add bytes from the wire. The caller must have read all earlier bytes."""
        self._incoming.write(data)

    def read_into(self, room: memoryview) -> int:
        """Fill `room` with the available bytes; return their number. Raises Broken."""
        tls, incoming, filled, size = self._tls, self._incoming, 0, len(room)
        try:
            while filled < size and (incoming.pending or tls.pending()):
                count = tls.read(size - filled, room[filled:])
                if not count:
                    self.ended = True
                    break
                filled += count  # type: ignore[operator]  # a number where there is a buffer
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise Broken(reason_of(error)) from None
        return filled

    def write(self, data: memoryview | bytes | bytearray) -> None:
        """Encrypt bytes. Raises Broken."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise Broken(reason_of(error)) from None

    def to_send(self) -> bytes:
        """Remove and return the bytes that must be sent."""
        return self._outgoing.read()

    @property
    def has_to_send(self) -> bool:
        return bool(self._outgoing.pending)

    def close(self) -> None:
        """Close the sending direction."""
        if self.is_open:
            with contextlib.suppress(ssl.SSLError, ValueError):  # raised because the other side has not closed yet
                self._tls.unwrap()
