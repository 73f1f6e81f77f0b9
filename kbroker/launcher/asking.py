"""Asking a broker which brokers it knows.

Owns one Metadata request on a connection of its own. Blocks until its timeout at most.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

from kbroker.protocol.compiler import decode, encode
from kbroker.protocol.errors import Malformed
from kbroker.protocol.messages.cluster import MetadataRequest, MetadataResponse
from kbroker.protocol.messages.connections import RequestHeader

TIMEOUT_S: Final = 2.0
_METADATA: Final = 3
_VERSION: Final = 12  # Kafka 3.9 has it as well
_FLEXIBLE_HEADER: Final = 2
_HEAD: Final = 5  # of the answer: the correlation id, and an empty tag buffer
_MAX_ANSWER: Final = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Known:
    """A broker's view of its cluster; `controller` is -1 if there is none."""

    brokers: frozenset[int]
    controller: int


def ask_brokers(address: tuple[str, int], timeout_s: float = TIMEOUT_S) -> Known | None:
    """Return the view of the broker at an address; None without an answer, or with an invalid one."""
    header = encode(RequestHeader(_METADATA, _VERSION, 1, "kbroker-launcher"), _FLEXIBLE_HEADER)
    body = header + encode(MetadataRequest(topics=[], allow_auto_topic_creation=False), _VERSION)
    try:
        with socket.create_connection(address, timeout=timeout_s) as asked:
            asked.sendall(struct.pack(">i", len(body)) + body)
            size = struct.unpack(">i", _exactly(asked, 4))[0]
            if not _HEAD <= size <= _MAX_ANSWER:
                return None
            answer = decode(MetadataResponse, _VERSION, memoryview(_exactly(asked, size))[_HEAD:])
    except (OSError, Malformed, IndexError):
        return None
    return Known(frozenset(broker.node_id for broker in answer.brokers), answer.controller_id)


def _exactly(asked: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = asked.recv(min(size - len(received), 65536))
        if not piece:
            raise ConnectionError("the connection was closed")
        received += piece
    return bytes(received)
