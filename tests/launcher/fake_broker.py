"""The fake broker for the launcher: it reads the options of `kbroker start` and answers Metadata.

Brokers know each other through files beside their data. `--set fake.failure=TEXT` makes one end immediately with that
line; `fake.deaf` makes it ignore SIGTERM, `fake.silent` makes it answer nothing.
"""

from __future__ import annotations

import os
import signal
import socketserver
import struct
import sys
import time
from pathlib import Path

from kbroker.protocol.compiler import encode
from kbroker.protocol.messages.cluster import MetadataResponse, MetadataResponseBroker
from kbroker.protocol.messages.connections import ResponseHeader


def main(arguments: list[str]) -> None:
    assert arguments[0] == "start"
    options = list(zip(arguments[1::2], arguments[2::2], strict=True))
    settings = dict(value.split("=", 1) for name, value in options if name == "--set")
    data = Path(next(value for name, value in options if name == "--data-dir"))
    data.mkdir(parents=True, exist_ok=True)
    whole = data.parent.parent
    if settings.get("fake.failure") and settings["broker.id"] == "2":
        deadline = time.monotonic() + 60
        while not (whole / "fake-1").exists() and time.monotonic() < deadline:
            time.sleep(0.01)  # broker 1 says in which order it was stopped, which it can only once it listens
        sys.exit(f"kbroker: {settings['fake.failure']}")
    me = whole / f"fake-{settings['broker.id']}"
    host, port = settings["listeners"].removeprefix("PLAINTEXT://").rsplit(":", 1)
    print("settings", sorted(settings.items()), flush=True)

    def stop(*_: object) -> None:
        if "fake.deaf" not in settings:
            me.unlink()
            with open(whole / "order", "a") as order:
                order.write(f"{settings['broker.id']}\n")
            os._exit(0)

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            size = struct.unpack(">i", self.request.recv(4))[0]
            while size:
                size -= len(self.request.recv(size))
            if "fake.silent" in settings:
                return
            known = sorted(
                int(each.name.removeprefix("fake-")) for each in whole.glob("fake-*") if _runs(int(each.read_text()))
            )
            brokers = [MetadataResponseBroker(node_id=each, host=host, port=1) for each in known]
            answer = MetadataResponse(brokers=brokers, controller_id=known[0])
            body = encode(ResponseHeader(1), 1) + encode(answer, 12)
            self.request.sendall(struct.pack(">i", len(body)) + body)

    signal.signal(signal.SIGTERM, stop)
    socketserver.ThreadingTCPServer.allow_reuse_address = True
    socketserver.ThreadingTCPServer.daemon_threads = True
    with socketserver.ThreadingTCPServer((host, int(port)), Answer) as server:
        me.write_text(str(os.getpid()))
        server.serve_forever(0.02)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
