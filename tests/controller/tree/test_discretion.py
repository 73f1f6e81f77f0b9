"""What kazoo logs about connections, and what is left out."""

from __future__ import annotations

import logging
from binascii import hexlify
from typing import Any

import pytest
from kazoo.loggingsupport import BLATHER
from kazoo.protocol.serialization import Auth, Connect, Create, SetData, Transaction
from kazoo.protocol.states import ZnodeStat

from kbroker.controller.tree.zookeeper import Discreet

SECRET = b"ssl.key.password=secret"
STAT = ZnodeStat(*range(11))


@pytest.mark.parametrize(
    ("text", "arguments", "told"),
    [
        (
            "Sending request(xid=%s): %s",
            (1, Transaction([Create("/config/brokers/1", SECRET, [], 0), SetData("/a", SECRET, 3)])),
            "xid=1): Transaction(operations=[Create(path='/config/brokers/1', data=<23 bytes>, acl=[], flags=0), "
            "SetData(path='/a', data=<23 bytes>, version=3)])",
        ),
        ("Received response(xid=%s): %r", (2, (SECRET, STAT)), f"xid=2): (<23 bytes>, {STAT!r})"),
        ("Received response(xid=%s): %r", (3, ["brokers", "topics"]), "xid=3): ['brokers', 'topics']"),
        ("Read response %s", (Connect(0, 0, 6000, 9, SECRET, False),), "session_id=9, passwd=<23 bytes>"),
        (
            "    Using session_id: %r session_passwd: %s",
            (9, hexlify(SECRET)),
            "session_id: 9 session_passwd: <46 bytes>",
        ),
        ("Sending request(xid=%s): %s", (4, Auth(0, "digest", "kafka:secret")), ""),
    ],
)
def test_data_and_passwords_are_not_written(
    caplog: pytest.LogCaptureFixture, text: str, arguments: tuple[Any, ...], told: str
) -> None:
    log = logging.getLogger("tests.discreet")
    discreet = Discreet()
    log.addFilter(discreet)
    try:
        with caplog.at_level(BLATHER, log.name):
            log.log(BLATHER, text, *arguments)
    finally:
        log.removeFilter(discreet)
    assert told in caplog.text
    assert bool(told) == bool(caplog.text)
    assert "secret" not in caplog.text
    assert hexlify(SECRET).decode() not in caplog.text
