"""The quiet client: requests ApiVersions each millisecond and records its waits. A separate process.

    python -m tests.fair.quiet <host:port>       "begin" and "end" on its input; at each of them a line of JSON

Owns the waits. Never shares an interpreter with a loud client.
"""

from __future__ import annotations

import json
import select
import sys
import time

from compat_tests.wire.client import WireClient
from kbroker.protocol.messages.connections import ApiVersionsRequest

PAUSE_SECONDS = 0.001


def _told(waits: list[float]) -> dict[str, float]:
    """Return the figures of sorted waits, in seconds."""
    if not waits:
        return {}
    at = {"longest": 1.0, "p99": 0.99, "middle": 0.5}
    return {name: waits[min(int(len(waits) * share), len(waits) - 1)] for name, share in at.items()} | {
        "asked": len(waits)
    }


def main(address: str) -> None:
    waits: list[float] = []
    request = ApiVersionsRequest(client_software_name="quiet", client_software_version="1")
    with WireClient(address, client_id="quiet") as client:
        while True:
            if select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
                if not sys.stdin.readline():
                    return
                waits.sort()
                told = _told(waits)
                print(json.dumps(told), flush=True)
                waits.clear()
            started = time.perf_counter()
            client.ask(request, 3)
            waits.append(time.perf_counter() - started)


if __name__ == "__main__":
    main(sys.argv[1])
