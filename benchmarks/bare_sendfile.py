"""The machine's limit for sending: a bare loop of `os.sendfile` answers with 1 MB each, without a broker around it.

Owns the server, in its own process, and its load, in another: the same driver as for a broker's Fetch. The server reads
requests without interpreting them, and answers each with a size and as many bytes of a file.

    python -m benchmarks.bare_sendfile serve FILE      prints its port
    python -m benchmarks.bare_sendfile drive HOST:PORT REQUESTS
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.raw import connect, fetch_frame, pump

ANSWER_BYTES = 1 << 20
FILE_BYTES = 64 << 20
IN_FLIGHT = 5


def serve(path: str) -> None:
    """Serve one client after the other until killed."""
    fd = os.open(path, os.O_RDONLY)
    listening = socket.create_server(("127.0.0.1", 0))
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 102400)
    print(listening.getsockname()[1], flush=True)
    while True:
        sock, _ = listening.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        _serve(sock, fd)


def _serve(sock: socket.socket, fd: int) -> None:
    poller = select.epoll()
    poller.register(sock, select.EPOLLIN)
    head, kept, begin = struct.pack(">i", ANSWER_BYTES), b"", 0
    while True:
        poller.poll()
        data = sock.recv(1 << 16)
        if not data:
            return
        kept += data
        while len(kept) >= 4 and len(kept) >= (size := 4 + int.from_bytes(kept[:4], "big")):
            kept = kept[size:]
            sent = -len(head)
            begin = (begin + ANSWER_BYTES) % FILE_BYTES
            while sent < ANSWER_BYTES:
                try:
                    if sent < 0:
                        sent += sock.send(head[sent:], socket.MSG_MORE)
                    else:
                        sent += os.sendfile(sock.fileno(), fd, begin + sent, ANSWER_BYTES - sent)
                except BlockingIOError:
                    poller.modify(sock, select.EPOLLOUT)
                    poller.poll()
                    poller.modify(sock, select.EPOLLIN)


def drive(address: str, requests: int) -> None:
    """Request answers; print figures as JSON."""
    sock, frame = connect(address), fetch_frame("any", 0, 0, ANSWER_BYTES)
    pump(sock, [frame], requests // 20, IN_FLIGHT)
    seconds, _, received = pump(sock, [frame], requests, IN_FLIGHT)
    print(json.dumps({"mb_per_s": received / seconds / 1e6, "gb": received / 1e9}))


def measure(requests: int) -> dict[str, float]:
    """Run server and driver; return MB/s and the server's CPU seconds per GB."""
    from benchmarks.subjects import cpu_seconds

    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        path = Path(directory) / "file"
        path.write_bytes(bytes(FILE_BYTES))
        command = [sys.executable, "-m", "benchmarks.bare_sendfile"]
        server = subprocess.Popen([*command, "serve", str(path)], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            address = f"127.0.0.1:{server.stdout.readline().strip()}"
            before = cpu_seconds(server.pid)
            told = subprocess.run(
                [*command, "drive", address, str(requests)], capture_output=True, text=True, check=True
            )
            figures: dict[str, float] = json.loads(told.stdout)
            figures["cpu_s_per_gb"] = (cpu_seconds(server.pid) - before) / (figures["gb"] * 1.05)
            return figures
        finally:
            server.kill()
            server.communicate()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    else:
        drive(sys.argv[2], int(sys.argv[3]))
