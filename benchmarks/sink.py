"""The physical limit beside the brokers: only receive a frame, check its CRC, write it to a file, answer.

Implements no protocol beyond the frame; it answers every Produce with the same bytes.

    python -m benchmarks.sink PORT FILE
"""

from __future__ import annotations

import os
import socket
import struct
import sys

import crc32c

from benchmarks.raw import PRODUCE_VERSION
from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse

_CRC_FROM = 21


def answer() -> bytes:
    """Return the frame with which every request is answered."""
    body = encode(
        ProduceResponse(
            responses=[TopicProduceResponse(name="sink", partition_responses=[PartitionProduceResponse()])]
        ),
        PRODUCE_VERSION,
    )
    return struct.pack(">ii", len(body) + 5, 7) + b"\0" + body


def serve(port: int, path: str) -> None:
    """Serve one connection after the other until killed."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    buffer = bytearray(8 * 1024 * 1024)
    view = memoryview(buffer)
    reply = answer()
    with socket.create_server(("127.0.0.1", port)) as server:
        print("ready", flush=True)
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                _drain(connection, buffer, view, file, reply)


def _drain(connection: socket.socket, buffer: bytearray, view: memoryview, file: int, reply: bytes) -> None:
    filled = 0
    while got := connection.recv_into(view[filled:]):
        filled += got
        position, replies = 0, 0
        while filled - position >= 4:
            (size,) = struct.unpack_from(">i", buffer, position)
            if filled - position < 4 + size:
                break
            crc32c.crc32c(view[position + 4 + _CRC_FROM : position + 4 + size])
            os.write(file, view[position : position + 4 + size])
            position += 4 + size
            replies += 1
        if replies:
            connection.sendall(reply * replies)
            view[: filled - position] = bytes(view[position:filled])
            filled -= position


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
