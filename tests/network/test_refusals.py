"""The log lines about refused connections, and about clients that speak another protocol."""

from __future__ import annotations

import logging
import socket

import pytest

from kbroker import Broker
from kbroker.network.frames import BadFrame, FrameBuffer
from kbroker.network.refused_connections import Refusals


class Loop:
    """Keeps timers until the test fires them."""

    def __init__(self):
        self.timers = []

    def call_later(self, _seconds, call, *arguments):
        self.timers.append((call, arguments))
        return self

    def cancel(self):
        self.timers.clear()

    def go_off(self):
        due, self.timers = self.timers, []
        for call, arguments in due:
            call(*arguments)


def test_many_are_one_line_a_second(caplog):
    loop = Loop()
    refusals = Refusals(loop)
    with caplog.at_level(logging.INFO, "kbroker.network"):
        for port in range(1000):
            refusals.log(f"127.0.0.1:{port}", "too many")
        refusals.log("127.0.0.1:1", "another reason")
        assert caplog.messages == [
            "refusing a connection from 127.0.0.1:0: too many",
            "refusing a connection from 127.0.0.1:1: another reason",
        ]
        loop.go_off()
        assert caplog.messages[2:] == ["refused 999 more connections: too many"]
        refusals.log("127.0.0.1:2", "too many")
        refusals.close()
        assert caplog.messages[3:] == ["refused 1 more connections: too many"]
        assert not loop.timers
    loop = Loop()
    refusals = Refusals(loop)
    refusals.log("127.0.0.1:1", "too many")
    loop.go_off()
    assert not loop.timers
    assert not refusals._counts


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"max.connections": "2"}, "too many connections (max.connections=2)"),
        ({"max.connections.per.ip": "2"}, "too many connections of one address (max.connections.per.ip)"),
        (
            {"max.connections.per.ip": "9", "max.connections.per.ip.overrides": "127.0.0.1:2"},
            "too many connections of one address (max.connections.per.ip.overrides)",
        ),
    ],
)
def test_the_key_is_named(settings, told, caplog):
    with caplog.at_level(logging.INFO, "kbroker.network"), Broker(settings) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        clients = [socket.create_connection((host, int(port)), timeout=10) for _ in range(20)]
        assert clients[-1].recv(1) == b"", "refused"
        for client in clients:
            client.close()
    lines = [line for line in caplog.messages if line.endswith(told)]
    assert len(lines) >= 2
    assert sum(int(line.split()[1]) if line.startswith("refused") else 1 for line in lines) == 18


@pytest.mark.parametrize(
    ("head", "spoken"),
    [
        (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", r"HTTP \(GET \.\.\.\)"),
        (b"POST /topics HTTP/1.1\r\n\r\n", r"HTTP \(POST \.\.\.\)"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", r"HTTP \(PRI \.\.\.\)"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "TLS: this listener speaks PLAINTEXT"),
        (b"\x7f\xff\xff\xff", None),
    ],
)
def test_what_a_client_speaks_is_told(head, spoken):
    buffer = FrameBuffer(100 << 20)
    with pytest.raises(BadFrame, match=spoken) as bad:
        list(buffer.cut(memoryview(head)))
    assert ("looks like" in str(bad.value)) == (spoken is not None)
    assert "socket.request.max.bytes" in str(bad.value)
