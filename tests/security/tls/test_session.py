"""TLS of one connection, without sockets: handshakes in any pieces, bytes in any pieces, and garbage."""

from __future__ import annotations

import contextlib
import ssl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.security.tls.session import MOST_OF_HANDSHAKE, Broken, Session
from tests.security.tls.conftest import Files


def server(files: Files, **options: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.server)
    context.options |= ssl.OP_NO_RENEGOTIATION
    for name, value in options.items():
        setattr(context, name, value)
    return context


class Other:
    """A client's side, in memory."""

    def __init__(self, files: Files, certificate: str | None = None, **options: object) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(files.ca)
        if certificate is not None:
            context.load_cert_chain(certificate)
        for name, value in options.items():
            setattr(context, name, value)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def shake(self, session: Session, piece: int = 1 << 16) -> None:
        """Complete the handshake, in pieces of this many bytes."""
        for _ in range(10):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
            data = memoryview(self.outgoing.read())
            if not data and session.is_open:
                return
            for at in range(0, len(data), piece):
                session.shake(data[at : at + piece])
            self.incoming.write(session.to_send())
        raise AssertionError("the handshake has no end")


@pytest.mark.parametrize("piece", [1, 7, 1 << 16])
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_handshake_in_pieces_and_bytes_both_ways(files: Files, piece: int, version: ssl.TLSVersion) -> None:
    session, other = Session(server(files)), Other(files, maximum_version=version)
    other.shake(session, piece)
    assert session.certificate() is None
    sent = bytes(range(256)) * 300
    other.tls.write(sent)
    data = memoryview(other.outgoing.read())
    room, got = memoryview(bytearray(1000)), b""
    for at in range(0, len(data), 5000):
        session.received(data[at : at + 5000])
        while session.has_more:
            count = session.read_into(room)
            if not count:
                break
            got += bytes(room[:count])
    assert got == sent
    session.write(sent)
    other.incoming.write(session.to_send())
    answer = b""
    while len(answer) < len(sent):
        answer += other.tls.read(1 << 16)
    assert answer == sent


def test_the_certificate_of_a_client_is_known(files: Files) -> None:
    context = server(files, verify_mode=ssl.CERT_REQUIRED)
    context.load_verify_locations(files.ca)
    session, other = Session(context), Other(files, files.client)
    other.shake(session)
    assert session.certificate() is not None


def test_the_end_is_told_and_can_be_read_again(files: Files) -> None:
    session, other = Session(server(files)), Other(files)
    other.shake(session)
    other.tls.write(b"last")
    with pytest.raises(ssl.SSLWantReadError):
        other.tls.unwrap()
    session.received(memoryview(other.outgoing.read()))
    room = memoryview(bytearray(100))
    assert session.read_into(room) == 4
    assert session.read_into(room) == 0
    assert session.ended
    assert session.read_into(room) == 0
    assert session.has_more  # the end itself


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\0\0\x12\0\x12\0\0", "Kafka's protocol without it"),
        (b"GET / HTTP/1.1\r\n\r\n", "looks like HTTP"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "looks like HTTP"),
        (b"\x16\x03\x01\x00\x05garbage and more", "[a-z]"),
        (b"\xff" * 100, "no TLS"),
    ],
)
def test_what_is_no_handshake_is_refused(files: Files, data: bytes, words: str) -> None:
    with pytest.raises(Broken, match=words):
        Session(server(files)).shake(memoryview(data))


def test_a_client_without_a_certificate_hears_why(files: Files) -> None:
    context = server(files, verify_mode=ssl.CERT_REQUIRED, maximum_version=ssl.TLSVersion.TLSv1_2)
    context.load_verify_locations(files.ca)
    session, other = Session(context), Other(files)
    with pytest.raises(Broken, match="peer did not return a certificate"):
        other.shake(session)
    assert session.has_to_send
    other.incoming.write(session.to_send())
    with pytest.raises(ssl.SSLError, match="ALERT_HANDSHAKE_FAILURE"):
        other.tls.do_handshake()


def test_a_record_that_was_changed_breaks_the_connection(files: Files) -> None:
    session, other = Session(server(files)), Other(files)
    other.shake(session)
    other.tls.write(b"secret" * 100)
    data = bytearray(other.outgoing.read())
    data[-1] ^= 1
    session.received(memoryview(data))
    with pytest.raises(Broken):
        session.read_into(memoryview(bytearray(1000)))


def test_a_handshake_without_end_is_given_up(files: Files) -> None:
    # A record of a handshake that is legal as far as it goes: a ClientHello that claims to be of 16 MB.
    hello = b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + bytes(0x4000 - 4)
    session = Session(server(files))

    def go_on() -> None:
        for _ in range(MOST_OF_HANDSHAKE // len(hello) + 2):
            session.shake(memoryview(hello))

    with pytest.raises(Broken):
        go_on()


@given(data=st.binary(min_size=1, max_size=400), piece=st.integers(1, 50))
def test_garbage_never_does_anything_else(data: bytes, piece: int, files: Files) -> None:
    session = Session(server(files))
    try:
        for at in range(0, len(data), piece):
            assert not session.shake(memoryview(b"\x16" + data if at == 0 else data[at : at + piece]))
    except Broken:
        pass
    assert not session.is_open


@given(data=st.data())
@settings(max_examples=60)
def test_a_handshake_that_is_changed_anywhere_never_opens_with_a_broken_client(
    data: st.DataObject, files: Files
) -> None:
    session, other = Session(server(files)), Other(files)
    with pytest.raises(ssl.SSLWantReadError):
        other.tls.do_handshake()
    hello = bytearray(other.outgoing.read())
    # What is before, the record's header, is hashed by nobody; its version counts for nothing (RFC 8446, 5.1).
    hello[data.draw(st.integers(5, len(hello) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        session.shake(memoryview(hello))
        other.incoming.write(session.to_send())
        other.tls.do_handshake()
        session.shake(memoryview(other.outgoing.read()))
    except (Broken, ssl.SSLError):
        pass
    else:  # what it hashes is what both have seen
        assert not session.is_open
