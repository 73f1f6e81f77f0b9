"""How much of the wire a TLS connection reads in one step, whatever sizes its records have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kbroker.network.tls_channel import _RECEIVED_BYTES, TlsChannel
from kbroker.security.tls.session import Session
from tests.security.tls.conftest import Files
from tests.security.tls.test_session import Other, server

ROOM = 256 * 1024


class Wire:
    """A socket on which everything has already arrived."""

    def __init__(self, data: bytes) -> None:
        self.left = memoryview(data)

    def recv_into(self, room: memoryview) -> int:
        if not self.left:
            raise BlockingIOError
        count = min(len(room), len(self.left))
        room[:count] = self.left[:count]
        self.left = self.left[count:]
        return count


@pytest.fixture
def files(tmp_path: Any) -> Files:
    return Files(tmp_path)


def channel(files: Files, records: int, size: int) -> TlsChannel:
    """Return a channel after its handshake, to which a number of records of a given size have come."""
    session, other = Session(server(files)), Other(files)
    other.shake(session)
    session.to_send()
    for _ in range(records):
        other.tls.write(b"x" * size)
    made = TlsChannel.__new__(TlsChannel)
    made._session = session
    made._sock = Wire(other.outgoing.read())  # type: ignore[assignment]
    made._port = SimpleNamespace(received=memoryview(bytearray(_RECEIVED_BYTES)))  # type: ignore[assignment]
    made._ended = made._scheduled = False
    made._callback = None
    return made


def all_of(tls: TlsChannel) -> list[int]:
    """Read until nothing is left; return the result of each call."""
    counts, room = [], memoryview(bytearray(ROOM))
    while True:
        try:
            counts.append(tls.recv_into(room))
        except BlockingIOError:
            if not tls._sock.left:  # type: ignore[attr-defined]
                return counts


def test_records_of_one_byte_are_taken_a_few_at_a_time(files: Files) -> None:
    counts = all_of(channel(files, 20_000, 1))
    assert sum(counts) == 20_000
    assert max(counts) < 3000


def test_large_records_are_taken_as_far_as_there_is_room(files: Files) -> None:
    counts = all_of(channel(files, 64, 16 * 1024))
    assert sum(counts) == 64 * 16 * 1024
    assert counts[0] == ROOM
